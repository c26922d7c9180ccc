//! Pods and the addresses of EndpointSlices to the workload API's workloads.

use crate::labels;
use crate::resource::ip_bytes;
use crate::service::ServiceInfo;
use ambit_api::core::v1 as core;
use ambit_api::discovery::v1 as discovery;
use ambit_api::slim::Pod;
use ambit_names::{annotation, label, mesh, redirection};
use ambit_proto::workload;
use ambit_proto::workload::{NetworkMode, PortList, TunnelProtocol, WorkloadStatus, WorkloadType};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// Facts that hold for all workloads.
pub(crate) struct Context<'a> {
    pub(crate) cluster_id: &'a str,
    pub(crate) trust_domain: &'a str,
    pub(crate) network: &'a str,
}

impl Context<'_> {
    /// Empty stands for the default one.
    fn trust_domain(&self) -> String {
        if self.trust_domain == mesh::TRUST_DOMAIN { String::new() } else { self.trust_domain.to_owned() }
    }
}

/// What a pod's workload has from other objects.
pub(crate) struct PodFacts<'a> {
    pub(crate) services: Vec<&'a ServiceInfo>,
    /// Resource names of policies, sorted.
    pub(crate) policies: Vec<String>,
    pub(crate) locality: Option<workload::Locality>,
}

/// Whether a pod has a workload at all: it has not ended, and has addresses that can be read.
pub(crate) fn pod_addresses(pod: &Pod) -> Option<Vec<Bytes>> {
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let mut ips: Vec<&str> = status.pod_ips.iter().map(|ip| ip.ip.as_str()).collect();
    if ips.is_empty() {
        ips.extend(status.pod_ip.as_deref().filter(|ip| !ip.is_empty()));
    }
    if ips.is_empty() {
        return None;
    }
    ips.into_iter().map(address).collect()
}

fn address(text: &str) -> Option<Bytes> {
    text.parse::<IpAddr>().ok().map(ip_bytes)
}

/// The workload of a pod with these addresses.
pub(crate) fn from_pod(
    pod: &Pod,
    addresses: Vec<Bytes>,
    context: &Context<'_>,
    facts: PodFacts<'_>,
) -> workload::Workload {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let namespace = meta.namespace.clone().unwrap_or_default();
    let name = meta.name.clone().unwrap_or_default();
    let workload_name = workload_name(pod);
    let of = |keys: &[&str]| keys.iter().find_map(|key| labels::value(meta.labels.as_ref(), key));
    let canonical_name = of(&[label::CANONICAL_NAME, "app.kubernetes.io/name", "app"]);
    let canonical_revision = of(&[label::CANONICAL_REVISION, "app.kubernetes.io/version", "version"]);
    let (tunnel_protocol, native_tunnel) = tunnel(pod);
    workload::Workload {
        uid: format!("{}//Pod/{namespace}/{name}", context.cluster_id),
        name,
        namespace,
        addresses,
        network: context.network.to_owned(),
        tunnel_protocol: tunnel_protocol.into(),
        trust_domain: context.trust_domain(),
        service_account: spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default(),
        node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        canonical_name: canonical_name.unwrap_or(&workload_name).to_owned(),
        canonical_revision: canonical_revision.unwrap_or("latest").to_owned(),
        workload_type: WorkloadType::Pod.into(),
        workload_name,
        native_tunnel,
        authorization_policies: facts.policies,
        status: status(pod).into(),
        cluster_id: context.cluster_id.to_owned(),
        services: facts.services.iter().map(|info| (info.key(), ports_of(pod, info))).collect(),
        locality: facts.locality,
        network_mode: match spec.and_then(|spec| spec.host_network) {
            Some(true) => NetworkMode::HostNetwork.into(),
            _ => NetworkMode::Standard.into(),
        },
        ..Default::default()
    }
}

fn status(pod: &Pod) -> WorkloadStatus {
    let conditions = pod.status.iter().flat_map(|s| &s.conditions);
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    match ready && pod.metadata.deletion_timestamp.is_none() {
        true => WorkloadStatus::Healthy,
        false => WorkloadStatus::Unhealthy,
    }
}

/// HBONE once the agent has written that capture is complete, or when the application speaks it itself.
fn tunnel(pod: &Pod) -> (TunnelProtocol, bool) {
    let native = labels::value(pod.metadata.labels.as_ref(), "networking.istio.io/tunnel");
    if native.is_some_and(|list| list.split(',').any(|one| one == "http")) {
        return (TunnelProtocol::Hbone, true);
    }
    match labels::value(pod.metadata.annotations.as_ref(), annotation::REDIRECTION) {
        Some(redirection::ENABLED) => (TunnelProtocol::Hbone, false),
        _ => (TunnelProtocol::None, false),
    }
}

/// Name of what the pod belongs to: told by a label, else its controller when the name was generated, else the pod.
fn workload_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let labels = meta.labels.as_ref();
    if let Some(name) = labels::value(labels, "service.istio.io/workload-name") {
        return name.to_owned();
    }
    let own = || meta.name.clone().unwrap_or_default();
    if meta.generate_name.as_deref().unwrap_or_default().is_empty() {
        return own();
    }
    let owners = meta.owner_references.iter().flatten();
    let Some(controller) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
        return own();
    };
    let name = controller.name.as_str();
    let without_hash = |key| {
        let hash = labels::value(labels, key)?;
        name.strip_suffix(hash).map(|rest| rest.strip_suffix('-').unwrap_or(rest).to_owned())
    };
    let deduced = match controller.kind.as_str() {
        "ReplicaSet" => {
            without_hash(label::POD_TEMPLATE_HASH).or_else(|| without_hash("rollouts-pod-template-hash"))
        }
        "ReplicationController" => labels::value(labels, "deploymentconfig").map(str::to_owned),
        "Job" => cron_job(name).map(str::to_owned),
        _ => None,
    };
    deduced.unwrap_or_else(|| name.to_owned())
}

/// The CronJob of a job's name: jobs end in `-` and the minute they were due, of 8 to 10 digits.
fn cron_job(job: &str) -> Option<&str> {
    let (name, minute) = job.rsplit_once('-')?;
    let is_minute = (8..=10).contains(&minute.len()) && minute.bytes().all(|b| b.is_ascii_digit());
    (is_minute && !name.is_empty()).then_some(name)
}

/// Ports of a service at this pod. A named target port that the pod does not have is left out.
fn ports_of(pod: &Pod, info: &ServiceInfo) -> PortList {
    let ports = info.service.ports.iter().zip(&info.ports).filter_map(|(port, names)| {
        let target_port = match &names.target {
            Some(name) => container_port(pod, name)?,
            None => port.target_port,
        };
        Some(workload::Port { service_port: port.service_port, target_port, app_protocol: 0 })
    });
    PortList { ports: ports.collect() }
}

fn container_port(pod: &Pod, name: &str) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
    ports
        .into_iter()
        .find(|p| p.name.as_deref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == "TCP")
        .and_then(|p| u32::try_from(p.container_port).ok())
}

/// Locality from a node's labels; none when it has no such label.
pub(crate) fn locality(node: &core::Node) -> Option<workload::Locality> {
    let of = |key| labels::value(node.metadata.labels.as_ref(), key).unwrap_or_default().to_owned();
    let locality = workload::Locality {
        region: of("topology.kubernetes.io/region"),
        zone: of("topology.kubernetes.io/zone"),
        subzone: of("topology.istio.io/subzone"),
    };
    (locality != workload::Locality::default()).then_some(locality)
}

/// Workloads of the addresses of a slice that are not pods.
pub(crate) fn from_slice(
    slice: &discovery::EndpointSlice,
    info: &ServiceInfo,
    context: &Context<'_>,
) -> Vec<workload::Workload> {
    let name = slice.metadata.name.clone().unwrap_or_default();
    let namespace = slice.metadata.namespace.clone().unwrap_or_default();
    let services = HashMap::from([(info.key(), slice_ports(slice, info))]);
    let mut seen = BTreeSet::new();
    let mut workloads = Vec::new();
    for endpoint in &slice.endpoints {
        let is_pod = endpoint.target_ref.as_ref().is_some_and(|t| t.kind.as_deref() == Some("Pod"));
        let Some(first) = endpoint.addresses.first().filter(|_| !is_pod) else { continue };
        let addresses: Option<Vec<Bytes>> = endpoint.addresses.iter().map(|a| address(a)).collect();
        let Some(addresses) = addresses else { continue };
        if !seen.insert(first.clone()) {
            continue;
        }
        let ready = endpoint.conditions.as_ref().and_then(|c| c.ready) != Some(false);
        workloads.push(workload::Workload {
            uid: format!("{}/discovery.k8s.io/EndpointSlice/{namespace}/{name}/{first}", context.cluster_id),
            name: name.clone(),
            namespace: namespace.clone(),
            addresses,
            network: context.network.to_owned(),
            trust_domain: context.trust_domain(),
            cluster_id: context.cluster_id.to_owned(),
            status: if ready { WorkloadStatus::Healthy } else { WorkloadStatus::Unhealthy }.into(),
            services: services.clone(),
            // Nothing is known of who else has this address.
            network_mode: NetworkMode::HostNetwork.into(),
            ..Default::default()
        });
    }
    workloads
}

/// The slice's TCP ports, joined with the service's by name.
fn slice_ports(slice: &discovery::EndpointSlice, info: &ServiceInfo) -> PortList {
    let ports = slice.ports.iter().flatten().filter_map(|port| {
        let (name, target) = (port.name.as_deref()?, u32::try_from(port.port?).ok()?);
        if port.protocol.as_deref() != Some("TCP") {
            return None;
        }
        let at = info.ports.iter().position(|names| names.name == name)?;
        let service_port = info.service.ports[at].service_port;
        Some(workload::Port { service_port, target_port: target, app_protocol: 0 })
    });
    PortList { ports: ports.collect() }
}
