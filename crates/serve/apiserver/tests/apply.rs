//! Who owns which field, and server-side apply, through the API.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use ambit_api::apiextensions::CustomResourceDefinition;
use ambit_api::apps::v1::Deployment;
use ambit_api::core::v1::{ConfigMap, Pod, ServiceAccount};
use cluster::{TestCluster, object};
use http::Request;
use http_body_util::BodyExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Sends a request with a body of that media type; answers code and body.
async fn send(client: &Client, method: &str, path: &str, media_type: &str, body: &str) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media_type)
        .header("user-agent", "robot/1.2 (test)");
    let response = client.send(request.body(body.to_owned().into_bytes().into()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), serde_json::from_slice(&body).unwrap())
}

async fn apply(client: &Client, path: &str, options: &str, config: &Value) -> (u16, Value) {
    send(client, "PATCH", &format!("{path}?{options}"), "application/apply-patch+yaml", &config.to_string())
        .await
}

#[track_caller]
fn ok((code, body): (u16, Value)) -> Value {
    assert!(code == 200 || code == 201, "{code} {body}");
    body
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn deployment(name: &str, replicas: Option<i64>, image: &str) -> Value {
    let mut made = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": image, "ports": [{"containerPort": 80}]}]},
            },
        },
    });
    if let Some(replicas) = replicas {
        made["spec"]["replicas"] = replicas.into();
    }
    made
}

/// The entries as `manager operation subresource`, with their fields.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let owner = |entry: &Value| {
        let word = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let name = format!("{} {} {}", word("manager"), word("operation"), word("subresource"));
        assert_eq!(entry["fieldsType"], "FieldsV1");
        (name.trim().to_owned(), entry["fieldsV1"].clone())
    };
    entries.map(owner).collect()
}

#[tokio::test]
async fn every_write_is_recorded_under_its_manager() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let made = map("m", json!({"a": "1"})).to_string();
    let made =
        ok(send(&client, "POST", &format!("{MAPS}?fieldManager=one"), "application/json", &made).await);
    assert_eq!(owners(&made), [("one Update".to_owned(), json!({"f:data": {".": {}, "f:a": {}}}))]);
    // Without the option, the manager is what the user agent begins with.
    let patch = json!({"data": {"a": "2", "b": "1"}}).to_string();
    let path = format!("{MAPS}/m");
    let patched = ok(send(&client, "PATCH", &path, "application/merge-patch+json", &patch).await);
    assert_eq!(
        owners(&patched),
        [
            ("one Update".to_owned(), json!({"f:data": {}})),
            ("robot Update".to_owned(), json!({"f:data": {"f:a": {}, "f:b": {}}})),
        ]
    );
    // A write that changes nothing records nothing.
    let same = ok(send(
        &client,
        "PATCH",
        &format!("{path}?fieldManager=other"),
        "application/merge-patch+json",
        &patch,
    )
    .await);
    assert_eq!(same, patched);
    // What is gone belongs to nobody; an empty list forgets all owners.
    let patch = json!({"data": {"b": null}}).to_string();
    let patched = ok(send(&client, "PATCH", &path, "application/merge-patch+json", &patch).await);
    assert_eq!(owners(&patched)[1].1, json!({"f:data": {"f:a": {}}}));
    let patch = json!({"metadata": {"managedFields": []}}).to_string();
    let patched = ok(send(&client, "PATCH", &path, "application/merge-patch+json", &patch).await);
    assert_eq!(patched["metadata"].get("managedFields"), None);
    let (code, refused) = send(
        &client,
        "POST",
        &format!("{MAPS}?fieldManager={}", "x".repeat(129)),
        "application/json",
        &map("n", json!({})).to_string(),
    )
    .await;
    assert_eq!(code, 422, "{refused}");
    cluster.stop().await;
}

#[tokio::test]
async fn status_and_scale_are_recorded_as_such() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let made = deployment("d", Some(1), "i:1").to_string();
    ok(send(&client, "POST", &format!("{DEPLOYMENTS}?fieldManager=one"), "application/json", &made).await);
    let status = json!({"status": {"replicas": 1, "observedGeneration": 1}}).to_string();
    ok(send(
        &client,
        "PATCH",
        &format!("{DEPLOYMENTS}/d/status?fieldManager=ctl"),
        "application/merge-patch+json",
        &status,
    )
    .await);
    let scale = json!({"spec": {"replicas": 3}}).to_string();
    ok(send(
        &client,
        "PATCH",
        &format!("{DEPLOYMENTS}/d/scale?fieldManager=hpa"),
        "application/merge-patch+json",
        &scale,
    )
    .await);
    let found = ok(send(&client, "GET", &format!("{DEPLOYMENTS}/d"), "", "").await);
    let owners = owners(&found);
    let of = |name: &str| {
        owners
            .iter()
            .find(|(owner, _)| owner == name)
            .unwrap_or_else(|| panic!("{name} {owners:?}"))
            .1
            .clone()
    };
    assert_eq!(of("hpa Update scale"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(of("ctl Update status"), json!({"f:status": {"f:observedGeneration": {}, "f:replicas": {}}}));
    assert_eq!(of("one Update")["f:spec"].get("f:replicas"), None);
    cluster.stop().await;
}

#[tokio::test]
async fn an_apply_creates_merges_and_prunes() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let path = format!("{MAPS}/m");
    let (code, made) =
        apply(&client, &path, "fieldManager=one", &map("m", json!({"a": "1", "b": "1"}))).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(owners(&made), [("one Apply".to_owned(), json!({"f:data": {"f:a": {}, "f:b": {}}}))]);
    let (code, other) =
        apply(&client, &path, "fieldManager=two", &map("m", json!({"b": "1", "c": "1"}))).await;
    assert_eq!((code, &other["data"]), (200, &json!({"a": "1", "b": "1", "c": "1"})));
    // What one gives up goes, unless another has it too.
    let pruned = ok(apply(&client, &path, "fieldManager=one", &map("m", json!({}))).await);
    assert_eq!(pruned["data"], json!({"b": "1", "c": "1"}));
    // An apply that changes nothing changes nothing, not even a time.
    let again = ok(apply(&client, &path, "fieldManager=two", &map("m", json!({"b": "1", "c": "1"}))).await);
    assert_eq!(again, pruned);
    // The name may be left to the address.
    let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "1"}});
    let (code, made) = apply(&client, &format!("{MAPS}/n"), "fieldManager=one", &nameless).await;
    assert_eq!((code, &made["metadata"]["name"]), (201, &json!("n")));
    cluster.stop().await;
}

#[tokio::test]
async fn conflicts_name_manager_and_field_and_are_forced() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let path = format!("{DEPLOYMENTS}/d");
    let made = ok(apply(&client, &path, "fieldManager=one", &deployment("d", Some(1), "i:1")).await);
    // The protocol that the configuration leaves out is part of the key all the same.
    let ports =
        &owners(&made)[0].1["f:spec"]["f:template"]["f:spec"]["f:containers"][r#"k:{"name":"c"}"#]["f:ports"];
    assert!(ports.get(r#"k:{"containerPort":80,"protocol":"TCP"}"#).is_some(), "{ports}");
    let scale = json!({"spec": {"replicas": 5}}).to_string();
    ok(send(
        &client,
        "PATCH",
        &format!("{path}/scale?fieldManager=hpa"),
        "application/merge-patch+json",
        &scale,
    )
    .await);
    let (code, refused) = apply(&client, &path, "fieldManager=one", &deployment("d", Some(1), "i:1")).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")));
    let message = r#"conflict with "hpa" with subresource "scale" using apps/v1"#;
    assert_eq!(refused["message"], format!("Apply failed with 1 conflict: {message}: .spec.replicas"));
    let cause = json!({"reason": "FieldManagerConflict", "message": message, "field": ".spec.replicas"});
    assert_eq!(refused["details"]["causes"], json!([cause]));
    // Who gives the field up has no conflict, and it stays with the other one.
    let kept = ok(apply(&client, &path, "fieldManager=one", &deployment("d", None, "i:1")).await);
    assert_eq!(kept["spec"]["replicas"], 5);
    let (code, refused) = apply(&client, &path, "fieldManager=two", &deployment("d", Some(2), "i:2")).await;
    assert_eq!(code, 409);
    let message = "Apply failed with 2 conflicts: conflicts with \"hpa\" with subresource \"scale\" using apps/v1:\n\
                   - .spec.replicas\nconflicts with \"one\":\n\
                   - .spec.template.spec.containers[name=\"c\"].image";
    assert_eq!(refused["message"], message);
    let forced =
        ok(apply(&client, &path, "fieldManager=two&force=true", &deployment("d", Some(2), "i:2")).await);
    assert_eq!(
        (&forced["spec"]["replicas"], forced["metadata"]["generation"].as_i64()),
        (&json!(2), Some(3))
    );
    cluster.stop().await;
}

#[tokio::test]
async fn applies_that_cannot_be_are_refused_with_the_reason() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let path = format!("{MAPS}/m");
    let check = async |options: &str, config: Value, code: u16, words: &str| {
        let (found, body) = apply(&client, &path, options, &config).await;
        let message = body["message"].as_str().unwrap_or_default();
        assert!(found == code && message.contains(words), "{found} {body}");
    };
    let good = || map("m", json!({"a": "1"}));
    check("", good(), 422, "fieldManager: Required value: is required for apply patch").await;
    check("fieldManager=one&dryRun=Some", good(), 422, "dryRun").await;
    let mut other = good();
    other["apiVersion"] = "v2".into();
    check(
        "fieldManager=one",
        other,
        400,
        "Incorrect version specified in apply patch. Specified patch version: v2, expected: v1",
    )
    .await;
    let mut owned = good();
    owned["metadata"]["managedFields"] =
        json!([{"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1"}]);
    check("fieldManager=one", owned, 400, "metadata.managedFields must be nil").await;
    check("fieldManager=one", map("n", json!({})), 400, "does not match the name on the URL").await;
    let mut unknown = good();
    unknown["dat"] = json!({});
    check("fieldManager=one", unknown, 400, "dat").await;
    let mut with_uid = good();
    with_uid["metadata"]["uid"] = "7".into();
    check("fieldManager=one", with_uid, 409, "uid mismatch").await;
    let mut at = good();
    at["metadata"]["resourceVersion"] = "7".into();
    check("fieldManager=one", at.clone(), 409, "no existing object was found").await;
    // A dry run does everything but the write.
    let (code, dry) = apply(&client, &path, "fieldManager=one&dryRun=All", &good()).await;
    assert_eq!((code, owners(&dry).len()), (201, 1));
    ok(apply(&client, &path, "fieldManager=one", &good()).await);
    check("fieldManager=one", at, 409, "the object has been modified").await;
    let (code, _) = apply(
        &client,
        &format!("{DEPLOYMENTS}/none/status"),
        "fieldManager=one",
        &deployment("none", None, "i"),
    )
    .await;
    assert_eq!(code, 404, "a part of an object does not create it");
    let twice = "apiVersion: v1\nkind: ConfigMap\ndata: {a: '1', a: '2'}\n";
    let (code, refused) =
        send(&client, "PATCH", &format!("{path}?fieldManager=one"), "application/apply-patch+yaml", twice)
            .await;
    assert_eq!(code, 400, "{refused}");
    let (code, refused) = send(
        &client,
        "PATCH",
        &format!("{path}?fieldManager=one&force=true"),
        "application/merge-patch+json",
        "{}",
    )
    .await;
    assert_eq!(code, 422, "{refused}");
    cluster.stop().await;
}

#[tokio::test]
async fn parts_of_objects_are_applied_to() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let path = format!("{DEPLOYMENTS}/d");
    ok(apply(&client, &path, "fieldManager=one", &deployment("d", Some(1), "i:1")).await);
    // What a status apply says of the specification is not heard, nor the other way round.
    let mut both = deployment("d", Some(9), "i:9");
    both["status"] = json!({"replicas": 1, "conditions": [{"type": "Available", "status": "True"}]});
    let applied = ok(apply(&client, &format!("{path}/status"), "fieldManager=ctl", &both).await);
    assert_eq!((&applied["spec"]["replicas"], &applied["status"]["replicas"]), (&json!(1), &json!(1)));
    let fields = owners(&applied).into_iter().find(|(owner, _)| owner == "ctl Apply status").unwrap().1;
    assert_eq!(fields["f:status"]["f:conditions"][r#"k:{"type":"Available"}"#]["f:status"], json!({}));
    assert_eq!(fields.get("f:spec"), None);
    both["status"] = json!({"replicas": 1});
    let pruned = ok(apply(&client, &format!("{path}/status"), "fieldManager=ctl", &both).await);
    assert_eq!(pruned["status"].get("conditions"), None);
    let mut main = deployment("d", Some(1), "i:1");
    main["status"] = json!({"replicas": 7});
    let applied = ok(apply(&client, &path, "fieldManager=one", &main).await);
    assert_eq!(applied["status"]["replicas"], 1);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 4}});
    let (code, _) = apply(&client, &format!("{path}/scale"), "fieldManager=hpa", &scale).await;
    assert_eq!(code, 409);
    let applied = ok(apply(&client, &format!("{path}/scale"), "fieldManager=hpa&force=true", &scale).await);
    assert_eq!((&applied["kind"], &applied["spec"]["replicas"]), (&json!("Scale"), &json!(4)));
    let found = ok(send(&client, "GET", &path, "", "").await);
    let fields = owners(&found).into_iter().find(|(owner, _)| owner == "hpa Apply scale").unwrap().1;
    assert_eq!(fields, json!({"f:spec": {"f:replicas": {}}}));
    cluster.stop().await;
}

#[tokio::test]
async fn custom_resources_are_applied_by_their_schema() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let listed = |kind: Value| {
        let mut list = json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string"}}, "required": ["k"]}});
        list.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
        list
    };
    let properties = json!({"spec": {"type": "object", "properties": {
        "whole": listed(json!({})),
        "keyed": listed(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]})),
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }}});
    let definition = json!({"metadata": {"name": "toys.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "toys", "kind": "Toy"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}]}});
    definitions.create(&PostParams::default(), &object(definition)).await.unwrap();
    let path = "/apis/example.com/v1/namespaces/default/toys/t";
    let toy = |spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Toy", "metadata": {"name": "t"}, "spec": spec});
    let one = toy(json!({"whole": [{"k": "a"}], "keyed": [{"k": "a", "v": "1"}], "free": {"x": {"y": 1}}}));
    ok(apply(&client, path, "fieldManager=one", &one).await);
    let two = toy(json!({"keyed": [{"k": "b", "v": "2"}], "free": {"z": 2}}));
    let both = ok(apply(&client, path, "fieldManager=two", &two).await);
    assert_eq!(both["spec"]["keyed"], json!([{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]));
    assert_eq!(both["spec"]["free"], json!({"x": {"y": 1}, "z": 2}));
    let (code, refused) =
        apply(&client, path, "fieldManager=two", &toy(json!({"whole": [{"k": "z"}]}))).await;
    assert_eq!((code, &refused["details"]["causes"][0]["field"]), (409, &json!(".spec.whole")));
    let twice = toy(json!({"keyed": [{"k": "b"}, {"k": "b"}]}));
    let (code, refused) = apply(&client, path, "fieldManager=two", &twice).await;
    assert!(
        code == 400 && refused["message"].as_str().unwrap().contains("duplicate entries for key [k=\"b\"]"),
        "{refused}"
    );
    cluster.stop().await;
}

/// The typed client's way.
#[tokio::test]
async fn a_typed_client_applies() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.tls_client().await;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "default"}}))).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
                     "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": 1}}}]}});
    let params = PatchParams::apply("typed");
    let made = pods.patch("p", &params, &Patch::Apply(&pod)).await.unwrap();
    let again = pods.patch("p", &params, &Patch::Apply(&pod)).await.unwrap();
    assert_eq!(again.resource_version(), made.resource_version(), "the same apply writes nothing");
    assert_eq!(again.metadata.managed_fields.unwrap()[0].manager.as_deref(), Some("typed"));
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let applied =
        futures::future::join_all((0..8).map(|i| {
            let (maps, config) = (maps.clone(), map("shared", json!({format!("k{i}"): "v"})));
            async move {
                maps.patch("shared", &PatchParams::apply(&format!("m{i}")), &Patch::Apply(&config)).await
            }
        }));
    for outcome in applied.await {
        outcome.unwrap();
    }
    assert_eq!(
        maps.get("shared").await.unwrap().data.unwrap().len(),
        8,
        "managers that apply at once all take effect"
    );
    let deployments: Api<Deployment> = Api::default_namespaced(client);
    let dynamic: DynamicObject = object(deployment("d", Some(1), "i"));
    let made = deployments.patch("d", &params, &Patch::Apply(&dynamic)).await.unwrap();
    assert_eq!(made.spec.unwrap().replicas, Some(1));
    cluster.stop().await;
}
