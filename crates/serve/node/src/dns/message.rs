//! Bytes of a query to bytes of an answer, or to what has to be asked upstream first.

use super::answer::{self, Answer, Outcome};
use super::zone::Zone;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::Name;
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

/// Largest answer over UDP that crosses any path unfragmented (DNS flag day 2020), in bytes.
const DATAGRAM_BYTES_MAX: u16 = 1232;
/// Largest answer over UDP to a client without EDNS (RFC 1035, section 4.2.1), in bytes.
const PLAIN_DATAGRAM_BYTES_MAX: u16 = 512;
/// The EDNS version this server speaks.
const EDNS_VERSION: u8 = 0;

/// How a query came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// What to do with a query.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing: it is no query, and answering it could start a loop.
    Drop,
    /// Send these bytes.
    Reply(Vec<u8>),
    /// Ask upstream and pass its answer on.
    Forward(Message),
    /// Ask upstream for the addresses of `target`, and append them to `answer`.
    Follow { request: Message, answer: Answer, target: Name },
}

/// Decides about one query.
pub(crate) fn plan(bytes: &[u8], zone: &Zone, transport: Transport, rotation: usize) -> Step {
    let request = match Message::read(&mut BinDecoder::new(bytes)) {
        Ok(request) => request,
        Err(_) => return malformed(bytes),
    };
    if request.metadata.message_type == MessageType::Response {
        return Step::Drop;
    }
    let refuse = |code| Step::Reply(reply(&request, answer::bare(code), transport));
    if request.metadata.op_code != OpCode::Query {
        return refuse(ResponseCode::NotImp);
    }
    if request.edns.as_ref().is_some_and(|e| e.version() > EDNS_VERSION) {
        return refuse(ResponseCode::BADVERS);
    }
    let [question] = request.queries.as_slice() else { return refuse(ResponseCode::FormErr) };
    match answer::answer(zone, question, rotation) {
        Outcome::Answer(answer) => Step::Reply(reply(&request, answer, transport)),
        Outcome::Follow(answer, target) => Step::Follow { request, answer, target },
        Outcome::Forward => Step::Forward(request),
    }
}

/// FORMERR for a query whose header can be read, silence otherwise (and for answers).
fn malformed(bytes: &[u8]) -> Step {
    let &[high, low, flags, ..] = bytes else { return Step::Drop };
    if bytes.len() < 12 || flags & 0x80 != 0 {
        return Step::Drop;
    }
    let id = u16::from_be_bytes([high, low]);
    let message = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
    message.to_vec().map_or(Step::Drop, Step::Reply)
}

/// Encodes `answer` to `request`, truncated when it would not fit the client's datagram.
pub(crate) fn reply(request: &Message, answer: Answer, transport: Transport) -> Vec<u8> {
    let mut message = Message::new(request.metadata.id, MessageType::Response, request.metadata.op_code);
    message.metadata.recursion_desired = request.metadata.recursion_desired;
    message.metadata.recursion_available = true;
    message.metadata.authoritative = matches!(answer.code, ResponseCode::NoError | ResponseCode::NXDomain);
    message.metadata.response_code = answer.code;
    message.add_queries(request.queries.iter().cloned());
    message.answers = answer.answers;
    message.authorities = answer.authorities;
    message.additionals = answer.additionals;
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(DATAGRAM_BYTES_MAX).set_version(EDNS_VERSION);
        edns.set_rcode_high(answer.code.high());
        message.set_edns(edns);
    }
    let bytes = encode(&message);
    let limit = match transport {
        Transport::Tcp => usize::from(u16::MAX),
        Transport::Udp => usize::from(datagram_limit(request)),
    };
    if bytes.len() <= limit {
        return bytes;
    }
    // Addresses of SRV targets are a courtesy: without them the answer may fit (RFC 2181, section 9).
    message.additionals.clear();
    let bytes = encode(&message);
    if bytes.len() <= limit { bytes } else { encode(&message.truncate()) }
}

/// An answer that says only `code`.
pub(crate) fn refusal(request: &Message, code: ResponseCode, transport: Transport) -> Vec<u8> {
    reply(request, answer::bare(code), transport)
}

/// The largest answer that the sender of `request` takes over UDP.
pub(crate) fn datagram_limit(request: &Message) -> u16 {
    if request.edns.is_none() {
        PLAIN_DATAGRAM_BYTES_MAX
    } else {
        request.max_payload().min(DATAGRAM_BYTES_MAX)
    }
}

/// A query to an upstream server for the records of `target` that `request` asked for.
pub(crate) fn follow_up(request: &Message, target: &Name) -> Message {
    let kind = request.queries.first().map_or(hickory_proto::rr::RecordType::A, Query::query_type);
    let mut message = Message::new(request.metadata.id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(target.clone(), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(DATAGRAM_BYTES_MAX);
    message.set_edns(edns);
    message
}

/// A message that cannot be encoded (a name over 255 bytes) becomes an empty one, which clients ignore.
pub(crate) fn encode(message: &Message) -> Vec<u8> {
    message.to_vec().unwrap_or_else(|error| {
        tracing::warn!(%error, "could not encode a DNS message");
        Vec::new()
    })
}

#[cfg(test)]
mod tests;
