//! What every cluster has from its first moment: the system's namespaces, the default roles, and the service that
//! names the API server.

use crate::cluster::Cluster;
use crate::create::create_object;
use crate::modify::change;
use crate::ownership::{Author, Record};
use crate::request::{Effect, Part, Target};
use crate::status::{Answer, Failure};
use ambit_access::{Rule, defaults, uncovered};
use ambit_names::label;
use http::StatusCode;
use ipnet::IpNet;
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Classes of pods that the cluster or a node needs. Source: kubernetes pkg/apis/scheduling/v1/helpers.go.
const SYSTEM_PRIORITIES: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];
/// Name of the service and of its slice.
const SERVICE: &str = "kubernetes";
/// Name of its port. Source: kube-apiserver's kubernetesservice controller.
const PORT_NAME: &str = "https";
/// Port of the service.
const SERVICE_PORT: u16 = 443;

/// Creates what is missing, and points the `kubernetes` service at `advertise`.
pub(crate) async fn bootstrap(cluster: &Arc<Cluster>, advertise: Option<SocketAddr>) -> Answer<()> {
    for name in NAMESPACES {
        ensure(cluster, ("", "Namespace"), "", json!({"metadata": {"name": name}})).await?;
    }
    roles(cluster).await?;
    for (name, value, what) in SYSTEM_PRIORITIES {
        let class = json!({"metadata": {"name": name}, "value": value, "description": what});
        ensure(cluster, ("scheduling.k8s.io", "PriorityClass"), "", class).await?;
    }
    let first = first_address(&cluster.options.service_cidr);
    let labels = json!({"component": "apiserver", "provider": SERVICE});
    let port = advertise.map_or(SERVICE_PORT, |address| address.port());
    let service = json!({
        "metadata": {"name": SERVICE, "labels": labels},
        "spec": {"clusterIP": first.to_string(), "clusterIPs": [first.to_string()], "ports": [
            {"name": PORT_NAME, "port": SERVICE_PORT, "protocol": "TCP", "targetPort": port}]},
    });
    ensure(cluster, ("", "Service"), "default", service).await?;
    match advertise {
        Some(address) => publish(cluster, address).await,
        None => Ok(()),
    }
}

/// The default roles and bindings. They are written together, for the sake of one trip to the disk.
async fn roles(cluster: &Arc<Cluster>) -> Answer<()> {
    let of_cluster =
        |kind: &'static str, objects: Vec<Value>| objects.into_iter().map(move |object| (kind, "", object));
    let of_namespaces = defaults::roles().into_iter().map(|(namespace, object)| ("Role", namespace, object));
    let all = of_cluster("ClusterRole", defaults::cluster_roles())
        .chain(of_cluster("ClusterRoleBinding", defaults::cluster_role_bindings()))
        .chain(of_namespaces);
    let written = all.map(|(kind, namespace, object)| async move {
        let target = ensure(cluster, (defaults::GROUP, kind), namespace, object.clone()).await?;
        complete(cluster, &target, &object).await
    });
    futures::future::try_join_all(written).await.map(|_| ())
}

/// Adds what a default object of an older server lacks, unless the administrator has switched that off.
/// Source: kubernetes component-helpers auth/rbac/reconciliation.
async fn complete(cluster: &Arc<Cluster>, target: &Target, wanted: &Value) -> Answer<()> {
    let record = Record::By(Author::server());
    let completed = change(cluster, target, (Part::Main, Effect::Write, &record), |old| {
        let mut new = old.clone();
        if old["metadata"]["annotations"][defaults::AUTO_UPDATE] != "true" {
            return Ok(new);
        }
        let rules = |object: &Value| Option::<Vec<Rule>>::deserialize(&object["rules"]).unwrap_or_default();
        let held = rules(old).unwrap_or_default();
        let missing = uncovered(&held, &rules(wanted).unwrap_or_default());
        if !missing.is_empty() {
            new["rules"] = json!([held, missing].concat());
        }
        let subjects = |object: &Value| object["subjects"].as_array().cloned().unwrap_or_default();
        let lacking: Vec<Value> =
            subjects(wanted).into_iter().filter(|one| !subjects(old).contains(one)).collect();
        if !lacking.is_empty() {
            new["subjects"] = [subjects(old), lacking].concat().into();
        }
        Ok(new)
    });
    completed.await.map(|_| ())
}

/// The slice behind the service; an older address is replaced.
async fn publish(cluster: &Arc<Cluster>, advertise: SocketAddr) -> Answer<()> {
    let family = if advertise.is_ipv4() { "IPv4" } else { "IPv6" };
    let endpoints = json!([{"addresses": [advertise.ip().to_string()], "conditions": {"ready": true}}]);
    let ports = json!([{"name": PORT_NAME, "port": advertise.port(), "protocol": "TCP"}]);
    let slice = json!({
        "metadata": {"name": SERVICE, "labels": {label::SERVICE_NAME: SERVICE}},
        "addressType": family, "endpoints": endpoints, "ports": ports,
    });
    let target = ensure(cluster, ("discovery.k8s.io", "EndpointSlice"), "default", slice).await?;
    let record = Record::By(Author::server());
    let pointed = change(cluster, &target, (Part::Main, Effect::Write, &record), |old| {
        let mut new = old.clone();
        new["endpoints"] = endpoints.clone();
        new["ports"] = ports.clone();
        Ok(new)
    });
    pointed.await.map(|_| ())
}

/// Creates an object unless it exists.
async fn ensure(
    cluster: &Arc<Cluster>,
    (group, kind): (&str, &str),
    namespace: &str,
    mut object: Value,
) -> Answer<Target> {
    let kind = cluster.built_in(group, "v1", kind);
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.as_str().into();
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let target = Target::new(&kind, namespace, &name);
    if cluster.db.get(&target.key()).is_some() {
        return Ok(target);
    }
    let record = Record::By(Author::server());
    match create_object(cluster, &target, object, (Effect::Write, &record)).await {
        Err(Failure { code: StatusCode::CONFLICT, .. }) | Ok(_) => Ok(target),
        // A server with the same store was first, and what its service has is taken.
        Err(_) if cluster.db.get(&target.key()).is_some() => Ok(target),
        Err(failure) => Err(failure),
    }
}

/// The address of the `kubernetes` service: the first one of the range.
fn first_address(range: &IpNet) -> IpAddr {
    match range {
        IpNet::V4(net) => Ipv4Addr::from(u32::from(net.network()).saturating_add(1)).into(),
        IpNet::V6(net) => Ipv6Addr::from(u128::from(net.network()).saturating_add(1)).into(),
    }
}
