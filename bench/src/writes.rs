//! What a controller's writes cost: those that change something, those that turn out not to be needed, and what is remembered.

use crate::measure::{Suite, resident};
use ambit_api::apps::v1::Deployment;
use ambit_apiserver::{ApiServer, Storage};
use ambit_kube::{Applier, FieldManager, OnConflict, Written};
use ambit_runtime::{Clock, Readiness, Shutdown};
use ambit_trust::pki::ClusterPki;
use anyhow::{Result, ensure};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use std::process::Command;
use tokio::runtime::Runtime;

/// A status that differs, written to a server in the same process.
const CHANGED: &str = "writes/a status that differs";
/// A status that is as wanted, of a version that was looked at before.
const KNOWN: &str = "writes/a status as wanted, seen before";
/// A status that is as wanted, of an object in which somebody else changed something.
const COMPARED: &str = "writes/a status as wanted, compared";
/// What is remembered of each object.
const REMEMBERED: &str = "writes/memory of an object written";
/// Work done in a fresh process, which prints bytes.
pub(crate) const MEMORY: &str = "writes-memory";
/// Objects that are remembered: as many as there can be. Source: the bound in `ambit_kube`.
const OBJECTS: u64 = 50_000;
const MANAGER: &str = "bench";
const TIME: &str = "2026-01-01T00:00:00Z";

pub(crate) fn run(suite: &mut Suite) -> Result<()> {
    if [CHANGED, KNOWN, COMPARED].iter().any(|name| suite.wants(name)) {
        let runtime = Runtime::new()?;
        let _inside = runtime.enter();
        let stop = Shutdown::new();
        let server = runtime.block_on(server())?;
        let client = server.client(MANAGER, &["system:masters"]);
        let serving = runtime.spawn(server.run(Readiness::default(), stop.clone()));
        let written = statuses(suite, &runtime, client);
        stop.cancel();
        runtime.block_on(serving)??;
        written?;
    }
    if suite.wants(REMEMBERED) {
        let output = Command::new(std::env::current_exe()?).args(["--once", MEMORY]).output()?;
        suite.record_bytes(REMEMBERED, String::from_utf8(output.stdout)?.trim().parse()?);
    }
    Ok(())
}

async fn server() -> Result<ApiServer> {
    let settings = ambit_apiserver::Settings {
        storage: Storage::Memory,
        listen: None,
        advertise: None,
        pki: ClusterPki::in_memory(&[])?,
        service_cidr: ambit_names::cluster::SERVICE_CIDR.parse()?,
        cluster_domain: ambit_names::mesh::CLUSTER_DOMAIN.into(),
    };
    Ok(ApiServer::open(settings).await?)
}

fn statuses(suite: &mut Suite, runtime: &Runtime, client: Client) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let writer: Applier<Deployment> = FieldManager::new(client, MANAGER).applier();
    let object = serde_json::from_value(deployment("a"))?;
    // As an informer shows it.
    let seen = |mut object: Deployment| {
        object.metadata.managed_fields = None;
        object
    };
    let mut live = seen(runtime.block_on(api.create(&PostParams::default(), &object))?);
    let apply = |live: &Deployment, status: &Value| {
        runtime.block_on(writer.apply_status(live, status, OnConflict::Refuse))
    };
    let mut samples = Vec::new();
    let mut wanted = json!({});
    for round in 0..500 {
        wanted = status(round);
        let begun = Clock.now();
        let written = apply(&live, &wanted)?;
        samples.push(Clock.now().saturating_duration_since(begun));
        ensure!(written == Written::Changed, "a status that differs was not written");
        live = seen(runtime.block_on(api.get("a"))?);
    }
    if suite.wants(CHANGED) {
        suite.record(CHANGED, samples);
    }
    suite.bench(KNOWN, 100, 100, || apply(&live, &wanted).ok());
    ensure!(apply(&live, &wanted)? == Written::Unchanged, "a status that is as wanted was written");
    let mut version = 0_u64;
    suite.bench(COMPARED, 100, 20, || {
        version += 1;
        live.metadata.resource_version = Some(format!("other-{version}"));
        apply(&live, &wanted).ok()
    });
    ensure!(apply(&live, &wanted)? == Written::Unchanged, "a status that is as wanted was written");
    Ok(())
}

/// Remembers as many objects as can be, in a process that does nothing else; returns the bytes of one.
pub(crate) fn memory() -> Result<u64> {
    let runtime = Runtime::new()?;
    let _inside = runtime.enter();
    // Nothing is asked: what is owned stands in the objects.
    let client = runtime.block_on(server())?.client(MANAGER, &["system:masters"]);
    let writer: Applier<Deployment> = FieldManager::new(client, MANAGER).applier();
    let wanted = status(1);
    let mut start = 0;
    for number in 0..=OBJECTS {
        let live: Deployment = serde_json::from_value(owned(&format!("deployment-{number:05}")))?;
        let written = runtime.block_on(writer.apply_status(&live, &wanted, OnConflict::Refuse))?;
        ensure!(written == Written::Unchanged, "a status that is as wanted was written");
        if number == 0 {
            start = resident()?;
        }
    }
    Ok(resident()?.saturating_sub(start) / OBJECTS)
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [
                {"name": "app", "image": "registry.example/app:1.0", "ports": [{"containerPort": 8080}],
                 "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]}}},
    })
}

/// A status of counts and three conditions.
fn status(round: u32) -> Value {
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "Measured", "message": format!("round {round}"),
            "lastTransitionTime": TIME, "lastUpdateTime": TIME})
    };
    json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "updatedReplicas": round,
        "conditions": [condition("Available"), condition("Progressing"), condition("Measured")]})
}

/// An object of which the manager owns the status, as it was read with its managers.
fn owned(name: &str) -> Value {
    let fields =
        |names: &[&str]| names.iter().map(|name| (format!("f:{name}"), json!({}))).collect::<Value>();
    let condition = fields(&["type", "status", "reason", "message", "lastTransitionTime", "lastUpdateTime"]);
    let conditions = ["Available", "Progressing", "Measured"]
        .iter()
        .map(|kind| (format!("k:{}", json!({"type": kind})), condition.clone()))
        .collect::<Value>();
    let mut owned = fields(&["observedGeneration", "replicas", "readyReplicas", "updatedReplicas"]);
    owned["f:conditions"] = conditions;
    let mut object = deployment(name);
    object["status"] = status(1);
    object["metadata"]["uid"] = format!("0f6f6a3e-7a52-4c1c-9d0e-{name}").into();
    object["metadata"]["resourceVersion"] = "123456".into();
    object["metadata"]["managedFields"] = json!([{"manager": MANAGER, "operation": "Apply", "subresource": "status",
        "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": owned}}]);
    object
}
