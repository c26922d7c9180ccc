//! Requests one by one: forms of answers, refusals, and the rules of deletion.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use ambit_api::apiextensions::CustomResourceDefinition;
use ambit_api::core::v1::ConfigMap;
use cluster::{TestCluster, object};
use futures::{StreamExt as _, TryStreamExt as _};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::discovery::Discovery;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

/// Sends a request as it is.
async fn send(
    client: &Client,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Response<Vec<u8>> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = client.send(request.body(body.into()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes().to_vec())
}

async fn get(client: &Client, path: &str, accept: &str) -> Value {
    let response = send(client, "GET", path, &[("accept", accept)], Vec::new()).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}: {}", String::from_utf8_lossy(response.body()));
    serde_json::from_slice(response.body()).unwrap()
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A request that must be refused: its Status has this code and reason, and says `expected`.
struct Refused<'a> {
    method: &'a str,
    path: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: &'a str,
    expected: (u16, &'a str, &'a str),
}

impl Refused<'_> {
    async fn check(self, client: &Client) {
        let Self { method, path, headers, body, expected: (code, reason, text) } = self;
        let response = send(client, method, path, headers, body.as_bytes().to_vec()).await;
        let status: Value = serde_json::from_slice(response.body()).expect(path);
        assert_eq!(
            (response.status().as_u16(), status["kind"].as_str()),
            (code, Some("Status")),
            "{method} {path}: {status}"
        );
        assert_eq!(
            (status["code"].as_u64(), status["reason"].as_str()),
            (Some(code.into()), Some(reason)),
            "{status}"
        );
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains(text), "{method} {path}: {message}");
    }
}

#[tokio::test]
async fn bad_requests_are_refused_with_a_status_that_says_why() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let json = &[("content-type", "application/json")];
    let protobuf = &[("content-type", "application/vnd.kubernetes.protobuf")];
    let good = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#;
    let other_kind = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}"#;
    let versioned = r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#;
    let check = async |method, path: &str, headers: &[(&str, &str)], body, expected| {
        Refused { method, path, headers, body, expected }.check(&client).await;
    };
    let posts = async |path: &str, headers: &[(&str, &str)], body, expected| {
        check("POST", path, headers, body, expected).await
    };
    posts(MAPS, protobuf, good, (400, "BadRequest", "does not begin with")).await;
    posts(MAPS, protobuf, "k8s\0\x12\x09cut", (400, "BadRequest", "longer than the message")).await;
    posts(MAPS, protobuf, "k8s\0\x0a\x08\x12\x06Secret", (400, "BadRequest", "(Secret) does not match"))
        .await;
    let gadget = "k8s\0\x0a\x0c\x0a\x02v1\x12\x06Gadget";
    posts(MAPS, protobuf, gadget, (415, "UnsupportedMediaType", "send application/json")).await;
    posts(MAPS, &[("content-type", "text/html")], good, (415, "UnsupportedMediaType", "text/html")).await;
    posts(MAPS, json, "{", (400, "BadRequest", "not valid JSON")).await;
    posts(MAPS, json, "[]", (400, "BadRequest", "not an object")).await;
    posts(MAPS, json, other_kind, (400, "BadRequest", "Secret")).await;
    posts(
        MAPS,
        json,
        versioned,
        (500, "InternalError", "resourceVersion should not be set on objects to be created"),
    )
    .await;
    posts(MAPS, json, r#"{"metadata":{}}"#, (422, "Invalid", "name or generateName is required")).await;
    posts(MAPS, json, r#"{"metadata":{"name":"a/b"}}"#, (422, "Invalid", "metadata.name")).await;
    posts(MAPS, json, r#"{"metadata":{"name":"a","namespace":"b"}}"#, (400, "BadRequest", "namespace")).await;
    posts(&format!("{MAPS}?dryRun=Some"), json, good, (422, "Invalid", "dryRun")).await;
    posts(&format!("{MAPS}?fieldValidation=Lax"), json, good, (422, "Invalid", "fieldValidation")).await;
    let twice = r#"{"metadata":{"name":"a"},"data":{"x":"1","x":"2"},"more":1}"#;
    let strict = format!("{MAPS}?fieldValidation=Strict");
    posts(&strict, json, twice, (400, "BadRequest", r#"duplicate field "data.x", unknown field "more""#))
        .await;
    let huge = format!(r#"{{"metadata":{{"name":"a"}},"data":{{"x":"{}"}}}}"#, "y".repeat(3 << 20));
    posts(MAPS, json, &huge, (413, "RequestEntityTooLarge", "limit is 3145728")).await;
    let gets =
        async |path: &str, accept, expected| check("GET", path, &[("accept", accept)], "", expected).await;
    gets(MAPS, "application/cbor", (406, "NotAcceptable", "application/json")).await;
    gets("/api/v1/nonsense", "", (404, "NotFound", "could not find the requested resource")).await;
    gets("/api/v1/configmaps/a", "", (404, "NotFound", "could not find")).await;
    gets(&format!("{MAPS}/a"), "", (404, "NotFound", r#"configmaps "a" not found"#)).await;
    gets(&format!("{MAPS}?resourceVersion=x"), "", (400, "BadRequest", "resourceVersion")).await;
    gets(&format!("{MAPS}?resourceVersionMatch=Exact"), "", (422, "Invalid", "resourceVersionMatch")).await;
    gets(&format!("{MAPS}?sendInitialEvents=true"), "", (422, "Invalid", "forbidden for list")).await;
    gets(&format!("{MAPS}?watch=1&sendInitialEvents=true"), "", (422, "Invalid", "NotOlderThan")).await;
    gets("/api/v1/namespaces/default/pods/a/exec", "", (501, "NotImplemented", "pods/exec is not supported"))
        .await;
    check("PUT", MAPS, json, good, (405, "MethodNotAllowed", "update is not supported")).await;
    check("POST", &format!("{MAPS}/a"), json, good, (405, "MethodNotAllowed", "create is not supported"))
        .await;
    check("DELETE", "/api/v1/namespaces", json, "", (405, "MethodNotAllowed", "deletecollection")).await;
    let policy = format!("{MAPS}/a?propagationPolicy=Sideways");
    check("DELETE", &policy, json, "", (422, "Invalid", "propagationPolicy")).await;
    cluster.stop().await;
}

#[tokio::test]
async fn yaml_comes_in_and_goes_out() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let yaml = "metadata: {name: yam}\ndata:\n  key: \"yes\"\n";
    let headers = &[("content-type", "application/yaml"), ("accept", "application/yaml")];
    let made = send(&client, "POST", MAPS, headers, yaml.into()).await;
    let text = String::from_utf8_lossy(made.body()).into_owned();
    assert_eq!(
        (made.status(), made.headers()["content-type"].to_str().unwrap()),
        (StatusCode::CREATED, "application/yaml")
    );
    assert!(text.contains("kind: ConfigMap"), "{text}");
    assert_eq!(get(&client, &format!("{MAPS}/yam"), "").await["data"], json!({"key": "yes"}));
    cluster.stop().await;
}

#[tokio::test]
async fn unknown_fields_are_warned_of_by_default() {
    let cluster = TestCluster::in_memory().await;
    let body = r#"{"metadata":{"name":"w"},"more":1}"#;
    let made =
        send(&cluster.client(), "POST", MAPS, &[("content-type", "application/json")], body.into()).await;
    assert_eq!(made.status(), StatusCode::CREATED);
    assert_eq!(made.headers()["warning"], r#"299 - "unknown field \"more\"""#);
    cluster.stop().await;
}

#[tokio::test]
async fn tables_and_metadata_are_forms_of_every_answer() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &object(json!({"metadata": {"name": "t"}, "data": {"a": "b"}})))
        .await
        .unwrap();
    let table = get(&client, MAPS, "application/json;as=Table;v=v1;g=meta.k8s.io").await;
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "t");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let bare =
        get(&client, &format!("{MAPS}/t?includeObject=None"), "application/json;as=Table;v=v1;g=meta.k8s.io")
            .await;
    assert!(bare["rows"][0].get("object").is_none() && bare["rows"].as_array().unwrap().len() == 1);
    let metadata = maps.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(metadata.items.iter().map(|m| m.name_any()).collect::<Vec<_>>(), ["t"]);
    assert_eq!(maps.get_metadata("t").await.unwrap().uid(), maps.get("t").await.unwrap().uid());
    let events = send(
        &client,
        "GET",
        &format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion=0"),
        &[("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")],
        Vec::new(),
    )
    .await;
    let first: Value =
        serde_json::Deserializer::from_slice(events.body()).into_iter().next().unwrap().unwrap();
    assert_eq!(
        (&first["type"], &first["object"]["kind"]),
        (&json!("ADDED"), &json!("PartialObjectMetadata"))
    );
    assert!(first["object"].get("data").is_none());
    cluster.stop().await;
}

#[tokio::test]
async fn discovery_agrees_in_both_forms_and_is_cached() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let legacy = Discovery::new(client.clone()).run().await.unwrap();
    let aggregated = Discovery::new(client.clone()).run_aggregated().await.unwrap();
    let kinds = |discovery: &Discovery| {
        let mut kinds: Vec<String> = discovery
            .groups()
            .flat_map(|group| group.recommended_resources())
            .map(|(resource, _)| format!("{}/{}", resource.api_version, resource.kind))
            .collect();
        kinds.sort();
        kinds
    };
    assert_eq!(kinds(&legacy), kinds(&aggregated));
    assert!(kinds(&legacy).contains(&"apps/v1/Deployment".to_owned()));
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let first = send(&client, "GET", "/apis", &[("accept", accept)], Vec::new()).await;
    assert_eq!(first.headers()["content-type"], accept);
    let tag = first.headers()["etag"].to_str().unwrap();
    let again =
        send(&client, "GET", "/apis", &[("accept", accept), ("if-none-match", tag)], Vec::new()).await;
    assert_eq!((again.status(), again.body().len()), (StatusCode::NOT_MODIFIED, 0));
    cluster.stop().await;
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let cluster = TestCluster::in_memory().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let held = json!({"metadata": {"name": "f", "finalizers": ["example.com/hold"]}});
    maps.create(&PostParams::default(), &object(held)).await.unwrap();
    let marked = maps.delete("f", &DeleteParams::foreground()).await.unwrap().left().expect("it is held");
    assert!(marked.metadata.deletion_timestamp.is_some());
    assert_eq!(marked.finalizers(), ["example.com/hold", "foregroundDeletion"]);
    let patch = async |finalizers: Value| {
        let patch = json!({"metadata": {"finalizers": finalizers}});
        maps.patch("f", &PatchParams::default(), &Patch::Merge(patch)).await
    };
    let added = patch(json!(["example.com/hold", "example.com/more"])).await;
    assert!(matches!(&added, Err(kube::Error::Api(s)) if s.code == 422), "{added:?}");
    patch(json!(["foregroundDeletion"])).await.unwrap();
    assert!(maps.get_opt("f").await.unwrap().is_some());
    patch(json!([])).await.unwrap();
    assert!(maps.get_opt("f").await.unwrap().is_none());
    cluster.stop().await;
}

#[tokio::test]
async fn a_definition_takes_its_objects_with_it_and_waits_for_the_held_ones() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = json!({"metadata": {"name": "toys.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "toys", "kind": "Toy"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let made = definitions.create(&PostParams::default(), &object(definition)).await.unwrap();
    let conditions = made.status.and_then(|s| s.conditions).unwrap_or_default();
    assert!(conditions.iter().any(|c| c.type_ == "Established" && c.status == "True"), "{conditions:?}");
    let kind = kube::core::GroupVersionKind::gvk("example.com", "v1", "Toy");
    let resource = kube::core::ApiResource::from_gvk_with_plural(&kind, "toys");
    // Custom resources have no protobuf form.
    let protobuf = [("content-type", "application/vnd.kubernetes.protobuf")];
    let path = "/apis/example.com/v1/namespaces/default/toys";
    let refused = send(&client, "POST", path, &protobuf, b"k8s\0".to_vec()).await;
    assert_eq!(refused.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let toys: Api<DynamicObject> = Api::default_namespaced_with(client, &resource);
    for (name, finalizers) in [("free", json!([])), ("held", json!(["example.com/hold"]))] {
        let toy = json!({"apiVersion": "example.com/v1", "kind": "Toy", "metadata": {"name": name, "finalizers": finalizers}});
        let toy = toys.create(&PostParams::default(), &object(toy)).await.unwrap();
        assert_eq!(toy.metadata.generation, Some(1));
    }
    assert!(definitions.delete("toys.example.com", &DeleteParams::default()).await.unwrap().is_left());
    assert!(toys.get_opt("free").await.unwrap().is_none());
    let late = json!({"apiVersion": "example.com/v1", "kind": "Toy", "metadata": {"name": "late"}});
    let late = toys.create(&PostParams::default(), &object(late)).await;
    assert!(matches!(&late, Err(kube::Error::Api(s)) if s.code == 403), "{late:?}");
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    toys.patch("held", &PatchParams::default(), &release).await.unwrap();
    assert!(definitions.get_opt("toys.example.com").await.unwrap().is_none());
    let gone = toys.list(&ListParams::default()).await;
    assert!(matches!(&gone, Err(kube::Error::Api(s)) if s.code == 404), "{gone:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn events_are_one_collection_in_two_groups() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "it began", "type": "Normal", "firstTimestamp": "2026-01-01T00:00:00Z"});
    let headers = &[("content-type", "application/json")];
    let made =
        send(&client, "POST", "/api/v1/namespaces/default/events", headers, event.to_string().into()).await;
    assert_eq!(made.status(), StatusCode::CREATED, "{}", String::from_utf8_lossy(made.body()));
    let other = get(&client, "/apis/events.k8s.io/v1/namespaces/default/events/e", "").await;
    assert_eq!((&other["apiVersion"], &other["note"]), (&json!("events.k8s.io/v1"), &json!("it began")));
    assert_eq!(other["regarding"]["name"], "p");
    let selected = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp";
    assert_eq!(get(&client, selected, "").await["items"][0]["metadata"]["name"], "e");
    cluster.stop().await;
}

/// Objects written before the stored version changed are served in the version that is asked for all the same.
#[tokio::test]
async fn a_change_of_the_stored_version_is_not_seen_by_readers() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let version = |name: &str, stored: bool| {
        json!({"name": name, "served": true, "storage": stored,
               "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let definition = json!({"metadata": {"name": "toys.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "toys", "kind": "Toy"},
        "versions": [version("v1", true), version("v2", false)]}});
    definitions.create(&PostParams::default(), &object(definition)).await.unwrap();
    let toys = |version: &str| {
        let kind = kube::core::GroupVersionKind::gvk("example.com", version, "Toy");
        let resource = kube::core::ApiResource::from_gvk_with_plural(&kind, "toys");
        Api::<DynamicObject>::default_namespaced_with(client.clone(), &resource)
    };
    let (v1, v2) = (toys("v1"), toys("v2"));
    let toy = json!({"apiVersion": "example.com/v1", "kind": "Toy", "metadata": {"name": "old"}});
    let made = v1.create(&PostParams::default(), &object(toy)).await.unwrap();
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]);
    let patch = Patch::Json::<()>(serde_json::from_value(patch).unwrap());
    definitions.patch("toys.example.com", &PatchParams::default(), &patch).await.unwrap();
    let before = made.metadata.resource_version.unwrap();
    let label = |value: &str| Patch::Merge(json!({"metadata": {"labels": {"a": value}}}));
    for (api, expected) in [(&v1, "example.com/v1"), (&v2, "example.com/v2")] {
        let version = |found: &DynamicObject| found.types.as_ref().unwrap().api_version.clone();
        assert_eq!(version(&api.get("old").await.unwrap()), expected);
        assert_eq!(version(&api.list(&ListParams::default()).await.unwrap().items[0]), expected);
        let first = api.watch(&WatchParams::default(), "0").await.unwrap().boxed().try_next().await.unwrap();
        let Some(WatchEvent::Added(found)) = first else { panic!("{first:?}") };
        assert_eq!(version(&found), expected);
        // The old state in the old version, the new one in the new.
        api.patch("old", &PatchParams::default(), &label(expected.rsplit('/').next().unwrap()))
            .await
            .unwrap();
        let next =
            api.watch(&WatchParams::default(), &before).await.unwrap().boxed().try_next().await.unwrap();
        let Some(WatchEvent::Modified(found)) = next else { panic!("{next:?}") };
        assert_eq!(version(&found), expected);
    }
    cluster.stop().await;
}
