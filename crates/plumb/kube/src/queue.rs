//! The work queue: every key once, one worker per key at a time, retries with growing delays.

use crate::informer::Synced;
use crate::queue_metrics::{OneQueue, QueueMetrics, Working};
use ambit_runtime::{Clock, Shutdown};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

mod state;

use state::{State, Taken};

/// Keys worked on at once, unless set: enough to hide a round trip, few enough to be kind to the server.
const WORKERS: usize = 8;
/// Time for one call of the handler; past it the call is dropped and counts as failed.
const HANDLER_DEADLINE: Duration = Duration::from_secs(60);
/// Time that calls in progress get to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(2);

/// What a handler wants next for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing until the key is added again.
    Done,
    /// Look again after this time, even if nothing changes.
    After(Duration),
}

/// How a queue works. Made with [`QueueSettings::new`], then changed where the defaults do not fit.
pub struct QueueSettings<K> {
    name: &'static str,
    workers: usize,
    after: Vec<Synced>,
    attempts: Option<u32>,
    metrics: Option<QueueMetrics>,
    on_give_up: Option<GiveUp<K>>,
}

type GiveUp<K> = Box<dyn Fn(&K, &str) + Send + Sync>;

impl<K> QueueSettings<K> {
    /// Defaults; the name is for logs and metrics.
    pub fn new(name: &'static str) -> Self {
        Self { name, workers: WORKERS, after: Vec::new(), attempts: None, metrics: None, on_give_up: None }
    }

    /// Works on at most so many keys at once (at least one). One worker makes the whole controller serial.
    #[must_use]
    pub fn workers(self, workers: usize) -> Self {
        Self { workers: workers.max(1), ..self }
    }

    /// Hands out nothing before these informers have synced: half a view would look like deletions.
    #[must_use]
    pub fn after(self, synced: impl IntoIterator<Item = Synced>) -> Self {
        Self { after: synced.into_iter().collect(), ..self }
    }

    /// Gives a key up after so many failures in a row, until it is added again. Without it, retries never end, which is
    /// right wherever the cure may come from outside.
    #[must_use]
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts: Some(attempts.max(1)), ..self }
    }

    /// Called with a key that is given up and its last error, to record an event for instance.
    #[must_use]
    pub fn on_give_up(self, call: impl Fn(&K, &str) + Send + Sync + 'static) -> Self {
        Self { on_give_up: Some(Box::new(call)), ..self }
    }

    /// Counts in these metrics.
    #[must_use]
    pub fn metrics(self, metrics: &QueueMetrics) -> Self {
        Self { metrics: Some(metrics.clone()), ..self }
    }
}

/// A queue of keys. Clones share one queue.
pub struct Queue<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    settings: QueueSettings<K>,
    metrics: Option<OneQueue>,
    state: Mutex<State<K>>,
    /// Keys that were there when work began and have not been handled yet.
    initial: Mutex<Option<HashSet<K>>>,
    caught_up: watch::Sender<bool>,
    wake: Notify,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.inner.settings.name).finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash + fmt::Debug> Queue<K> {
    /// An empty queue with default settings; the name is for logs and metrics.
    pub fn new(name: &'static str) -> Self {
        Self::with(QueueSettings::new(name))
    }

    /// An empty queue that works on at most `workers` keys at once (at least one).
    pub fn with_workers(name: &'static str, workers: usize) -> Self {
        Self::with(QueueSettings::new(name).workers(workers))
    }

    /// An empty queue.
    pub fn with(settings: QueueSettings<K>) -> Self {
        let inner = Inner {
            metrics: settings.metrics.as_ref().map(|metrics| metrics.of(settings.name)),
            settings,
            state: Mutex::new(State::new()),
            initial: Mutex::default(),
            caught_up: watch::Sender::new(false),
            wake: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Adds a key. One that waits already is not added twice; one that is being worked on is worked on once more.
    pub fn add(&self, key: K) {
        let now = Clock.now();
        self.with_waking(|state| state.add(key, now));
        if let Some(metrics) = &self.inner.metrics {
            metrics.added(self.with_quiet(|state| state.depth()));
        }
    }

    /// Adds a key after a delay. A key waits for the earliest of its times only.
    pub fn add_after(&self, key: K, delay: Duration) {
        let due = Clock.now() + delay;
        self.with_waking(|state| state.add_at(key, due));
    }

    /// Forgets failures and planned times of a key. One that waits now is still handled.
    pub fn forget(&self, key: &K) {
        self.with_quiet(|state| state.forget(key));
    }

    /// Whether every key that was there when work began has been handled at least once, whatever came of it. What the
    /// informers showed at the start is there by then, given [`QueueSettings::after`].
    pub fn has_caught_up(&self) -> bool {
        *self.inner.caught_up.borrow()
    }

    /// Waits until [`Queue::has_caught_up`]. Cancel safe.
    pub async fn caught_up(&self) {
        // The sender lives as long as `self`.
        let _ = self.inner.caught_up.subscribe().wait_for(|caught_up| *caught_up).await;
    }

    /// Keys ready, delayed or being worked on.
    pub fn len(&self) -> usize {
        self.with_quiet(|state| state.len())
    }

    /// Whether nothing is to be done, now or later.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands keys to `handler` until `shutdown`; calls in progress then get a moment to finish. A call that fails, panics
    /// or takes too long is logged and its key comes again with a growing delay. Call it once.
    pub async fn run<H, F, E>(&self, handler: H, shutdown: &Shutdown)
    where
        H: Fn(K) -> F,
        F: Future<Output = Result<Next, E>>,
        E: std::error::Error,
    {
        for synced in &self.inner.settings.after {
            tokio::select! {
                () = synced.wait() => {}
                () = shutdown.cancelled() => return,
            }
        }
        self.begin();
        let mut running = FuturesUnordered::new();
        while !shutdown.is_cancelled() {
            let due = loop {
                if running.len() >= self.inner.settings.workers {
                    break None;
                }
                match self.with_quiet(|state| state.take(Clock.now())) {
                    Taken::Key { key, waited } => {
                        self.took(waited);
                        running.push(call(key.clone(), self.begin_call(), || handler(key)));
                    }
                    Taken::Wait(due) => break due,
                }
            };
            // Each branch is cancel safe: a finished call stays in `running`, a notice is kept by `Notify`.
            tokio::select! {
                Some(called) = running.next() => self.settle(called),
                () = self.inner.wake.notified() => {}
                () = until(due) => {}
                () = shutdown.cancelled() => {}
            }
        }
        let drained = async { while running.next().await.is_some() {} };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            tracing::debug!(
                queue = self.inner.settings.name,
                "dropped calls that did not finish at shutdown"
            );
        }
    }

    /// Notes the keys that are there when work begins.
    fn begin(&self) {
        let keys = self.with_quiet(|state| state.waiting());
        let mut initial = self.inner.initial.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.is_empty() {
            self.inner.caught_up.send_replace(true);
        } else {
            *initial = Some(keys);
        }
    }

    fn took(&self, waited: Duration) {
        if let Some(metrics) = &self.inner.metrics {
            metrics.took(waited, self.with_quiet(|state| state.depth()));
        }
    }

    fn begin_call(&self) -> Option<Working> {
        self.inner.metrics.as_ref().map(|metrics| metrics.begin(Clock.now()))
    }

    fn handled(&self, key: &K) {
        let mut initial = self.inner.initial.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = initial.as_mut()
            && keys.remove(key)
            && keys.is_empty()
        {
            *initial = None;
            self.inner.caught_up.send_replace(true);
        }
    }

    fn settle<E: std::error::Error>(&self, called: Called<K, E>) {
        let now = Clock.now();
        let Called { key, outcome, started } = called;
        if let Some(metrics) = &self.inner.metrics {
            metrics.worked(now.saturating_duration_since(started));
        }
        let error = match outcome {
            Outcome::Answered(Ok(next)) => {
                self.with_quiet(|state| state.succeed(&key, next, now));
                self.handled(&key);
                return;
            }
            Outcome::Answered(Err(error)) => with_causes(&error),
            Outcome::TimedOut => format!("no answer within {} s", HANDLER_DEADLINE.as_secs()),
            Outcome::Panicked(message) => format!("the handler panicked: {message}"),
        };
        self.failed(&key, &error, now);
        self.handled(&key);
    }

    fn failed(&self, key: &K, error: &str, now: Instant) {
        let Inner { settings, metrics, .. } = self.inner.as_ref();
        let queue = settings.name;
        let (failures, delay) = self.with_quiet(|state| state.fail(key, now, settings.attempts));
        let Some(delay) = delay else {
            tracing::error!(queue, ?key, error, failures, "work keeps failing, giving up");
            if let Some(metrics) = metrics {
                metrics.gave_up();
            }
            if let Some(call) = &settings.on_give_up {
                call(key, error);
            }
            return;
        };
        if let Some(metrics) = metrics {
            metrics.retried();
        }
        // Single conflicts are the normal price of optimistic writes.
        if failures < 3 {
            tracing::debug!(queue, ?key, error, failures, ?delay, "work failed, retrying");
        } else {
            tracing::warn!(queue, ?key, error, failures, ?delay, "work keeps failing, retrying");
        }
    }

    fn with_waking<T>(&self, change: impl FnOnce(&mut State<K>) -> T) -> T {
        let answer = self.with_quiet(change);
        self.inner.wake.notify_one();
        answer
    }

    fn with_quiet<T>(&self, change: impl FnOnce(&mut State<K>) -> T) -> T {
        change(&mut self.inner.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

enum Outcome<E> {
    Answered(Result<Next, E>),
    TimedOut,
    Panicked(String),
}

struct Called<K, E> {
    key: K,
    outcome: Outcome<E>,
    started: Instant,
}

/// Calls the handler; `working` counts the call until it ends or is dropped. Nothing of a call that panicked is used again:
/// what it worked on is read anew by the next one.
async fn call<K, E, F>(key: K, working: Option<Working>, handler: impl FnOnce() -> F) -> Called<K, E>
where
    F: Future<Output = Result<Next, E>>,
{
    let started = Clock.now();
    let work = AssertUnwindSafe(async move { handler().await }).catch_unwind();
    let outcome = match tokio::time::timeout(HANDLER_DEADLINE, work).await {
        Ok(Ok(answer)) => Outcome::Answered(answer),
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            Outcome::Panicked(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
        }
        Err(_) => Outcome::TimedOut,
    };
    drop(working);
    Called { key, outcome, started }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests;
