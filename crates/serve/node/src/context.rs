//! What every part of the node runtime needs.

use crate::cri::Cri;
use crate::layout::Layout;
use crate::resolv::ResolvConf;
use crate::settings::Settings;
use ambit_api::core::v1::{ObjectReference, Pod, Service};
use ambit_kube::{EventRecorder, EventType, Informer};
use ambit_node_plan::pod::Addresses;
use ambit_node_plan::pod::environment::Facts;
use ambit_runtime::Clock;
use std::net::IpAddr;

/// Shared by all parts of one node.
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) layout: Layout,
    pub(crate) client: kube::Client,
    pub(crate) cri: Cri,
    pub(crate) events: EventRecorder,
    pub(crate) clock: Clock,
    pub(crate) pods: Informer<Pod>,
    pub(crate) services: Informer<Service>,
    pub(crate) addresses: Addresses,
    pub(crate) capacity: Capacity,
    /// The node's own resolver configuration.
    pub(crate) resolv: ResolvConf,
}

/// The size of the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Processors, in thousandths.
    pub(crate) cpu_milli: u64,
    /// Memory in bytes.
    pub(crate) memory_bytes: u64,
}

impl Context {
    /// What fields of a pod with these addresses may refer to.
    pub(crate) fn facts(&self, pod_ips: &[IpAddr]) -> Facts {
        Facts {
            node_name: self.settings.node_name.clone(),
            host_ips: self.addresses.0.clone(),
            pod_ips: pod_ips.to_vec(),
            cpu_milli: self.capacity.cpu_milli,
            memory_bytes: self.capacity.memory_bytes,
        }
    }

    /// Records an event of a pod, or of one of its containers.
    pub(crate) fn event(&self, pod: &Pod, container: Option<&str>, event: Event<'_>) {
        let meta = &pod.metadata;
        let object = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            field_path: container.map(|name| format!("spec.containers{{{name}}}")),
            ..ObjectReference::default()
        };
        self.events.record(&object, event.kind, event.reason, event.message);
    }
}

/// What happened.
pub(crate) struct Event<'a> {
    kind: EventType,
    reason: &'a str,
    message: String,
}

impl<'a> Event<'a> {
    pub(crate) fn normal(reason: &'a str, message: impl Into<String>) -> Self {
        Self { kind: EventType::Normal, reason, message: message.into() }
    }

    pub(crate) fn warning(reason: &'a str, message: impl Into<String>) -> Self {
        Self { kind: EventType::Warning, reason, message: message.into() }
    }
}

/// Namespace, name and uid of a pod.
pub(crate) fn identity(pod: &Pod) -> (&str, &str, &str) {
    let meta = &pod.metadata;
    (
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
        meta.uid.as_deref().unwrap_or_default(),
    )
}
