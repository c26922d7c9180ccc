//! The agent's metrics, under the names that dashboards of the field's agent use.

use ambit_node_plan::enroll::state::State;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Code {
    response_code: u16,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    r#type: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CaptureState {
    state: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

/// All metrics. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    requests: Family<Code, Counter>,
    events: Family<Kind, Counter>,
    proxies: Gauge,
    pods: Gauge,
    installs: Family<Outcome, Counter>,
    installed: Gauge,
    states: Family<CaptureState, Gauge>,
    kept_off: Gauge,
    descriptors: Gauge,
    descriptors_limit: Gauge,
}

impl Metrics {
    /// The metrics, and the registry from which they are served.
    pub(crate) fn new() -> (Self, Registry) {
        let mut registry = Registry::default();
        let requests = Family::default();
        let events = Family::default();
        let (proxies, pods) = (Gauge::default(), Gauge::default());
        let r = &mut registry;
        // The library appends `_total` to counters.
        r.register("istio_cni_plugin_requests", "Requests of the plugin, by response code", requests.clone());
        r.register(
            "nodeagent_reconcile_events",
            "Changes of pods that were looked at, by type",
            events.clone(),
        );
        r.register("ztunnel_connected", "Connected node proxies", proxies.clone());
        r.register("ambit_agent_captured_pods", "Pods of this node that are captured", pods.clone());
        let (installs, installed) = (Family::default(), Gauge::default());
        let r = &mut registry;
        r.register(
            "istio_cni_installs",
            "Installations of the plugin and its entry, by result",
            installs.clone(),
        );
        r.register(
            "istio_cni_install_ready",
            "Whether the plugin and its entry are in place",
            installed.clone(),
        );
        let (states, kept_off) = (Family::default(), Gauge::default());
        r.register("ambit_agent_pods", "Pods of this node, by capture state", states.clone());
        r.register(
            "ambit_agent_kept_off_pods",
            "Pods whose traffic the node drops until they are captured",
            kept_off.clone(),
        );
        let (descriptors, descriptors_limit) = (Gauge::default(), Gauge::default());
        r.register("ambit_agent_descriptors_open", "Open files of the agent", descriptors.clone());
        r.register(
            "ambit_agent_descriptors_limit",
            "How many files the agent may have open",
            descriptors_limit.clone(),
        );
        let metrics = Self {
            requests,
            events,
            proxies,
            pods,
            installs,
            installed,
            states,
            kept_off,
            descriptors,
            descriptors_limit,
        };
        for state in State::ALL {
            metrics.add_state(state.word(), 0);
        }
        (metrics, registry)
    }

    /// Pods that have reached a capture state, less those that have left it.
    pub(crate) fn add_state(&self, state: &'static str, pods: i64) {
        self.states.get_or_create(&CaptureState { state }).inc_by(pods);
    }

    /// Pods that are kept off the network from now on, less those that are not any more.
    pub(crate) fn add_kept_off(&self, pods: i64) {
        self.kept_off.inc_by(pods);
    }

    pub(crate) fn count_request(&self, response_code: u16) {
        self.requests.get_or_create(&Code { response_code }).inc();
    }

    /// `kind` is `add`, `update` or `delete`.
    pub(crate) fn count_event(&self, kind: &'static str) {
        self.events.get_or_create(&Kind { r#type: kind }).inc();
    }

    /// `result` is `SUCCESS`, `COPY_BINARIES_FAILURE` or `CREATE_CNI_CONFIG_FAILURE`.
    pub(crate) fn count_install(&self, result: &'static str) {
        self.installs.get_or_create(&Outcome { result }).inc();
    }

    pub(crate) fn set_installed(&self, installed: bool) {
        self.installed.set(i64::from(installed));
    }

    pub(crate) fn set_proxies(&self, connected: usize) {
        self.proxies.set(i64::try_from(connected).unwrap_or(i64::MAX));
    }

    pub(crate) fn proxies(&self) -> usize {
        usize::try_from(self.proxies.get()).unwrap_or_default()
    }

    pub(crate) fn set_descriptors(&self, open: u64, limit: u64) {
        self.descriptors.set(i64::try_from(open).unwrap_or(i64::MAX));
        self.descriptors_limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
    }

    pub(crate) fn set_pods(&self, captured: usize) {
        self.pods.set(i64::try_from(captured).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
pub(crate) fn text(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_the_field_s() {
        let (metrics, registry) = Metrics::new();
        metrics.count_request(200);
        metrics.count_event("add");
        metrics.set_proxies(2);
        let text = text(&registry);
        for line in [
            r#"istio_cni_plugin_requests_total{response_code="200"} 1"#,
            r#"nodeagent_reconcile_events_total{type="add"} 1"#,
            "ztunnel_connected 2",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}
