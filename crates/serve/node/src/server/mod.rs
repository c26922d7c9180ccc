//! The node's server, which speaks the part of kubelet's protocol that the API server needs for logs.

mod access;
mod log_lines;
mod logs;

use crate::context::Context;
use crate::error::Error;
use ambit_runtime::Shutdown;
use bytes::Bytes;
use futures::TryStreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use logs::LogOptions;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

/// Connections served at once.
const CONNECTIONS_MAX: usize = 256;
/// How long a handshake, or a request's head, may take.
const HEAD_WAIT: Duration = Duration::from_secs(10);
/// After a failed accept, which is mostly a lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The server, listening.
pub(crate) struct Server {
    context: Arc<Context>,
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl Server {
    /// Opens the socket.
    ///
    /// # Errors
    /// The address is taken, or the certificates cannot be used.
    pub(crate) async fn bind(context: Arc<Context>) -> Result<Self, Error> {
        let listen = context.settings.listen;
        let fail = |problem: String| Error::Server { listen, problem };
        let tls = tls_config(&context).map_err(fail)?;
        let listener = TcpListener::bind(listen).await.map_err(|e| fail(e.to_string()))?;
        Ok(Self { context, listener, tls: TlsAcceptor::from(Arc::new(tls)) })
    }

    /// Serves until `shutdown`.
    pub(crate) async fn run(self, shutdown: Shutdown) -> Result<(), Error> {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            // All arms are cancel safe.
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                () = shutdown.cancelled() => break,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            };
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                debug!(%peer, "refused a connection: too many are open");
                continue;
            };
            let (context, tls) = (Arc::clone(&self.context), self.tls.clone());
            connections.spawn(async move {
                if let Err(error) = serve(context, tls, stream).await {
                    debug!(%peer, %error, "a connection failed");
                }
                drop(slot);
            });
        }
        connections.shutdown().await;
        Ok(())
    }
}

fn tls_config(context: &Context) -> Result<ServerConfig, String> {
    let settings = &context.settings;
    let certificates = |pem: &str| {
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| e.to_string())
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(&settings.client_ca_pem)? {
        roots.add(root).map_err(|e| format!("the client authority: {e}"))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|e| format!("the client authority: {e}"))?;
    let key = PrivateKeyDer::from_pem_slice(settings.server.key_pem.as_bytes())
        .map_err(|e| format!("the server's key: {e}"))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&settings.server.cert_pem)?, key)
        .map_err(|e| format!("the server's certificate: {e}"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn serve(context: Arc<Context>, tls: TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    let handshake = tokio::time::timeout(HEAD_WAIT, tls.accept(stream));
    let stream = handshake.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let peer = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let allowed = peer.is_some_and(access::may_use_node);
    let service = service_fn(move |request| {
        let context = Arc::clone(&context);
        async move { Ok::<_, Infallible>(answer(&context, allowed, &request).await) }
    });
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT);
    builder.serve_connection(TokioIo::new(stream), service).await.map_err(io::Error::other)
}

async fn answer(context: &Context, allowed: bool, request: &Request<Incoming>) -> Response<Body> {
    if !allowed {
        return text(StatusCode::FORBIDDEN, "this certificate may not use the node's server");
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served");
    }
    let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    match path.as_slice() {
        ["healthz"] => text(StatusCode::OK, "ok"),
        ["containerLogs", namespace, pod, container] => {
            let query = request.uri().query().unwrap_or_default();
            let options = match LogOptions::parse(query) {
                Ok(options) => options,
                Err(problem) => return text(StatusCode::BAD_REQUEST, &problem),
            };
            match logs::open(context, (namespace, pod, container), options).await {
                Ok(reader) => {
                    let frames = reader.into_stream().map_ok(Frame::data);
                    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
                    let plain = http::HeaderValue::from_static("text/plain");
                    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
                    response
                }
                Err((status, problem)) => text(status, &problem),
            }
        }
        _ => text(StatusCode::NOT_FOUND, "this node serves /containerLogs/… and /healthz only"),
    }
}

fn text(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}
