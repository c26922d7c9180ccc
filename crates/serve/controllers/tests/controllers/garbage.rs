//! Owner garbage collection over built-in and custom kinds.

use crate::cluster::{Cluster, eventually};
use ambit_api::core::v1::{ConfigMap, Event};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};

fn owned(name: &str, owners: &[(&str, &ConfigMap)]) -> Value {
    let owners: Vec<Value> = owners
        .iter()
        .map(|(kind, owner)| {
            json!({"apiVersion": "v1", "kind": kind, "name": owner.name_any(), "uid": owner.uid(),
                "blockOwnerDeletion": true})
        })
        .collect();
    json!({"metadata": {"name": name, "ownerReferences": owners}})
}

async fn config_map(cluster: &Cluster, name: &str, owners: &[&ConfigMap]) -> ConfigMap {
    let owners: Vec<(&str, &ConfigMap)> = owners.iter().map(|&owner| ("ConfigMap", owner)).collect();
    cluster.create("default", owned(name, &owners)).await
}

/// Waits until exactly these of our config maps are left.
async fn await_left(cluster: &Cluster, expected: &[&str]) {
    eventually(&format!("config maps {expected:?}"), async || {
        let mut names = cluster.names::<ConfigMap>("default").await;
        names.retain(|name| name != "kube-root-ca.crt");
        (names == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn dependents_go_with_their_last_owner() {
    let cluster = Cluster::start().await;
    let first = config_map(&cluster, "first", &[]).await;
    let second = config_map(&cluster, "second", &[]).await;
    let child = config_map(&cluster, "child", &[&first, &second]).await;
    config_map(&cluster, "grandchild", &[&child]).await;
    let api = cluster.api::<ConfigMap>("default");
    api.delete("first", &DeleteParams::background()).await.expect("it is deleted");
    eventually("the dangling reference dropped", async || {
        let child = api.get("child").await.expect("it stays");
        (child.owner_references().len() == 1).then_some(())
    })
    .await;
    api.delete("second", &DeleteParams::background()).await.expect("it is deleted");
    await_left(&cluster, &[]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn foreground_and_orphan_are_honoured() {
    let cluster = Cluster::start().await;
    let owner = config_map(&cluster, "owner", &[]).await;
    config_map(&cluster, "child", &[&owner]).await;
    let api = cluster.api::<ConfigMap>("default");
    api.delete("owner", &DeleteParams::foreground()).await.expect("it is deleted");
    await_left(&cluster, &[]).await;

    let owner = config_map(&cluster, "owner", &[]).await;
    config_map(&cluster, "child", &[&owner]).await;
    api.delete("owner", &DeleteParams::orphan()).await.expect("it is deleted");
    await_left(&cluster, &["child"]).await;
    assert!(api.get("child").await.expect("it stays").owner_references().is_empty());
    cluster.stop().await;
}

#[tokio::test]
async fn a_circle_of_owners_does_not_block() {
    let cluster = Cluster::start().await;
    let a = config_map(&cluster, "a", &[]).await;
    let b = config_map(&cluster, "b", &[&a]).await;
    let c = config_map(&cluster, "c", &[&b]).await;
    let api = cluster.api::<ConfigMap>("default");
    let close = json!({"metadata": {"ownerReferences": owned("a", &[("ConfigMap", &c)])["metadata"]["ownerReferences"]}});
    let close = kube::api::Patch::Merge(close);
    api.patch("a", &kube::api::PatchParams::default(), &close).await.expect("the circle is closed");
    api.delete("a", &DeleteParams::foreground()).await.expect("it is deleted");
    await_left(&cluster, &[]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn objects_that_were_there_before_the_controllers_are_collected() {
    let mut cluster = Cluster::bare().await;
    let owner = config_map(&cluster, "owner", &[]).await;
    config_map(&cluster, "child", &[&owner]).await;
    cluster
        .api::<ConfigMap>("default")
        .delete("owner", &DeleteParams::background())
        .await
        .expect("it is deleted");
    cluster.start_controllers().await;
    await_left(&cluster, &[]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_owner_in_another_namespace_is_reported_and_does_not_hold() {
    let cluster = Cluster::start().await;
    cluster.create_namespace("other").await;
    let owner: ConfigMap = cluster.create("other", owned("owner", &[])).await;
    config_map(&cluster, "child", &[&owner]).await;
    await_left(&cluster, &[]).await;
    eventually("an event about it", async || {
        let events = cluster.api::<Event>("default").list(&ListParams::default()).await.expect("events");
        events
            .items
            .iter()
            .any(|event| event.reason.as_deref() == Some("OwnerRefInvalidNamespace"))
            .then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn custom_kinds_take_part_as_soon_as_they_are_defined() {
    let cluster = Cluster::start().await;
    let kind = cluster.define("widgets", "Widget", "Namespaced").await;
    let widgets: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "default", &kind);
    let widget = json!({"apiVersion": "test.ambit.dev/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let widget: DynamicObject = serde_json::from_value(widget).expect("a widget");
    let widget = eventually("the kind to be served", async || {
        widgets.create(&PostParams::default(), &widget).await.ok()
    })
    .await;
    let child = json!({"metadata": {"name": "child", "ownerReferences": [{"apiVersion": "test.ambit.dev/v1",
        "kind": "Widget", "name": "w", "uid": widget.uid()}]}});
    cluster.create::<ConfigMap>("default", child).await;
    widgets.delete("w", &DeleteParams::background()).await.expect("it is deleted");
    await_left(&cluster, &[]).await;
    cluster.stop().await;
}
