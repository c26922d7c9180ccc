//! The loop behind an informer: list, watch from there, and list again whenever the watch cannot go on.
//!
//! Not `kube::runtime::watcher`, because that one keeps asking with an expired revision when the refusal comes as
//! the answer to the watch request, has no bound on the length of a line, and fails the whole list on one bad object.

use crate::decode::{self, Event};
use crate::error::WatchError;
use crate::informer::{ObjectKey, Writer};
use crate::query::{Query, WATCH_SECONDS};
use ambit_runtime::{Backoff, Clock, Shutdown};
use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use kube::core::Request;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// First delay after a failure.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
/// Longest delay between attempts: an API server that is back is noticed within this.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// Longest delay between looks for a kind that the server does not know (yet).
const ABSENT_DELAY_MAX: Duration = Duration::from_secs(2);
/// Time for one page of a list.
const LIST_DEADLINE: Duration = Duration::from_secs(60);
/// Time for the answer to a watch request to begin.
const WATCH_START_DEADLINE: Duration = Duration::from_secs(30);
/// What the server's own limit on a watch may be late before the connection counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// A watch that ends sooner and told nothing counts as a failure, so that it cannot spin.
const WATCH_MIN: Duration = Duration::from_secs(1);
/// Failures in a row after which the revision itself is doubted: a server that lost its store knows it no more.
const WATCH_FAILURES_MAX: u32 = 3;
/// Bytes of one page of a list: 500 objects of a typical upper size of 0.5 MiB.
const LIST_BYTES_MAX: u64 = 256 << 20;
/// Bytes of one watch event: far above the largest object a server stores (1.5 MiB in etcd).
const LINE_BYTES_MAX: u64 = 16 << 20;

/// One informer's connection to the server.
pub(crate) struct Source<K> {
    client: Client,
    request: Request,
    query: Query,
    writer: Writer<K>,
}

impl<K> Source<K>
where
    K: Resource + Clone + DeserializeOwned + Send + Sync + 'static,
{
    pub(crate) fn new(client: Client, path: String, query: Query, writer: Writer<K>) -> Self {
        Self { client, request: Request::new(path), query, writer }
    }

    /// Keeps the view up to date until `shutdown`.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&self) {
        let mut backoff = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        loop {
            match self.list().await {
                Ok(revision) => {
                    backoff.reset();
                    self.writer.set_trouble(None);
                    self.watch(revision).await;
                    continue;
                }
                // The kind does not exist, or no longer: nothing of it exists, and it may come (back).
                Err(error) if error.code() == Some(404) => {
                    self.writer.set_trouble(None);
                    self.writer.replace(Vec::new(), &[]);
                    if !self.writer.has_synced() {
                        tracing::debug!(path = self.writer.path(), "the server does not know this kind yet");
                    }
                    self.writer.mark_synced();
                    tokio::time::sleep(backoff.next_delay().min(ABSENT_DELAY_MAX)).await;
                }
                Err(error) => {
                    let delay = backoff.next_delay();
                    self.warn("list failed", &error, delay);
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// Takes the full list; returns the revision to watch from.
    async fn list(&self) -> Result<String, WatchError> {
        let (mut objects, mut unreadable): (Vec<K>, Vec<ObjectKey>) = (Vec::new(), Vec::new());
        let mut token = None;
        loop {
            let params = self.query.to_list_params(token);
            let request = if K::metadata_api() {
                self.request.list_metadata(&params)
            } else {
                self.request.list(&params)
            };
            let request = request.map_err(WatchError::Request)?;
            let bytes = within(LIST_DEADLINE, self.read_all(request)).await?;
            let page = decode::page::<K>(&bytes)?;
            objects.extend(page.objects);
            unreadable.extend(page.unreadable);
            token = page.continue_token;
            if token.is_none() {
                let revision = page.resource_version.ok_or(WatchError::NoResourceVersion)?;
                self.writer.replace(objects, &unreadable);
                self.writer.mark_synced();
                return Ok(revision);
            }
        }
    }

    async fn read_all(&self, request: http::Request<Vec<u8>>) -> Result<Vec<u8>, WatchError> {
        let stream = self.client.request_stream(request).await.map_err(WatchError::Api)?;
        let mut bytes = Vec::new();
        let read = std::pin::pin!(stream).take(LIST_BYTES_MAX).read_to_end(&mut bytes).await;
        let read = read.map_err(WatchError::Read)?;
        if read as u64 == LIST_BYTES_MAX {
            return Err(WatchError::TooLong { limit: LIST_BYTES_MAX });
        }
        Ok(bytes)
    }

    /// Watches from `revision` on, over as many requests as it takes; returns when a new list is needed.
    async fn watch(&self, mut revision: String) {
        let mut backoff = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        let mut failures = 0;
        loop {
            let before = revision.clone();
            let outcome = self.watch_once(&mut revision).await;
            if revision != before {
                failures = 0;
                backoff.reset();
                self.writer.set_trouble(None);
            }
            let Err(error) = outcome else { continue };
            // 410 says the revision has expired, 404 that the kind has gone.
            if matches!(error.code(), Some(410 | 404)) {
                tracing::debug!(path = self.writer.path(), %error, "listing anew");
                return;
            }
            failures += 1;
            let delay = backoff.next_delay();
            self.warn("watch failed", &error, delay);
            tokio::time::sleep(delay).await;
            if failures >= WATCH_FAILURES_MAX {
                return;
            }
        }
    }

    /// One watch request. `revision` follows what has been seen, also when this fails.
    async fn watch_once(&self, revision: &mut String) -> Result<(), WatchError> {
        let started = Clock.now();
        let params = self.query.to_watch_params();
        let request = if K::metadata_api() {
            self.request.watch_metadata(&params, revision)
        } else {
            self.request.watch(&params, revision)
        };
        let mut request = request.map_err(WatchError::Request)?;
        // A compressed stream could hold back events in the compressor's buffers.
        let identity = http::HeaderValue::from_static("identity");
        request.headers_mut().insert(http::header::ACCEPT_ENCODING, identity);
        let answer = async { self.client.request_stream(request).await.map_err(WatchError::Api) };
        let mut stream = std::pin::pin!(within(WATCH_START_DEADLINE, answer).await?);
        let idle = Duration::from_secs(u64::from(WATCH_SECONDS)) + WATCH_GRACE;
        let mut line = Vec::new();
        let mut events = 0_u64;
        while within(idle, read_line(&mut stream, &mut line)).await? {
            events += 1;
            self.take(decode::event::<K>(&line)?, revision)?;
        }
        if events == 0 && Clock.now().duration_since(started) < WATCH_MIN {
            return Err(WatchError::EndedAtOnce);
        }
        Ok(())
    }

    fn take(&self, event: Event<K>, revision: &mut String) -> Result<(), WatchError> {
        let seen = match event {
            Event::Applied(object) => {
                let seen = object.meta().resource_version.clone();
                self.writer.apply(object);
                seen
            }
            Event::Deleted { key, resource_version } => {
                self.writer.remove(&key);
                resource_version
            }
            Event::Unreadable { key, resource_version } => {
                tracing::warn!(path = self.writer.path(), object = %key, "kept the last good version of an object");
                resource_version
            }
            Event::Bookmark { resource_version } => Some(resource_version),
            Event::Failed { code, message } => return Err(WatchError::Status { code, message }),
        };
        *revision = seen.filter(|seen| !seen.is_empty()).ok_or(WatchError::NoResourceVersion)?;
        Ok(())
    }

    fn warn(&self, what: &'static str, error: &WatchError, delay: Duration) {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let because = cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        self.writer.set_trouble(Some(format!("{error}{because}")));
        tracing::warn!(path = self.writer.path(), %error, cause, ?delay, "{what}, retrying");
    }
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

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, WatchError>>,
) -> Result<T, WatchError> {
    let silent = WatchError::Silent { seconds: deadline.as_secs() };
    tokio::time::timeout(deadline, work).await.unwrap_or(Err(silent))
}

#[cfg(test)]
mod tests;
