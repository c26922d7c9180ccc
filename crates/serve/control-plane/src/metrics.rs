//! Metrics of the control plane.

use crate::snapshot::Snapshot;
use ambit_kube::{InformerMetrics, Informers, QueueMetrics, QueueSettings};
use ambit_names::type_url;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Label of the type of a resource; what is not served counts as `other`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Type {
    r#type: &'static str,
}

fn label(type_url: &str) -> Type {
    let r#type = match type_url {
        type_url::ADDRESS => "address",
        type_url::WORKLOAD => "workload",
        type_url::AUTHORIZATION => "authorization",
        _ => "other",
    };
    Type { r#type }
}

/// Counters and gauges. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    streams: Gauge,
    responses: Family<Type, Counter>,
    rejections: Family<Type, Counter>,
    resources: Family<Type, Gauge>,
    certificates: Counter,
    refusals: Counter,
    faults: Counter,
    mesh_config_faults: Gauge,
    mesh_config_in_force: Gauge,
    queues: QueueMetrics,
    informers: InformerMetrics,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        self.queues.register(registry);
        self.informers.register(registry);
        let of = registry.sub_registry_with_prefix("ambit_control_plane");
        of.register("streams", "Open discovery streams", self.streams.clone());
        of.register("responses", "Discovery responses sent", self.responses.clone());
        of.register("rejections", "Discovery responses that clients rejected", self.rejections.clone());
        of.register("resources", "Resources in the newest snapshot", self.resources.clone());
        of.register("certificates", "Certificates issued", self.certificates.clone());
        of.register("certificate_refusals", "Certificate requests refused", self.refusals.clone());
        of.register("faults", "Transformations that panicked", self.faults.clone());
        let faults = self.mesh_config_faults.clone();
        of.register("mesh_config_faults", "Faults of the mesh configuration as it is now", faults);
        let in_force = self.mesh_config_in_force.clone();
        of.register("mesh_config_in_force", "1 if a mesh configuration is in force, else 0", in_force);
    }

    /// Settings of a work queue that shows here under its name.
    pub(crate) fn queue<K>(&self, name: &'static str) -> QueueSettings<K> {
        QueueSettings::new(name).metrics(&self.queues)
    }

    /// Informers that show here.
    pub(crate) fn informers(&self, client: kube::Client) -> Informers {
        Informers::new(client).measured_by(&self.informers)
    }

    /// Counts a stream as open until the guard is dropped.
    pub(crate) fn stream(&self) -> OpenStream {
        self.streams.inc();
        OpenStream(self.streams.clone())
    }

    pub(crate) fn responded(&self, type_url: &str) {
        self.responses.get_or_create(&label(type_url)).inc();
    }

    pub(crate) fn rejected(&self, type_url: &str) {
        self.rejections.get_or_create(&label(type_url)).inc();
    }

    pub(crate) fn published(&self, snapshot: &Snapshot) {
        for (type_url, table) in
            [(type_url::ADDRESS, &snapshot.addresses), (type_url::AUTHORIZATION, &snapshot.policies)]
        {
            let count = i64::try_from(table.len()).unwrap_or(i64::MAX);
            self.resources.get_or_create(&label(type_url)).set(count);
        }
    }

    pub(crate) fn issued(&self) {
        self.certificates.inc();
    }

    pub(crate) fn refused(&self) {
        self.refusals.inc();
    }

    pub(crate) fn mesh_config(&self, faults: usize, in_force: bool) {
        self.mesh_config_faults.set(i64::try_from(faults).unwrap_or(i64::MAX));
        self.mesh_config_in_force.set(in_force.into());
    }

    pub(crate) fn faulted(&self) {
        self.faults.inc();
    }
}

/// An open stream.
pub(crate) struct OpenStream(Gauge);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}
