//! The mesh configuration: what is in force, and what a fault does.

use crate::client::{Discovery, root};
use crate::cluster::{Cluster, ControlPlane, account, ask, eventually, pod, proxy};
use ambit_control_plane::{Settings, kept_documents};
use ambit_names::type_url::ADDRESS;
use ambit_proto::workload::{Address, address};
use prost::Message;
use serde_json::{Value, json};
use std::collections::HashMap;

const WEB: &str = "Kubernetes//Pod/demo/web";

fn config_map(name: &str, mesh: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "istio-system", "name": name},
        "data": {"mesh": mesh}})
}

/// What people read of the state, once it has this in it.
async fn status_with(cluster: &Cluster, part: &'static str) -> String {
    eventually("the status tells it", async || {
        let kept = cluster.read(&config_map("ambit-mesh-config", "")).await?;
        kept["data"]["status"].as_str().filter(|status| status.contains(part)).map(str::to_owned)
    })
    .await
}

async fn cluster() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.create(account("istio-system", "ztunnel")).await;
    cluster.create(account("demo", "web")).await;
    cluster.create(proxy("node1")).await;
    cluster.create(pod("demo", "web", "web", "node1", "10.244.0.5")).await;
    cluster
}

/// The trust domain that proxies are told.
async fn trust_domain(cluster: &Cluster, control_plane: &ControlPlane) -> String {
    let (token, root) = (cluster.token(&proxy("node1"), "istio-ca").await, root(cluster).await);
    let mut stream = Discovery::open(control_plane, &root, Some(&token), "istio-system").await.unwrap();
    stream.subscribe(ADDRESS, HashMap::new()).await;
    stream.until(|stream| stream.get(ADDRESS, WEB).is_some()).await;
    match Address::decode(stream.get(ADDRESS, WEB).unwrap()).unwrap().r#type {
        Some(address::Type::Workload(workload)) => workload.trust_domain,
        other => panic!("it is a workload: {other:?}"),
    }
}

const BAD: &str = "enableTracing: true\ntrustDomain: true\n";
const FAULT: &str =
    "istio-system/istio:2:14: trustDomain: it is the boolean true, a text (write it in quotes) is expected";

#[tokio::test]
async fn inv_03_a_fault_keeps_the_last_good_configuration_in_force_across_restarts() {
    let cluster = cluster().await;
    cluster.create(config_map("istio", "trustDomain: one.example\n")).await;
    let control_plane = cluster.control_plane().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "one.example");
    status_with(&cluster, "the sources are in force").await;
    let map = config_map("istio", BAD);
    cluster.patch(&map, json!({"data": {"mesh": BAD}})).await;
    let status = status_with(&cluster, FAULT).await;
    assert!(status.starts_with("the last good configuration is in force"), "{status}");
    let text = ask(&control_plane, "/metrics").await;
    assert!(text.contains("ambit_control_plane_mesh_config_faults 1"), "{text}");
    assert!(text.contains("ambit_control_plane_mesh_config_in_force 1"), "{text}");
    control_plane.stop().await;

    let control_plane = cluster.control_plane().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "one.example");
    cluster.patch(&map, json!({"data": {"mesh": "trustDomain: two.example\n"}})).await;
    status_with(&cluster, "the sources are in force").await;
    control_plane.stop().await;

    let control_plane = cluster.control_plane().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "two.example");
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn inv_03_the_last_good_configuration_outlives_the_config_map_that_keeps_it() {
    let cluster = cluster().await;
    cluster.create(config_map("istio", "trustDomain: one.example\n")).await;
    let control_plane = cluster.control_plane().await;
    status_with(&cluster, "the sources are in force").await;
    let map = config_map("istio", BAD);
    cluster.patch(&map, json!({"data": {"mesh": BAD}})).await;
    status_with(&cluster, FAULT).await;
    cluster.delete(&config_map("ambit-mesh-config", "")).await;
    cluster.patch(&map, json!({"data": {"mesh": "trustDomain: 5\n"}})).await;
    let status = status_with(&cluster, "trustDomain: it is the number 5").await;
    assert!(status.starts_with("the last good configuration is in force"), "{status}");
    control_plane.stop().await;

    let control_plane = cluster.control_plane().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "one.example");
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn inv_03_without_a_good_configuration_it_is_not_ready_and_says_why() {
    let cluster = cluster().await;
    cluster.create(config_map("istio", BAD)).await;
    let starting = cluster.start_control_plane().await;
    let blocker = eventually("it says what blocks it", async || {
        starting.readiness.waiting_for().into_iter().find(|blocker| blocker.contains("mesh configuration"))
    })
    .await;
    assert_eq!(blocker, format!("mesh configuration: {FAULT}"));
    assert!(status_with(&cluster, FAULT).await.starts_with("no configuration is in force"));
    cluster.patch(&config_map("istio", BAD), json!({"data": {"mesh": "trustDomain: 'yes.example'\n"}})).await;
    let control_plane = starting.ready().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "yes.example");
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn faults_are_told_at_the_config_map_that_has_them() {
    let cluster = cluster().await;
    cluster.create(config_map("istio", BAD)).await;
    let starting = cluster.start_control_plane().await;
    let event = cluster.event("istio", "MeshConfigInvalid").await;
    assert!(event.starts_with("no configuration is in force") && event.contains(FAULT), "{event}");
    cluster.patch(&config_map("istio", BAD), json!({"data": {"mesh": "trustDomain: yes.example\n"}})).await;
    let control_plane = starting.ready().await;
    cluster.event("istio", "MeshConfigAccepted").await;
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn inv_03_the_kept_configuration_is_restored_when_somebody_deletes_or_changes_it() {
    let cluster = cluster().await;
    cluster.create(config_map("istio", "trustDomain: one.example\n")).await;
    let control_plane = cluster.control_plane().await;
    status_with(&cluster, "the sources are in force").await;
    let map = config_map("ambit-mesh-config", "");
    let kept = cluster.read(&map).await.expect("it is kept")["data"].clone();
    let restored = async || {
        eventually("it is as it was", async || {
            let map = cluster.read(&map).await?;
            (map["data"]["sources"] == kept["sources"] && map["data"]["status"] == kept["status"])
                .then_some(())
        })
        .await;
    };
    cluster.delete(&map).await;
    restored().await;
    let event = cluster.event("ambit-mesh-config", "MeshConfigRestored").await;
    assert!(event.starts_with("somebody deleted it"), "{event}");
    // Two good configurations, but not the one that was last good.
    let other = r#"[["istio-system/istio","mesh","trustDomain: mine.example\n"]]"#;
    for edit in [json!({"sources": other}), json!({"sources": "nonsense"}), json!({"status": "all is well"})]
    {
        cluster.patch(&map, json!({"data": edit})).await;
        restored().await;
    }
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn inv_03_a_kept_configuration_that_somebody_changed_is_not_used_by_a_restart() {
    let cluster = cluster().await;
    cluster.create(config_map("istio", "trustDomain: one.example\n")).await;
    let control_plane = cluster.control_plane().await;
    status_with(&cluster, "the sources are in force").await;
    control_plane.stop().await;
    let other = r#"[["istio-system/istio","mesh","trustDomain: mine.example\n"]]"#;
    cluster.patch(&config_map("ambit-mesh-config", ""), json!({"data": {"sources": other}})).await;
    cluster.patch(&config_map("istio", BAD), json!({"data": {"mesh": BAD}})).await;
    let starting = cluster.start_control_plane().await;
    let status = status_with(&cluster, "somebody changed the last good configuration").await;
    assert!(status.starts_with("no configuration is in force"), "{status}");
    // Correct sources are all that is needed.
    cluster.patch(&config_map("istio", BAD), json!({"data": {"mesh": "trustDomain: two.example\n"}})).await;
    let control_plane = starting.ready().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "two.example");
    status_with(&cluster, "the sources are in force").await;
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn inv_03_a_configuration_of_a_mebibyte_outlives_a_restart() {
    let cluster = cluster().await;
    let format = "%REQ(:METHOD)% ".repeat(65_000);
    let text = format!("trustDomain: one.example\naccessLogFormat: '{format}'\n");
    cluster.create(config_map("istio", &text)).await;
    let control_plane = cluster.control_plane().await;
    status_with(&cluster, "the sources are in force").await;
    cluster.patch(&config_map("istio", BAD), json!({"data": {"mesh": BAD}})).await;
    status_with(&cluster, FAULT).await;
    control_plane.stop().await;
    let control_plane = cluster.control_plane().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "one.example");
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn the_shared_config_map_is_under_the_primary_one_and_a_fault_in_either_keeps_both() {
    let cluster = cluster().await;
    let shared = "trustDomain: shared.example\ntrustDomainAliases: [c, a]\n\
        defaultConfig: {proxyMetadata: {A: shared, B: shared}}\n\
        extensionProviders: [{name: p, prometheus: {}}, {name: q, prometheus: {}}]\n";
    let primary = "trustDomain: primary.example\ntrustDomainAliases: [b, a]\n\
        defaultConfig: {proxyMetadata: {B: primary}}\n\
        extensionProviders: [{name: q, envoyFileAccessLog: {path: /dev/null}}]\n";
    cluster.create(config_map("shared", shared)).await;
    cluster.create(config_map("istio", primary)).await;
    let mut settings = Settings::default();
    settings.mesh_config.shared = Some("shared".to_owned());
    let control_plane = cluster.start_control_plane_with(settings.clone()).await.ready().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "primary.example");
    let sources = async || {
        status_with(&cluster, "the sources are in force").await;
        let kept = cluster.read(&config_map("ambit-mesh-config", "")).await.expect("it is kept");
        kept_documents(&serde_json::from_value(kept).expect("a ConfigMap")).expect("they are good")
    };
    let documents = sources().await;
    let names: Vec<&str> = documents.iter().map(|one| one.source.as_str()).collect();
    assert_eq!(names, ["istio-system/shared", "istio-system/istio"]);
    cluster.patch(&config_map("shared", ""), json!({"data": {"mesh": BAD}})).await;
    let fault = FAULT.replace("istio-system/istio:", "istio-system/shared:");
    status_with(&cluster, "istio-system/shared:2:14: trustDomain").await;
    assert!(cluster.event("shared", "MeshConfigInvalid").await.contains(&fault));
    // What is changed in the other one meanwhile waits.
    cluster.patch(&config_map("istio", ""), json!({"data": {"mesh": "trustDomain: later.example\n"}})).await;
    control_plane.stop().await;
    let control_plane = cluster.start_control_plane_with(settings.clone()).await.ready().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "primary.example");
    cluster.patch(&config_map("shared", ""), json!({"data": {"mesh": shared}})).await;
    assert_eq!(sources().await.len(), 2);
    control_plane.stop().await;
    let control_plane = cluster.start_control_plane_with(settings).await.ready().await;
    assert_eq!(trust_domain(&cluster, &control_plane).await, "later.example");
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_config_map_that_goes_leaves_the_defaults_and_counts_again_when_it_is_back() {
    let cluster = cluster().await;
    let map = config_map("istio", "trustDomain: one.example\n");
    cluster.create(map.clone()).await;
    let control_plane = cluster.control_plane().await;
    status_with(&cluster, "the sources are in force").await;
    cluster.delete(&map).await;
    let sources = async |wanted: &'static str| {
        eventually("the kept sources follow", async || {
            let kept = cluster.read(&config_map("ambit-mesh-config", "")).await?;
            (kept["data"]["sources"] == wanted).then_some(())
        })
        .await;
    };
    sources("[]").await;
    cluster.create(config_map("istio", BAD)).await;
    status_with(&cluster, FAULT).await;
    cluster.patch(&map, json!({"data": {"mesh": "trustDomain: three.example\n"}})).await;
    sources(r#"[["istio-system/istio","mesh","trustDomain: three.example\n"]]"#).await;
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn inv_03_bytes_that_are_no_text_are_a_fault() {
    let cluster = cluster().await;
    let control_plane = cluster.control_plane().await;
    // "a: \xff" in Base64.
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "istio-system", "name": "istio"},
        "binaryData": {"mesh": "YTog/w=="}});
    cluster.create(map).await;
    status_with(&cluster, "istio-system/istio:1:4: byte 3 is not UTF-8").await;
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn discovery_selectors_make_namespaces_come_and_go() {
    let cluster = cluster().await;
    let selecting = "discoverySelectors:\n- matchLabels: {mesh: 'on'}\n";
    cluster.create(config_map("istio", selecting)).await;
    let control_plane = cluster.control_plane().await;
    let (token, root) = (cluster.token(&proxy("node1"), "istio-ca").await, root(&cluster).await);
    let mut stream = Discovery::open(&control_plane, &root, Some(&token), "istio-system").await.unwrap();
    stream.subscribe(ADDRESS, HashMap::new()).await;
    // The system namespace is always seen.
    let proxy_uid = "Kubernetes//Pod/istio-system/ztunnel-node1";
    stream.until(|stream| stream.get(ADDRESS, proxy_uid).is_some()).await;
    assert!(stream.get(ADDRESS, WEB).is_none());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}});
    cluster.patch(&namespace, json!({"metadata": {"labels": {"mesh": "on"}}})).await;
    stream.until(|stream| stream.get(ADDRESS, WEB).is_some()).await;
    cluster.patch(&namespace, json!({"metadata": {"labels": {"mesh": "off"}}})).await;
    stream.until(|stream| stream.get(ADDRESS, WEB).is_none()).await;
    // The configuration is followed while the control plane runs.
    let map = config_map("istio", "");
    cluster.patch(&map, json!({"data": {"mesh": ""}})).await;
    stream.until(|stream| stream.get(ADDRESS, WEB).is_some()).await;
    cluster.patch(&map, json!({"data": {"mesh": selecting}})).await;
    stream.until(|stream| stream.get(ADDRESS, WEB).is_none()).await;
    // INV-03: selectors with a fault change nothing.
    let bad = selecting.replace("matchLabels: {mesh: 'on'}", "matchLabels: {mesh: on}");
    cluster.patch(&map, json!({"data": {"mesh": bad}})).await;
    status_with(&cluster, "discoverySelectors[0].matchLabels.mesh: it is the boolean true").await;
    control_plane.stop().await;
    cluster.stop().await;
}
