//! A small HTTP/1.1 server on a Unix socket: bounded in connections and time.

use ambit_linux::{Error as LinuxError, ownership, process};
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
    /// The user whose processes may connect: what they say decides on pods.
    admitted: u32,
}

impl Listener {
    /// Listens at a path that only root can use. A socket that nobody listens on any more is replaced.
    pub(crate) fn bind(path: &Path) -> Result<Self, LinuxError> {
        let failed = |e| LinuxError::system(format!("listen on {}", path.display()), e);
        ownership::check_place(path)?;
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
        Ok(Self { socket, path: path.to_owned(), admitted: process::ROOT })
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
                    Ok((stream, _)) if self.may_connect(&stream) => {
                        drop(connections.spawn(connection(stream, handler.clone())));
                    }
                    Ok((stranger, _)) => drop(stranger),
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

    /// The socket's mode keeps others out already; this holds where somebody changed the mode or mounted it into a pod.
    fn may_connect(&self, stream: &UnixStream) -> bool {
        let uid = stream.peer_cred().map(|credentials| credentials.uid());
        let admitted = uid.as_ref().is_ok_and(|uid| *uid == self.admitted);
        if !admitted {
            tracing::warn!(socket = %self.path.display(), ?uid, "refused a connection by another user");
        }
        admitted
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LIMIT: Duration = Duration::from_secs(10);

    /// What a server that admits one user answers to root; nothing when it just closes.
    async fn answered(admitted: u32) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut listener = Listener::bind(&path).unwrap();
        listener.admitted = admitted;
        let shutdown = Shutdown::new();
        let handler = |_| async { text(StatusCode::OK, "fine") };
        let server = tokio::spawn(listener.serve(handler, shutdown.clone()));
        let mut client = UnixStream::connect(&path).await.unwrap();
        // A server that closes at once may have done so already.
        let _ = client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        let mut bytes = Vec::new();
        let _ = tokio::time::timeout(LIMIT, client.read_to_end(&mut bytes)).await.expect("the server closes");
        shutdown.cancel();
        server.await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn only_the_admitted_user_is_answered() {
        assert!(answered(process::ROOT).await.ends_with("fine"));
        assert_eq!(answered(1).await, "");
    }
}
