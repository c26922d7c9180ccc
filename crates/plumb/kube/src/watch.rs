//! The loop behind an informer: learn the state, watch from there, and learn it again whenever the watch cannot go on.
//!
//! Not `kube::runtime::watcher`, because that one keeps asking with an expired revision when the refusal comes as
//! the answer to the watch request, has no bound on the length of a line, and fails the whole list on one bad object.

mod absence;
mod exchange;
mod pace;
mod start;

use crate::decode::{self, Event};
use crate::definitions::Definition;
use crate::error::WatchError;
use crate::informer::Writer;
use crate::query::{Query, WATCH_SECONDS};
use absence::{Absence, Sign};
use ambit_runtime::{Clock, Entropy, Shutdown};
use exchange::Lines;
use kube::core::Request;
use kube::{Client, Resource};
use pace::Pace;
use rand::Rng as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use start::Start;
use std::time::Duration;

/// Part of a delay that chance adds, so that the informers of a cluster do not come back in step.
const JITTER: f64 = 0.25;
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
    start: Start,
    pace: Pace,
    absence: Absence,
    importance: Importance,
}

/// What its trouble means to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Importance {
    /// Somebody waits for it.
    View,
    /// It only makes others faster.
    Aid,
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
        Self {
            client,
            request: Request::new(path),
            query,
            writer,
            known: Known::Nothing,
            start: Start::Stream,
            pace: Pace::default(),
            absence: Absence::new(None),
            importance: Importance::View,
        }
    }

    /// Names the definition that brings its kind.
    pub(crate) fn defined_by(self, definition: Option<Definition>) -> Self {
        Self { absence: Absence::new(definition), ..self }
    }

    /// Says what its trouble means.
    pub(crate) fn of(self, importance: Importance) -> Self {
        Self { importance, ..self }
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
            let jitter = Entropy.rng().random_range(0.0..=JITTER);
            let delay = self.pace.after(&error).mul_f64(1.0 + jitter);
            match error {
                WatchError::Absent => {
                    self.writer.set_trouble(None);
                    if self.absence.wait(delay).await == Sign::Told {
                        self.pace.progressed();
                    }
                    continue;
                }
                // 410 says that the revision has expired, 404 that the kind has gone.
                error if matches!(error.code(), Some(410 | 404)) => {
                    tracing::debug!(path = self.writer.path(), %error, "listing anew");
                }
                error => self.complain(&error, delay),
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Does what comes next by what is known.
    async fn step(&mut self) -> Result<(), WatchError> {
        match self.known.clone() {
            Known::Nothing => self.start().await?,
            Known::Upto(revision) => self.watch(revision, None).await?,
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

    /// Watches from `revision` on, on a stream that is there or a new one, and notes what is known afterwards.
    async fn watch(&mut self, mut revision: String, lines: Option<Lines>) -> Result<(), WatchError> {
        let (before, started) = (revision.clone(), Clock.now());
        let asked = lines.as_ref().map_or(started, |lines| lines.began);
        let outcome = self.watch_once(&mut revision, lines).await;
        let now = Clock.now();
        let outcome = match outcome {
            Ok(()) if revision == before && now.duration_since(started) < WATCH_MIN => {
                Err(WatchError::EndedAtOnce)
            }
            outcome => outcome,
        };
        self.known = match &outcome {
            Err(error) if matches!(error.code(), Some(410 | 404)) => Known::Nothing,
            Err(error) if self.pace.doubts(error) => Known::Nothing,
            // A server that refuses is there.
            Err(WatchError::Refused { .. }) => Known::Upto(revision),
            // It has ended the watch in time.
            Ok(()) if now.duration_since(asked) + WATCH_GRACE >= watch_duration() => Known::Upto(revision),
            _ => Known::Doubted(revision),
        };
        outcome
    }

    /// One watch. `revision` follows what has been seen, also when this fails.
    async fn watch_once(&mut self, revision: &mut String, lines: Option<Lines>) -> Result<(), WatchError> {
        let mut lines = match lines {
            Some(lines) => lines,
            None => {
                let params = self.query.to_watch_params();
                let request = if K::metadata_api() {
                    self.request.watch_metadata(&params, revision)
                } else {
                    self.request.watch(&params, revision)
                };
                let request = request.map_err(WatchError::Request)?;
                Lines::open(&self.client, request, WATCH_START_DEADLINE).await?
            }
        };
        self.writer.set_trouble(None);
        let idle = watch_duration() + WATCH_GRACE;
        while let Some(line) = lines.next(idle).await? {
            let seen = self.take(decode::event::<K>(line, self.query.kept())?)?;
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
                self.writer.delete(&key);
                resource_version
            }
            Event::Unreadable { key, cause, resource_version } => {
                self.writer.keep_unreadable(key, cause);
                resource_version
            }
            Event::Bookmark { resource_version, .. } => Some(resource_version),
            Event::Failed(error) => return Err(error),
        };
        seen.filter(|seen| !seen.is_empty()).ok_or(WatchError::NoResourceVersion)
    }

    fn complain(&self, error: &WatchError, delay: Duration) {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let because = cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        self.writer.set_trouble(Some(format!("{error}{because}")));
        let path = self.writer.path();
        match self.importance {
            Importance::View => tracing::warn!(path, %error, cause, ?delay, "the view lags, retrying"),
            Importance::Aid => tracing::debug!(path, %error, cause, ?delay, "the view lags, retrying"),
        }
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
