//! `metadata.managedFields` itself: reading, writing, times, versions and bounds.

use serde_json::{Value, json};

use super::{Story, thing, with_spec, writer};
use crate::ownership::{FieldSet, Managers, OnConflict, Writer};

#[test]
fn form() {
    let story = Story::default()
        .update("z", with_spec(&json!({"replicas": 1})))
        .update("a", with_spec(&json!({"replicas": 1, "template": {"mode": "x"}})))
        .apply("m", &with_spec(&json!({"selector": {}})));
    let list = story.managers.render().unwrap();
    let entry = |manager: &str, operation: &str, second: u8, spec: Value| {
        json!({
            "manager": manager, "operation": operation, "apiVersion": "v1",
            "time": format!("2026-01-01T00:00:0{second}Z"), "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": spec},
        })
    };
    // Those who apply first, then by time.
    let expected = json!([
        entry("m", "Apply", 3, json!({"f:selector": {}})),
        entry("z", "Update", 1, json!({"f:replicas": {}})),
        entry("a", "Update", 2, json!({"f:template": {".": {}, "f:mode": {}}})),
    ]);
    assert_eq!(list, expected);
    assert_eq!(Managers::parse(&list).unwrap(), story.managers);
    let mut object = with_spec(&json!({}));
    story.managers.write_into(&mut object);
    assert_eq!(object["metadata"]["managedFields"], expected);
    assert_eq!(Managers::of(&object).unwrap(), story.managers);
    Managers::default().write_into(&mut object);
    assert_eq!(object, with_spec(&json!({})));
}

#[track_caller]
fn check_malformed(list: &Value, expected: &str) {
    assert_eq!(Managers::parse(list).unwrap_err().to_string(), expected);
}

#[test]
fn malformed() {
    check_malformed(&json!({}), "metadata.managedFields must be a list");
    check_malformed(&json!([1]), "metadata.managedFields[0]: operation must be `Apply` or `Update`");
    check_malformed(
        &json!([{"operation": "Apply"}]),
        "metadata.managedFields[0]: apiVersion must not be empty",
    );
    check_malformed(
        &json!([{"operation": "Apply", "apiVersion": 1}]),
        "metadata.managedFields[0]: its apiVersion must be a string",
    );
    check_malformed(
        &json!([{"operation": "Apply", "apiVersion": "v1"}]),
        "metadata.managedFields[0]: fieldsType is missing",
    );
    check_malformed(
        &json!([{"operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV2"}]),
        "metadata.managedFields[0]: invalid fieldsType \"FieldsV2\"",
    );
    check_malformed(
        &json!([{"operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": 1}}]),
        "the fieldsV1 of metadata.managedFields has the step 1: it must be an object",
    );
}

#[test]
fn what_an_update_starts_from() {
    let entry = |manager: &str| json!([{"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]);
    let object = |list: Value| json!({"metadata": {"managedFields": list}});
    #[track_caller]
    fn check(live: &Value, new: &Value, subresource: &str, expected: &[&str]) {
        let managers = Managers::for_update(live, new, subresource);
        let names: Vec<_> = managers.entries().iter().map(|owned| owned.owner.manager.as_str()).collect();
        assert_eq!(names, expected);
    }
    let live = object(entry("live"));
    check(&live, &object(entry("sent")), "", &["sent"]);
    check(&live, &object(entry("sent")), "status", &["live"]);
    check(&live, &json!({"metadata": {}}), "", &["live"]);
    check(&live, &object(Value::Null), "", &["live"]);
    check(&live, &object(json!([{"operation": "Invent"}])), "", &["live"]);
    for reset in [json!([]), json!([{}]), json!([{"manager": "", "time": null}])] {
        check(&live, &object(reset.clone()), "", &[]);
        check(&live, &object(reset), "status", &["live"]);
    }
    check(&object(json!("nonsense")), &json!({}), "", &[]);
}

#[test]
fn an_object_without_owners_stays_so_through_updates() {
    let object = with_spec(&json!({"replicas": 1}));
    let managers =
        writer("m", "now").update(Some(&object), &with_spec(&json!({"replicas": 2})), Managers::default());
    assert!(managers.is_empty());
}

#[test]
fn an_update_without_a_change_keeps_times() {
    let object = with_spec(&json!({"replicas": 1, "template": {"mode": "x"}}));
    let story = Story::default().update("m", object.clone());
    let again = story.clone().update("m", object.clone()).update("n", object);
    assert_eq!(again.managers, story.managers);
    // What goes leaves its owner, who has done nothing.
    let less = story.update("n", with_spec(&json!({"replicas": 1})));
    assert_eq!(less.owners(), ["m Update: .spec.replicas"]);
    assert_eq!(less.managers.entries()[0].time.as_deref(), Some("2026-01-01T00:00:01Z"));
    // Who owns nothing any more has no entry.
    assert!(less.update("n", with_spec(&json!({}))).managers.is_empty());
}

#[test]
fn no_one_owns_what_names_an_object() {
    let object = json!({
        "apiVersion": "v1", "kind": "Thing",
        "metadata": {"name": "x", "uid": "u", "labels": {"a": "b"}, "managedFields": [{"any": "thing"}]},
    });
    assert_eq!(
        Story::default().update("m", object.clone()).owners(),
        ["m Update: .metadata.labels .metadata.labels.a"]
    );
    let config = json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x", "uid": "u", "labels": {"a": "b"}}});
    assert_eq!(Story::default().apply("m", &config).owners(), ["m Apply: .metadata.labels.a"]);
    // What is applied before and after stays, though no one owns it.
    let story =
        Story::default().update("u", object).force("m", &config).apply("m", &json!({"kind": "Thing"}));
    assert_eq!(story.object.unwrap()["metadata"], json!({"name": "x", "uid": "u", "labels": {"a": "b"}}));
}

/// Writers of versions and subresources have entries of their own; appliers one for all versions.
#[test]
fn versions_and_subresources() {
    let object = with_spec(&json!({"replicas": 1}));
    let started = Story::default().update("m", object.clone()).managers;
    let at = |api_version: &'static str, subresource: &'static str| Writer {
        api_version,
        subresource,
        ..writer("m", "2026-02-02T00:00:00Z")
    };
    let more = with_spec(&json!({"replicas": 1, "template": {}}));
    let names = |managers: &Managers| {
        let name = |owned: &super::super::Owned| {
            format!(
                "{} {}: {}",
                owned.owner.api_version,
                owned.owner.subresource,
                owned.fields.spelt().join(" ")
            )
        };
        managers.entries().iter().map(name).collect::<Vec<_>>()
    };
    let updated = at("v2", "").update(Some(&object), &more, started.clone());
    assert_eq!(names(&updated), ["v1 : .spec.replicas", "v2 : .spec.template"]);
    let updated = at("v1", "scale").update(Some(&object), &more, started.clone());
    assert_eq!(names(&updated), ["v1 : .spec.replicas", "v1 scale: .spec.template"]);
    let first = at("v1", "").apply(Some(&object), &more, started, OnConflict::Refuse).unwrap();
    let second =
        at("v2", "").apply(Some(&first.object), &object, first.managers, OnConflict::Refuse).unwrap();
    assert_eq!(second.object, object);
    assert_eq!(names(&second.managers), ["v2 : .spec.replicas", "v1 : .spec.replicas"]);
    // Entries of versions that are no longer served go with the next change.
    let served = Writer { is_served: &|version| version == "v2", ..at("v2", "") };
    let left = served.update(Some(&object), &more, second.managers);
    assert_eq!(names(&left), ["v2 : .spec.replicas", "v2 : .spec.template"]);
}

#[test]
fn reset_fields_are_not_owned() {
    let reset = FieldSet::of_field(&["status"]);
    let object = json!({"spec": {"replicas": 1}, "status": {"phase": "x"}});
    let writer = Writer { reset: &reset, ..writer("m", "now") };
    let managers = writer.update(None, &object, Managers::default());
    assert_eq!(managers.entries()[0].fields.spelt(), [".spec.replicas"]);
    let applied = writer.apply(None, &object, Managers::default(), OnConflict::Refuse).unwrap();
    assert_eq!(applied.managers.entries()[0].fields.spelt(), [".spec.replicas"]);
    // A change of them takes nothing from who owns them.
    let status = Story::default().update("s", object.clone()).managers;
    let changed = json!({"spec": {"replicas": 1}, "status": {"phase": "y"}});
    assert_eq!(writer.update(Some(&object), &changed, status.clone()), status);
}

#[test]
fn the_oldest_updaters_are_folded() {
    let mut object = with_spec(&json!({"nested": {}}));
    let mut story = Story::default().update("first", object.clone());
    for index in 0..12 {
        object["spec"]["nested"][format!("k{index:02}")] = json!({"a": 1});
        story = story.update(&format!("m{index:02}"), object.clone());
    }
    let owners = story.owners();
    assert_eq!(owners.len(), 10);
    assert!(owners[0].starts_with("ancient-changes Update: .spec.nested .spec.nested.k00"), "{}", owners[0]);
    assert!(owners[1].starts_with("m03 Update:"), "{}", owners[1]);
    // Nothing is lost.
    let all =
        story.managers.entries().iter().fold(FieldSet::default(), |all, owned| all.union(&owned.fields));
    assert_eq!(all.len(), 25);
    // Those who apply are not counted.
    let story = (0..12).fold(story, |story, index| story.apply(&format!("a{index}"), &object));
    assert_eq!(story.managers.entries().len(), 22);
}

/// Fields that were owned one by one and are owned as a whole now.
#[test]
fn schema_changes() {
    let list = json!([{
        "manager": "old", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {
            "f:selector": {".": {}, "f:a": {}},
            "f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:args": {"v:\"x\"": {}}, "f:name": {}}},
        }},
    }]);
    let object = with_spec(&json!({"selector": {"a": 1}, "containers": [{"name": "a", "args": ["x"]}]}));
    let managers = Managers::parse(&list).unwrap();
    let config = with_spec(&json!({"selector": {"a": 2}}));
    let error =
        writer("new", "now").apply(Some(&object), &config, managers.clone(), OnConflict::Refuse).unwrap_err();
    assert_eq!(error.to_string(), r#"Apply failed with 1 conflict: conflict with "old": .spec.selector"#);
    let applied = writer("new", "now").apply(Some(&object), &config, managers, OnConflict::Force).unwrap();
    let old = &applied.managers.entries().iter().find(|owned| owned.owner.manager == "old").unwrap().fields;
    assert_eq!(
        old.spelt(),
        [
            r#".spec.containers[name="a"]"#,
            r#".spec.containers[name="a"].args"#,
            r#".spec.containers[name="a"].name"#
        ]
    );
    let whole = FieldSet::of(&object, &thing());
    assert!(old.difference(&whole).is_empty(), "{old:?}");
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// kubectl takes over what its client-side apply had set.
#[test]
fn from_client_side_apply() {
    let config = |replicas: u8| json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": {"replicas": replicas}});
    let mut live = config(1);
    live["metadata"]["annotations"] = json!({LAST_APPLIED: config(1).to_string()});
    let story = Story::default().update("kubectl-client-side-apply", live.clone());
    let mut other = story.clone();
    assert!(other.try_apply("other", &config(2), OnConflict::Refuse).is_err());
    let taken = story.clone().apply("kubectl", &config(2));
    assert_eq!(taken.spec(), json!({"replicas": 2}));
    assert_eq!(
        taken.object.as_ref().unwrap()["metadata"]["annotations"],
        json!({LAST_APPLIED: format!("{}\n", config(2))})
    );
    assert_eq!(
        taken.owners(),
        [
            "kubectl Apply: .spec.replicas".to_owned(),
            format!(
                "kubectl-client-side-apply Update: .metadata.annotations .metadata.annotations.{LAST_APPLIED}"
            ),
        ]
    );
    // Not what has been changed since.
    live["spec"]["replicas"] = json!(7);
    let mut changed = story.update("scaler", live.clone());
    let error = changed.try_apply("kubectl", &config(2), OnConflict::Refuse).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"Apply failed with 1 conflict: conflict with "scaler" using v1: .spec.replicas"#
    );
    // Nor what was applied at another version, or cannot be read.
    for annotation in [config(7).to_string().replace("v1", "v9"), "{".to_owned(), String::new()] {
        live["metadata"]["annotations"][LAST_APPLIED] = json!(annotation);
        let mut story = Story::default().update("kubectl-client-side-apply", live.clone());
        assert!(story.try_apply("kubectl", &config(2), OnConflict::Refuse).is_err(), "{annotation}");
    }
}
