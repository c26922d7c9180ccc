//! EndpointSlices of a service with a selector. Source of behaviour: upstream staging endpointslice/reconciler.go.

use crate::ownership::controller_reference;
use crate::{pod, selector};
use ambit_api::IntOrString;
use ambit_api::core::v1::{Node, ObjectReference, Pod, Service, ServicePort, ServiceSpec};
use ambit_api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use ambit_api::meta::ObjectMeta;
use ambit_names::label;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Value of the managed-by label on slices that are ours; slices of others are left alone.
pub const MANAGED_BY: &str = "endpointslice-controller.k8s.io";
/// Endpoints per slice. Source: upstream's default of --max-endpoints-per-slice.
const ENDPOINTS_MAX: usize = 100;
/// Says that the service has no address of its own.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// A node's zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Slices to write, least disruptive first.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// Slices to create.
    pub create: Vec<EndpointSlice>,
    /// Slices to replace, with the revision they were seen at.
    pub update: Vec<EndpointSlice>,
    /// Slices that nothing needs any more.
    pub delete: Vec<Arc<EndpointSlice>>,
}

impl Plan {
    /// Whether everything is as it should be.
    pub fn is_empty(&self) -> bool {
        self.create.is_empty() && self.update.is_empty() && self.delete.is_empty()
    }
}

/// What is known around a service.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// Pods of the service's namespace.
    pub pods: &'a [Arc<Pod>],
    /// All nodes.
    pub nodes: &'a [Arc<Node>],
    /// EndpointSlices of the service's namespace.
    pub slices: &'a [Arc<EndpointSlice>],
}

/// Whether this controller cares for the service at all: it selects pods and has addresses in the cluster.
pub fn is_ours(service: &Service) -> bool {
    let Some(spec) = &service.spec else { return false };
    let selects = spec.selector.as_ref().is_some_and(|selector| !selector.is_empty());
    selects && spec.type_.as_deref() != Some("ExternalName") && service.metadata.deletion_timestamp.is_none()
}

/// Whether the slice is managed by this controller for that service.
pub fn is_slice_of(slice: &EndpointSlice, service: &str) -> bool {
    let of = |key: &str| slice.metadata.labels.as_ref()?.get(key).map(String::as_str);
    of(label::SERVICE_NAME) == Some(service) && of(label::SLICE_MANAGED_BY) == Some(MANAGED_BY)
}

/// Decides for one service.
pub fn plan(service: &Service, around: Surroundings<'_>) -> Plan {
    let mut plan = Plan::default();
    let (true, Some(spec)) = (is_ours(service), &service.spec) else { return plan };
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let mut held: Vec<Arc<EndpointSlice>> = around
        .slices
        .iter()
        .filter(|slice| is_slice_of(slice, name) && slice.metadata.deletion_timestamp.is_none())
        .cloned()
        .collect();
    for family in families(spec) {
        let (of_family, rest): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|slice| slice.address_type == family.as_str());
        held = rest;
        reconcile_family(service, family, &around, of_family, &mut plan);
    }
    // What is left is of an address family that the service no longer has.
    plan.delete.extend(held);
    plan
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    fn has(self, address: &str) -> bool {
        match address.parse::<IpAddr>() {
            Ok(address) => address.is_ipv4() == (self == Self::V4),
            Err(_) => false,
        }
    }
}

fn families(spec: &ServiceSpec) -> Vec<Family> {
    let named = spec.ip_families.iter().flatten();
    let families: Vec<Family> =
        named.map(|name| if name == "IPv6" { Family::V6 } else { Family::V4 }).collect();
    if !families.is_empty() {
        return families;
    }
    let v6 = spec.cluster_ip.as_deref().is_some_and(|address| Family::V6.has(address));
    vec![if v6 { Family::V6 } else { Family::V4 }]
}

/// Ports compare and sort by this: name, protocol, number, application protocol.
type PortKey = Vec<(String, String, i32, String)>;

/// Slices of one set of ports: those that exist, and the endpoints that should be in them.
#[derive(Default)]
struct Group {
    ports: Vec<EndpointPort>,
    wanted: BTreeMap<String, Endpoint>,
    held: Vec<Arc<EndpointSlice>>,
}

fn reconcile_family(
    service: &Service,
    family: Family,
    around: &Surroundings<'_>,
    held: Vec<Arc<EndpointSlice>>,
    plan: &mut Plan,
) {
    let mut groups: BTreeMap<PortKey, Group> = BTreeMap::new();
    for pod in around.pods {
        if let Some((ports, endpoint)) = to_endpoint(service, family, pod, around.nodes) {
            let group = groups.entry(key_of(&ports)).or_default();
            group.ports = ports;
            group.wanted.insert(endpoint.addresses.join(","), endpoint);
        }
    }
    let mut obsolete = Vec::new();
    for slice in held {
        match groups.get_mut(&key_of(slice.ports.as_deref().unwrap_or_default())) {
            Some(group) => group.held.push(slice),
            None => obsolete.push(slice),
        }
    }
    if groups.is_empty() {
        // A service without endpoints shows one empty slice, so that readers tell "none" from "not known".
        groups.insert(PortKey::new(), Group { held: std::mem::take(&mut obsolete), ..Group::default() });
    }
    for group in groups.into_values() {
        fill(service, family, group, plan);
    }
    plan.delete.extend(obsolete);
}

/// Places the endpoints of one group: each stays where it is, gaps are filled, then come new slices.
fn fill(service: &Service, family: Family, group: Group, plan: &mut Plan) {
    let Group { ports, mut wanted, held } = group;
    let mut slices: Vec<(Arc<EndpointSlice>, Vec<Endpoint>)> = held
        .into_iter()
        .map(|slice| {
            let keep = |endpoint: &Endpoint| wanted.remove(&endpoint.addresses.join(","));
            let kept: Vec<Endpoint> = slice.endpoints.iter().filter_map(keep).collect();
            (slice, kept)
        })
        .collect();
    // Fill those first that change anyway, then the fullest: fewest writes, fewest slices.
    slices.sort_by_key(|(slice, kept)| (kept == &slice.endpoints, std::cmp::Reverse(kept.len())));
    let mut waiting = wanted.into_values();
    for (_, kept) in &mut slices {
        let room = ENDPOINTS_MAX.saturating_sub(kept.len());
        kept.extend(waiting.by_ref().take(room));
    }
    let mut left: Vec<Endpoint> = waiting.collect();
    let keep_one_empty = left.is_empty() && slices.iter().all(|(_, kept)| kept.is_empty());
    let metadata = slice_metadata(service);
    for (index, (slice, kept)) in slices.iter_mut().enumerate() {
        if kept.is_empty() && !(keep_one_empty && index == 0) {
            plan.delete.push(slice.clone());
            continue;
        }
        let updated = EndpointSlice {
            metadata: adjusted(&slice.metadata, &metadata),
            address_type: family.as_str().to_owned(),
            endpoints: std::mem::take(kept),
            ports: Some(ports.clone()),
        };
        if !same(&updated, slice) {
            plan.update.push(updated);
        }
    }
    let nothing_at_all = slices.is_empty() && left.is_empty();
    while !left.is_empty() || (nothing_at_all && plan_lacks(plan, family)) {
        let endpoints = left.drain(..left.len().min(ENDPOINTS_MAX)).collect();
        plan.create.push(EndpointSlice {
            metadata: metadata.clone(),
            address_type: family.as_str().to_owned(),
            endpoints,
            ports: Some(ports.clone()),
        });
    }
}

fn plan_lacks(plan: &Plan, family: Family) -> bool {
    !plan.create.iter().any(|slice| slice.address_type == family.as_str())
}

fn same(wanted: &EndpointSlice, seen: &EndpointSlice) -> bool {
    let ports = |slice: &EndpointSlice| key_of(slice.ports.as_deref().unwrap_or_default());
    wanted.metadata.labels == seen.metadata.labels
        && wanted.metadata.owner_references == seen.metadata.owner_references
        && wanted.endpoints == seen.endpoints
        && ports(wanted) == ports(seen)
}

/// The metadata of a slice that exists, with our labels and owner as they should be.
fn adjusted(seen: &ObjectMeta, wanted: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        labels: wanted.labels.clone(),
        owner_references: wanted.owner_references.clone(),
        ..seen.clone()
    }
}

fn slice_metadata(service: &Service) -> ObjectMeta {
    let name = service.metadata.name.clone().unwrap_or_default();
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(label::SERVICE_NAME.to_owned(), name.clone());
    labels.insert(label::SLICE_MANAGED_BY.to_owned(), MANAGED_BY.to_owned());
    labels.remove(HEADLESS_LABEL);
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS_LABEL.to_owned(), String::new());
    }
    ObjectMeta {
        generate_name: Some(format!("{name}-")),
        namespace: service.metadata.namespace.clone(),
        labels: Some(labels),
        owner_references: Some(vec![controller_reference("v1", "Service", &service.metadata)]),
        ..ObjectMeta::default()
    }
}

fn to_endpoint(
    service: &Service,
    family: Family,
    pod: &Pod,
    nodes: &[Arc<Node>],
) -> Option<(Vec<EndpointPort>, Endpoint)> {
    let spec = service.spec.as_ref()?;
    if !selector::matches_all(spec.selector.as_ref()?, pod.metadata.labels.as_ref()) || pod::is_terminal(pod)
    {
        return None;
    }
    let addresses: BTreeSet<&str> = addresses(pod).filter(|address| family.has(address)).collect();
    let address = addresses.first()?;
    let serving = pod::is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let published = spec.publish_not_ready_addresses == Some(true);
    let pod_spec = pod.spec.as_ref()?;
    let node_name = pod_spec.node_name.clone().filter(|name| !name.is_empty());
    let named_here = pod_spec.subdomain.is_some() && pod_spec.subdomain == service.metadata.name;
    let endpoint = Endpoint {
        addresses: vec![(*address).to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(published || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: pod_spec.hostname.clone().filter(|hostname| named_here && !hostname.is_empty()),
        zone: node_name.as_deref().and_then(|name| zone(name, nodes)),
        node_name,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    };
    let ports = spec.ports.iter().flatten().filter_map(|port| to_port(port, pod)).collect();
    Some((ports, endpoint))
}

fn addresses(pod: &Pod) -> impl Iterator<Item = &str> {
    let status = pod.status.as_ref();
    let all = status.into_iter().flat_map(|status| status.pod_ips.iter().flatten()).map(|ip| ip.ip.as_str());
    all.chain(status.and_then(|status| status.pod_ip.as_deref()))
}

fn zone(node: &str, nodes: &[Arc<Node>]) -> Option<String> {
    let node = nodes.iter().find(|known| known.metadata.name.as_deref() == Some(node))?;
    node.metadata.labels.as_ref()?.get(ZONE_LABEL).cloned()
}

/// The port on this pod; none when the pod does not have the named port.
fn to_port(port: &ServicePort, pod: &Pod) -> Option<EndpointPort> {
    let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let number = match &port.target_port {
        Some(IntOrString::Int(number)) if *number != 0 => *number,
        Some(IntOrString::String(name)) if !name.is_empty() => named_port(pod, name, &protocol)?,
        _ => port.port,
    };
    Some(EndpointPort {
        // The name is always set, empty for a single unnamed port, as upstream writes it.
        name: Some(port.name.clone().unwrap_or_default()),
        protocol: Some(protocol),
        port: Some(number),
        app_protocol: port.app_protocol.clone(),
    })
}

fn named_port(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let spec = pod.spec.as_ref()?;
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let mut fitting = ports.filter(|port| {
        port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol
    });
    fitting.next().map(|port| port.container_port)
}

fn key_of(ports: &[EndpointPort]) -> PortKey {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut key: PortKey = ports
        .iter()
        .map(|port| {
            (text(&port.name), text(&port.protocol), port.port.unwrap_or(0), text(&port.app_protocol))
        })
        .collect();
    key.sort();
    key
}

#[cfg(test)]
mod tests;
