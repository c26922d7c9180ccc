use super::*;
use crate::dns::zone::tests::zone;
use hickory_proto::rr::RecordType;
use proptest::prelude::{any, proptest};

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn replied(request: &Message, transport: Transport) -> Message {
    match plan(&request.to_vec().unwrap(), &zone(), transport, 0) {
        Step::Reply(bytes) => Message::from_vec(&bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_repeats_id_question_and_flags() {
    let mut request = query("web.shop.svc.cluster.local.", RecordType::A);
    request.metadata.recursion_desired = true;
    let reply = replied(&request, Transport::Udp);
    assert_eq!((reply.metadata.id, &reply.queries), (7, &request.queries));
    assert!(reply.metadata.authoritative && reply.metadata.recursion_available);
    assert!(reply.metadata.recursion_desired && !reply.metadata.truncation);
    assert_eq!((reply.answers.len(), reply.edns), (1, None));
}

#[track_caller]
fn check_refused(change: impl FnOnce(&mut Message), expected: ResponseCode) {
    let mut request = query("web.shop.svc.cluster.local.", RecordType::A);
    change(&mut request);
    let reply = replied(&request, Transport::Udp);
    // By number: 16 is both BADVERS and BADSIG.
    assert_eq!((u16::from(reply.metadata.response_code), reply.answers.len()), (u16::from(expected), 0));
}

#[test]
fn what_is_no_plain_question_is_refused() {
    check_refused(|m| m.queries.clear(), ResponseCode::FormErr);
    check_refused(|m| m.queries.push(m.queries[0].clone()), ResponseCode::FormErr);
    check_refused(|m| m.metadata.op_code = OpCode::Notify, ResponseCode::NotImp);
    let chaos = |m: &mut Message| {
        m.queries[0].set_query_class(hickory_proto::rr::DNSClass::CH);
    };
    check_refused(chaos, ResponseCode::NotImp);
    let newer = |m: &mut Message| {
        m.set_edns(Edns::new().set_version(1).clone());
    };
    check_refused(newer, ResponseCode::BADVERS);
}

#[test]
fn answers_and_noise_get_silence_and_broken_queries_an_error() {
    let silent = |bytes: &[u8]| matches!(plan(bytes, &zone(), Transport::Udp, 0), Step::Drop);
    let mut response = query("web.shop.svc.cluster.local.", RecordType::A);
    response.metadata.message_type = MessageType::Response;
    let response = response.to_vec().unwrap();
    assert!(silent(b"") && silent(b"short") && silent(&response) && silent(&response[..20]));
    let broken = query("web.shop.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    let Step::Reply(bytes) = plan(&broken[..20], &zone(), Transport::Udp, 0) else { panic!("no reply") };
    let reply = Message::from_vec(&bytes).unwrap();
    assert_eq!((reply.metadata.id, reply.metadata.response_code), (7, ResponseCode::FormErr));
}

/// An answer of `count` addresses to a client that takes `payload` bytes over UDP (none: no EDNS).
#[track_caller]
fn check_size(count: u8, payload: Option<u16>, transport: Transport, expected: (bool, usize)) {
    let mut request = query("web.shop.svc.cluster.local.", RecordType::A);
    if let Some(bytes) = payload {
        request.set_edns(Edns::new().set_max_payload(bytes).clone());
    }
    let name = request.queries[0].name().clone();
    let record = |n| {
        let data = hickory_proto::rr::RData::A(hickory_proto::rr::rdata::A::new(10, 0, 0, n));
        hickory_proto::rr::Record::from_rdata(name.clone(), 5, data)
    };
    let full = Answer { answers: (0..count).map(record).collect(), ..answer::bare(ResponseCode::NoError) };
    let reply = Message::from_vec(&reply(&request, full, transport)).unwrap();
    assert_eq!((reply.metadata.truncation, reply.answers.len()), expected);
    assert_eq!(reply.edns.is_some(), payload.is_some());
}

#[test]
fn a_large_answer_is_cut_to_what_the_client_takes() {
    check_size(20, None, Transport::Udp, (false, 20));
    check_size(40, None, Transport::Udp, (true, 0));
    check_size(40, Some(1232), Transport::Udp, (false, 40));
    check_size(40, Some(100), Transport::Udp, (true, 0));
    check_size(200, Some(4096), Transport::Udp, (true, 0));
    check_size(200, None, Transport::Tcp, (false, 200));
}

proptest! {
    /// INV-08 for this server: random bytes, and real queries with random bytes changed.
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = plan(&bytes, &zone(), Transport::Udp, 0);
    }

    #[test]
    fn no_damage_to_a_query_makes_it_panic(
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..8),
        cut in any::<u16>(),
        rotation in any::<usize>(),
    ) {
        let mut request = query("_peer._tcp.db.shop.svc.cluster.local.", RecordType::SRV);
        request.set_edns(Edns::new());
        let mut bytes = request.to_vec().unwrap();
        let length = bytes.len();
        for (at, value) in damage {
            bytes[usize::from(at) % length] = value;
        }
        bytes.truncate(length - usize::from(cut) % 4);
        let _ = plan(&bytes, &zone(), Transport::Tcp, rotation);
    }
}
