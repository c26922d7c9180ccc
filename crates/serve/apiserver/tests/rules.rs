//! Rules in CEL of custom resources, as clients meet them.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use cluster::{TestCluster, object, refused};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

fn definition(rules: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ranges.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "ranges", "singular": "range", "kind": "Range", "listKind": "RangeList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-validations": rules, "properties": {
                        "from": {"type": "integer", "default": 0}, "upto": {"type": "integer"},
                        "kind": {"type": "string"}}},
                    "status": {"type": "object", "properties": {"at": {"type": "integer"}}}},
                    "x-kubernetes-validations": [
                        {"rule": "!has(self.status) || self.status.at <= self.spec.upto", "message": "beyond the end"}]}}}]},
    })
}

#[tokio::test]
async fn custom_objects_are_held_to_the_rules_of_their_definition() {
    let cluster = TestCluster::in_memory().await;
    let definitions: Api<DynamicObject> = Api::all_with(
        cluster.client(),
        &ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            "customresourcedefinitions",
        ),
    );
    let create = PostParams::default();
    // A rule that cannot be evaluated is refused with its place, not later with every object.
    let broken = definition(&json!([{"rule": "self.from <"}]));
    let told = refused(definitions.create(&create, &object(broken)).await, 422);
    let place = "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule";
    assert!(told.contains(place) && told.contains("compilation failed"), "{told}");
    let rules = json!([
        {"rule": "self.from <= self.upto", "message": "from must not be after upto"},
        {"rule": "self.kind == oldSelf.kind", "message": "kind is immutable"},
    ]);
    definitions.create(&create, &object(definition(&rules))).await.unwrap();

    let kind =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Range"), "ranges");
    let ranges: Api<DynamicObject> = Api::default_namespaced_with(cluster.client(), &kind);
    let range = |spec: Value| {
        object(
            json!({"apiVersion": "example.com/v1", "kind": "Range", "metadata": {"name": "r"}, "spec": spec}),
        )
    };
    let told = refused(ranges.create(&create, &range(json!({"from": 3, "upto": 2, "kind": "a"}))).await, 422);
    assert_eq!(told, "Range.example.com \"r\" is invalid: spec: Invalid value: from must not be after upto");
    // The default of a field counts.
    ranges.create(&create, &range(json!({"upto": 2, "kind": "a"}))).await.unwrap();
    let merge = |patch: Value| Patch::Merge(patch);
    let params = PatchParams::default();
    let told = refused(ranges.patch("r", &params, &merge(json!({"spec": {"kind": "b"}}))).await, 422);
    assert!(told.ends_with("spec: Invalid value: kind is immutable"), "{told}");
    let told = refused(ranges.patch_status("r", &params, &merge(json!({"status": {"at": 3}}))).await, 422);
    assert!(told.contains("beyond the end"), "{told}");
    ranges.patch_status("r", &params, &merge(json!({"status": {"at": 2}}))).await.unwrap();
    // Server-side apply and dry runs are held to them too.
    let applied =
        json!({"apiVersion": "example.com/v1", "kind": "Range", "spec": {"from": 9, "upto": 2, "kind": "a"}});
    let apply = PatchParams::apply("test").force();
    refused(ranges.patch("r", &apply, &Patch::Apply(&applied)).await, 422);
    refused(ranges.patch("r", &apply.clone().dry_run(), &Patch::Apply(&applied)).await, 422);
}
