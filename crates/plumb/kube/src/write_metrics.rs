//! Metrics of what field managers write.

use crate::write_error::{Verb, WriteError};
use ambit_runtime::Clock;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    manager: Arc<str>,
    verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    manager: Arc<str>,
    verb: &'static str,
    outcome: &'static str,
}

/// Metrics of all field managers of a role, by name. Clones share them.
#[derive(Clone)]
pub struct WriteMetrics {
    requests: Family<Outcome, Counter>,
    unchanged: Family<Request, Counter>,
    seconds: Family<Request, Histogram, fn() -> Histogram>,
    in_flight: Family<Request, Gauge>,
}

/// 1 ms to 8 s: from a server in the same process to one that hardly answers.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-3, 2.0, 14))
}

impl Default for WriteMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            unchanged: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            in_flight: Family::default(),
        }
    }
}

impl WriteMetrics {
    /// Makes them readable.
    pub fn register(&self, registry: &mut Registry) {
        let of = registry.sub_registry_with_prefix("ambit_field_manager");
        of.register("requests", "Requests by what came of them", self.requests.clone());
        of.register("unchanged", "Writes that were not needed", self.unchanged.clone());
        of.register("request_duration_seconds", "Time that requests took", self.seconds.clone());
        of.register("requests_in_flight", "Requests without an answer yet", self.in_flight.clone());
    }

    pub(crate) fn unchanged(&self, manager: &Arc<str>, verb: Verb) {
        self.unchanged.get_or_create(&Request { manager: manager.clone(), verb: verb.label() }).inc();
    }

    pub(crate) fn begin(&self, manager: &Arc<str>, verb: Verb) -> Timer {
        let request = Request { manager: manager.clone(), verb: verb.label() };
        let in_flight = self.in_flight.get_or_create_owned(&request);
        in_flight.inc();
        Timer { metrics: self.clone(), request, in_flight, begun: Clock.now() }
    }
}

/// A request without an answer yet. One that is dropped, as at shutdown, is not counted as answered.
pub(crate) struct Timer {
    metrics: WriteMetrics,
    request: Request,
    in_flight: Gauge,
    begun: Instant,
}

impl Timer {
    pub(crate) fn end(self, error: Option<&WriteError>) {
        let Request { manager, verb } = self.request.clone();
        let outcome = Outcome { manager, verb, outcome: error.map_or("done", WriteError::label) };
        self.metrics.requests.get_or_create(&outcome).inc();
        let took = Clock.now().saturating_duration_since(self.begun);
        self.metrics.seconds.get_or_create(&self.request).observe(took.as_secs_f64());
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.in_flight.dec();
    }
}
