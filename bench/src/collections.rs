//! The collections of the mesh at the size of the design's budget: 10,000 pods, 1,000 services, 50 namespaces.

use crate::measure::{Suite, resident};
use ambit_api::core::v1::{Namespace, Node, Service};
use ambit_api::discovery::v1::EndpointSlice;
use ambit_api::istio::{AuthorizationPolicy, PeerAuthentication};
use ambit_api::slim::Pod;
use ambit_collect::Batch;
use ambit_control_plane::Fanout;
use ambit_mesh::{Inputs, Mesh, MeshSettings, ObjectName};
use ambit_runtime::Clock;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::Arc;

const PODS: usize = 10_000;
const SERVICES: usize = 1_000;
const NAMESPACES: usize = 50;
const NODES: usize = 100;
const PODS_PER_SERVICE: usize = PODS / SERVICES;
/// Node proxies, one for each node.
const CLIENTS: usize = NODES;
/// Rounds of a change.
const SAMPLES: usize = 500;

const BUILD: &str = "collections/10,000 pods, 1,000 services: build";
const POD: &str = "collections/one pod changed";
const SERVICE: &str = "collections/one service changed";
const NAMESPACE: &str = "collections/one namespace relabelled";
const ANNOTATION: &str = "collections/one namespace's services changed";
const POLICY: &str = "collections/one policy changed";
const POD_BYTES: &str = "collections/one pod changed, to bytes on 100 streams";
const SERVICE_BYTES: &str = "collections/one service changed, to bytes on 100 streams";
const INPUT_MEMORY: &str = "collections/memory of a pod as it is watched";
const DERIVED_MEMORY: &str = "collections/memory of a pod in all collections";
const ALL_MEMORY: &str = "collections/memory with 100 clients";
/// Work done in a fresh process, which prints bytes.
pub(crate) const MEMORY: &str = "collections-memory";

pub(crate) fn run(suite: &mut Suite) -> Result<()> {
    if suite.wants(BUILD) {
        let cluster = Cluster::new();
        suite.bench(BUILD, 10, 1, || {
            let mut mesh = Mesh::new(MeshSettings::default());
            mesh.graph.apply(cluster.batch(mesh.inputs));
            mesh
        });
    }
    changes_in_collections(suite)?;
    changes_on_streams(suite)?;
    if [INPUT_MEMORY, DERIVED_MEMORY, ALL_MEMORY].iter().any(|name| suite.wants(name)) {
        let output = Command::new(std::env::current_exe()?).args(["--once", MEMORY]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next().context("the process printed too little")?.context("not a number");
        for name in [INPUT_MEMORY, DERIVED_MEMORY, ALL_MEMORY] {
            suite.record_bytes(name, next()?);
        }
    }
    Ok(())
}

/// What follows from a change within the collections.
fn changes_in_collections(suite: &mut Suite) -> Result<()> {
    let pods = 1 + PODS_PER_SERVICE;
    let services = SERVICES / NAMESPACES;
    let all = [
        Work { name: POD, expected: 1..=1, change: change_pod },
        Work { name: SERVICE, expected: pods..=pods, change: change_service },
        Work { name: NAMESPACE, expected: 0..=0, change: relabel_namespace },
        Work { name: ANNOTATION, expected: services..=services, change: annotate_namespace },
        Work { name: POLICY, expected: PODS_PER_SERVICE..=2 * PODS_PER_SERVICE, change: change_policy },
    ];
    if !all.iter().any(|work| suite.wants(work.name)) {
        return Ok(());
    }
    let mut mesh = Mesh::new(MeshSettings::default());
    mesh.graph.apply(Cluster::new().batch(mesh.inputs));
    let (inputs, addresses) = (mesh.inputs, mesh.outputs.addresses);
    for work in all {
        work.measure(suite, inputs, |batch| mesh.graph.apply(batch).changes(addresses).count())?;
    }
    Ok(())
}

/// The same, to the bytes that clients are sent.
fn changes_on_streams(suite: &mut Suite) -> Result<()> {
    let all = [
        Work { name: POD_BYTES, expected: CLIENTS..=usize::MAX, change: change_pod },
        Work { name: SERVICE_BYTES, expected: CLIENTS..=usize::MAX, change: change_service },
    ];
    if !all.iter().any(|work| suite.wants(work.name)) {
        return Ok(());
    }
    let mut fanout = Fanout::new(MeshSettings::default(), CLIENTS);
    let inputs = fanout.inputs();
    fanout.apply(Cluster::new().batch(inputs));
    for work in all {
        work.measure(suite, inputs, |batch| fanout.apply(batch))?;
    }
    Ok(())
}

/// A change that is made again and again.
struct Work {
    name: &'static str,
    /// How much comes of it.
    expected: RangeInclusive<usize>,
    /// The batch of a round; each differs from all before.
    change: fn(Inputs, usize) -> Batch,
}

impl Work {
    /// Measures what a batch takes once it is made.
    fn measure(
        &self,
        suite: &mut Suite,
        inputs: Inputs,
        mut apply: impl FnMut(Batch) -> usize,
    ) -> Result<()> {
        if !suite.wants(self.name) {
            return Ok(());
        }
        let mut samples = Vec::with_capacity(SAMPLES);
        for round in 0..SAMPLES {
            let batch = (self.change)(inputs, round);
            let start = Clock.now();
            let came = apply(batch);
            samples.push(Clock.now().duration_since(start));
            let expected = &self.expected;
            ensure!(expected.contains(&came), "{}: {came} came of it, not {expected:?}", self.name);
        }
        suite.record(self.name, samples);
        Ok(())
    }
}

/// Bytes: of a pod as an object, of a pod in the collections besides, and of everything with its clients.
pub(crate) fn memory() -> Result<String> {
    let start = resident()?;
    let cluster = Cluster::new();
    let objects = resident()?.saturating_sub(start);
    let mut fanout = Fanout::new(MeshSettings::default(), CLIENTS);
    fanout.apply(cluster.batch(fanout.inputs()));
    let all = resident()?;
    let derived = all.saturating_sub(start).saturating_sub(objects);
    let pods = u64::try_from(PODS)?;
    Ok(format!("{} {} {all}", objects / pods, derived / pods))
}

fn change_pod(inputs: Inputs, round: usize) -> Batch {
    let at = round * 7919 % PODS;
    let mut pod = pod(at);
    pod["metadata"]["labels"]["version"] = json!(format!("changed-{round}"));
    let mut batch = Batch::new();
    batch.set(inputs.pods, pod_name(at), typed::<Pod>(pod));
    batch
}

fn change_service(inputs: Inputs, round: usize) -> Batch {
    let at = round % SERVICES;
    let mut service = service(at);
    service["spec"]["ports"][0]["port"] = json!(1000 + round % 50_000);
    let mut batch = Batch::new();
    batch.set(inputs.services, service_name(at), typed::<Service>(service));
    batch
}

/// What a team does to its namespace all day, and nothing follows from.
fn relabel_namespace(inputs: Inputs, round: usize) -> Batch {
    let mut namespace = namespace(round % NAMESPACES);
    namespace["metadata"]["labels"]["team"] = json!(format!("team-{round}"));
    let mut batch = Batch::new();
    batch.set(inputs.namespaces, namespace_name(round % NAMESPACES), typed::<Namespace>(namespace));
    batch
}

/// All services of the namespace follow.
fn annotate_namespace(inputs: Inputs, round: usize) -> Batch {
    let mut namespace = namespace(round % NAMESPACES);
    namespace["metadata"]["annotations"]["networking.istio.io/traffic-distribution"] =
        json!(if (round / NAMESPACES).is_multiple_of(2) { "PreferClose" } else { "PreferSameNode" });
    let mut batch = Batch::new();
    batch.set(inputs.namespaces, namespace_name(round % NAMESPACES), typed::<Namespace>(namespace));
    batch
}

/// A namespace's policy selects another of its services.
fn change_policy(inputs: Inputs, round: usize) -> Batch {
    let at = round % NAMESPACES;
    let service = (at + (1 + round / NAMESPACES) * NAMESPACES) % SERVICES;
    let name = ObjectName::new(namespace_name(at), "policy");
    let mut batch = Batch::new();
    batch.set(inputs.authorization_policies, name, typed::<AuthorizationPolicy>(policy(at, service)));
    batch
}

/// The objects of a cluster.
struct Cluster {
    pods: BTreeMap<ObjectName, Arc<Pod>>,
    services: BTreeMap<ObjectName, Arc<Service>>,
    slices: BTreeMap<ObjectName, Arc<EndpointSlice>>,
    namespaces: BTreeMap<String, Arc<Namespace>>,
    nodes: BTreeMap<String, Arc<Node>>,
    policies: BTreeMap<ObjectName, Arc<AuthorizationPolicy>>,
    modes: BTreeMap<ObjectName, Arc<PeerAuthentication>>,
}

impl Cluster {
    fn new() -> Self {
        let in_namespace = |at: usize, name: &str| ObjectName::new(namespace_name(at), name);
        Self {
            pods: (0..PODS).map(|at| (pod_name(at), typed(pod(at)))).collect(),
            services: (0..SERVICES).map(|at| (service_name(at), typed(service(at)))).collect(),
            slices: (0..SERVICES).map(|at| (service_name(at), typed(slice(at)))).collect(),
            namespaces: (0..NAMESPACES).map(|at| (namespace_name(at), typed(namespace(at)))).collect(),
            nodes: (0..NODES).map(|at| (node_name(at), typed(node(at)))).collect(),
            policies: (0..NAMESPACES).map(|at| (in_namespace(at, "policy"), typed(policy(at, at)))).collect(),
            modes: (0..NAMESPACES).map(|at| (in_namespace(at, "default"), typed(mode(at)))).collect(),
        }
    }

    fn batch(&self, inputs: Inputs) -> Batch {
        let mut batch = Batch::new();
        macro_rules! put {
            ($input:ident, $objects:ident) => {
                for (name, object) in &self.$objects {
                    batch.set(inputs.$input, name.clone(), object.clone());
                }
            };
        }
        put!(pods, pods);
        put!(services, services);
        put!(slices, slices);
        put!(namespaces, namespaces);
        put!(nodes, nodes);
        put!(authorization_policies, policies);
        put!(peer_authentications, modes);
        batch
    }
}

fn typed<K: serde::de::DeserializeOwned>(object: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object).expect("the benchmark's own objects have the kind's shape"))
}

fn namespace_name(at: usize) -> String {
    format!("team-{at}")
}

fn service_name(at: usize) -> ObjectName {
    ObjectName::new(namespace_name(at % NAMESPACES), format!("service-{at}"))
}

fn pod_name(at: usize) -> ObjectName {
    let service = at % SERVICES;
    ObjectName::new(namespace_name(service % NAMESPACES), format!("service-{service}-7d9c5f6b8d-{at:05}"))
}

fn node_name(at: usize) -> String {
    format!("node-{at}")
}

fn node(at: usize) -> Value {
    json!({"metadata": {"name": node_name(at), "labels": {
        "topology.kubernetes.io/region": "region", "topology.kubernetes.io/zone": format!("zone-{}", at % 3)}}})
}

fn policy(namespace: usize, service: usize) -> Value {
    json!({
        "metadata": {"name": "policy", "namespace": namespace_name(namespace)},
        "spec": {
            "selector": {"matchLabels": {"app": format!("service-{service}")}},
            "rules": [{"from": [{"source": {"principals": ["cluster.local/ns/team-0/sa/default"]}}]}],
        },
    })
}

fn mode(namespace: usize) -> Value {
    json!({
        "metadata": {"name": "default", "namespace": namespace_name(namespace)},
        "spec": {"mtls": {"mode": "PERMISSIVE"}},
    })
}

/// The slice of a service, with all its pods.
fn slice(at: usize) -> Value {
    let name = service_name(at);
    let endpoints: Vec<Value> = (0..PODS_PER_SERVICE)
        .map(|one| at + one * SERVICES)
        .map(|pod| {
            let target = pod_name(pod);
            json!({"addresses": [pod_ip(pod)], "conditions": {"ready": true}, "nodeName": node_name(pod % NODES),
                "targetRef": {"kind": "Pod", "namespace": target.namespace, "name": target.name, "uid": pod_uid(pod)}})
        })
        .collect();
    json!({
        "metadata": {"name": name.name, "namespace": name.namespace,
            "labels": {"kubernetes.io/service-name": name.name}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn pod_ip(at: usize) -> String {
    format!("10.{}.{}.{}", 128 + at / 62_500, at / 250 % 250, at % 250 + 1)
}

fn pod_uid(at: usize) -> String {
    format!("7f2c7e9a-0000-4000-8000-{at:012}")
}

fn namespace(at: usize) -> Value {
    json!({"metadata": {
        "name": namespace_name(at),
        "labels": {"istio.io/dataplane-mode": "ambient", "kubernetes.io/metadata.name": namespace_name(at)},
        "annotations": {},
    }})
}

fn service(at: usize) -> Value {
    let name = service_name(at);
    json!({
        "metadata": {"name": name.name, "namespace": name.namespace, "uid": format!("s-{at}")},
        "spec": {
            "clusterIP": format!("10.96.{}.{}", at / 250, at % 250 + 1),
            "clusterIPs": [format!("10.96.{}.{}", at / 250, at % 250 + 1)],
            "ipFamilies": ["IPv4"],
            "selector": {"app": name.name},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
    })
}

/// A pod as a Deployment makes it and a node reports it.
fn pod(at: usize) -> Value {
    let (name, service) = (pod_name(at), format!("service-{}", at % SERVICES));
    let ip = pod_ip(at);
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition);
    json!({
        "metadata": {
            "name": name.name, "namespace": name.namespace, "uid": pod_uid(at),
            "generateName": format!("{service}-7d9c5f6b8d-"), "resourceVersion": at.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": service, "version": "v1", "pod-template-hash": "7d9c5f6b8d"},
            "annotations": {"ambient.istio.io/redirection": "enabled"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{service}-7d9c5f6b8d"),
                "uid": format!("r-{at}"), "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "serviceAccountName": "default", "nodeName": node_name(at % NODES), "restartPolicy": "Always",
            "containers": [{"name": "app", "image": "registry.example/app:1.0", "ports": [{"containerPort": 8080}],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
            "volumes": [{"name": "token", "emptyDir": {}}],
        },
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "192.168.0.1",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": conditions,
            "containerStatuses": [{"name": "app", "image": "registry.example/app:1.0", "imageID": "sha256:0", "ready": true,
                "restartCount": 0, "started": true, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
        },
    })
}
