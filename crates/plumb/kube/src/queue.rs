//! The work queue: every key once, one worker per key at a time, retries with growing delays.

use ambit_runtime::{Clock, Shutdown};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Keys worked on at once, unless set: enough to hide a round trip, few enough to be kind to the server.
const WORKERS: usize = 8;
/// Delay after the first failure of a key. Source: client-go's default item limiter.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(5);
/// Longest delay of a key: a cure elsewhere is noticed within this.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// Retries per second over all keys once [`RETRY_BURST`] is used up, so that a broken server is not flooded.
const RETRIES_PER_SECOND: u32 = 50;
/// Retries that may come at once.
const RETRY_BURST: u32 = 100;
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

/// A queue of keys. Clones share one queue.
pub struct Queue<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    name: &'static str,
    workers: usize,
    state: Mutex<State<K>>,
    wake: Notify,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash + fmt::Debug> Queue<K> {
    /// An empty queue; the name is for logs.
    pub fn new(name: &'static str) -> Self {
        Self::with_workers(name, WORKERS)
    }

    /// An empty queue that works on at most `workers` keys at once (at least one).
    pub fn with_workers(name: &'static str, workers: usize) -> Self {
        let inner =
            Inner { name, workers: workers.max(1), state: Mutex::new(State::new()), wake: Notify::new() };
        Self { inner: Arc::new(inner) }
    }

    /// Adds a key. One that waits already is not added twice; one that is being worked on is worked on once more.
    pub fn add(&self, key: K) {
        self.with(|state| state.add(key));
    }

    /// Adds a key after a delay. A key waits for the earliest of its times only.
    pub fn add_after(&self, key: K, delay: Duration) {
        let due = Clock.now() + delay;
        self.with(|state| state.add_at(key, due));
    }

    /// Keys ready, delayed or being worked on.
    pub fn len(&self) -> usize {
        let state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ready.len() + state.delayed.len() + state.running.len()
    }

    /// Whether nothing is to be done, now or later.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands keys to `handler` until `shutdown`; calls in progress then get a moment to finish. A failed call is
    /// logged and its key comes again with a growing delay. Call it once.
    pub async fn run<H, F, E>(&self, handler: H, shutdown: &Shutdown)
    where
        H: Fn(K) -> F,
        F: Future<Output = Result<Next, E>>,
        E: std::error::Error,
    {
        let mut running = FuturesUnordered::new();
        while !shutdown.is_cancelled() {
            let due = loop {
                if running.len() >= self.inner.workers {
                    break None;
                }
                match self.with_quiet(|state| state.take(Clock.now())) {
                    Taken::Key(key) => running.push(call(key.clone(), handler(key))),
                    Taken::Wait(due) => break due,
                }
            };
            // Each branch is cancel safe: a finished call stays in `running`, a notice is kept by `Notify`.
            tokio::select! {
                Some((key, outcome)) = running.next() => self.settle(key, outcome),
                () = self.inner.wake.notified() => {}
                () = until(due) => {}
                () = shutdown.cancelled() => {}
            }
        }
        let drained = async { while running.next().await.is_some() {} };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            tracing::debug!(queue = self.inner.name, "dropped calls that did not finish at shutdown");
        }
    }

    fn settle<E: std::error::Error>(&self, key: K, outcome: Outcome<E>) {
        let now = Clock.now();
        let error = match outcome {
            Outcome::Answered(Ok(next)) => {
                self.with_quiet(|state| state.succeed(&key, next, now));
                return;
            }
            Outcome::Answered(Err(error)) => with_causes(&error),
            Outcome::TimedOut => format!("no answer within {} s", HANDLER_DEADLINE.as_secs()),
        };
        let (failures, delay) = self.with_quiet(|state| state.fail(&key, now));
        let queue = self.inner.name;
        // Single conflicts are the normal price of optimistic writes.
        if failures < 3 {
            tracing::debug!(queue, ?key, error, failures, ?delay, "work failed, retrying");
        } else {
            tracing::warn!(queue, ?key, error, failures, ?delay, "work keeps failing, retrying");
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut State<K>) -> T) -> T {
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
}

async fn call<K, E>(key: K, work: impl Future<Output = Result<Next, E>>) -> (K, Outcome<E>) {
    match tokio::time::timeout(HANDLER_DEADLINE, work).await {
        Ok(answer) => (key, Outcome::Answered(answer)),
        Err(_) => (key, Outcome::TimedOut),
    }
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

/// What waits, what is worked on, and what failed. Each key is in at most one of `ready`, `delayed` and `running`,
/// but a running key may also be dirty (wanted again) or delayed.
struct State<K> {
    ready: VecDeque<K>,
    queued: HashSet<K>,
    running: HashSet<K>,
    dirty: HashSet<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    retries: Bucket,
    next: u64,
}

enum Taken<K> {
    Key(K),
    /// Nothing is ready; something will be at this time.
    Wait(Option<Instant>),
}

impl<K: Clone + Eq + Hash> State<K> {
    fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            running: HashSet::new(),
            dirty: HashSet::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            retries: Bucket { tokens: f64::from(RETRY_BURST), filled: None },
            next: 0,
        }
    }

    fn add(&mut self, key: K) {
        if self.running.contains(&key) {
            self.dirty.insert(key);
            return;
        }
        if let Some(due) = self.due.remove(&key) {
            self.delayed.remove(&due);
        }
        if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn add_at(&mut self, key: K, at: Instant) {
        if self.queued.contains(&key) || self.dirty.contains(&key) {
            return;
        }
        match self.due.get(&key) {
            Some((known, _)) if *known <= at => return,
            Some(known) => {
                self.delayed.remove(known);
            }
            None => {}
        }
        let due = (at, self.next);
        self.next += 1;
        self.delayed.insert(due, key.clone());
        self.due.insert(key, due);
    }

    fn take(&mut self, now: Instant) -> Taken<K> {
        while let Some((&due, _)) = self.delayed.first_key_value()
            && due.0 <= now
            && let Some(key) = self.delayed.remove(&due)
        {
            self.due.remove(&key);
            self.add(key);
        }
        match self.ready.pop_front() {
            Some(key) => {
                self.queued.remove(&key);
                self.running.insert(key.clone());
                Taken::Key(key)
            }
            None => Taken::Wait(self.delayed.first_key_value().map(|(due, _)| due.0)),
        }
    }

    fn succeed(&mut self, key: &K, next: Next, now: Instant) {
        self.failures.remove(key);
        self.release(key);
        if let Next::After(delay) = next {
            self.add_at(key.clone(), now + delay);
        }
    }

    fn fail(&mut self, key: &K, now: Instant) -> (u32, Duration) {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        let count = *failures;
        *failures = count.saturating_add(1);
        let delay = RETRY_DELAY_MIN.saturating_mul(1 << count.min(16)).min(RETRY_DELAY_MAX);
        let delay = delay.max(self.retries.take(now));
        self.release(key);
        self.add_at(key.clone(), now + delay);
        (count + 1, delay)
    }

    fn release(&mut self, key: &K) {
        self.running.remove(key);
        if self.dirty.remove(key) {
            self.add(key.clone());
        }
    }
}

/// A token bucket over all retries.
struct Bucket {
    tokens: f64,
    filled: Option<Instant>,
}

impl Bucket {
    /// Takes one token; returns how long to wait for it.
    fn take(&mut self, now: Instant) -> Duration {
        let rate = f64::from(RETRIES_PER_SECOND);
        if let Some(filled) = self.filled {
            let gained = now.saturating_duration_since(filled).as_secs_f64() * rate;
            self.tokens = (self.tokens + gained).min(f64::from(RETRY_BURST));
        }
        self.filled = Some(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.tokens / rate) }
    }
}

#[cfg(test)]
mod tests;
