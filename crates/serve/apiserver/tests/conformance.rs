//! One suite of client behaviour, run against the server in process and over TLS.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use ambit_api::core::v1::{ConfigMap, Namespace, Pod, Service, ServiceAccount};
use ambit_apiserver::Storage;
use cluster::{TestCluster, object};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use std::collections::BTreeMap;

#[tokio::test]
async fn a_client_in_process_gets_the_whole_behaviour() {
    let cluster = TestCluster::in_memory().await;
    conformance(cluster.client()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_client_of_a_server_on_disk_gets_the_whole_behaviour() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = TestCluster::with(Storage::Disk(dir.path().to_owned())).await;
    conformance(cluster.client()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_revision_that_never_comes_times_out() {
    let cluster = TestCluster::in_memory().await;
    // In process only: over TLS, the client tries again for minutes by itself.
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    assert_eq!(code(maps.list(&ListParams::default().at("9999999")).await), (504, "Timeout".into()));
    cluster.stop().await;
}

#[tokio::test]
async fn a_client_over_tls_gets_the_whole_behaviour() {
    let cluster = TestCluster::in_memory().await;
    conformance(cluster.tls_client().await).await;
    cluster.stop().await;
}

async fn conformance(client: Client) {
    objects_live_from_create_to_delete(&client).await;
    writes_based_on_an_older_state_conflict(&client).await;
    watches_resume_where_they_were_left(&client).await;
    lists_are_paged_consistently(&client).await;
    selectors_narrow_lists_and_watches(&client).await;
    patches_of_three_kinds_apply(&client).await;
    namespaces_open_and_close(&client).await;
    services_get_addresses(&client).await;
    pods_get_their_account_and_go_gracefully(&client).await;
    writers_at_once_lose_nothing(&client).await;
}

/// Many clients raise one counter and create services at once.
async fn writers_at_once_lose_nothing(client: &Client) {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 5;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &map("counter", &[("n", "0")])).await.unwrap();
    let raise = async || {
        for _ in 0..ROUNDS {
            loop {
                let mut counter = maps.get("counter").await.unwrap();
                let n: usize = counter.data.as_ref().unwrap()["n"].parse().unwrap();
                counter.data = Some(BTreeMap::from([("n".into(), (n + 1).to_string())]));
                match maps.replace("counter", &PostParams::default(), &counter).await {
                    Ok(_) => break,
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    };
    futures::future::join_all((0..WRITERS).map(|_| raise())).await;
    assert_eq!(maps.get("counter").await.unwrap().data.unwrap()["n"], (WRITERS * ROUNDS).to_string());
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let create = async |i: usize| {
        let service = json!({"metadata": {"name": format!("many-{i}")}, "spec": {"ports": [{"port": 80}]}});
        services.create(&PostParams::default(), &object(service)).await.unwrap()
    };
    let made = futures::future::join_all((0..WRITERS).map(create)).await;
    let addresses: std::collections::BTreeSet<_> =
        made.into_iter().filter_map(|s| s.spec?.cluster_ip).collect();
    assert_eq!(addresses.len(), WRITERS);
}

fn map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let data = data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>();
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
}

#[track_caller]
fn code<T: std::fmt::Debug>(outcome: Result<T, kube::Error>) -> (u16, String) {
    match outcome {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("an API error was expected, not {other:?}"),
    }
}

async fn objects_live_from_create_to_delete(client: &Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let made = maps.create(&PostParams::default(), &map("life", &[("a", "1")])).await.unwrap();
    assert!(made.uid().is_some() && made.creation_timestamp().is_some());
    assert_eq!(
        code(maps.create(&PostParams::default(), &map("life", &[])).await),
        (409, "AlreadyExists".into())
    );
    let read = maps.get("life").await.unwrap();
    assert_eq!((read.data.clone(), read.resource_version()), (made.data, made.metadata.resource_version));
    let same = maps.replace("life", &PostParams::default(), &read).await.unwrap();
    assert_eq!(same.resource_version(), read.resource_version(), "an update without a change writes nothing");
    let mut changed = read.clone();
    changed.data = Some(BTreeMap::from([("a".into(), "2".into())]));
    let changed = maps.replace("life", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(changed.resource_version(), read.resource_version());
    assert_eq!(changed.uid(), read.uid());
    let gone = maps.delete("life", &DeleteParams::default()).await.unwrap();
    assert!(gone.right().is_some_and(|status| status.is_success()));
    assert_eq!(code(maps.get("life").await), (404, "NotFound".into()));
    assert_eq!(code(maps.delete("life", &DeleteParams::default()).await), (404, "NotFound".into()));
    let generated = ConfigMap {
        metadata: ObjectMeta { generate_name: Some("gen-".into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let name = maps.create(&PostParams::default(), &generated).await.unwrap().name_any();
    assert!(name.len() == 9 && name.starts_with("gen-"), "{name}");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    maps.create(&dry, &map("dry", &[])).await.unwrap();
    assert!(maps.get_opt("dry").await.unwrap().is_none());
}

async fn writes_based_on_an_older_state_conflict(client: &Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let old = maps.create(&PostParams::default(), &map("race", &[("a", "1")])).await.unwrap();
    let mut first = old.clone();
    first.data = Some(BTreeMap::from([("a".into(), "2".into())]));
    maps.replace("race", &PostParams::default(), &first).await.unwrap();
    assert_eq!(code(maps.replace("race", &PostParams::default(), &first).await), (409, "Conflict".into()));
    let stale = json!({"metadata": {"resourceVersion": old.resource_version()}, "data": {"a": "3"}});
    let patched = maps.patch("race", &PatchParams::default(), &Patch::Merge(&stale)).await;
    assert_eq!(code(patched), (409, "Conflict".into()));
    let mut unconditional = map("race", &[("a", "4")]);
    unconditional.metadata.resource_version = None;
    maps.replace("race", &PostParams::default(), &unconditional).await.unwrap();
    let wrong = kube::api::Preconditions { uid: Some("other".into()), resource_version: None };
    let deleted = maps.delete("race", &DeleteParams::default().preconditions(wrong)).await;
    assert_eq!(code(deleted), (409, "Conflict".into()));
}

/// The events of a watch until `count` have come.
async fn events(api: &Api<ConfigMap>, params: &WatchParams, from: &str, count: usize) -> Vec<String> {
    let stream = api.watch(params, from).await.unwrap();
    let named = stream.map_ok(|event| match event {
        WatchEvent::Added(o) => format!("+{}", o.name_any()),
        WatchEvent::Modified(o) => format!("~{}", o.name_any()),
        WatchEvent::Deleted(o) => format!("-{}", o.name_any()),
        WatchEvent::Bookmark(b) => format!("b{}", b.metadata.annotations.len()),
        WatchEvent::Error(e) => format!("!{}", e.code),
    });
    named.take(count).try_collect().await.unwrap()
}

async fn watches_resume_where_they_were_left(client: &Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let start = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let made = maps.create(&PostParams::default(), &map("w1", &[])).await.unwrap();
    maps.patch("w1", &PatchParams::default(), &Patch::Merge(json!({"data": {"x": "y"}}))).await.unwrap();
    maps.delete("w1", &DeleteParams::default()).await.unwrap();
    let all = WatchParams::default().timeout(30);
    assert_eq!(events(&maps, &all, &start, 3).await, ["+w1", "~w1", "-w1"]);
    let middle = made.resource_version().unwrap();
    assert_eq!(events(&maps, &all, &middle, 2).await, ["~w1", "-w1"]);
    let streaming = WatchParams::default().initial_events().labels("watch=streaming");
    let mut labelled = map("w2", &[]);
    labelled.labels_mut().insert("watch".into(), "streaming".into());
    maps.create(&PostParams::default(), &labelled).await.unwrap();
    assert_eq!(events(&maps, &streaming, "", 2).await, ["+w2", "b1"]);
    let short = WatchParams::default().timeout(1);
    let now = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let ended: Vec<_> = maps.watch(&short, &now).await.unwrap().collect().await;
    let bookmarks = ended.iter().filter(|e| matches!(e, Ok(WatchEvent::Bookmark(_)))).count();
    assert_eq!((ended.len(), bookmarks), (1, 1), "a quiet watch ends in time with a bookmark");
}

async fn lists_are_paged_consistently(client: &Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for name in ["p1", "p2", "p3"] {
        let mut paged = map(name, &[]);
        paged.labels_mut().insert("page".into(), "yes".into());
        maps.create(&PostParams::default(), &paged).await.unwrap();
    }
    let params = ListParams::default().labels("page=yes").limit(2);
    let first = maps.list(&params).await.unwrap();
    maps.delete("p3", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.clone().expect("there is more");
    let second = maps.list(&params.clone().continue_token(&token)).await.unwrap();
    let names: Vec<_> = first.iter().chain(second.iter()).map(|m| m.name_any()).collect();
    assert_eq!(names, ["p1", "p2", "p3"], "all pages show the state of the first one");
    assert_eq!(first.metadata.resource_version, second.metadata.resource_version);
    assert_eq!(second.metadata.continue_.unwrap_or_default(), "");
    assert_eq!(code(maps.list(&params.continue_token("junk")).await).0, 400);
}

async fn selectors_narrow_lists_and_watches(client: &Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let start = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    maps.create(&PostParams::default(), &map("s1", &[])).await.unwrap();
    for label in ["on", "off", "on"] {
        let patch = json!({"metadata": {"labels": {"light": label}}});
        maps.patch("s1", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    let on = WatchParams::default().labels("light=on").timeout(30);
    assert_eq!(events(&maps, &on, &start, 3).await, ["+s1", "-s1", "+s1"]);
    let names =
        |list: kube::core::ObjectList<ConfigMap>| list.iter().map(|m| m.name_any()).collect::<Vec<_>>();
    assert_eq!(names(maps.list(&ListParams::default().labels("light in (on,off)")).await.unwrap()), ["s1"]);
    assert_eq!(names(maps.list(&ListParams::default().fields("metadata.name=s1")).await.unwrap()), ["s1"]);
    assert_eq!(code(maps.list(&ListParams::default().fields("data.x=1")).await).0, 400);
    assert_eq!(code(maps.list(&ListParams::default().labels("a b")).await).0, 400);
}

async fn patches_of_three_kinds_apply(client: &Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let params = PatchParams::default();
    maps.create(&params_for_create(), &map("patched", &[("a", "1"), ("b", "2")])).await.unwrap();
    let merged =
        maps.patch("patched", &params, &Patch::Merge(json!({"data": {"a": null, "c": "3"}}))).await.unwrap();
    assert_eq!(merged.data.unwrap().keys().collect::<Vec<_>>(), ["b", "c"]);
    let strategic = Patch::Strategic(json!({"metadata": {"labels": {"x": "y"}}}));
    assert_eq!(maps.patch("patched", &params, &strategic).await.unwrap().labels()["x"], "y");
    let operations = |value: &str| {
        let test =
            json!([{"op": "test", "path": "/data/b", "value": value}, {"op": "remove", "path": "/data/b"}]);
        Patch::Json::<()>(serde_json::from_value(test).unwrap())
    };
    assert_eq!(code(maps.patch("patched", &params, &operations("9")).await), (422, "Invalid".into()));
    maps.patch("patched", &params, &operations("2")).await.unwrap();
    let me = PatchParams::apply("me");
    let refused = maps.patch("patched", &me, &Patch::Apply(map("patched", &[("c", "4")]))).await;
    assert_eq!(code(refused), (409, "Conflict".into()));
    let forced = maps.patch("patched", &me.force(), &Patch::Apply(map("patched", &[("c", "4")]))).await;
    assert_eq!(forced.unwrap().data.unwrap()["c"], "4");
    let missing = maps.patch("absent", &params, &Patch::Merge(json!({}))).await;
    assert_eq!(code(missing), (404, "NotFound".into()));
    let renamed = maps.patch("patched", &params, &Patch::Merge(json!({"metadata": {"name": "other"}}))).await;
    assert_eq!(code(renamed).0, 400);
}

fn params_for_create() -> PostParams {
    PostParams { field_manager: Some("conformance".into()), ..PostParams::default() }
}

async fn namespaces_open_and_close(client: &Client) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let closing: Api<ConfigMap> = Api::namespaced(client.clone(), "closing");
    assert_eq!(code(closing.create(&PostParams::default(), &map("a", &[])).await), (404, "NotFound".into()));
    let made = namespaces
        .create(&PostParams::default(), &object(json!({"metadata": {"name": "closing"}})))
        .await
        .unwrap();
    assert_eq!(made.labels()["kubernetes.io/metadata.name"], "closing");
    closing.create(&PostParams::default(), &map("a", &[])).await.unwrap();
    let marked =
        namespaces.delete("closing", &DeleteParams::default()).await.unwrap().left().expect("it goes later");
    assert_eq!(marked.status.and_then(|s| s.phase).as_deref(), Some("Terminating"));
    assert_eq!(code(closing.create(&PostParams::default(), &map("b", &[])).await), (403, "Forbidden".into()));
    closing.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let request =
        http::Request::put("/api/v1/namespaces/closing/finalize").header("content-type", "application/json");
    let body = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "closing"}, "spec": {"finalizers": []}});
    client.request::<Namespace>(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    assert!(namespaces.get_opt("closing").await.unwrap().is_none());
    assert_eq!(code(namespaces.delete("default", &DeleteParams::default()).await), (403, "Forbidden".into()));
}

async fn services_get_addresses(client: &Client) {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let ports = json!([{"port": 80}]);
    let service =
        |name: &str, spec: serde_json::Value| object(json!({"metadata": {"name": name}, "spec": spec}));
    let create = async |service: Service| services.create(&PostParams::default(), &service).await;
    let address =
        |service: &Service| service.spec.as_ref().and_then(|s| s.cluster_ip.clone()).unwrap_or_default();
    let one = create(service("one", json!({"ports": ports}))).await.unwrap();
    let two = create(service("two", json!({"ports": ports}))).await.unwrap();
    assert!(address(&one).starts_with("10.96.") && address(&one) != address(&two));
    let headless = create(service("headless", json!({"clusterIP": "None", "ports": ports}))).await.unwrap();
    assert_eq!(address(&headless), "None");
    let taken = json!({"clusterIP": address(&one), "ports": ports});
    assert_eq!(code(create(service("taken", taken)).await), (422, "Invalid".into()));
    assert_eq!(
        code(create(service("outside", json!({"clusterIP": "10.0.0.1", "ports": ports}))).await).0,
        422
    );
    let node = create(service("node", json!({"type": "NodePort", "ports": ports}))).await.unwrap();
    let node_port = node.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    assert!((30_000..32_768).contains(&node_port), "{node_port}");
    let same = json!([{"port": 80, "nodePort": node_port}]);
    let taken = create(service("node-port-taken", json!({"type": "NodePort", "ports": same}))).await;
    assert_eq!(code(taken), (422, "Invalid".into()));
    let moved = Patch::Merge(json!({"spec": {"clusterIP": "10.96.9.9"}}));
    assert_eq!(code(services.patch("one", &PatchParams::default(), &moved).await), (422, "Invalid".into()));
    let kubernetes = services.get("kubernetes").await.unwrap();
    assert_eq!(address(&kubernetes), "10.96.0.1");
}

async fn pods_get_their_account_and_go_gracefully(client: &Client) {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "default"}}))).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod =
        object(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}));
    let made: Pod = pods.create(&PostParams::default(), &pod).await.unwrap();
    let spec = made.spec.as_ref().unwrap();
    assert_eq!(spec.service_account_name.as_deref(), Some("default"));
    let volume = spec.volumes.as_ref().and_then(|v| v.first()).map(|v| v.name.clone()).unwrap();
    assert!(volume.starts_with("kube-api-access-"), "{volume}");
    assert_eq!(spec.containers[0].volume_mounts.as_ref().map(|m| m[0].name.clone()), Some(volume));
    let labels = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    pods.patch("p", &PatchParams::default(), &labels).await.unwrap();
    let absent = object::<Pod>(json!({"metadata": {"name": "q"}, "spec": {"serviceAccountName": "nobody",
        "containers": [{"name": "c", "image": "i"}]}}));
    assert_eq!(code(pods.create(&PostParams::default(), &absent).await), (403, "Forbidden".into()));
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let bind = |body: &serde_json::Value| {
        let request = http::Request::post("/api/v1/namespaces/default/pods/p/binding")
            .header("content-type", "application/json");
        client.request::<serde_json::Value>(request.body(body.to_string().into_bytes()).unwrap())
    };
    bind(&binding).await.unwrap();
    assert_eq!(code(bind(&binding).await), (409, "Conflict".into()));
    let ready = json!({"status": {"phase": "Running"}, "metadata": {"annotations": {"seen": "yes"}}, "spec": {"nodeName": "n2"}});
    let ready = pods.patch_status("p", &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    assert_eq!(ready.annotations()["seen"], "yes");
    assert_eq!(ready.spec.and_then(|s| s.node_name).as_deref(), Some("n1"), "status writes leave the rest");
    let on_node = pods.list(&ListParams::default().fields("spec.nodeName=n1")).await.unwrap();
    assert_eq!(on_node.items.len(), 1);
    let marked = pods.delete("p", &DeleteParams::default()).await.unwrap().left().expect("it goes later");
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(30));
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(pods.get_opt("p").await.unwrap().is_none());
}
