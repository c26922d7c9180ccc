//! Small HTTP endpoints of a process: admin, metrics, readiness.

use crate::Shutdown;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::{debug, warn};

/// Connections served at once on one endpoint.
const CONNECTIONS_MAX: usize = 64;
/// Time to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest a connection may last: these endpoints answer at once.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause after the system refuses to accept, as when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Media type of plain text.
const TEXT: &str = "text/plain; charset=utf-8";
/// Media type of metrics.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An answer: status, media type, body.
pub type Answer = (StatusCode, &'static str, String);

/// Answers requests by method and path. It must not block.
pub type Handler = Arc<dyn Fn(&Method, &str) -> Answer + Send + Sync>;

/// An answer of plain text.
pub fn text(status: StatusCode, body: impl Into<String>) -> Answer {
    (status, TEXT, body.into())
}

/// Answers `GET /metrics` with what is in the registry.
pub fn metrics(registry: Registry) -> Handler {
    Arc::new(move |method, path| {
        let mut body = String::new();
        match (method, path) {
            (&Method::GET, "/metrics") => {
                match prometheus_client::encoding::text::encode(&mut body, &registry) {
                    Ok(()) => (StatusCode::OK, METRICS, body),
                    Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
                }
            }
            (_, "/metrics") => text(StatusCode::METHOD_NOT_ALLOWED, "metrics are read with GET\n"),
            _ => text(StatusCode::NOT_FOUND, "there is only /metrics here\n"),
        }
    })
}

/// Listens on an address. Where the machine has no IPv6, the wildcard of both families means that of IPv4.
///
/// # Errors
/// The address cannot be listened on.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.ip().is_unspecified() && is_family_missing(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
}

fn is_family_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::errno::Errno::EAFNOSUPPORT as i32)
}

/// Serves `handler` on the listener until `shutdown`. Requests in progress are dropped then.
pub async fn serve(listener: TcpListener, handler: Handler, shutdown: Shutdown) {
    let mut connections = JoinSet::new();
    loop {
        // Every arm is cancel safe: a connection that is not taken stays in the listener's backlog.
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, handler.clone()));
                }
                Err(error) => {
                    warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn connection(stream: tokio::net::TcpStream, handler: Handler) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let answer = handler(request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(respond(answer)) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a request broke"),
        Err(_) => debug!(timeout = ?CONNECTION_TIMEOUT, "ended a long connection"),
    }
}

fn respond((status, media_type, body): Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(media_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_are_served_until_shutdown() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("things", "Things", counter.clone());
        counter.inc();
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::new();
        let task = tokio::spawn(serve(listener, metrics(registry), shutdown.clone()));
        let close = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let answer = ask(address, &format!("GET /metrics {close}")).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("things_total 1"), "{answer}");
        let answer = ask(address, &format!("GET /other {close}")).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let answer = ask(address, &format!("POST /metrics {close}")).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        let answer = ask(address, "nonsense\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        shutdown.cancel();
        task.await.unwrap();
    }
}
