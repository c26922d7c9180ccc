//! What waits, what is worked on, and what failed. No I/O, no clock.

use super::Next;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Delay after the first failure of a key. Source: client-go's default item limiter.
pub(super) const RETRY_DELAY_MIN: Duration = Duration::from_millis(5);
/// Longest delay of a key: a cure elsewhere is noticed within this.
pub(super) const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// Retries per second over all keys once [`RETRY_BURST`] is used up, so that a broken server is not flooded.
pub(super) const RETRIES_PER_SECOND: u32 = 50;
/// Retries that may come at once.
pub(super) const RETRY_BURST: u32 = 100;
/// What waits, what is worked on, and what failed. Each key is in at most one of `ready`, `delayed` and `running`,
/// but a running key may also be dirty (wanted again) or delayed.
pub(super) struct State<K> {
    ready: VecDeque<K>,
    /// The ready keys, and since when they are.
    queued: HashMap<K, Instant>,
    running: HashSet<K>,
    dirty: HashSet<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    retries: Bucket,
    next: u64,
}

pub(super) enum Taken<K> {
    /// A key, and how long it has been ready.
    Key { key: K, waited: Duration },
    /// Nothing is ready; something will be at this time.
    Wait(Option<Instant>),
}

impl<K: Clone + Eq + Hash> State<K> {
    pub(super) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: HashMap::new(),
            running: HashSet::new(),
            dirty: HashSet::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            retries: Bucket { tokens: f64::from(RETRY_BURST), filled: None },
            next: 0,
        }
    }

    /// Keys ready, delayed or being worked on.
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.delayed.len() + self.running.len()
    }

    /// Keys that are ready.
    pub(super) fn depth(&self) -> usize {
        self.ready.len()
    }

    /// Keys ready or delayed.
    pub(super) fn waiting(&self) -> HashSet<K> {
        self.ready.iter().chain(self.delayed.values()).cloned().collect()
    }

    /// Forgets failures and planned times of a key.
    pub(super) fn forget(&mut self, key: &K) {
        self.failures.remove(key);
        if let Some(due) = self.due.remove(key) {
            self.delayed.remove(&due);
        }
    }

    pub(super) fn add(&mut self, key: K, now: Instant) {
        if self.running.contains(&key) {
            self.dirty.insert(key);
            return;
        }
        if let Some(due) = self.due.remove(&key) {
            self.delayed.remove(&due);
        }
        if let Entry::Vacant(place) = self.queued.entry(key) {
            self.ready.push_back(place.key().clone());
            place.insert(now);
        }
    }

    pub(super) fn add_at(&mut self, key: K, at: Instant) {
        if self.queued.contains_key(&key) || self.dirty.contains(&key) {
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

    pub(super) fn take(&mut self, now: Instant) -> Taken<K> {
        while let Some((&due, _)) = self.delayed.first_key_value()
            && due.0 <= now
            && let Some(key) = self.delayed.remove(&due)
        {
            self.due.remove(&key);
            self.add(key, now);
        }
        match self.ready.pop_front() {
            Some(key) => {
                let since = self.queued.remove(&key).unwrap_or(now);
                self.running.insert(key.clone());
                Taken::Key { key, waited: now.saturating_duration_since(since) }
            }
            None => Taken::Wait(self.delayed.first_key_value().map(|(due, _)| due.0)),
        }
    }

    pub(super) fn succeed(&mut self, key: &K, next: Next, now: Instant) {
        self.failures.remove(key);
        self.release(key, now);
        if let Next::After(delay) = next {
            self.add_at(key.clone(), now + delay);
        }
    }

    /// Notes a failure; returns how many there have been, and the delay until the next attempt, if there is one.
    pub(super) fn fail(&mut self, key: &K, now: Instant, attempts: Option<u32>) -> (u32, Option<Duration>) {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        *failures = failures.saturating_add(1);
        let count = *failures;
        self.release(key, now);
        if attempts.is_some_and(|attempts| count >= attempts) {
            self.failures.remove(key);
            return (count, None);
        }
        let delay = RETRY_DELAY_MIN.saturating_mul(1 << (count - 1).min(16)).min(RETRY_DELAY_MAX);
        let delay = delay.max(self.retries.take(now));
        self.add_at(key.clone(), now + delay);
        (count, Some(delay))
    }

    pub(super) fn release(&mut self, key: &K, now: Instant) {
        self.running.remove(key);
        if self.dirty.remove(key) {
            self.add(key.clone(), now);
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
