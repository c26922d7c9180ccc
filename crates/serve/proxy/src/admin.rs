//! The proxy's own HTTP endpoints: admin, metrics, readiness.

use crate::error::Error;
use ambit_runtime::Shutdown;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tracing::debug;

/// Connections served at once on one endpoint.
const CONNECTIONS_MAX: usize = 64;
/// Time to send a request's head.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// Longest a connection may last: these endpoints answer at once.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(120);

/// An answer: status, media type, body.
pub(crate) type Answer = (StatusCode, &'static str, String);

/// Answers requests by method and path.
pub(crate) type Handler = Arc<dyn Fn(&Method, &str) -> Answer + Send + Sync>;

/// A bound endpoint.
pub(crate) struct Endpoint {
    listener: TcpListener,
    handler: Handler,
}

/// Plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> Answer {
    (status, "text/plain; charset=utf-8", body.into())
}

impl Endpoint {
    /// Binds an endpoint. Where the machine has no IPv6, the wildcard of both families means IPv4.
    pub(crate) async fn bind(
        what: &'static str,
        address: SocketAddr,
        handler: Handler,
    ) -> Result<Self, Error> {
        let bound = match TcpListener::bind(address).await {
            Err(error) if address.ip().is_unspecified() && ambit_linux::socket::family_missing(&error) => {
                TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port())).await
            }
            bound => bound,
        };
        let listener = bound.map_err(|source| Error::Listen { what, address, source })?;
        Ok(Self { listener, handler })
    }

    /// Serves until shutdown.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let (permits, tasks) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), TaskTracker::new());
        loop {
            let accepted = tokio::select! {
                accepted = async {
                    // The semaphore is never closed.
                    let permit = permits.clone().acquire_owned().await.ok();
                    self.listener.accept().await.map(|(tcp, _)| (permit, tcp))
                } => accepted,
                () = shutdown.cancelled() => break,
            };
            let Ok((permit, tcp)) = accepted else { continue };
            let (handler, shutdown) = (self.handler.clone(), shutdown.clone());
            tasks.spawn(async move {
                let _permit = permit;
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let answer = handler(request.method(), request.uri().path());
                    async move { Ok::<_, Infallible>(respond(answer)) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_DEADLINE)
                    .serve_connection(TokioIo::new(tcp), service);
                tokio::select! {
                    served = connection => if let Err(error) = served { debug!(%error, "request broke") },
                    () = tokio::time::sleep(CONNECTION_DEADLINE) => {}
                    () = shutdown.cancelled() => {}
                }
            });
        }
        tasks.close();
        tasks.wait().await;
    }
}

fn respond((status, media_type, body): Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(media_type));
    response
}
