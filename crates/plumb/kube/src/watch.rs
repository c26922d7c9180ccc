//! The loop behind an informer: list, watch from there, and list again whenever the watch cannot go on.
//!
//! Not `kube::runtime::watcher`, because that one keeps asking with an expired revision when the refusal comes as
//! the answer to the watch request, has no bound on the length of a line, and fails the whole list on one bad object.

mod exchange;
mod pace;

use crate::decode::{self, Event};
use crate::error::WatchError;
use crate::informer::{ObjectKey, Writer};
use crate::query::{PAGE_OBJECTS, Query, WATCH_SECONDS};
use ambit_runtime::{Clock, Entropy, Shutdown};
use exchange::within;
use kube::core::Request;
use kube::{Client, Resource};
use pace::Pace;
use rand::Rng as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Longest delay between looks for a kind that the server does not know (yet).
const ABSENT_DELAY_MAX: Duration = Duration::from_secs(2);
/// Part of a delay that chance adds, so that the informers of a cluster do not come back in step.
const JITTER: f64 = 0.25;
/// Time for one page of a list.
const LIST_DEADLINE: Duration = Duration::from_secs(60);
/// Time for the answer to a watch request to begin.
const WATCH_START_DEADLINE: Duration = Duration::from_secs(30);
/// What the server's own limit on a watch may be late before the connection counts as dead, or early before its end
/// counts as a loss.
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// A watch that ends sooner and told nothing new counts as a failure, so that it cannot spin.
const WATCH_MIN: Duration = Duration::from_secs(1);

/// One informer's connection to the server.
pub(crate) struct Source<K> {
    client: Client,
    request: Request,
    query: Query,
    writer: Writer<K>,
    known: Known,
    pace: Pace,
}

/// What is known of the server's state.
#[derive(Debug, Clone)]
enum Known {
    Nothing,
    /// All up to a revision.
    Upto(String),
    /// The same, but the connection was lost since: the server may be another by now, with another history.
    Doubted(String),
}

impl<K> Source<K>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    pub(crate) fn new(client: Client, path: String, query: Query, writer: Writer<K>) -> Self {
        let (known, pace) = (Known::Nothing, Pace::default());
        Self { client, request: Request::new(path), query, writer, known, pace }
    }

    /// Keeps the view up to date until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&mut self) {
        loop {
            let Err(error) = self.step().await else { continue };
            let mut delay = self.pace.after(&error);
            match error {
                // It may come (back): looked for more often than a server that is out of order.
                WatchError::Absent => {
                    self.writer.set_trouble(None);
                    delay = delay.min(ABSENT_DELAY_MAX);
                }
                // 410 says that the revision has expired, 404 that the kind has gone.
                error if matches!(error.code(), Some(410 | 404)) => {
                    tracing::debug!(path = self.writer.path(), %error, "listing anew");
                }
                error => self.warn(&error, delay),
            }
            let jitter = Entropy.rng().random_range(0.0..=JITTER);
            tokio::time::sleep(delay.mul_f64(1.0 + jitter)).await;
        }
    }

    /// Does what comes next by what is known.
    async fn step(&mut self) -> Result<(), WatchError> {
        match self.known.clone() {
            Known::Nothing => self.known = Known::Upto(self.list().await?),
            Known::Upto(revision) => self.watch(revision).await?,
            Known::Doubted(revision) => {
                let now = match self.newest_revision().await {
                    Ok(now) => now,
                    Err(error) => {
                        if error.code() == Some(404) {
                            self.known = Known::Nothing;
                        }
                        return Err(error);
                    }
                };
                if is_before(&now, &revision) {
                    self.known = Known::Nothing;
                    return Err(WatchError::WentBack { from: revision, to: now });
                }
                self.known = Known::Upto(revision);
            }
        }
        Ok(())
    }

    /// Takes the full list; returns the revision to watch from.
    async fn list(&self) -> Result<String, WatchError> {
        let (mut objects, mut unreadable): (Vec<K>, Vec<ObjectKey>) = (Vec::new(), Vec::new());
        let (mut token, mut limit) = (None, Some(PAGE_OBJECTS));
        loop {
            let continued = token.is_some();
            let page = match self.page(limit, token).await {
                Ok(page) => decode::page::<K>(&page)?,
                // The list took longer than the server keeps its revision: next time all at once.
                Err(error) if continued && error.code() == Some(410) => {
                    (token, limit) = (None, None);
                    (objects, unreadable) = (Vec::new(), Vec::new());
                    continue;
                }
                // The kind does not exist, or no longer: nothing of it exists.
                Err(error) if error.code() == Some(404) => {
                    if !self.writer.has_synced() {
                        tracing::debug!(path = self.writer.path(), "the server does not know this kind yet");
                    }
                    self.writer.replace(Vec::new(), &[]);
                    self.writer.mark_synced();
                    return Err(WatchError::Absent);
                }
                Err(error) => return Err(error),
            };
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

    /// One page of the list.
    async fn page(&self, limit: Option<u32>, token: Option<String>) -> Result<Vec<u8>, WatchError> {
        let params = self.query.to_list_params(limit, token);
        let request =
            if K::metadata_api() { self.request.list_metadata(&params) } else { self.request.list(&params) };
        let request = request.map_err(WatchError::Request)?;
        let read = async { exchange::read_all(exchange::open(&self.client, request).await?).await };
        within(LIST_DEADLINE, read).await
    }

    /// The revision that the server is at, by the smallest list there is.
    async fn newest_revision(&self) -> Result<String, WatchError> {
        let bytes = self.page(Some(1), None).await?;
        decode::list_revision(&bytes)?.ok_or(WatchError::NoResourceVersion)
    }

    /// Watches from `revision` on, and notes what is known afterwards.
    async fn watch(&mut self, mut revision: String) -> Result<(), WatchError> {
        let (before, started) = (revision.clone(), Clock.now());
        let outcome = self.watch_once(&mut revision).await;
        let lasted = Clock.now().duration_since(started);
        let outcome = match outcome {
            Ok(()) if revision == before && lasted < WATCH_MIN => Err(WatchError::EndedAtOnce),
            outcome => outcome,
        };
        self.known = match &outcome {
            Err(error) if matches!(error.code(), Some(410 | 404)) => Known::Nothing,
            Err(error) if self.pace.doubts(error) => Known::Nothing,
            // A server that refuses is there.
            Err(WatchError::Refused { .. }) => Known::Upto(revision),
            // It has ended the watch in time.
            Ok(()) if lasted + WATCH_GRACE >= watch_duration() => Known::Upto(revision),
            _ => Known::Doubted(revision),
        };
        outcome
    }

    /// One watch request. `revision` follows what has been seen, also when this fails.
    async fn watch_once(&mut self, revision: &mut String) -> Result<(), WatchError> {
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
        let answer = exchange::open(&self.client, request);
        let mut stream = std::pin::pin!(within(WATCH_START_DEADLINE, answer).await?);
        self.writer.set_trouble(None);
        let mut line = Vec::new();
        let idle = watch_duration() + WATCH_GRACE;
        while within(idle, exchange::read_line(&mut stream, &mut line)).await? {
            let seen = self.take(decode::event::<K>(&line)?)?;
            if *revision != seen {
                *revision = seen;
                self.pace.progressed();
            }
        }
        Ok(())
    }

    /// Takes an event; returns the revision that it leads to.
    fn take(&self, event: Event<K>) -> Result<String, WatchError> {
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
            Event::Failed(error) => return Err(error),
        };
        seen.filter(|seen| !seen.is_empty()).ok_or(WatchError::NoResourceVersion)
    }

    fn warn(&self, error: &WatchError, delay: Duration) {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let because = cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        self.writer.set_trouble(Some(format!("{error}{because}")));
        tracing::warn!(path = self.writer.path(), %error, cause, ?delay, "the view lags, retrying");
    }
}

/// The time after which the server ends a watch.
fn watch_duration() -> Duration {
    Duration::from_secs(u64::from(WATCH_SECONDS))
}

/// Whether one revision is older than another. They are numbers by Kubernetes' promise of comparable resource versions
/// (KEP-5504); of a server that gives others, nothing can be said.
fn is_before(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

#[cfg(test)]
mod tests;
