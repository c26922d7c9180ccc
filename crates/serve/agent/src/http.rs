//! A small HTTP/1.1 server on a Unix socket: bounded in connections and time.

use ambit_linux::Error as LinuxError;
use ambit_runtime::Shutdown;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Connections served at once: a node starts fewer pods at a time, and everyone else asks once in a while.
const CONNECTIONS_MAX: usize = 512;
/// Time for a request's head.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Time for a whole connection: longer than any request may take.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(60);
/// Pause after a failed accept (too many open files), so that it is not tried in a tight loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening socket; removes its path when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at a path that only root can use. A socket that nobody listens on any more is replaced.
    pub(crate) fn bind(path: &Path) -> Result<Self, LinuxError> {
        let failed = |e| LinuxError::system(format!("listen on {}", path.display()), e);
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return Err(LinuxError::InUse { path: path.to_owned() }),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            // Nothing there; any other hindrance shows when binding.
            Err(_) => {}
        }
        let socket = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Answers requests with `handler` until `shutdown`.
    pub(crate) async fn serve<H, F>(self, handler: H, shutdown: Shutdown)
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        while !shutdown.is_cancelled() {
            // Both branches are cancel safe: an accept that loses leaves its connection in the backlog.
            tokio::select! {
                accepted = self.socket.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, _)) => drop(connections.spawn(connection(stream, handler.clone()))),
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = shutdown.cancelled() => {}
            }
        }
        // Requests in progress are dropped with the set; their callers ask again.
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may be gone already, with its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn connection<H, F>(stream: UnixStream, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_DEADLINE, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
        Err(_) => tracing::debug!("a connection was open for too long"),
    }
}

/// An answer of plain text.
pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", text.into())
}

/// An answer of some type.
pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(http::header::CONTENT_TYPE, value);
    response
}
