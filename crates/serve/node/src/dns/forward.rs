//! Asking the upstream name servers: one after the other, each with a deadline, a bounded number at a time.

use super::message::{Transport, encode};
use hickory_proto::op::Message;
use rand::Rng;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

/// Queries upstream at one time. More are refused at once: the clients ask again, and a dead upstream cannot pile
/// up sockets.
const IN_FLIGHT_MAX: usize = 256;
/// Time one server may take. Two servers fit in the five seconds that resolvers wait.
const SERVER_WAIT: Duration = Duration::from_secs(2);
/// Servers asked about one query.
const SERVERS_MAX: usize = 3;
/// Datagrams read before giving up on a server: late answers to earlier queries, or forged ones.
const DATAGRAMS_MAX: usize = 8;

/// Why there is no answer from upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    /// No server is configured.
    #[error("no upstream name server is set")]
    NoServer,
    /// The bound on concurrent queries is reached.
    #[error("{IN_FLIGHT_MAX} queries are waiting for upstream name servers")]
    Busy,
    /// No server answered.
    #[error("asking upstream name server {server}")]
    Server {
        /// The last one asked.
        server: SocketAddr,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// The upstream name servers.
#[derive(Debug, Clone)]
pub(crate) struct Forwarder {
    servers: Arc<[SocketAddr]>,
    in_flight: Arc<Semaphore>,
}

impl Forwarder {
    pub(crate) fn new(servers: &[SocketAddr]) -> Self {
        let servers = servers.iter().copied().take(SERVERS_MAX).collect();
        Self { servers, in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)) }
    }

    /// Asks `query` upstream and returns the answer's bytes, with the id of `query`.
    ///
    /// Cancel safe: the socket closes.
    pub(crate) async fn ask(&self, query: &Message, transport: Transport) -> Result<Vec<u8>, ForwardError> {
        let mut last = Err(ForwardError::NoServer);
        let Ok(_permit) = self.in_flight.try_acquire() else { return Err(ForwardError::Busy) };
        for server in self.servers.iter().copied() {
            // An id of our own for each attempt, so that only the server that was asked can know it.
            let mut asked = query.clone();
            asked.metadata.id = ambit_runtime::Entropy.rng().random();
            let attempt = async {
                match transport {
                    Transport::Udp => over_udp(server, &asked).await,
                    Transport::Tcp => over_tcp(server, &asked).await,
                }
            };
            let answer = match tokio::time::timeout(SERVER_WAIT, attempt).await {
                Ok(answer) => answer,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
            };
            match answer {
                Ok(mut bytes) => {
                    bytes[..2].copy_from_slice(&query.metadata.id.to_be_bytes());
                    return Ok(bytes);
                }
                Err(source) => last = Err(ForwardError::Server { server, source }),
            }
        }
        last
    }
}

async fn over_udp(server: SocketAddr, query: &Message) -> io::Result<Vec<u8>> {
    // A fresh socket for each query: its random port is the second half of what a forger must guess (RFC 5452).
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&encode(query)).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    for _ in 0..DATAGRAMS_MAX {
        let length = socket.recv(&mut buffer).await?;
        if answers(&buffer[..length], query) {
            return Ok(buffer[..length].to_vec());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "only answers to other questions"))
}

async fn over_tcp(server: SocketAddr, query: &Message) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_framed(&mut stream, &encode(query)).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; usize::from(length)];
    stream.read_exact(&mut buffer).await?;
    if answers(&buffer, query) {
        return Ok(buffer);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "an answer to another question"))
}

/// Writes one message with its length in front (RFC 1035, section 4.2.2).
pub(crate) async fn write_framed(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a message over 65535 bytes"))?;
    let mut framed = Vec::with_capacity(message.len() + 2);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    stream.write_all(&framed).await
}

/// Whether `bytes` answer `query`: same id, an answer, same question. The rest is the client's to read.
fn answers(bytes: &[u8], query: &Message) -> bool {
    let Ok(message) = Message::from_vec(bytes) else { return false };
    message.metadata.id == query.metadata.id
        && message.metadata.message_type == hickory_proto::op::MessageType::Response
        && (message.queries == query.queries || message.queries.is_empty())
}
