//! The proxy's metrics, named as the field's node proxy names them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Labels of connections. Missing values are the word `unknown`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TrafficLabels {
    pub(crate) reporter: &'static str,
    pub(crate) source_workload: String,
    pub(crate) source_canonical_service: String,
    pub(crate) source_canonical_revision: String,
    pub(crate) source_workload_namespace: String,
    pub(crate) source_principal: String,
    pub(crate) source_app: String,
    pub(crate) source_version: String,
    pub(crate) source_cluster: String,
    pub(crate) destination_service: String,
    pub(crate) destination_service_namespace: String,
    pub(crate) destination_service_name: String,
    pub(crate) destination_workload: String,
    pub(crate) destination_canonical_service: String,
    pub(crate) destination_canonical_revision: String,
    pub(crate) destination_workload_namespace: String,
    pub(crate) destination_principal: String,
    pub(crate) destination_app: String,
    pub(crate) destination_version: String,
    pub(crate) destination_cluster: String,
    pub(crate) request_protocol: &'static str,
    pub(crate) response_flags: &'static str,
    pub(crate) connection_security_policy: &'static str,
    pub(crate) source_region: String,
    pub(crate) source_zone: String,
    pub(crate) destination_region: String,
    pub(crate) destination_zone: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Reporter {
    pub(crate) reporter: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Reason {
    pub(crate) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Url {
    pub(crate) url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    component: &'static str,
    tag: &'static str,
}

/// All metrics.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) opened: Family<TrafficLabels, Counter>,
    pub(crate) closed: Family<TrafficLabels, Counter>,
    pub(crate) failed: Family<TrafficLabels, Counter>,
    pub(crate) received_bytes: Family<TrafficLabels, Counter>,
    pub(crate) sent_bytes: Family<TrafficLabels, Counter>,
    pub(crate) sockets_open: Family<Reporter, Gauge>,
    pub(crate) discovery_terminations: Family<Reason, Counter>,
    pub(crate) discovery_messages: Family<Url, Counter>,
    pub(crate) discovery_bytes: Family<Url, Counter>,
    pub(crate) pods_active: Gauge,
    pub(crate) pods_pending: Gauge,
    pub(crate) pods_started: Counter,
    pub(crate) pods_stopped: Counter,
    build: Family<Build, Gauge>,
}

impl Metrics {
    /// The metrics and the registry that encodes them.
    pub(crate) fn new() -> (Self, Registry) {
        let metrics = Self::default();
        let mut root = Registry::default();
        let istio = root.sub_registry_with_prefix("istio");
        istio.register("tcp_connections_opened", "Connections opened", metrics.opened.clone());
        istio.register("tcp_connections_closed", "Connections closed", metrics.closed.clone());
        istio.register("tcp_connections_failed", "Connections that failed", metrics.failed.clone());
        let received = metrics.received_bytes.clone();
        istio.register("tcp_received_bytes", "Bytes from clients to servers", received);
        istio.register("tcp_sent_bytes", "Bytes from servers to clients", metrics.sent_bytes.clone());
        istio.register("tcp_sockets_open", "Connections open now", metrics.sockets_open.clone());
        let terminations = metrics.discovery_terminations.clone();
        istio.register("xds_connection_terminations", "Discovery streams that ended", terminations);
        istio.register("xds_message", "Discovery responses", metrics.discovery_messages.clone());
        istio.register("xds_message_bytes", "Bytes of resources received", metrics.discovery_bytes.clone());
        istio.register("build", "What runs", metrics.build.clone());
        let build = Build { component: "ambit-proxy", tag: env!("CARGO_PKG_VERSION") };
        metrics.build.get_or_create(&build).set(1);
        let pods = root.sub_registry_with_prefix("workload_manager");
        pods.register("active_proxy_count", "Pods served", metrics.pods_active.clone());
        pods.register(
            "pending_proxy_count",
            "Pods that could not be started yet",
            metrics.pods_pending.clone(),
        );
        pods.register("proxies_started", "Pods started", metrics.pods_started.clone());
        pods.register("proxies_stopped", "Pods stopped", metrics.pods_stopped.clone());
        (metrics, root)
    }
}
