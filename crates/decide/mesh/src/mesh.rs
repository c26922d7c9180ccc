//! The collections from objects to resources.

use crate::authorization::{Conversion, PolicyCondition, convert_authorization_policy};
use crate::labels::{self, Label, Map};
use crate::peer_authentication::{self, Parents};
use crate::resource::Resource;
use crate::service::{self, ServiceInfo};
use crate::workload::{self, PodFacts};
use ambit_api::core::v1::{Namespace, Node, Service};
use ambit_api::discovery::v1::EndpointSlice;
use ambit_api::istio::{AuthorizationPolicy, PeerAuthentication};
use ambit_api::slim::Pod;
use ambit_collect::{Collection, Graph, Index, Input, Reads, SelectorIndex};
use ambit_names::{label, mesh};
use ambit_proto::workload::Locality;
use std::fmt;
use std::sync::Arc;

/// Name of a namespaced object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectName {
    /// Names an object.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// As people write it, which is how they look for it when they ask why something is so.
impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What holds for the whole mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshSettings {
    /// Name of this cluster.
    pub cluster_id: String,
    /// DNS domain of the cluster.
    pub cluster_domain: String,
    /// Trust domain of identities.
    pub trust_domain: String,
    /// Namespace of the mesh's own parts.
    pub system_namespace: String,
    /// Namespace whose policies hold for the whole mesh.
    pub root_namespace: String,
}

impl Default for MeshSettings {
    fn default() -> Self {
        Self {
            cluster_id: mesh::CLUSTER_ID.to_owned(),
            cluster_domain: mesh::CLUSTER_DOMAIN.to_owned(),
            trust_domain: mesh::TRUST_DOMAIN.to_owned(),
            system_namespace: mesh::SYSTEM_NAMESPACE.to_owned(),
            root_namespace: mesh::SYSTEM_NAMESPACE.to_owned(),
        }
    }
}

/// Objects to write.
#[derive(Clone, Copy)]
pub struct Inputs {
    /// Pods.
    pub pods: Input<ObjectName, Pod>,
    /// Namespaces.
    pub namespaces: Input<String, Namespace>,
    /// Nodes.
    pub nodes: Input<String, Node>,
    /// Services.
    pub services: Input<ObjectName, Service>,
    /// EndpointSlices.
    pub slices: Input<ObjectName, EndpointSlice>,
    /// AuthorizationPolicies.
    pub authorization_policies: Input<ObjectName, AuthorizationPolicy>,
    /// PeerAuthentications.
    pub peer_authentications: Input<ObjectName, PeerAuthentication>,
}

/// What follows from the objects.
#[derive(Clone, Copy)]
pub struct Outputs {
    /// Resources of type `istio.workload.Address`, by resource name.
    pub addresses: Collection<String, Resource>,
    /// Resources of type `istio.security.Authorization`, by resource name.
    pub authorizations: Collection<String, Resource>,
    /// The `ZtunnelAccepted` conditions of AuthorizationPolicies.
    pub conditions: Collection<ObjectName, PolicyCondition>,
    /// What objects ask for and do not get: messages by kind and name of the object.
    pub notices: Collection<String, String>,
}

/// The collections of the mesh in a graph of their own.
pub struct Mesh {
    /// The graph.
    pub graph: Graph,
    /// Its inputs.
    pub inputs: Inputs,
    /// Its outputs.
    pub outputs: Outputs,
}

/// The part of a namespace that others depend on.
#[derive(Debug, PartialEq)]
struct NamespaceFacts {
    annotations: Option<Map>,
    network: String,
}

/// A policy with what a workload needs to know of it.
#[derive(PartialEq)]
struct Policy {
    conversion: Conversion,
    /// Labels of the workloads it selects; none for those that hold for all.
    selected: Option<Map>,
}

/// Handles that the transformations read by.
#[derive(Clone, Copy)]
struct Handles {
    namespaces: Collection<String, NamespaceFacts>,
    localities: Collection<String, Locality>,
    services: Collection<ObjectName, ServiceInfo>,
    selecting: SelectorIndex<Label, ObjectName, ServiceInfo>,
    pod_services: Index<PodTarget, (ObjectName, PodTarget), ObjectName>,
    policies: SelectorIndex<Label, ObjectName, Policy>,
    /// Those without a selector, by namespace.
    parents: Index<String, ObjectName, PeerAuthentication>,
    peer_authentications: SelectorIndex<Label, ObjectName, PeerAuthentication>,
}

/// A pod as a slice's endpoint refers to it: namespace, name and UID.
type PodTarget = (String, String, String);

impl Mesh {
    /// Empty collections.
    pub fn new(settings: MeshSettings) -> Self {
        let mut graph = Graph::new();
        let inputs = Inputs {
            pods: graph.input("pods"),
            namespaces: graph.input("namespaces"),
            nodes: graph.input("nodes"),
            services: graph.input("services"),
            slices: graph.input("slices"),
            authorization_policies: graph.input("authorizationpolicies"),
            peer_authentications: graph.input("peerauthentications"),
        };
        let settings = Arc::new(settings);
        let (policies, conditions) = policies(&mut graph, &inputs, &settings);
        let handles = handles(&mut graph, &inputs, policies, &settings);
        let outputs = Outputs {
            addresses: addresses(&mut graph, &inputs, handles, &settings),
            authorizations: authorizations(&mut graph, &inputs, policies, handles, &settings),
            conditions,
            notices: notices(&mut graph, &inputs),
        };
        Self { graph, inputs, outputs }
    }
}

fn policies(
    graph: &mut Graph,
    inputs: &Inputs,
    settings: &Arc<MeshSettings>,
) -> (Collection<ObjectName, Policy>, Collection<ObjectName, PolicyCondition>) {
    let root = settings.root_namespace.clone();
    let policies = graph.map("policies", inputs.authorization_policies.collection(), move |_, _, policy| {
        let conversion = convert_authorization_policy(&root, policy);
        let selected = labels::selected(policy.spec.selector.as_ref()).cloned();
        Some(Policy { conversion, selected })
    });
    let conditions = graph.map("conditions", policies, |_, _, policy| policy.conversion.condition.clone());
    (policies, conditions)
}

fn handles(
    graph: &mut Graph,
    inputs: &Inputs,
    policies: Collection<ObjectName, Policy>,
    settings: &Arc<MeshSettings>,
) -> Handles {
    let namespaces = graph.map("namespace-facts", inputs.namespaces.collection(), |_, _, namespace| {
        let meta = &namespace.metadata;
        let network = labels::value(meta.labels.as_ref(), label::NETWORK).unwrap_or_default();
        Some(NamespaceFacts { annotations: meta.annotations.clone(), network: network.to_owned() })
    });
    let localities =
        graph.map("localities", inputs.nodes.collection(), |_, _, node| workload::locality(node));
    let root = settings.root_namespace.clone();
    let of_root = root.clone();
    let of_settings = settings.clone();
    let services = graph.map("service-facts", inputs.services.collection(), move |reads, name, service| {
        let network = network(reads, namespaces, &of_settings);
        let namespace = reads.get(namespaces, &name.namespace);
        let context = service::Context {
            cluster_domain: &of_settings.cluster_domain,
            network,
            namespace_annotations: namespace.and_then(|n| n.annotations.as_ref()),
        };
        service::convert(service, &context)
    });
    let selecting = graph.selector_index(services, |name: &ObjectName, info: &ServiceInfo| {
        let selects = !info.selector.is_empty();
        selects.then(|| labels::wanted(Some(&name.namespace), &info.selector))
    });
    // Pods that are named by slices of services without a selector.
    let pod_targets = graph.flat_map("pod-targets", inputs.slices.collection(), move |reads, _, slice| {
        let Some(service) = slice_service(slice) else { return vec![] };
        match reads.get(services, &service) {
            Some(info) if info.selector.is_empty() => {}
            _ => return vec![],
        }
        let targets = slice.endpoints.iter().filter_map(pod_target);
        targets.map(|target| ((service.clone(), target), service.clone())).collect()
    });
    Handles {
        namespaces,
        localities,
        services,
        selecting,
        pod_services: graph.index(pod_targets, |key: &(ObjectName, PodTarget), _| vec![key.1.clone()]),
        policies: graph.selector_index(policies, move |name: &ObjectName, policy: &Policy| {
            let selected = policy.selected.as_ref().filter(|_| policy.conversion.policy.is_some())?;
            // Those of the root namespace select pods of all namespaces.
            Some(labels::wanted(Some(&name.namespace).filter(|namespace| **namespace != root), selected))
        }),
        parents: graph.index(
            inputs.peer_authentications.collection(),
            |name: &ObjectName, object: &PeerAuthentication| {
                let selects = labels::selected(object.spec.selector.as_ref()).is_some();
                if selects { vec![] } else { vec![name.namespace.clone()] }
            },
        ),
        peer_authentications: graph.selector_index(
            inputs.peer_authentications.collection(),
            move |name: &ObjectName, object: &PeerAuthentication| {
                // Objects with a selector count only outside the root namespace.
                let selected =
                    labels::selected(object.spec.selector.as_ref()).filter(|_| name.namespace != of_root)?;
                Some(labels::wanted(Some(&name.namespace), selected))
            },
        ),
    }
}

/// The network of this cluster: a label of the system namespace.
fn network<'a>(
    reads: &mut Reads<'a>,
    namespaces: Collection<String, NamespaceFacts>,
    settings: &MeshSettings,
) -> &'a str {
    reads.get(namespaces, &settings.system_namespace).map_or("", |facts| &facts.network)
}

/// The service of a slice with IP addresses.
fn slice_service(slice: &EndpointSlice) -> Option<ObjectName> {
    let service = labels::value(slice.metadata.labels.as_ref(), label::SERVICE_NAME)?;
    let has_ips = slice.address_type != "FQDN";
    has_ips.then(|| ObjectName::new(slice.metadata.namespace.clone().unwrap_or_default(), service))
}

fn pod_target(endpoint: &ambit_api::discovery::v1::Endpoint) -> Option<PodTarget> {
    let target = endpoint.target_ref.as_ref().filter(|t| t.kind.as_deref() == Some("Pod"))?;
    Some((target.namespace.clone()?, target.name.clone()?, target.uid.clone()?))
}

fn addresses(
    graph: &mut Graph,
    inputs: &Inputs,
    handles: Handles,
    settings: &Arc<MeshSettings>,
) -> Collection<String, Resource> {
    let of_settings = settings.clone();
    let pods = graph.flat_map("pod-workloads", inputs.pods.collection(), move |reads, name, pod| {
        let Some(addresses) = workload::pod_addresses(pod) else { return vec![] };
        let network = network(reads, handles.namespaces, &of_settings);
        let labels = labels::carried(&name.namespace, pod.metadata.labels.as_ref());
        let facts = PodFacts {
            services: services_of(reads, handles, name, pod, &labels),
            policies: policies_of(reads, handles, &of_settings, name, &labels),
            locality: node_of(pod).and_then(|node| reads.get(handles.localities, node).cloned()),
        };
        let workload = workload::from_pod(pod, addresses, &context(&of_settings, network), facts);
        vec![(workload.uid.clone(), Resource::workload(workload))]
    });
    let of_settings = settings.clone();
    let slices = graph.flat_map("slice-workloads", inputs.slices.collection(), move |reads, _, slice| {
        let service = slice_service(slice);
        let Some(info) = service.and_then(|service| reads.get(handles.services, &service)) else {
            return vec![];
        };
        let network = network(reads, handles.namespaces, &of_settings);
        let workloads = workload::from_slice(slice, info, &context(&of_settings, network));
        workloads.into_iter().map(|w| (w.uid.clone(), Resource::workload(w))).collect()
    });
    let services = graph.flat_map("services-encoded", handles.services, |_, _, info| {
        vec![(info.key(), Resource::service(&info.service))]
    });
    graph.merge("addresses", &[pods, slices, services])
}

fn context<'a>(settings: &'a MeshSettings, network: &'a str) -> workload::Context<'a> {
    workload::Context { cluster_id: &settings.cluster_id, trust_domain: &settings.trust_domain, network }
}

fn node_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

fn services_of<'a>(
    reads: &mut Reads<'a>,
    handles: Handles,
    name: &ObjectName,
    pod: &Pod,
    labels: &[Label],
) -> Vec<&'a ServiceInfo> {
    let selecting = reads.selecting(handles.selecting, labels);
    let mut services: Vec<&ServiceInfo> = selecting.into_iter().map(|(_, info)| info).collect();
    // The UID tells this pod from an earlier one of the same name.
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let target = (name.namespace.clone(), name.name.clone(), uid);
    for (_, service) in reads.find(handles.pod_services, &target) {
        services.extend(reads.get(handles.services, service));
    }
    services
}

fn policies_of(
    reads: &mut Reads<'_>,
    handles: Handles,
    settings: &MeshSettings,
    name: &ObjectName,
    labels: &[Label],
) -> Vec<String> {
    let root = &settings.root_namespace;
    let selecting = reads.selecting(handles.policies, labels);
    let mut names: Vec<String> = selecting.into_iter().map(|(policy, _)| policy.to_string()).collect();
    names.sort_unstable();
    let parents = parents(reads, handles, settings, &name.namespace);
    let own = reads.selecting(handles.peer_authentications, labels);
    names.extend(peer_authentication::attached(root, &parents, own.into_iter().map(|(_, object)| object)));
    names
}

fn parents<'a>(
    reads: &mut Reads<'a>,
    handles: Handles,
    settings: &MeshSettings,
    namespace: &String,
) -> Parents<'a> {
    let in_namespace = reads.find(handles.parents, namespace);
    let in_root = reads.find(handles.parents, &settings.system_namespace);
    Parents::pick(in_namespace.map(|(_, object)| object), in_root.map(|(_, object)| object))
}

fn authorizations(
    graph: &mut Graph,
    inputs: &Inputs,
    policies: Collection<ObjectName, Policy>,
    handles: Handles,
    settings: &Arc<MeshSettings>,
) -> Collection<String, Resource> {
    let own = graph.flat_map("policies-encoded", policies, |_, name, policy| {
        let encoded = policy.conversion.policy.as_ref().map(Resource::policy);
        encoded.map(|resource| (name.to_string(), resource)).into_iter().collect()
    });
    let peer_authentications = inputs.peer_authentications.collection();
    let of_settings = settings.clone();
    let by_port = graph.flat_map("port-policies", peer_authentications, move |reads, name, object| {
        let parents = parents(reads, handles, &of_settings, &name.namespace);
        let converted = peer_authentication::converted(&of_settings.root_namespace, object, &parents);
        converted.map(|(key, policy)| (key, Resource::policy(&policy))).into_iter().collect()
    });
    // Every object leads to the same policy, so that it is there while there is any.
    let root = settings.root_namespace.clone();
    let strict = graph.flat_map("strict-policy", peer_authentications, move |_, _, _| {
        let (key, policy) = peer_authentication::static_strict(&root);
        vec![(key, Resource::policy(&policy))]
    });
    graph.merge("authorizations", &[own, by_port, strict])
}

fn notices(graph: &mut Graph, inputs: &Inputs) -> Collection<String, String> {
    let waypoint = |labels: Option<&Map>| {
        labels::waypoint(labels).map(|name| {
            format!("label {}={name}: waypoints are not supported, traffic goes direct", label::USE_WAYPOINT)
        })
    };
    let pods = graph.flat_map("pod-notices", inputs.pods.collection(), move |_, name, pod| {
        let notice = waypoint(pod.metadata.labels.as_ref());
        notice.map(|text| (format!("Pod {name}"), text)).into_iter().collect()
    });
    let services =
        graph.flat_map("service-notices", inputs.services.collection(), move |_, name, service| {
            let notice = waypoint(service.metadata.labels.as_ref());
            notice.map(|text| (format!("Service {name}"), text)).into_iter().collect()
        });
    let namespaces =
        graph.flat_map("namespace-notices", inputs.namespaces.collection(), move |_, name, object| {
            let notice = waypoint(object.metadata.labels.as_ref());
            notice.map(|text| (format!("Namespace {name}"), text)).into_iter().collect()
        });
    let policies =
        graph.flat_map("policy-notices", inputs.authorization_policies.collection(), |_, name, policy| {
            let attached = policy.spec.target_ref.is_some() || !policy.spec.target_refs.is_empty();
            let text = "targetRefs: waypoints are not supported, the policy is not enforced".to_owned();
            attached.then(|| (format!("AuthorizationPolicy {name}"), text)).into_iter().collect()
        });
    graph.merge("notices", &[pods, services, namespaces, policies])
}
