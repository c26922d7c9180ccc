//! The TLS listener and the gRPC server on it.

use crate::error::Error;
use ambit_proto::ca::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use ambit_proto::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use ambit_runtime::{Clock, Shutdown};
use ambit_trust::authority::{Authority, KeyedCertificate};
use ambit_trust::provider;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

/// Time a client has for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections at once: one for discovery and one for certificates of each of thousands of nodes.
const CONNECTIONS_MAX: usize = 10_000;
/// Handshakes that are done and wait for the server to take them.
const ACCEPTED_MAX: usize = 64;
/// A client that does not answer a ping within the timeout is gone.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// Longest discovery request. Bytes; a reconnecting client names all it has, some 100 bytes each.
const DISCOVERY_REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest certificate request. Bytes.
const CERTIFICATE_REQUEST_BYTES_MAX: usize = 64 * 1024;
/// Time that clients get to close their connections at shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after the system refuses to accept, as when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The control plane's own certificate, renewed after half of its time.
pub(crate) struct ServingCertificate {
    authority: Arc<Authority>,
    names: Vec<String>,
    lifetime: Duration,
    clock: Clock,
    current: TlsAcceptor,
    renew_at: SystemTime,
}

impl ServingCertificate {
    pub(crate) fn new(
        authority: Arc<Authority>,
        names: Vec<String>,
        lifetime: Duration,
        clock: Clock,
    ) -> Result<Self, Error> {
        let (current, renew_at) = issue(&authority, &names, lifetime, clock)?;
        Ok(Self { authority, names, lifetime, clock, current, renew_at })
    }

    fn acceptor(&mut self) -> TlsAcceptor {
        if self.clock.wall() >= self.renew_at {
            match issue(&self.authority, &self.names, self.lifetime, self.clock) {
                Ok((current, renew_at)) => (self.current, self.renew_at) = (current, renew_at),
                // The old one is good for as long again.
                Err(error) => {
                    warn!(error = &error as &dyn std::error::Error, "cannot renew the serving certificate")
                }
            }
        }
        self.current.clone()
    }
}

fn issue(
    authority: &Authority,
    names: &[String],
    lifetime: Duration,
    clock: Clock,
) -> Result<(TlsAcceptor, SystemTime), Error> {
    let now = clock.wall();
    let issued = authority
        .issue_server(names, lifetime, now)
        .map_err(|source| Error::ServingCertificate { names: names.to_vec(), source })?;
    Ok((acceptor(&issued).map_err(Error::Tls)?, now + lifetime / 2))
}

fn acceptor(issued: &KeyedCertificate) -> Result<TlsAcceptor, rustls::Error> {
    let unreadable = |e: rustls::pki_types::pem::Error| rustls::Error::General(e.to_string());
    let cert = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).map_err(unreadable)?;
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).map_err(unreadable)?;
    let mut config = ServerConfig::builder_with_provider(provider::control())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves both services on the listener until `shutdown`.
pub(crate) async fn serve(
    listener: TcpListener,
    certificate: ServingCertificate,
    discovery: impl AggregatedDiscoveryService,
    certificates: impl IstioCertificateService,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let address = listener.local_addr().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    let (accepted, incoming) = mpsc::channel(ACCEPTED_MAX);
    let accepting = accept(listener, certificate, accepted, shutdown.clone());
    let discovery = AggregatedDiscoveryServiceServer::new(discovery)
        .max_decoding_message_size(DISCOVERY_REQUEST_BYTES_MAX);
    let certificates = IstioCertificateServiceServer::new(certificates)
        .max_decoding_message_size(CERTIFICATE_REQUEST_BYTES_MAX);
    let serving = Server::builder()
        .http2_keepalive_interval(Some(PING.0))
        .http2_keepalive_timeout(Some(PING.1))
        .add_service(discovery)
        .add_service(certificates)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), shutdown.clone().cancelled_owned());
    let serving = async {
        tokio::select! {
            served = serving => served,
            () = grace(&shutdown) => Ok(()),
        }
    };
    let (served, ()) = tokio::join!(serving, accepting);
    served.map_err(|source| Error::Serve { address, source })
}

/// Returns some time after `shutdown`.
async fn grace(shutdown: &Shutdown) {
    shutdown.cancelled().await;
    tokio::time::sleep(CLOSE_TIMEOUT).await;
}

/// Accepts connections and shakes hands until `shutdown`; a slow handshake holds up nobody else.
async fn accept(
    listener: TcpListener,
    mut certificate: ServingCertificate,
    accepted: mpsc::Sender<io::Result<Connection>>,
    shutdown: Shutdown,
) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut handshakes = JoinSet::new();
    loop {
        // Every arm is cancel safe: a connection that is not taken stays in the listener's backlog.
        let (stream, slot) = tokio::select! {
            () = shutdown.cancelled() => return,
            Some(_) = handshakes.join_next() => continue,
            (slot, stream) = async { (slots.clone().acquire_owned().await, listener.accept().await) } => {
                match (stream, slot) {
                    (Ok((stream, _)), Ok(slot)) => (stream, slot),
                    (Err(error), _) => {
                        warn!(%error, "cannot accept connections");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                    (_, Err(_)) => return,
                }
            }
        };
        handshakes.spawn(shake_hands(stream, certificate.acceptor(), slot, accepted.clone()));
    }
}

async fn shake_hands(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    slot: OwnedSemaphorePermit,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    // Small messages should not wait for each other; failing to say so only makes them slower.
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        // A closed channel means that the server has stopped.
        Ok(Ok(stream)) => drop(accepted.send(Ok(Connection { stream, _slot: slot })).await),
        Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
        Err(_) => debug!(timeout = ?HANDSHAKE_TIMEOUT, "TLS handshake took too long"),
    }
}

/// An encrypted connection, which holds its slot among all connections.
struct Connection {
    stream: TlsStream<TcpStream>,
    _slot: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
