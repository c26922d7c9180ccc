//! The collections of the mesh at the size of the design's budget: 10,000 pods, 1,000 services, 50 namespaces.

use crate::measure::Suite;
use ambit_api::core::v1::{Namespace, Pod, Service};
use ambit_mesh::{Mesh, MeshSettings, ObjectName};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

const PODS: usize = 10_000;
const SERVICES: usize = 1_000;
const NAMESPACES: usize = 50;
const PODS_PER_SERVICE: usize = PODS / SERVICES;

const BUILD: &str = "collections/10,000 pods, 1,000 services: build";
const POD: &str = "collections/one pod changed";
const SERVICE: &str = "collections/one service changed";
const NAMESPACE: &str = "collections/one namespace relabelled";
const INPUT_BYTES: &str = "collections/memory of a pod as it is watched";
const DERIVED_BYTES: &str = "collections/memory of a pod in all collections";
/// Work done in a fresh process, which prints bytes for each pod: objects, then what is derived from them.
pub(crate) const MEMORY: &str = "collections-memory";

pub(crate) fn run(suite: &mut Suite) -> Result<()> {
    if suite.wants(BUILD) {
        let cluster = Cluster::new();
        suite.bench(BUILD, 10, 1, || {
            let mut mesh = Mesh::new(MeshSettings::default());
            cluster.apply_all(&mut mesh);
            mesh
        });
    }
    if [POD, SERVICE, NAMESPACE].iter().any(|name| suite.wants(name)) {
        let mut mesh = Mesh::new(MeshSettings::default());
        let cluster = Cluster::new();
        cluster.apply_all(&mut mesh);
        let mut round = 0;
        suite.bench(POD, 200, 1, || {
            round += 1;
            change_pod(&mut mesh, round)
        });
        suite.bench(SERVICE, 200, 1, || {
            round += 1;
            change_service(&mut mesh, round)
        });
        suite.bench(NAMESPACE, 50, 1, || {
            round += 1;
            change_namespace(&mut mesh, round)
        });
    }
    if suite.wants(INPUT_BYTES) || suite.wants(DERIVED_BYTES) {
        let output = Command::new(std::env::current_exe()?).args(["--once", MEMORY]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next().context("the process printed too little")?.context("not a number");
        suite.record_bytes(INPUT_BYTES, next()?);
        suite.record_bytes(DERIVED_BYTES, next()?);
    }
    Ok(())
}

/// Bytes for each pod: as an object, and in the collections besides.
pub(crate) fn memory() -> Result<(u64, u64)> {
    let before = resident()?;
    let cluster = Cluster::new();
    let objects = resident()?;
    let mut mesh = Mesh::new(MeshSettings::default());
    cluster.apply_all(&mut mesh);
    let all = resident()?;
    let pods = u64::try_from(PODS)?;
    Ok((objects.saturating_sub(before) / pods, all.saturating_sub(objects) / pods))
}

/// Resident bytes of this process.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

fn change_pod(mesh: &mut Mesh, round: usize) -> usize {
    let at = round % PODS;
    let mut pod = pod(at);
    pod["metadata"]["labels"]["version"] = json!(format!("changed-{round}"));
    let mut batch = ambit_collect::Batch::new();
    batch.set(mesh.inputs.pods, pod_name(at), typed::<Pod>(pod));
    let addresses = mesh.outputs.addresses;
    let changed = mesh.graph.apply(batch).changes(addresses).count();
    assert_eq!(changed, 1, "one workload follows from one pod");
    changed
}

fn change_service(mesh: &mut Mesh, round: usize) -> usize {
    let at = round % SERVICES;
    let mut service = service(at);
    service["spec"]["ports"][0]["port"] = json!(1000 + round % 50_000);
    let mut batch = ambit_collect::Batch::new();
    batch.set(mesh.inputs.services, service_name(at), typed::<Service>(service));
    let addresses = mesh.outputs.addresses;
    let changed = mesh.graph.apply(batch).changes(addresses).count();
    assert_eq!(changed, 1 + PODS_PER_SERVICE, "a service and its endpoints follow");
    changed
}

fn change_namespace(mesh: &mut Mesh, round: usize) -> usize {
    let mut namespace = namespace(round % NAMESPACES);
    namespace["metadata"]["annotations"]["networking.istio.io/traffic-distribution"] =
        json!(if round.is_multiple_of(2) { "PreferClose" } else { "PreferSameNode" });
    let mut batch = ambit_collect::Batch::new();
    batch.set(mesh.inputs.namespaces, namespace_name(round % NAMESPACES), typed::<Namespace>(namespace));
    let addresses = mesh.outputs.addresses;
    mesh.graph.apply(batch).changes(addresses).count()
}

/// The objects of a cluster.
struct Cluster {
    pods: BTreeMap<ObjectName, Arc<Pod>>,
    services: BTreeMap<ObjectName, Arc<Service>>,
    namespaces: BTreeMap<String, Arc<Namespace>>,
}

impl Cluster {
    fn new() -> Self {
        Self {
            pods: (0..PODS).map(|at| (pod_name(at), typed(pod(at)))).collect(),
            services: (0..SERVICES).map(|at| (service_name(at), typed(service(at)))).collect(),
            namespaces: (0..NAMESPACES).map(|at| (namespace_name(at), typed(namespace(at)))).collect(),
        }
    }

    fn apply_all(&self, mesh: &mut Mesh) {
        let mut batch = ambit_collect::Batch::new();
        for (name, object) in &self.namespaces {
            batch.set(mesh.inputs.namespaces, name.clone(), object.clone());
        }
        for (name, object) in &self.services {
            batch.set(mesh.inputs.services, name.clone(), object.clone());
        }
        for (name, object) in &self.pods {
            batch.set(mesh.inputs.pods, name.clone(), object.clone());
        }
        mesh.graph.apply(batch);
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
    let ip = format!("10.{}.{}.{}", 128 + at / 62_500, at / 250 % 250, at % 250 + 1);
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition);
    json!({
        "metadata": {
            "name": name.name, "namespace": name.namespace, "uid": format!("7f2c7e9a-0000-4000-8000-{at:012}"),
            "generateName": format!("{service}-7d9c5f6b8d-"), "resourceVersion": at.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": service, "version": "v1", "pod-template-hash": "7d9c5f6b8d"},
            "annotations": {"ambient.istio.io/redirection": "enabled"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{service}-7d9c5f6b8d"),
                "uid": format!("r-{at}"), "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "serviceAccountName": "default", "nodeName": format!("node-{}", at % 100), "restartPolicy": "Always",
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
