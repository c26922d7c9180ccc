//! Informers against the real server.

use crate::cluster::{Cluster, eventually};
use ambit_api::apiextensions::CustomResourceDefinition;
use ambit_api::core::v1::ConfigMap;
use ambit_kube::{Change, Informers, ObjectKey, Query};
use ambit_runtime::Shutdown;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{GroupVersionKind, PartialObjectMeta};
use kube::discovery::ApiResource;
use serde_json::json;
use std::sync::{Arc, Mutex};

#[tokio::test]
async fn an_informer_shows_what_its_query_takes_and_reports_each_change() {
    let cluster = Cluster::bare().await;
    for (name, team) in [("a", "x"), ("b", "y")] {
        let map = json!({"metadata": {"name": name, "labels": {"team": team}}, "data": {"k": "1"}});
        cluster.create::<ConfigMap>("default", map).await;
    }
    let informers = Informers::new(cluster.client.clone());
    let of_team = informers.informer::<ConfigMap>(Query::all().labels("team=x"));
    let named = informers.informer::<ConfigMap>(Query::all().namespace("default").fields("metadata.name=b"));
    let metadata = informers.informer::<PartialObjectMeta<ConfigMap>>(Query::all());
    let changes: Arc<Mutex<Vec<String>>> = Arc::default();
    of_team.on_change({
        let changes = changes.clone();
        move |change: &Change<ConfigMap>| {
            let signs = (change.old.is_some(), change.new.is_some());
            let sign = ["-", "~", "+"][usize::from(signs.1) + usize::from(!signs.0)];
            changes.lock().unwrap().push(format!("{sign}{}", ObjectKey::of(change.latest().as_ref())));
        }
    });
    let stop = Shutdown::new();
    informers.run_and_wait(&stop).await.expect("all sync");
    assert_eq!(of_team.list().len(), 1);
    assert_eq!(named.get(Some("default"), "b").expect("it is shown").data.as_ref().unwrap()["k"], "1");
    assert!(named.get(Some("default"), "a").is_none());
    assert!(metadata.get(Some("default"), "a").is_some());

    let api = cluster.api::<ConfigMap>("default");
    let write = async |name: &str, patch| {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is patched");
    };
    write("a", json!({"data": {"k": "2"}})).await;
    // An object that starts or stops to fit appears or disappears.
    write("b", json!({"metadata": {"labels": {"team": "x"}}})).await;
    write("a", json!({"metadata": {"labels": {"team": "z"}}})).await;
    api.delete("b", &DeleteParams::default()).await.expect("it is deleted");
    let expected = ["+default/a", "~default/a", "+default/b", "-default/a", "-default/b"];
    eventually("all changes", async || (*changes.lock().unwrap() == expected).then_some(())).await;
    assert!(of_team.list().is_empty());
    stop.cancel();
    informers.join().await.expect("no panic");
    cluster.stop().await;
}

#[tokio::test]
async fn an_informer_of_an_undefined_kind_is_empty_and_comes_alive_with_its_definition() {
    let cluster = Cluster::bare().await;
    let kind = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("test.ambit.dev", "v1", "Gadget"),
        "gadgets",
    );
    let informers = Informers::new(cluster.client.clone());
    let gadgets = informers.informer_of::<DynamicObject>(kind.clone(), Query::all());
    let stop = Shutdown::new();
    informers.run_and_wait(&stop).await.expect("an absent kind counts as synced");
    assert!(gadgets.has_synced() && gadgets.list().is_empty());

    assert_eq!(cluster.define("gadgets", "Gadget", "Cluster").await, kind);
    let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &kind);
    let gadget = json!({"apiVersion": "test.ambit.dev/v1", "kind": "Gadget", "metadata": {"name": "g"}});
    let gadget: DynamicObject = serde_json::from_value(gadget).expect("a gadget");
    eventually("the kind to be served", async || api.create(&PostParams::default(), &gadget).await.ok())
        .await;
    eventually("the object to be shown", async || gadgets.get(None, "g")).await;

    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    definitions.delete("gadgets.test.ambit.dev", &DeleteParams::default()).await.expect("it is deleted");
    eventually("the view empty again", async || gadgets.list().is_empty().then_some(())).await;
    stop.cancel();
    informers.join().await.expect("no panic");
    cluster.stop().await;
}

#[tokio::test]
async fn a_selection_that_changes_makes_objects_appear_and_disappear() {
    let cluster = Cluster::bare().await;
    for name in ["a", "b", "c"] {
        let map = json!({"metadata": {"name": name}, "data": {"team": "x"}});
        cluster.create::<ConfigMap>("default", map).await;
    }
    let informers = Informers::new(cluster.client.clone());
    let all = informers.informer::<ConfigMap>(Query::all().namespace("default"));
    let named = |names: &'static [&'static str]| {
        move |map: &ConfigMap| map.metadata.name.as_deref().is_some_and(|name| names.contains(&name))
    };
    let (some, selection) = all.select(named(&["a", "b"]));
    let changes: Arc<Mutex<Vec<String>>> = Arc::default();
    some.on_change({
        let changes = changes.clone();
        move |change: &Change<ConfigMap>| {
            let signs = (change.old.is_some(), change.new.is_some());
            let sign = ["-", "~", "+"][usize::from(signs.1) + usize::from(!signs.0)];
            let name = ObjectKey::of(change.latest().as_ref()).name;
            changes.lock().unwrap().push(format!("{sign}{name}"));
        }
    });
    let told = || changes.lock().unwrap().clone();
    let stop = Shutdown::new();
    assert!(!some.has_synced());
    informers.run_and_wait(&stop).await.expect("all sync");
    assert!(some.has_synced() && some.synced().is_synced());
    let names = || some.list().iter().map(|map| ObjectKey::of(map.as_ref()).name).collect::<Vec<_>>();
    assert_eq!((names(), told()), (vec!["a".into(), "b".into()], vec!["+a".into(), "+b".into()]));

    selection.choose(named(&["b", "c"]));
    assert_eq!(told()[2..], ["-a", "+c"]);
    // The same choice again changes nothing.
    selection.refresh();
    assert_eq!(told().len(), 4);
    let api = cluster.api::<ConfigMap>("default");
    for name in ["a", "b"] {
        let patch = Patch::Merge(json!({"data": {"team": "y"}}));
        api.patch(name, &PatchParams::default(), &patch).await.expect("it is patched");
    }
    api.delete("c", &DeleteParams::default()).await.expect("it is deleted");
    eventually("the changes", async || (told()[4..] == ["~b", "-c"]).then_some(())).await;
    selection.choose(|_| true);
    assert_eq!((names(), told()[6..].to_vec()), (vec!["a".into(), "b".into()], vec!["+a".to_owned()]));
    stop.cancel();
    informers.join().await.expect("no panic");
    cluster.stop().await;
}
