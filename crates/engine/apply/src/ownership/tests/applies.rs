//! Series of applies and updates, and what they make of the object.

use serde_json::{Value, json};

use super::{Story, with_spec};
use crate::ownership::ApplyError;
use crate::ownership::OnConflict;

/// A thing with that spec; without one if there is nothing in it: an empty object would be owned.
fn spec(spec: &Value) -> Value {
    if *spec == json!({}) { json!({"apiVersion": "v1", "kind": "Thing"}) } else { with_spec(spec) }
}

impl Story {
    fn apply_spec(self, manager: &str, config: &Value) -> Story {
        self.apply(manager, &spec(config))
    }

    fn update_spec(self, manager: &str, new: &Value) -> Story {
        self.update(manager, spec(new))
    }

    #[track_caller]
    fn is(&self, expected: &Value, owners: &[&str]) {
        assert_eq!(&self.spec(), expected);
        assert_eq!(self.owners(), owners);
    }

    #[track_caller]
    fn conflicts(mut self, manager: &str, config: &Value, expected: &[&str]) {
        let error = self.try_apply(manager, &spec(config), OnConflict::Refuse).unwrap_err();
        let ApplyError::Conflict(conflicts) = error else { panic!("no conflict: {error}") };
        let causes: Vec<_> = conflicts
            .0
            .iter()
            .map(|conflict| format!("{} on {}", conflict.message(), conflict.field()))
            .collect();
        assert_eq!(causes, expected);
    }
}

#[test]
fn what_is_no_longer_applied_goes() {
    Story::default()
        .apply_spec(
            "m",
            &json!({"replicas": 1, "free": {"a": 1, "b": 2}, "containers": [{"name": "a"}, {"name": "b"}]}),
        )
        .apply_spec("m", &json!({"free": {"b": 2}, "containers": [{"name": "b"}]}))
        .is(
            &json!({"free": {"b": 2}, "containers": [{"name": "b"}]}),
            &[r#"m Apply: .spec.containers[name="b"] .spec.containers[name="b"].name .spec.free.b"#],
        );
    // An object or list that loses all goes with what was in it.
    Story::default()
        .apply_spec("m", &json!({"replicas": 1, "template": {"mode": "x"}, "containers": [{"name": "a"}]}))
        .apply_spec("m", &json!({"replicas": 1}))
        .is(&json!({"replicas": 1}), &["m Apply: .spec.replicas"]);
}

#[test]
fn what_another_owns_stays() {
    // One who applied the same.
    Story::default()
        .apply_spec("m", &json!({"replicas": 1, "containers": [{"name": "a", "image": "x"}]}))
        .apply_spec("n", &json!({"replicas": 1, "containers": [{"name": "a"}]}))
        .apply_spec("m", &json!({}))
        .is(
            &json!({"replicas": 1, "containers": [{"name": "a"}]}),
            &[r#"n Apply: .spec.replicas .spec.containers[name="a"] .spec.containers[name="a"].name"#],
        );
    // One who wrote it.
    Story::default()
        .apply_spec("m", &json!({"replicas": 1, "template": {"mode": "x"}}))
        .update_spec("n", &json!({"replicas": 2, "template": {"mode": "x"}}))
        .apply_spec("m", &json!({}))
        .is(&json!({"replicas": 2}), &["n Update: .spec.replicas"]);
    // What no one applied.
    Story::default()
        .apply_spec("m", &json!({"nested": {"a": {"b": 1}}}))
        .update_spec("n", &json!({"nested": {"a": {"b": 1}, "c": {"d": 1}}}))
        .apply_spec("m", &json!({}))
        .is(&json!({"nested": {"c": {"d": 1}}}), &["n Update: .spec.nested.c .spec.nested.c.d"]);
}

/// An item goes when those who own it have given it up, though another owns a field in it.
#[test]
fn a_field_in_an_item_does_not_keep_the_item() {
    Story::default()
        .apply_spec("m", &json!({"containers": [{"name": "a"}, {"name": "b"}]}))
        .update_spec("n", &json!({"containers": [{"name": "a", "image": "x"}, {"name": "b"}]}))
        .apply_spec("m", &json!({"containers": [{"name": "b"}]}))
        .is(
            &json!({"containers": [{"name": "b"}]}),
            &[r#"m Apply: .spec.containers[name="b"] .spec.containers[name="b"].name"#],
        );
}

#[test]
fn conflicts() {
    let one = Story::default().apply_spec("m", &json!({"replicas": 1, "template": {"mode": "x"}}));
    one.clone().conflicts("n", &json!({"replicas": 2}), &[r#"conflict with "m" on .spec.replicas"#]);
    // The same value is shared.
    one.clone().apply_spec("n", &json!({"replicas": 1})).is(
        &json!({"replicas": 1, "template": {"mode": "x"}}),
        &["m Apply: .spec.replicas .spec.template.mode", "n Apply: .spec.replicas"],
    );
    // Then neither can change it alone.
    one.clone().apply_spec("n", &json!({"replicas": 1})).conflicts(
        "m",
        &json!({"replicas": 3}),
        &[r#"conflict with "n" on .spec.replicas"#],
    );
    one.clone().force("n", &spec(&json!({"replicas": 2}))).is(
        &json!({"replicas": 2, "template": {"mode": "x"}}),
        &["m Apply: .spec.template.mode", "n Apply: .spec.replicas"],
    );
    // An update takes without asking, and is then in the way of who applied.
    let updated = one.update_spec("n", &json!({"replicas": 5, "template": {"mode": "x"}}));
    updated.is(
        &json!({"replicas": 5, "template": {"mode": "x"}}),
        &["m Apply: .spec.template.mode", "n Update: .spec.replicas"],
    );
    updated.conflicts(
        "m",
        &json!({"replicas": 1, "template": {"mode": "x"}}),
        &[r#"conflict with "n" using v1 on .spec.replicas"#],
    );
}

#[test]
fn one_who_applies_conflicts_with_its_own_updates() {
    Story::default()
        .apply_spec("m", &json!({"replicas": 1}))
        .update_spec("m", &json!({"replicas": 2}))
        .conflicts("m", &json!({"replicas": 1}), &[r#"conflict with "m" using v1 on .spec.replicas"#]);
}

#[test]
fn atomic_fields_conflict_as_a_whole() {
    let one = Story::default().apply_spec("m", &json!({"selector": {"a": 1}, "free": {"list": [1]}}));
    one.clone().conflicts("n", &json!({"selector": {"b": 1}}), &[r#"conflict with "m" on .spec.selector"#]);
    one.clone().conflicts("n", &json!({"free": {"list": [2]}}), &[r#"conflict with "m" on .spec.free.list"#]);
    one.force("n", &spec(&json!({"selector": {"b": 1}}))).is(
        &json!({"selector": {"b": 1}, "free": {"list": [1]}}),
        &["m Apply: .spec.free.list", "n Apply: .spec.selector"],
    );
}

#[test]
fn the_message_lists_conflicts_by_owner() {
    let mut story = Story::default()
        .apply_spec("m", &json!({"replicas": 1, "template": {"mode": "x"}}))
        .update_spec("b", &json!({"replicas": 2, "template": {"mode": "x"}}));
    let config = spec(&json!({"replicas": 3}));
    let error = story.try_apply("n", &config, OnConflict::Refuse).unwrap_err().to_string();
    assert_eq!(error, r#"Apply failed with 1 conflict: conflict with "b" using v1: .spec.replicas"#);
    let config = spec(&json!({"replicas": 3, "template": {"mode": "y"}}));
    let error = story.try_apply("n", &config, OnConflict::Refuse).unwrap_err().to_string();
    assert_eq!(
        error,
        "Apply failed with 2 conflicts: conflicts with \"b\" using v1:\n- .spec.replicas\nconflicts with \"m\":\n- .spec.template.mode"
    );
}

#[test]
fn a_second_apply_changes_nothing() {
    let config =
        spec(&json!({"replicas": 1, "containers": [{"name": "a", "ports": [{"port": 1}]}], "free": {}}));
    let mut story = Story::default().apply("m", &config);
    let again = story.try_apply("m", &config, OnConflict::Refuse).unwrap();
    assert!(!again.changed);
    assert_eq!((again.object, &again.managers), (story.object.clone().unwrap(), &story.managers));
    // Another who applies the same becomes an owner too, and that is a change.
    let other = story.try_apply("n", &config, OnConflict::Refuse).unwrap();
    assert!(other.changed);
    assert_eq!(Some(other.object), story.object);
    assert_eq!(other.managers.entries().len(), 2);
    assert_eq!(other.managers.entries()[1].time.as_deref(), Some("2026-01-01T00:00:03Z"));
}

#[test]
fn lists_are_merged_in_the_order_that_is_applied() {
    #[track_caller]
    fn check(live: &[&str], config: &[&str], expected: &[&str]) {
        let list =
            |names: &[&str]| json!({"metadata": {"name": "x", "finalizers": names}, "spec": {"replicas": 1}});
        let story = Story::default().update("u", list(live)).apply("m", &list(config));
        assert_eq!(story.object, Some(list(expected)));
    }
    check(&["a", "b"], &[], &["a", "b"]);
    check(&["a", "b"], &["c"], &["a", "b", "c"]);
    check(&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]);
    check(&["a", "b", "c"], &["b"], &["a", "b", "c"]);
    check(&["a", "b", "c"], &["c", "b", "a"], &["c", "b", "a"]);
    check(&["a", "b", "c"], &["x", "b", "y"], &["a", "x", "b", "c", "y"]);
    check(&["1", "2", "3"], &["a", "3", "b", "1"], &["2", "a", "3", "b", "1"]);
}

#[test]
fn defaulted_keys_tell_items_apart() {
    let ports = |ports: Value| json!({"containers": [{"name": "a", "ports": ports}]});
    let story = Story::default()
        .update_spec("u", &ports(json!([{"port": 80, "protocol": "TCP"}, {"port": 80, "protocol": "UDP"}])))
        .apply_spec("m", &ports(json!([{"port": 80, "name": "web"}])));
    assert_eq!(
        story.spec(),
        ports(json!([{"port": 80, "protocol": "TCP", "name": "web"}, {"port": 80, "protocol": "UDP"}]))
    );
}

#[test]
fn items_that_look_alike_are_left_alone() {
    let alike =
        json!({"containers": [{"name": "a", "image": "1"}, {"name": "a", "image": "2"}, {"name": "b"}]});
    let story = Story::default().update_spec("u", &alike);
    story.clone().apply_spec("m", &json!({"containers": [{"name": "b", "image": "3"}]})).is(
        &json!({"containers": [{"name": "a", "image": "1"}, {"name": "a", "image": "2"}, {"name": "b", "image": "3"}]}),
        &[
            r#"m Apply: .spec.containers[name="b"] .spec.containers[name="b"].image .spec.containers[name="b"].name"#,
            r#"u Update: .spec.containers[name="a"] .spec.containers[name="b"] .spec.containers[name="b"].name"#,
        ],
    );
    // Who applies such an item takes all of them, and leaves one.
    let config = json!({"containers": [{"name": "a", "image": "3"}]});
    story.clone().conflicts("m", &config, &[r#"conflict with "u" using v1 on .spec.containers[name="a"]"#]);
    story.force("m", &spec(&config)).is(
        &json!({"containers": [{"name": "a", "image": "3"}, {"name": "b"}]}),
        &[
            r#"m Apply: .spec.containers[name="a"] .spec.containers[name="a"].image .spec.containers[name="a"].name"#,
            r#"u Update: .spec.containers[name="b"] .spec.containers[name="b"].name"#,
        ],
    );
}

#[track_caller]
fn check_faults(config: &Value, expected: &str) {
    let error = Story::default().try_apply("m", config, OnConflict::Force).unwrap_err();
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, ApplyError::Config(_)), "{error:?}");
}

#[test]
fn faults_of_configurations() {
    check_faults(
        &spec(&json!({"containers": [{"name": "a"}, {"name": "a"}]})),
        r#".spec.containers: duplicate entries for key [name="a"]"#,
    );
    check_faults(
        &json!({"metadata": {"finalizers": ["a", "b", "a"]}}),
        r#".metadata.finalizers: duplicate entries for key [="a"]"#,
    );
    check_faults(
        &spec(
            &json!({"containers": [{"name": "a", "ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}]}),
        ),
        r#".spec.containers[name="a"].ports: duplicate entries for key [port=1,protocol="TCP"]"#,
    );
    check_faults(
        &spec(&json!({"containers": [{"image": "a"}]})),
        r#".spec.containers: element 0: associative list with keys has an element that omits all key fields ["name"] (and doesn't have default values for any key fields)"#,
    );
    check_faults(
        &spec(&json!({"containers": [null]})),
        ".spec.containers: element 0: associative list with keys may not have a null element",
    );
    check_faults(&spec(&json!({"unheard": 1})), ".spec.unheard: field not declared in schema");
    check_faults(
        &json!({"metadata": {"finalizers": [null]}, "spec": {"containers": ["a"]}}),
        "errors:\n  .metadata.finalizers: element 0: associative list without keys has an element that's an explicit null\n  .spec.containers: element 0: associative list with keys may not have non-map elements",
    );
    let many: Vec<_> = (0..100).map(|_| json!({"name": "a"})).collect();
    let error =
        Story::default().try_apply("m", &spec(&json!({"containers": many})), OnConflict::Force).unwrap_err();
    assert_eq!(error.to_string().lines().count(), 51, "faults are listed up to a bound");
}

#[test]
fn an_object_no_one_owns_gets_an_owner_before_the_first_apply() {
    let mut story =
        Story { object: Some(spec(&json!({"replicas": 1, "template": {"mode": "x"}}))), ..Story::default() };
    story.clone().conflicts(
        "m",
        &json!({"replicas": 2}),
        &[r#"conflict with "before-first-apply" using v1 on .spec.replicas"#],
    );
    let same = story.try_apply("m", &spec(&json!({"replicas": 1})), OnConflict::Refuse).unwrap();
    assert!(same.changed);
    story.apply_spec("m", &json!({"replicas": 1})).is(
        &json!({"replicas": 1, "template": {"mode": "x"}}),
        &[
            "m Apply: .spec.replicas",
            "before-first-apply Update: .spec.replicas .spec.template .spec.template.mode",
        ],
    );
}
