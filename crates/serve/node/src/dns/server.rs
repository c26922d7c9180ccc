//! The sockets: one loop for datagrams, one for connections, each with bounds.

use super::answer::Answer;
use super::forward::{ForwardError, Forwarder, write_framed};
use super::message::{self, Step, Transport};
use super::zone::Zone;
use ambit_runtime::Shutdown;
use arc_swap::ArcSwap;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::Name;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tracing::{debug, warn};

/// Connections served at one time. Further ones wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may be silent (RFC 7766, section 6.2.3, asks for "a few seconds").
const IDLE_WAIT: Duration = Duration::from_secs(10);
/// Datagram queries waiting for upstream at one time; a little over the forwarder's own bound, which refuses.
const PENDING_MAX: usize = 512;
/// Pause after a failed accept or receive (no descriptors left), so that the loop does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// What answers: the current zone and the way upstream. Clones share both.
#[derive(Debug, Clone)]
pub(crate) struct Responder {
    pub(crate) zone: Arc<ArcSwap<Zone>>,
    pub(crate) forwarder: Forwarder,
    rotation: Arc<AtomicUsize>,
}

impl Responder {
    pub(crate) fn new(zone: Arc<ArcSwap<Zone>>, forwarder: Forwarder) -> Self {
        Self { zone, forwarder, rotation: Arc::default() }
    }

    fn plan(&self, bytes: &[u8], transport: Transport) -> Step {
        let rotation = self.rotation.fetch_add(1, Ordering::Relaxed);
        message::plan(bytes, &self.zone.load(), transport, rotation)
    }

    /// Carries out a step that may need upstream. None: nothing is to be sent.
    async fn finish(&self, step: Step, transport: Transport) -> Option<Vec<u8>> {
        match step {
            Step::Drop => None,
            Step::Reply(bytes) => Some(bytes),
            Step::Forward(request) => Some(match self.forwarder.ask(&request, transport).await {
                Ok(bytes) => bytes,
                Err(error) => refuse(&request, &error, transport),
            }),
            Step::Follow { request, answer, target } => {
                Some(self.follow(&request, answer, &target, transport).await)
            }
        }
    }

    /// Appends the records of an alias' target. Without them the alias alone is the answer.
    async fn follow(&self, request: &Message, mut answer: Answer, target: &Name, from: Transport) -> Vec<u8> {
        let query = message::follow_up(request, target);
        let mut upstream = self.forwarder.ask(&query, Transport::Udp).await;
        if upstream.as_ref().is_ok_and(|bytes| bytes.get(2).is_some_and(|flags| flags & 0x02 != 0)) {
            upstream = self.forwarder.ask(&query, Transport::Tcp).await;
        }
        match upstream.map(|bytes| Message::from_vec(&bytes)) {
            Ok(Ok(found)) => {
                answer.code = found.metadata.response_code;
                answer.answers.extend(found.answers);
            }
            Ok(Err(error)) => debug!(%target, %error, "could not read the answer for an alias' target"),
            Err(error) => debug!(%target, %error, "could not ask for an alias' target"),
        }
        message::reply(request, answer, from)
    }
}

fn refuse(request: &Message, error: &ForwardError, transport: Transport) -> Vec<u8> {
    let code = match error {
        // Another name server of the client may know the name.
        ForwardError::NoServer => ResponseCode::Refused,
        ForwardError::Busy | ForwardError::Server { .. } => ResponseCode::ServFail,
    };
    debug!(%error, "could not forward a query");
    message::refusal(request, code, transport)
}

/// Answers datagrams until `shutdown`.
pub(crate) async fn serve_udp(socket: UdpSocket, responder: Responder, shutdown: Shutdown) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut pending: JoinSet<()> = JoinSet::new();
    loop {
        // Cancel safe: `recv_from` and `join_next` lose nothing when dropped.
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(_) = pending.join_next(), if !pending.is_empty() => continue,
            () = shutdown.cancelled() => break,
        };
        let (length, client) = match received {
            Ok(received) => received,
            Err(error) => {
                warn!(%error, "could not receive a DNS query");
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        let step = responder.plan(&buffer[..length], Transport::Udp);
        match step {
            Step::Drop => {}
            Step::Reply(bytes) => send(&socket, &bytes, client).await,
            _ if pending.len() >= PENDING_MAX => {
                debug!(%client, "dropped a query: too many wait for upstream")
            }
            step => {
                let (responder, socket) = (responder.clone(), Arc::clone(&socket));
                pending.spawn(async move {
                    if let Some(bytes) = responder.finish(step, Transport::Udp).await {
                        send(&socket, &bytes, client).await;
                    }
                });
            }
        }
    }
    pending.shutdown().await;
}

async fn send(socket: &UdpSocket, bytes: &[u8], client: SocketAddr) {
    if let Err(error) = socket.send_to(bytes, client).await {
        debug!(%client, %error, "could not send a DNS answer");
    }
}

/// Answers connections until `shutdown`.
pub(crate) async fn serve_tcp(listener: TcpListener, responder: Responder, shutdown: Shutdown) {
    let mut connections: JoinSet<()> = JoinSet::new();
    loop {
        // Cancel safe: `accept` and `join_next` lose nothing when dropped.
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, client)) => {
                let responder = responder.clone();
                connections.spawn(async move {
                    if let Err(error) = serve_connection(stream, &responder).await {
                        debug!(%client, %error, "DNS connection ended");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "could not accept a DNS connection");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
    connections.shutdown().await;
}

async fn serve_connection(mut stream: TcpStream, responder: &Responder) -> io::Result<()> {
    loop {
        let read = async {
            let length = stream.read_u16().await?;
            let mut query = vec![0; usize::from(length)];
            stream.read_exact(&mut query).await?;
            io::Result::Ok(query)
        };
        let query = match tokio::time::timeout(IDLE_WAIT, read).await {
            Ok(Ok(query)) => query,
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        };
        let step = responder.plan(&query, Transport::Tcp);
        let Some(answer) = responder.finish(step, Transport::Tcp).await else { return Ok(()) };
        tokio::time::timeout(IDLE_WAIT, write_framed(&mut stream, &answer)).await??;
    }
}
