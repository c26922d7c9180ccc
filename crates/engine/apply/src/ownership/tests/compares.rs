//! What changed between two objects.

use serde_json::{Value, json};

use super::{thing, with_spec};
use crate::ownership::{Comparison, FieldSet, PathElement, compare};

/// What changed in the spec: `+` added, `~` modified, `-` removed.
fn changes(old: &Value, new: &Value) -> Vec<String> {
    let Comparison { added, modified, removed } = compare(&with_spec(old), &with_spec(new), &thing());
    let list = |sign: &str, set: &FieldSet| {
        let spec = PathElement::Field("spec".to_owned());
        let below = set.below(&spec).cloned().unwrap_or_default();
        assert_eq!(below.len(), set.len(), "nothing changed but the spec");
        below.spelt().into_iter().map(|path| format!("{sign}{path}")).collect::<Vec<_>>()
    };
    [list("+", &added), list("~", &modified), list("-", &removed)].concat()
}

#[track_caller]
fn check(old: &Value, new: &Value, expected: &[&str]) {
    assert_eq!(changes(old, new), expected, "{old} to {new}");
    let mirrored: Vec<_> = {
        let turned = changes(new, old).into_iter().map(|line| match line.split_at(1) {
            ("+", path) => format!("-{path}"),
            ("-", path) => format!("+{path}"),
            _ => line,
        });
        let mut turned: Vec<_> = turned.collect();
        turned.sort();
        turned
    };
    let mut sorted: Vec<_> = expected.iter().map(|line| (*line).to_owned()).collect();
    sorted.sort();
    assert_eq!(mirrored, sorted, "{new} back to {old}");
}

#[test]
fn scalars_and_wholes() {
    check(&json!({"replicas": 1}), &json!({"replicas": 1}), &[]);
    check(&json!({"replicas": 1}), &json!({"replicas": 1.0}), &[]);
    check(&json!({"replicas": 1}), &json!({"replicas": 2}), &["~.replicas"]);
    check(&json!({"replicas": 1}), &json!({"replicas": null}), &["~.replicas"]);
    check(&json!({}), &json!({"replicas": 1}), &["+.replicas"]);
    check(&json!({"selector": {"a": 1}}), &json!({"selector": {"b": 1}}), &["~.selector"]);
    check(&json!({}), &json!({"selector": {"b": 1}}), &["+.selector"]);
    check(&json!({"free": [1]}), &json!({"free": [2]}), &["~.free"]);
}

#[test]
fn objects() {
    check(&json!({}), &json!({"template": {"mode": "x"}}), &["+.template", "+.template.mode"]);
    check(&json!({"template": {}}), &json!({"template": {"mode": "x"}}), &["+.template.mode"]);
    check(&json!({"template": null}), &json!({"template": {"mode": "x"}}), &["+.template.mode"]);
    check(&json!({"template": null}), &json!({"template": {}}), &["~.template"]);
    check(
        &json!({"nested": {"a": {"b": 1, "c": 1}}}),
        &json!({"nested": {"a": {"b": 2}, "d": {}}}),
        &["+.nested.d", "~.nested.a.b", "-.nested.a.c"],
    );
    check(&json!({"free": {"a": 1}}), &json!({"free": "x"}), &["~.free", "-.free.a"]);
    check(&json!({"free": {"a": 1}}), &json!({"free": {"a": {"b": 1}}}), &["+.free.a.b", "~.free.a"]);
}

#[test]
fn items() {
    let a1 = json!({"name": "a", "image": "1"});
    let a2 = json!({"name": "a", "image": "2"});
    let b = json!({"name": "b"});
    // The list itself is always there, so only its items come.
    check(
        &json!({}),
        &json!({"containers": [b]}),
        &[r#"+.containers[name="b"]"#, r#"+.containers[name="b"].name"#],
    );
    check(
        &json!({"containers": [a1, b]}),
        &json!({"containers": [b, a2]}),
        &[r#"~.containers[name="a"].image"#],
    );
    // Items that look alike are one field; they lose their parts when they come to be alike.
    check(&json!({"containers": [a1, a2]}), &json!({"containers": [a1, a2]}), &[]);
    check(&json!({"containers": [a1, a2]}), &json!({"containers": [a2, a1]}), &[r#"~.containers[name="a"]"#]);
    check(
        &json!({"containers": [a1]}),
        &json!({"containers": [a1, a2]}),
        &[
            r#"+.containers[name="a"]"#,
            r#"-.containers[name="a"]"#,
            r#"-.containers[name="a"].image"#,
            r#"-.containers[name="a"].name"#,
        ],
    );
}

#[test]
fn what_is_always_there_is_not_added() {
    let old = json!({});
    let new =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a"}]}, "status": {}});
    let changes = compare(&old, &new, &thing());
    assert_eq!(
        changes.added.spelt(),
        [
            ".metadata.labels",
            ".metadata.labels.a",
            r#".spec.containers[name="a"]"#,
            r#".spec.containers[name="a"].name"#
        ]
    );
    assert!(changes.modified.is_empty(), "{changes:?}");
    assert!(compare(&json!({"status": {"phase": "x"}}), &json!({}), &thing()).added.is_empty());
}
