use super::*;
use ambit_api::core::v1::Pod;
use kube::api::DynamicObject;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

fn decode<K: DeserializeOwned>(keep: &Keep, text: &str) -> Result<K, serde_json::Error> {
    Kept::<K>::new(keep).deserialize(&mut serde_json::Deserializer::from_str(text))
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "n", "name": "p", "uid": "u", "resourceVersion": "7", "generation": 3,
            "labels": {"app": "x", "app.kubernetes.io/name": "y"},
            "annotations": {"example.com/team": "a", "example.com/other": "b"},
            "managedFields": [{"manager": "m", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "nodeName": "node",
            "containers": [
                {"name": "one", "image": "i", "ports": [{"containerPort": 80, "name": "http"}]},
                {"name": "two", "image": "j"},
            ],
            "volumes": [],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": null},
    })
}

/// What is left of the pod, whatever it is decoded to and from.
#[track_caller]
fn check(keep: &Keep, expected: &Value) {
    let text = pod().to_string();
    assert_eq!(&decode::<Value>(keep, &text).expect("a value"), expected);
    let from_value: Value = Kept::new(keep).deserialize(pod()).expect("a value");
    assert_eq!(&from_value, expected);
    let typed: Pod = decode(keep, &text).expect("a pod");
    assert_eq!(typed, serde_json::from_value::<Pod>(expected.clone()).expect("a pod"));
    let dynamic: DynamicObject = decode(keep, &text).expect("an object");
    assert_eq!(dynamic, serde_json::from_value::<DynamicObject>(expected.clone()).expect("an object"));
}

fn without_managed_fields() -> Value {
    let mut pod = pod();
    pod["metadata"].as_object_mut().expect("a map").remove("managedFields");
    pod
}

#[test]
fn everything_is_kept_or_all_but_what_is_named() {
    check(&Keep::everything(), &pod());
    check(&Keep::default(), &without_managed_fields());
    let mut expected = without_managed_fields();
    let spec = expected["spec"].as_object_mut().expect("a map");
    spec.remove("volumes");
    for container in spec["containers"].as_array_mut().expect("a list") {
        container.as_object_mut().expect("a map").remove("image");
    }
    expected["metadata"]["annotations"].as_object_mut().expect("a map").remove("example.com/other");
    let dropped = [
        "metadata.managedFields",
        "spec.volumes",
        "spec.containers.image",
        "metadata.annotations[example.com/other]",
        "no.such.field",
    ];
    check(&Keep::without(&dropped), &expected);
}

#[test]
fn only_what_is_named_is_kept_with_what_tells_objects_apart() {
    let identity = json!({"namespace": "n", "name": "p", "uid": "u", "resourceVersion": "7"});
    check(&Keep::only(&[]), &json!({"metadata": identity}));
    let kept = [
        "kind",
        "metadata.labels",
        "metadata.annotations[example.com/team]",
        "spec.nodeName",
        "spec.containers.name",
        "spec.containers.ports.containerPort",
        "status",
        "no.such.field",
    ];
    let mut expected = json!({
        "kind": "Pod",
        "metadata": identity,
        "spec": {
            "nodeName": "node",
            "containers": [{"name": "one", "ports": [{"containerPort": 80}]}, {"name": "two"}],
        },
        "status": pod()["status"],
    });
    expected["metadata"]["labels"] = pod()["metadata"]["labels"].clone();
    expected["metadata"]["annotations"] = json!({"example.com/team": "a"});
    // A kind without a version is no type to a dynamic object, so that one is compared by its value.
    let text = pod().to_string();
    assert_eq!(decode::<Value>(&Keep::only(&kept), &text).expect("a value"), expected);
    check(&Keep::only(&kept[1..]), &{
        expected.as_object_mut().expect("a map").remove("kind");
        expected
    });
}

#[test]
fn a_field_around_another_takes_it_over() {
    let whole = Keep::only(&["metadata.labels", "metadata"]);
    assert_eq!(whole, Keep::only(&["metadata", "metadata.labels"]));
    check(&whole, &json!({"metadata": pod()["metadata"]}));
}

/// Cannot be decoded.
#[derive(Debug)]
struct Bomb;

impl<'de> Deserialize<'de> for Bomb {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("it was built"))
    }
}

#[derive(Debug, Deserialize)]
struct Armed {
    name: String,
    bomb: Option<Bomb>,
}

#[test]
fn what_is_dropped_is_never_built() {
    let text = r#"{"name": "a", "bomb": {"deep": [1, 2]}}"#;
    let error = decode::<Armed>(&Keep::everything(), text).expect_err("it is built");
    assert!(error.to_string().contains("it was built"), "{error}");
    let armed: Armed = decode(&Keep::without(&["bomb"]), text).expect("it is not built");
    assert!(armed.name == "a" && armed.bomb.is_none());
}

#[test]
fn bad_documents_are_errors() {
    for text in ["", "{", r#"{"metadata": {"managedFields": [}}"#, r#"{"metadata": 7}"#, "[]", r#""text""#] {
        assert!(decode::<Pod>(&Keep::default(), text).is_err(), "{text}");
    }
}

#[test]
fn paths_are_names_between_dots_or_in_brackets() {
    let check = |path: &str, expected: &[&str]| assert_eq!(names(path), expected, "{path}");
    check("", &[]);
    check("a", &["a"]);
    check("a.b.c", &["a", "b", "c"]);
    check("a[b.c/d].e", &["a", "b.c/d", "e"]);
    check("a[b.c]", &["a", "b.c"]);
    check("a[b", &["a", "b"]);
    check("a..b", &["a", "", "b"]);
}
