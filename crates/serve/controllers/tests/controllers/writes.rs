//! Field managers against the real server: what they write, what they leave alone, and that they write no more than needed.

use crate::cluster::{Cluster, eventually};
use ambit_api::core::v1::{ConfigMap, Service};
use ambit_api::meta::{Condition, OwnerReference};
use ambit_kube::{
    Applier, FieldManager, Finding, Informer, Informers, Kept, ObjectSet, OnConflict, Query, WriteError,
    WriteMetrics, Written, conditions,
};
use ambit_runtime::{Clock, Shutdown};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use OnConflict::{Force, Refuse};
use Written::{Changed, Unchanged};

fn map(name: &str, data: Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "data": data}))
        .expect("a map")
}

fn manager(cluster: &Cluster, name: &str) -> (Applier<ConfigMap>, WriteMetrics) {
    let metrics = WriteMetrics::default();
    (FieldManager::new(cluster.client.clone(), name).metrics(&metrics).applier(), metrics)
}

/// How many requests of a kind were answered well.
fn requests(metrics: &WriteMetrics, verb: &str) -> usize {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("metrics");
    let labels = format!("verb=\"{verb}\",outcome=\"done\"}} ");
    text.lines().find_map(|line| line.split_once(&labels)?.1.parse().ok()).unwrap_or(0)
}

/// The object without its managers, as an informer shows it.
async fn seen(cluster: &Cluster, name: &str) -> ConfigMap {
    let mut map = cluster.api::<ConfigMap>("default").get(name).await.expect("the map");
    map.metadata.managed_fields = None;
    map
}

async fn data(cluster: &Cluster, name: &str) -> Value {
    json!(seen(cluster, name).await.data)
}

#[tokio::test]
async fn only_differences_are_written_and_a_restart_writes_nothing() {
    let cluster = Cluster::bare().await;
    let (maps, metrics) = manager(&cluster, "one");
    let both = map("a", json!({"k": "1", "l": "1"}));
    assert_eq!(maps.apply(&both, None, Refuse).await.unwrap(), Changed);
    let made = seen(&cluster, "a").await;
    assert_eq!(maps.apply(&both, Some(&made), Refuse).await.unwrap(), Unchanged);
    assert_eq!((requests(&metrics, "read"), requests(&metrics, "apply")), (0, 1));
    // Somebody adds a field of their own: nothing of ours.
    let patch = Patch::Merge(json!({"data": {"theirs": "x"}}));
    cluster.api::<ConfigMap>("default").patch("a", &PatchParams::default(), &patch).await.unwrap();
    let changed = seen(&cluster, "a").await;
    assert_eq!(maps.apply(&both, Some(&changed), Refuse).await.unwrap(), Unchanged);
    assert_eq!(requests(&metrics, "apply"), 1);

    let (restarted, metrics) = manager(&cluster, "one");
    assert_eq!(restarted.apply(&both, Some(&changed), Refuse).await.unwrap(), Unchanged);
    assert_eq!((requests(&metrics, "read"), requests(&metrics, "apply")), (1, 0));
    assert_eq!(seen(&cluster, "a").await.resource_version(), changed.resource_version());

    // What is not wanted any more goes, and what was edited comes back.
    let (again, _) = manager(&cluster, "one");
    assert_eq!(again.apply(&map("a", json!({"k": "1"})), Some(&changed), Refuse).await.unwrap(), Changed);
    assert_eq!(data(&cluster, "a").await, json!({"k": "1", "theirs": "x"}));
    cluster.stop().await;
}

#[tokio::test]
async fn fields_of_others_are_named_and_taken_only_by_force() {
    let cluster = Cluster::bare().await;
    let ((one, _), (two, _)) = (manager(&cluster, "one"), manager(&cluster, "two"));
    one.apply(&map("a", json!({"k": "1"})), None, Refuse).await.unwrap();
    let wanted = map("a", json!({"k": "2", "l": "2"}));
    let error = two.apply(&wanted, None, Refuse).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot apply ConfigMap default/a: .data.k is owned by \"one\"");
    assert_eq!(data(&cluster, "a").await, json!({"k": "1"}));
    assert_eq!(two.apply(&wanted, None, Force).await.unwrap(), Changed);
    assert_eq!(data(&cluster, "a").await, json!({"k": "2", "l": "2"}));
    // The first one has lost its field, and wants it back.
    let shown = seen(&cluster, "a").await;
    let error = one.apply(&map("a", json!({"k": "1"})), Some(&shown), Refuse).await.unwrap_err();
    assert!(matches!(&error, WriteError::Owned { fields, .. } if fields[0].manager == "two"), "{error}");
    // The same value may be wanted by both.
    assert_eq!(one.apply(&map("a", json!({"k": "2"})), Some(&shown), Refuse).await.unwrap(), Changed);
    let shown = seen(&cluster, "a").await;
    assert_eq!(two.apply(&map("a", json!({"l": "2"})), Some(&shown), Refuse).await.unwrap(), Changed);
    assert_eq!(data(&cluster, "a").await, json!({"k": "2", "l": "2"}));
    cluster.stop().await;
}

#[tokio::test]
async fn another_object_of_the_name_is_not_written_to_and_a_gone_one_not_made_again() {
    let cluster = Cluster::bare().await;
    let (maps, _) = manager(&cluster, "one");
    maps.apply(&map("a", json!({"k": "1"})), None, Refuse).await.unwrap();
    let first = seen(&cluster, "a").await;
    let api = cluster.api::<ConfigMap>("default");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    // The view does not know yet.
    let error = maps.apply(&map("a", json!({"k": "2"})), Some(&first), Force).await.unwrap_err();
    assert!(matches!(error, WriteError::Stale { .. } | WriteError::Gone { .. }), "{error}");
    assert!(api.get_opt("a").await.unwrap().is_none());
    cluster.create::<ConfigMap>("default", json!({"metadata": {"name": "a"}, "data": {"k": "theirs"}})).await;
    let error = maps.apply(&map("a", json!({"k": "2"})), Some(&first), Force).await.unwrap_err();
    assert!(matches!(error, WriteError::Stale { .. }), "{error}");
    let error = maps.delete(&first).await.unwrap_err();
    assert!(matches!(error, WriteError::Stale { .. }), "{error}");
    assert_eq!(data(&cluster, "a").await, json!({"k": "theirs"}));
    assert_eq!(maps.delete(&seen(&cluster, "a").await).await.unwrap(), Changed);
    cluster.stop().await;
}

#[tokio::test]
async fn statuses_are_shared_by_their_parts() {
    let cluster = Cluster::bare().await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    cluster.create::<Service>("default", service).await;
    let read = async || cluster.api::<Service>("default").get("s").await.unwrap();
    let held = async || read().await.status.and_then(|status| status.conditions).unwrap_or_default();
    let writer = |name: &str| FieldManager::new(cluster.client.clone(), name).applier::<Service>();
    let (one, two) = (writer("one"), writer("two"));
    let kinds = async || {
        let shown = |one: Condition| format!("{}={}", one.type_, one.status);
        held().await.into_iter().map(shown).collect::<Vec<_>>()
    };
    let apply = async |writer: &Applier<Service>, findings: &[(&'static str, bool)]| {
        let finding = |(type_, holds): &(&'static str, bool)| Finding {
            type_,
            holds: Some(*holds),
            reason: "Tested",
            message: String::new(),
        };
        let conditions =
            conditions(Some(&held().await), findings.iter().map(finding), None, Clock.timestamp());
        writer.apply_status(&read().await, &json!({"conditions": conditions}), Refuse).await.unwrap()
    };
    assert_eq!(apply(&one, &[("a", true), ("b", true)]).await, Changed);
    assert_eq!(apply(&two, &[("c", true)]).await, Changed);
    assert_eq!(kinds().await, ["a=True", "b=True", "c=True"]);
    assert_eq!(apply(&one, &[("a", false)]).await, Changed);
    assert_eq!(kinds().await, ["a=False", "c=True"]);
    assert_eq!(apply(&one, &[("a", false)]).await, Unchanged);
    assert_eq!(apply(&writer("one"), &[("a", false)]).await, Unchanged);
    assert_eq!(read().await.spec.unwrap().ports.unwrap()[0].port, 80);
    cluster.stop().await;
}

#[tokio::test]
async fn what_the_server_fills_in_is_no_difference() {
    let cluster = Cluster::bare().await;
    let container = json!({"name": "c", "image": "i", "ports": [{"containerPort": 80}, {"containerPort": 81, "name": "b"}],
        "env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
        "readinessProbe": {"httpGet": {"path": "/", "port": 80}}});
    let template = json!({"metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [container], "tolerations": [{"key": "k", "operator": "Exists"}]}});
    let selector = json!({"matchLabels": {"app": "x"}});
    for (group, kind, spec) in [
        (
            "",
            "Service",
            json!({"selector": {"app": "x"}, "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]}),
        ),
        ("apps", "Deployment", json!({"replicas": 0, "selector": selector, "template": template})),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let object =
            json!({"metadata": {"name": "x", "namespace": "default", "labels": {"app": "x"}}, "spec": spec});
        let wanted: DynamicObject = serde_json::from_value(object).unwrap();
        let metrics = WriteMetrics::default();
        let writer = || {
            FieldManager::new(cluster.client.clone(), "one").metrics(&metrics).applier_of(resource.clone())
        };
        assert_eq!(writer().apply(&wanted, None, Refuse).await.unwrap(), Changed, "{kind}");
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "default", &resource);
        let live = api.get("x").await.unwrap();
        assert_eq!(writer().apply(&wanted, Some(&live), Refuse).await.unwrap(), Unchanged, "{kind}");
        assert_eq!(requests(&metrics, "apply"), 1, "{kind}: {live:?}");
    }
    cluster.stop().await;
}

/// Waits until the view shows the server's newest state of these objects, and no others.
async fn shows(cluster: &Cluster, view: &Informer<ConfigMap>, names: &[&str]) {
    let api = cluster.api::<ConfigMap>("default");
    eventually("the view shows it", async || {
        let shown = view.list_in("default");
        let mut newest = Vec::new();
        for name in names {
            newest.push(api.get(name).await.ok()?.resource_version());
        }
        (shown.iter().map(|map| map.resource_version()).collect::<Vec<_>>() == newest).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_set_is_kept_and_pruned() {
    let cluster = Cluster::bare().await;
    let owner: ConfigMap = cluster.create("default", json!({"metadata": {"name": "owner"}})).await;
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: owner.name_any(),
        uid: owner.uid().unwrap(),
        ..OwnerReference::default()
    };
    let set = ObjectSet::labelled("set", "s").in_namespace("default").owned_by(owner);
    let theirs = json!({"metadata": {"name": "theirs", "labels": {"set": "s"}}});
    cluster.create::<ConfigMap>("default", theirs).await;
    let (informers, stop) = (Informers::new(cluster.client.clone()), Shutdown::new());
    let view = informers.informer::<ConfigMap>(Query::all().labels("set=s"));
    informers.run_and_wait(&stop).await.unwrap();
    let (maps, _) = manager(&cluster, "one");
    let wanted = |names: &[&str]| names.iter().map(|name| map(name, json!({"of": name}))).collect::<Vec<_>>();
    let kept = maps.keep(&set, wanted(&["a", "b", "c"]), &view, Refuse).await.unwrap();
    assert_eq!(kept, Kept { changed: 3, unchanged: 0, deleted: 0 });
    shows(&cluster, &view, &["a", "b", "c", "theirs"]).await;
    // Somebody puts a finalizer of their own on one: it is as wanted still.
    let patch = Patch::Merge(json!({"metadata": {"finalizers": ["test.ambit.dev/hold"]}}));
    let api = cluster.api::<ConfigMap>("default");
    api.patch("b", &PatchParams::default(), &patch).await.unwrap();
    shows(&cluster, &view, &["a", "b", "c", "theirs"]).await;
    let (maps, metrics) = manager(&cluster, "one");
    let kept = maps.keep(&set, wanted(&["a", "b", "c"]), &view, Refuse).await.unwrap();
    assert_eq!((kept, requests(&metrics, "apply")), (Kept { changed: 0, unchanged: 3, deleted: 0 }, 0));
    let kept = maps.keep(&set, wanted(&["a", "d"]), &view, Refuse).await.unwrap();
    assert_eq!(kept, Kept { changed: 1, unchanged: 1, deleted: 2 });
    // The held one goes when it is let go, and is not deleted twice.
    shows(&cluster, &view, &["a", "b", "d", "theirs"]).await;
    let kept = maps.keep(&set, wanted(&["a", "d"]), &view, Refuse).await.unwrap();
    assert_eq!(kept, Kept { changed: 0, unchanged: 2, deleted: 0 });
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("b", &PatchParams::default(), &release).await.unwrap();
    shows(&cluster, &view, &["a", "d", "theirs"]).await;
    let error = maps.keep(&set, wanted(&["a", "theirs"]), &view, Force).await.unwrap_err();
    assert!(matches!(error, WriteError::Taken { .. }), "{error}");
    assert_eq!(view.list_in("default").len(), 3, "nothing was deleted");
    stop.cancel();
    informers.join().await.unwrap();
    cluster.stop().await;
}
