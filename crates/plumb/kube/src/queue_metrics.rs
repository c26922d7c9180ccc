//! Metrics of work queues, under the names that client-go's queues have.

use ambit_runtime::Clock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    unfinished: Unfinished,
}

/// When calls in progress began, by queue.
#[derive(Debug, Clone, Default)]
struct Unfinished {
    queues: Arc<Mutex<BTreeMap<&'static str, Calls>>>,
}

/// When calls in progress of one queue began.
#[derive(Debug, Default)]
struct Calls {
    next: u64,
    begun: BTreeMap<u64, Instant>,
}

impl Unfinished {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<&'static str, Calls>) -> T) -> T {
        change(&mut self.queues.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Seconds that all calls in progress of each queue have taken together, and the longest of them.
    fn seconds(&self, now: Instant) -> Vec<(&'static str, f64, f64)> {
        let of = |(name, calls): (&&'static str, &Calls)| {
            let ages = calls.begun.values().map(|begun| now.saturating_duration_since(*begun).as_secs_f64());
            let (sum, longest) =
                ages.fold((0.0, 0.0), |(sum, longest): (f64, f64), age| (sum + age, longest.max(age)));
            (*name, sum, longest)
        };
        self.with(|queues| queues.iter().map(of).collect())
    }
}

/// Worked out when it is asked for: a call that hangs changes nothing else that could be counted.
impl Collector for Unfinished {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let queues = self.seconds(Clock.now());
        let sums = queues.iter().map(|(name, sum, _)| (*name, *sum)).collect::<Vec<_>>();
        let longest = queues.iter().map(|(name, _, longest)| (*name, *longest)).collect::<Vec<_>>();
        for (metric, help, values) in [
            ("unfinished_work_seconds", "Time that calls in progress have taken, all together", sums),
            (
                "longest_running_processor_seconds",
                "Time that the longest call in progress has taken",
                longest,
            ),
        ] {
            let mut family = encoder.encode_descriptor(metric, help, None, MetricType::Gauge)?;
            for (name, seconds) in values {
                ConstGauge::new(seconds).encode(family.encode_family(&Name { name })?)?;
            }
        }
        Ok(())
    }
}

/// Counts a call as in progress until dropped, however it ends.
pub(crate) struct Working {
    of: Unfinished,
    queue: &'static str,
    call: u64,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.of.with(|queues| queues.get_mut(self.queue).map(|calls| calls.begun.remove(&self.call)));
    }
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
            unfinished: Unfinished::default(),
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
        of.register_collector(Box::new(self.unfinished.clone()));
    }

    pub(crate) fn of(&self, queue: &'static str) -> OneQueue {
        let name = Name { name: queue };
        // Shown from the start, as the other numbers are.
        self.unfinished.with(|queues| queues.entry(queue).or_default().next);
        OneQueue {
            queue,
            unfinished: self.unfinished.clone(),
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
    queue: &'static str,
    unfinished: Unfinished,
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

    /// A call begins.
    pub(crate) fn begin(&self, now: Instant) -> Working {
        let call = self.unfinished.with(|queues| {
            let calls = queues.entry(self.queue).or_default();
            calls.next += 1;
            calls.begun.insert(calls.next, now);
            calls.next
        });
        Working { of: self.unfinished.clone(), queue: self.queue, call }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_progress_are_counted_until_they_end() {
        let metrics = QueueMetrics::default();
        let queue = metrics.of("q");
        let begun = Clock.now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(metrics.unfinished.seconds(at(9)), [("q", 0.0, 0.0)]);
        let (first, second) = (queue.begin(begun), queue.begin(at(3)));
        assert_eq!(metrics.unfinished.seconds(at(5)), [("q", 7.0, 5.0)]);
        drop(first);
        assert_eq!(metrics.unfinished.seconds(at(5)), [("q", 2.0, 2.0)]);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for metric in ["workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"] {
            assert!(text.contains(&format!("{metric}{{name=\"q\"}} ")), "{text}");
        }
        drop(second);
        assert_eq!(metrics.unfinished.seconds(at(5)), [("q", 0.0, 0.0)]);
    }
}
