//! Metrics, under the names that upstream's dashboards use.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What is counted.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    /// Requests being answered now.
    pub(crate) in_flight: Gauge,
    revision: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: String,
    code: u16,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let (requests, in_flight, revision) = (Family::default(), Gauge::default(), Gauge::default());
        registry.register("apiserver_request", "Requests by method and code", Family::clone(&requests));
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests being answered",
            Gauge::clone(&in_flight),
        );
        registry.register("apiserver_storage_revision", "The newest revision", Gauge::clone(&revision));
        Self { registry, requests, in_flight, revision }
    }

    /// Counts an answer. Methods and codes are few, so the labels are bounded.
    pub(crate) fn count(&self, method: &http::Method, code: u16) {
        let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
        let verb = known.into_iter().find(|m| *m == method.as_str()).unwrap_or("OTHER").to_owned();
        self.requests.get_or_create(&RequestLabels { verb, code }).inc();
    }

    /// The text exposition.
    pub(crate) fn text(&self, revision: u64) -> String {
        self.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}
