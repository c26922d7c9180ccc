use serde_json::{Value, json};

use super::{openapi_v3, openapi_v3_index};
use crate::{Catalog, parse_yaml};

fn catalog() -> Catalog {
    let definition = parse_yaml(include_str!("../../testdata/gadgets.crd.yaml")).unwrap().value;
    Catalog::builtin().with_crds(&[definition]).0
}

/// Every document of the index exists, and every reference in it leads somewhere.
#[test]
fn documents_are_complete() {
    let catalog = catalog();
    let index = openapi_v3_index(&catalog);
    let names: Vec<_> = index["paths"].as_object().unwrap().keys().cloned().collect();
    assert!(
        names.contains(&"api/v1".to_owned()) && names.contains(&"apis/example.com/v1".to_owned()),
        "{names:?}"
    );
    for name in names {
        let url = index["paths"][&name]["serverRelativeURL"].as_str().unwrap();
        assert!(url.starts_with(&format!("/openapi/v3/{name}?hash=")), "{url}");
        let document = openapi_v3(&catalog, &name).unwrap();
        assert_references(&document, &document);
    }
    assert!(openapi_v3(&catalog, "apis/nobody/v1").is_none());
}

#[track_caller]
fn assert_references(document: &Value, part: &Value) {
    match part {
        Value::Object(map) => {
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
            map.values().for_each(|value| assert_references(document, value));
        }
        Value::Array(items) => items.iter().for_each(|item| assert_references(document, item)),
        _ => {}
    }
}

#[test]
fn the_hash_follows_the_definitions() {
    let url = |catalog: &Catalog, name: &str| openapi_v3_index(catalog)["paths"][name].to_string();
    let before = catalog();
    let mut definition = parse_yaml(include_str!("../../testdata/gadgets.crd.yaml")).unwrap().value;
    let spec = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["fresh"] = json!({"type": "string"});
    let after = before.with_crds(&[definition]).0;
    assert_ne!(url(&before, "apis/example.com/v1"), url(&after, "apis/example.com/v1"));
    assert_eq!(url(&before, "apis/apps/v1"), url(&after, "apis/apps/v1"));
}

/// kubectl learns from the patch operation of a kind which patches it takes and that `fieldValidation` is known.
#[test]
fn patches_of_a_kind() {
    let catalog = catalog();
    let forms = |document: &str, path: &str| {
        let document = openapi_v3(&catalog, document).unwrap();
        let patch = &document["paths"][path]["patch"];
        let known = patch["parameters"].as_array().unwrap().iter().any(|of| of["name"] == "fieldValidation");
        assert!(known && patch["x-kubernetes-action"] == "patch");
        let forms = patch["requestBody"]["content"].as_object().unwrap();
        (
            patch["x-kubernetes-group-version-kind"].clone(),
            forms.contains_key("application/strategic-merge-patch+json"),
        )
    };
    let built_in = forms("apis/apps/v1", "/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
    assert_eq!(built_in, (json!({"group": "apps", "version": "v1", "kind": "Deployment"}), true));
    let custom = forms("apis/example.com/v1", "/apis/example.com/v1/namespaces/{namespace}/gadgets/{name}");
    assert_eq!(custom, (json!({"group": "example.com", "version": "v1", "kind": "Gadget"}), false));
}

#[test]
fn schemas_carry_the_extensions() {
    let document = openapi_v3(&catalog(), "api/v1").unwrap();
    let schemas = &document["components"]["schemas"];
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert_eq!(
        pod["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "Pod"}])
    );
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    let expected = json!({
        "type": "array",
        "items": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}]},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "name",
    });
    assert_eq!(*containers, expected);
    let service = &document["paths"]["/api/v1/namespaces/{namespace}/services"]["get"];
    assert_eq!(service["x-kubernetes-group-version-kind"]["kind"], "Service");
}

#[test]
fn custom_schemas_are_published() {
    let document = openapi_v3(&catalog(), "apis/example.com/v1").unwrap();
    let gadget = &document["components"]["schemas"]["com.example.v1.Gadget"];
    assert_eq!(gadget["properties"]["spec"]["properties"]["mode"]["enum"], json!(["Fast", "Slow"]));
    assert!(gadget["properties"]["metadata"]["allOf"].is_array());
    let list = &document["components"]["schemas"]["com.example.v1.GadgetList"];
    assert_eq!(list["x-kubernetes-group-version-kind"][0]["kind"], "GadgetList");
}
