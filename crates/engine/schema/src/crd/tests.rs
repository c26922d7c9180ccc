use std::sync::Arc;

use serde_json::{Value, json};

use crate::{Catalog, FieldValidation, GroupVersionKind, ScalePaths, Scope, parse_yaml};

fn gadgets() -> Value {
    parse_yaml(include_str!("../../testdata/gadgets.crd.yaml")).unwrap().value
}

/// A change of the definition of gadgets and the problems it makes, as condition, reason and whether it is fatal.
#[track_caller]
fn check(change: impl Fn(&mut Value), expected: &[(&str, &str, bool)]) {
    let mut definition = gadgets();
    change(&mut definition);
    let (catalog, problems) = Catalog::builtin().with_crds(&[definition]);
    let found: Vec<_> = problems.iter().map(|of| (of.condition, of.reason.as_str(), of.fatal)).collect();
    assert_eq!(found, expected, "{problems:?}");
    let served = catalog.resources().any(|of| of.is_custom());
    assert_eq!(served, !expected.iter().any(|(_, _, fatal)| *fatal));
}

fn schema(definition: &mut Value) -> &mut Value {
    &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
}

#[test]
fn problems() {
    check(|_| {}, &[]);
    check(
        |of| schema(of)["spec"]["properties"]["bad"] = json!({}),
        &[("NonStructuralSchema", "Violations", true)],
    );
    check(|of| schema(of)["spec"]["x-kubernetes-validations"] = json!([{"rule": "self.replicas > 0"}]), &[]);
    check(
        |of| schema(of)["spec"]["x-kubernetes-validations"] = json!([{"rule": "self.?replicas"}]),
        &[("UnenforcedRules", "RulesNotSupported", false)],
    );
    let conflict = |reason| [("NamesAccepted", reason, true)];
    let in_events = |of: &mut Value| of["spec"]["group"] = "events.k8s.io".into();
    check(
        |of| {
            in_events(of);
            of["spec"]["names"]["plural"] = "events".into();
        },
        &conflict("PluralConflict"),
    );
    check(
        |of| {
            in_events(of);
            of["spec"]["names"]["shortNames"] = json!(["ev"]);
        },
        &conflict("ShortNamesConflict"),
    );
    check(
        |of| {
            in_events(of);
            of["spec"]["names"]["kind"] = "Event".into();
        },
        &conflict("KindConflict"),
    );
}

#[test]
fn the_second_of_two_definitions_conflicts() {
    let mut second = gadgets();
    second["metadata"]["name"] = "others.example.com".into();
    second["spec"]["names"]["plural"] = "others".into();
    let (catalog, problems) = Catalog::builtin().with_crds(&[gadgets(), second]);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].definition, "others.example.com");
    assert!(catalog.resource("example.com", "v1", "gadgets").is_some());
    assert!(catalog.resource("example.com", "v1", "others").is_none());
}

#[test]
fn a_definition_that_was_refused_its_names_takes_them_from_nobody() {
    let mut refused = gadgets();
    refused["metadata"]["name"] = "a.example.com".into();
    refused["spec"]["names"]["plural"] = "a".into();
    refused["status"]["conditions"] = json!([{"type": "NamesAccepted", "status": "False"}]);
    let (catalog, problems) = Catalog::builtin().with_crds(&[refused, gadgets()]);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].definition, "a.example.com");
    assert!(catalog.resource("example.com", "v1", "gadgets").is_some());
}

#[test]
fn only_what_has_changed_is_read_again() {
    let mut definition = gadgets();
    let (first, _) = Catalog::builtin().with_crds(&[definition.clone()]);
    definition["metadata"]["labels"] = json!({"of": "its metadata"});
    let (same, _) = first.with_crds(&[definition.clone()]);
    let of = |catalog: &Catalog| catalog.kind("example.com", "v1", "Gadget").unwrap().clone();
    assert!(Arc::ptr_eq(&of(&first), &of(&same)));
    schema(&mut definition)["spec"]["properties"]["size"] = json!({"type": "integer"});
    let (changed, _) = same.with_crds(&[definition]);
    assert!(!Arc::ptr_eq(&of(&same), &of(&changed)));
    assert!(of(&changed).custom.as_ref().unwrap().published().to_string().contains("size"));
}

#[test]
fn a_served_type() {
    let (catalog, _) = Catalog::builtin().with_crds(&[gadgets()]);
    let of = catalog.kind("example.com", "v1", "Gadget").unwrap();
    assert_eq!(of.group_resource(), "gadgets.example.com");
    assert_eq!((of.scope, of.short_names.as_slice()), (Scope::Namespaced, ["gd".to_owned()].as_slice()));
    let scale = of.subresource("scale").unwrap();
    assert_eq!(scale.group_version_kind, GroupVersionKind::new("autoscaling", "v1", "Scale"));
    let custom = of.custom.as_ref().unwrap();
    let paths = ScalePaths {
        spec_replicas: "spec.replicas".to_owned(),
        status_replicas: "status.replicas".to_owned(),
        label_selector: None,
    };
    assert_eq!(custom.scale, Some(paths));
    let object = json!({"metadata": {"name": "g"}, "spec": {"mode": "Fast"}});
    assert_eq!(of.field_for_selector(&object, "spec.mode").as_deref(), Some("Fast"));
    assert_eq!(of.field_for_selector(&object, "spec.replicas"), None);
    // Without the definition, the type is gone.
    let (without, _) = catalog.with_crds(&[]);
    assert!(without.kind("example.com", "v1", "Gadget").is_none());
}

#[test]
fn versions_share_their_objects() {
    let mut definition = gadgets();
    let mut old = definition["spec"]["versions"][0].clone();
    old["name"] = "v1beta1".into();
    old["storage"] = false.into();
    old["deprecated"] = true.into();
    definition["spec"]["versions"].as_array_mut().unwrap().push(old);
    let (catalog, problems) = Catalog::builtin().with_crds(&[definition]);
    assert_eq!(problems, []);
    let of = catalog.resource("example.com", "v1beta1", "gadgets").unwrap();
    assert_eq!(of.storage_version, "v1");
    let warning = of.custom.as_ref().unwrap().deprecation_warning.as_deref();
    assert_eq!(warning, Some("example.com/v1beta1 Gadget is deprecated"));
    let served = json!({"apiVersion": "example.com/v1beta1", "kind": "Gadget", "spec": {}});
    let stored = of.to_stored(served.clone());
    assert_eq!(stored["apiVersion"], "example.com/v1");
    assert_eq!(of.from_stored(stored), served);
}

/// Unknown fields go, but not from where the schema keeps them; a null gives way to a default.
#[test]
fn pruning() {
    let (catalog, _) = Catalog::builtin().with_crds(&[gadgets()]);
    let of = catalog.kind("example.com", "v1", "Gadget").unwrap();
    let object = json!({
        "apiVersion": "example.com/v1", "kind": "Gadget", "stray": 1,
        "metadata": {"name": "g", "stray": 1, "labels": {"a": "b"}},
        "spec": {
            "mode": "Fast", "stray": 1, "replicas": null, "note": null,
            "extra": {"kept": {"deeply": 1}},
            "template": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "stray": 1}, "kept": 1},
            "nested": {"stray": 1},
        },
    });
    let decoded = of.decode(object, FieldValidation::Warn).unwrap();
    let mut object = decoded.object;
    of.default(&mut object);
    let expected = json!({
        "apiVersion": "example.com/v1", "kind": "Gadget",
        "metadata": {"name": "g", "labels": {"a": "b"}},
        "spec": {
            "mode": "Fast", "replicas": 1, "note": null,
            "extra": {"kept": {"deeply": 1}},
            "template": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, "kept": 1},
            "nested": {"deep": "x"},
        },
    });
    assert_eq!(object, expected);
    let warned: Vec<_> = decoded.warnings.iter().map(String::as_str).collect();
    let expected = [
        "unknown field \"metadata.stray\"",
        "unknown field \"spec.nested.stray\"",
        "unknown field \"spec.stray\"",
        "unknown field \"spec.template.metadata.stray\"",
        "unknown field \"stray\"",
    ];
    assert_eq!(warned, expected);
}

/// The product's own definitions are valid and served, and nothing of them is left unenforced.
#[test]
fn own_definitions_are_served() {
    let catalog = Catalog::builtin();
    let of = catalog.kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    let mut definitions = Vec::new();
    for definition in ambit_api::crds() {
        let decoded = of.decode(serde_json::to_value(definition).unwrap(), FieldValidation::Strict).unwrap();
        let mut definition = decoded.object;
        of.default(&mut definition);
        assert_eq!(of.validate_create(&definition), []);
        definitions.push(definition);
    }
    assert!(!definitions.is_empty());
    let (catalog, problems) = catalog.with_crds(&definitions);
    assert_eq!(problems, []);
    for definition in &definitions {
        let group = definition["spec"]["group"].as_str().unwrap();
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        assert!(catalog.resources().any(|of| of.group == group && of.kind == kind), "{group} {kind}");
    }
}
