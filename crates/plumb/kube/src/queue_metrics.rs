//! Metrics of work queues, under the names that client-go's queues have.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: &'static str,
}

/// Metrics of all queues of a role, by name. Clones share them.
#[derive(Clone)]
pub struct QueueMetrics {
    depth: Family<Name, Gauge>,
    adds: Family<Name, Counter>,
    waits: Family<Name, Histogram, fn() -> Histogram>,
    work: Family<Name, Histogram, fn() -> Histogram>,
    retries: Family<Name, Counter>,
    given_up: Family<Name, Counter>,
}

/// 10 µs to 10 s: from a view's look-up to a handler that waits for a slow server.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-5, 10.0, 7))
}

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            depth: Family::default(),
            adds: Family::default(),
            waits: Family::new_with_constructor(seconds),
            work: Family::new_with_constructor(seconds),
            retries: Family::default(),
            given_up: Family::default(),
        }
    }
}

impl QueueMetrics {
    /// Makes them readable.
    pub fn register(&self, registry: &mut Registry) {
        let of = registry.sub_registry_with_prefix("workqueue");
        of.register("depth", "Keys that are ready", self.depth.clone());
        of.register("adds", "Keys added", self.adds.clone());
        of.register(
            "queue_duration_seconds",
            "Time that keys were ready before work began",
            self.waits.clone(),
        );
        of.register("work_duration_seconds", "Time that handling a key took", self.work.clone());
        of.register("retries", "Keys that come again after a failure", self.retries.clone());
        of.register("given_up", "Keys given up after too many failures", self.given_up.clone());
    }

    pub(crate) fn of(&self, name: &'static str) -> OneQueue {
        let name = Name { name };
        OneQueue {
            depth: self.depth.get_or_create_owned(&name),
            adds: self.adds.get_or_create_owned(&name),
            waits: self.waits.get_or_create_owned(&name),
            work: self.work.get_or_create_owned(&name),
            retries: self.retries.get_or_create_owned(&name),
            given_up: self.given_up.get_or_create_owned(&name),
        }
    }
}

/// Metrics of one queue.
pub(crate) struct OneQueue {
    depth: Gauge,
    adds: Counter,
    waits: Histogram,
    work: Histogram,
    retries: Counter,
    given_up: Counter,
}

impl OneQueue {
    pub(crate) fn added(&self, depth: usize) {
        self.adds.inc();
        self.set_depth(depth);
    }

    pub(crate) fn took(&self, waited: Duration, depth: usize) {
        self.waits.observe(waited.as_secs_f64());
        self.set_depth(depth);
    }

    fn set_depth(&self, depth: usize) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    pub(crate) fn worked(&self, took: Duration) {
        self.work.observe(took.as_secs_f64());
    }

    pub(crate) fn retried(&self) {
        self.retries.inc();
    }

    pub(crate) fn gave_up(&self) {
        self.given_up.inc();
    }
}
