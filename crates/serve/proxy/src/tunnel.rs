//! Tunnel connections: HTTP/2 over mutual TLS, each stream a CONNECT.

use crate::error::ConnectionError;
use crate::settings::Windows;
use ambit_runtime::{Clock, Shutdown};
use ambit_trust::spiffe::Identity;
use ambit_trust::tls;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;
use tracing::debug;

/// TLS handshake and HTTP/2 preface, on either side.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// Largest header list of a response, in bytes. Source: the field's node proxy.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of one stream that wait to be framed. Small, because everything else waits in the socket of the sender.
pub(crate) const SEND_BUFFER_BYTES: usize = 400 * 1024;
/// Silence before a ping, and the time its answer may take. Source: the field's node proxy.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));

/// An established tunnel connection.
#[derive(Debug)]
pub(crate) struct Tunnel {
    send: SendRequest<Bytes>,
    streams: AtomicUsize,
    idle_since: Mutex<Instant>,
    alive: Shutdown,
    clock: Clock,
    pub(crate) peer: Option<Identity>,
}

/// The right to one stream of a tunnel; given back on drop.
#[derive(Debug)]
pub(crate) struct Lease {
    tunnel: Arc<Tunnel>,
}

impl Tunnel {
    /// Handshakes on a fresh connection to `to`. The connection is driven by a task in `tasks` until `kill`.
    pub(crate) async fn establish(
        tcp: TcpStream,
        to: SocketAddr,
        config: rustls::ClientConfig,
        windows: Windows,
        (clock, tasks, kill): (Clock, &TaskTracker, &Shutdown),
    ) -> Result<Self, ConnectionError> {
        let tls_failed = |detail: String| ConnectionError::Tls { with: to, detail };
        let late = || format!("no answer within {} s", HANDSHAKE_DEADLINE.as_secs());
        let connector = TlsConnector::from(Arc::new(config));
        let handshake = connector.connect(tls::no_server_name(), tcp);
        let stream = tokio::time::timeout(HANDSHAKE_DEADLINE, handshake)
            .await
            .map_err(|_| tls_failed(late()))?
            .map_err(|e| tls_failed(e.to_string()))?;
        let peer = tls::peer_identity(stream.get_ref().1.peer_certificates());
        let http2_failed = |detail: String| ConnectionError::Http2 { with: to, detail };
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(windows.stream)
            .initial_connection_window_size(windows.connection)
            .max_frame_size(windows.frame)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .enable_push(false);
        let (send, mut connection) =
            tokio::time::timeout(HANDSHAKE_DEADLINE, builder.handshake::<_, Bytes>(stream))
                .await
                .map_err(|_| http2_failed(late()))?
                .map_err(|e| http2_failed(e.to_string()))?;
        let (pings, alive, kill) = (connection.ping_pong(), Shutdown::new(), kill.clone());
        let dead = alive.clone().drop_guard();
        tasks.spawn(async move {
            let _dead = dead;
            tokio::select! {
                ended = connection => if let Err(error) = ended { debug!(%to, %error, "tunnel connection broke") },
                () = unanswered(pings) => debug!(%to, "tunnel connection gave no sign of life"),
                () = kill.cancelled() => {}
            }
        });
        let idle_since = Mutex::new(clock.now());
        Ok(Self { send, streams: AtomicUsize::new(0), idle_since, alive, clock, peer })
    }

    /// Takes a stream, if one is free within `streams_max` and the peer's own limit.
    pub(crate) fn lease(self: &Arc<Self>, streams_max: usize) -> Option<Lease> {
        let limit = streams_max.min(self.send.current_max_send_streams());
        let take = |open: usize| (open < limit).then_some(open + 1);
        if !self.is_alive() || self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_err() {
            return None;
        }
        Some(Lease { tunnel: self.clone() })
    }

    /// Whether its connection is still driven.
    pub(crate) fn is_alive(&self) -> bool {
        !self.alive.is_cancelled()
    }

    /// How long it has had no stream; zero while it has one.
    pub(crate) fn idle(&self) -> Duration {
        if self.streams.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        let since = *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
        self.clock.now().duration_since(since)
    }
}

impl Lease {
    /// The tunnel.
    pub(crate) fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    /// A handle to send the request with, once the connection can take it.
    pub(crate) async fn ready(&self) -> Result<SendRequest<Bytes>, h2::Error> {
        self.tunnel.send.clone().ready().await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let tunnel = &self.tunnel;
        *tunnel.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = tunnel.clock.now();
        tunnel.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Pings the peer for ever; ends when it does not answer in time. Cancel safe.
pub(crate) async fn unanswered(pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(PING.0).await;
        match tokio::time::timeout(PING.1, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection's own end says more than the failed ping.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}
