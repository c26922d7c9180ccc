//! The TLS listener: accepts connections, learns who the client is, and serves HTTP/1.1 and HTTP/2.

use crate::access;
use crate::request::User;
use crate::service::{Peer, Service};
use ambit_runtime::Shutdown;
use ambit_trust::pki::ClusterPki;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Connections at once at most: bounds memory. One kubectl holds one, one informer client a few.
const CONNECTIONS_MAX: usize = 2_000;
/// A client that has not finished its handshake by then is dropped.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// A client that has not sent a request's head by then is dropped.
const HEAD_WAIT: Duration = Duration::from_secs(30);
/// Requests of one connection at once. Source: apiserver http2-max-streams-per-connection.
const STREAMS_MAX: u32 = 1_000;
/// A quiet HTTP/2 connection is asked for a sign of life this often, so that watches of vanished clients end.
/// Source: apiserver http2 ReadIdleTimeout and PingTimeout.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long that sign may take.
const PING_WAIT: Duration = Duration::from_secs(15);
/// How long connections get to finish at shutdown.
const DRAIN_WAIT: Duration = Duration::from_secs(3);
/// Pause after a failed accept: the usual cause, too many open files, does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the listener cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}: stop what uses the address, or choose another one")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The serving certificate or the CA cannot be used.
    #[error("cannot set up TLS with the cluster's certificates: {detail}")]
    Tls {
        /// What is wrong with them.
        detail: String,
    },
}

/// A bound listener.
pub(crate) struct Listener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener {
    /// Binds the address and prepares TLS.
    pub(crate) async fn bind(address: SocketAddr, pki: &ClusterPki) -> Result<Self, ListenError> {
        let listener =
            TcpListener::bind(address).await.map_err(|source| ListenError::Bind { address, source })?;
        let config = server_config(pki).map_err(|detail| ListenError::Tls { detail })?;
        Ok(Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// The address that is listened on.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until shutdown, then lets connections finish for a short while.
    pub(crate) async fn serve(self, service: Service, shutdown: Shutdown) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            let slot = tokio::select! {
                slot = slots.clone().acquire_owned() => slot,
                () = shutdown.cancelled() => break,
            };
            let Ok(slot) = slot else { break };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                // Ended connections are taken out while nothing else happens, so that the set stays small.
                Some(_) = connections.join_next() => continue,
                () = shutdown.cancelled() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (acceptor, service, shutdown) = (self.acceptor.clone(), service.clone(), shutdown.clone());
            connections.spawn(async move {
                if let Err(error) = connection(stream, acceptor, service, shutdown).await {
                    tracing::debug!(%peer, %error, "connection ended");
                }
                drop(slot);
            });
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_WAIT, drained).await.is_err() {
            connections.shutdown().await;
        }
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    service: Service,
    shutdown: Shutdown,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE_WAIT, acceptor.accept(stream)).await??;
    let certificates = stream.get_ref().1.peer_certificates();
    let user: Option<User> = match certificates.and_then(|chain| chain.first()) {
        Some(leaf) => Some(access::certificate_user(leaf).ok_or("the client certificate names no user")?),
        None => None,
    };
    let handler = service_fn(move |request| {
        let (service, peer) = (service.clone(), Peer::Tls(user.clone()));
        async move { Ok::<_, Infallible>(service.serve(peer, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WAIT);
    let connection = builder.serve_connection(TokioIo::new(stream), handler);
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

fn server_config(pki: &ClusterPki) -> Result<rustls::ServerConfig, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(pki.ca_pem().as_bytes()) {
        roots.add(cert.map_err(|e| text(&e))?).map_err(|e| text(&e))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        // Clients may come with a token instead.
        .allow_unauthenticated()
        .build()
        .map_err(|e| text(&e))?;
    let server = pki.server();
    let chain = CertificateDer::pem_slice_iter(server.cert_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| text(&e))?;
    let key = PrivateKeyDer::from_pem_slice(server.key_pem.as_bytes()).map_err(|e| text(&e))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| text(&e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|e| text(&e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
