//! One request to the server, and the reading of its answer within bounds of size and time.

use crate::error::WatchError;
use ambit_runtime::Clock;
use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, TryStreamExt};
use http_body_util::{BodyExt, Limited};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::pin::Pin;
use std::time::{Duration, Instant};

/// Bytes of one page of a list: 500 objects of a typical upper size of 0.5 MiB.
const LIST_BYTES_MAX: u64 = 256 << 20;
/// Bytes of one watch event: far above the largest object a server stores (1.5 MiB in etcd).
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a refusal: a status, or a page that a proxy on the way has written.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// Characters of a refusal that is no status, for logs.
const REFUSAL_SHOWN_CHARS: usize = 200;

/// An answer that is a stream of lines.
pub(super) struct Lines {
    stream: Pin<Box<dyn AsyncBufRead + Send>>,
    line: Vec<u8>,
    /// When it was asked for.
    pub(super) began: Instant,
}

impl Lines {
    /// Asks for it; its first byte may come later.
    pub(super) async fn open(
        client: &Client,
        mut request: http::Request<Vec<u8>>,
        deadline: Duration,
    ) -> Result<Self, WatchError> {
        let began = Clock.now();
        // A compressed stream could hold back events in the compressor's buffers.
        let identity = http::HeaderValue::from_static("identity");
        request.headers_mut().insert(http::header::ACCEPT_ENCODING, identity);
        let stream = Box::pin(within(deadline, open(client, request)).await?);
        Ok(Self { stream, line: Vec::new(), began })
    }

    /// The next line; none at the end of the stream.
    pub(super) async fn next(&mut self, deadline: Duration) -> Result<Option<&[u8]>, WatchError> {
        let is_there = within(deadline, read_line(&mut self.stream, &mut self.line)).await?;
        Ok(is_there.then_some(&self.line))
    }
}

/// Sends a request; the answer is a stream of bytes. `Client::request_stream` would hide the header that says when to
/// come back.
pub(super) async fn open(
    client: &Client,
    request: http::Request<Vec<u8>>,
) -> Result<impl AsyncBufRead + use<>, WatchError> {
    let response = client.send(request.map(Body::from)).await.map_err(WatchError::Api)?;
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    Ok(response.into_body().into_data_stream().map_err(std::io::Error::other).into_async_read())
}

async fn refusal(response: http::Response<Body>) -> WatchError {
    let code = response.status().as_u16();
    let header = response.headers().get(http::header::RETRY_AFTER);
    // The other form of the header, a date, is of no use to one whose clock may be wrong.
    let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    let body = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect().await;
    let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let mut refusal = match serde_json::from_slice::<Value>(&bytes) {
        Ok(status) if status["kind"] == "Status" => WatchError::of_status(&status, "no reason given"),
        _ => {
            let message = String::from_utf8_lossy(&bytes).trim().chars().take(REFUSAL_SHOWN_CHARS).collect();
            WatchError::Refused { code, message, retry_after: None }
        }
    };
    if let WatchError::Refused { code: told, retry_after, .. } = &mut refusal {
        *told = code;
        *retry_after = seconds.map(Duration::from_secs).or(*retry_after);
    }
    refusal
}

/// The whole of an answer.
pub(super) async fn read_all(stream: impl AsyncBufRead) -> Result<Vec<u8>, WatchError> {
    let mut bytes = Vec::new();
    let read = std::pin::pin!(stream).take(LIST_BYTES_MAX).read_to_end(&mut bytes).await;
    if read.map_err(WatchError::Read)? as u64 == LIST_BYTES_MAX {
        return Err(WatchError::TooLong { limit: LIST_BYTES_MAX });
    }
    Ok(bytes)
}

/// Reads one line into `line`; false at the end of the stream. An unfinished last line is dropped: its event will
/// come again, because the revision has not moved past it.
async fn read_line(stream: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> Result<bool, WatchError> {
    line.clear();
    let read = stream.take(LINE_BYTES_MAX).read_until(b'\n', line).await;
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(WatchError::Read(error)),
        Ok(_) if line.last() == Some(&b'\n') => Ok(true),
        Ok(read) if read as u64 == LINE_BYTES_MAX => Err(WatchError::TooLong { limit: LINE_BYTES_MAX }),
        Ok(_) => Ok(false),
    }
}

/// `work`, or an error when it takes longer.
pub(super) async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, WatchError>>,
) -> Result<T, WatchError> {
    let silent = WatchError::Silent { seconds: deadline.as_secs() };
    tokio::time::timeout(deadline, work).await.unwrap_or(Err(silent))
}
