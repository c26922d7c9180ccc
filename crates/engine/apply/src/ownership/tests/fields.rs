//! Field sets: what a value sets, how sets are stored, spelt and combined.

use serde_json::{Value, json};

use super::{thing, with_spec};
use crate::ownership::{FieldSet, PathElement};

#[track_caller]
fn check_of(spec: &Value, expected: &[&str]) {
    let set = FieldSet::of(&with_spec(spec), &thing());
    let below = set.below(&PathElement::Field("spec".to_owned())).cloned().unwrap_or_default();
    assert_eq!(below.spelt(), expected, "{spec}");
}

#[test]
fn what_a_value_sets() {
    check_of(&json!({"replicas": 1}), &[".replicas"]);
    check_of(&json!({"replicas": null}), &[".replicas"]);
    check_of(&json!({"selector": {"a": {"b": 1}}}), &[".selector"]);
    check_of(&json!({"selector": {}}), &[".selector"]);
    // A struct is owned through its fields, or itself when it has none.
    check_of(&json!({"template": {"mode": "x"}}), &[".template.mode"]);
    check_of(&json!({"template": {}}), &[".template"]);
    check_of(&json!({"template": null}), &[".template"]);
    // Entries of maps and items of lists are owned themselves too.
    check_of(&json!({"nested": {"a": {"b": 1}}}), &[".nested.a", ".nested.a.b"]);
    check_of(&json!({"nested": {}}), &[".nested"]);
    check_of(&json!({"free": {"a": [1, {"b": 2}], "c": {"d": 3}}}), &[".free.a", ".free.c", ".free.c.d"]);
    check_of(&json!({"containers": []}), &[]);
    check_of(
        &json!({"containers": [{"name": "a", "args": ["-x"], "ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]}]}),
        &[
            r#".containers[name="a"]"#,
            r#".containers[name="a"].args"#,
            r#".containers[name="a"].name"#,
            r#".containers[name="a"].ports[port=80,protocol="TCP"]"#,
            r#".containers[name="a"].ports[port=80,protocol="UDP"]"#,
            r#".containers[name="a"].ports[port=80,protocol="TCP"].port"#,
            r#".containers[name="a"].ports[port=80,protocol="UDP"].port"#,
            r#".containers[name="a"].ports[port=80,protocol="UDP"].protocol"#,
        ],
    );
    // Items that look alike are one field without parts.
    check_of(
        &json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}, {"name": "a", "image": "2"}]}),
        &[r#".containers[name="a"]"#, r#".containers[name="b"]"#, r#".containers[name="b"].name"#],
    );
    let finalizers = json!({"metadata": {"finalizers": ["b", "a"]}});
    assert_eq!(
        FieldSet::of(&finalizers, &thing()).spelt(),
        [r#".metadata.finalizers[="a"]"#, r#".metadata.finalizers[="b"]"#]
    );
}

#[track_caller]
fn check_form(stored: &str, expected: &[&str]) {
    let value: Value = serde_json::from_str(stored).unwrap();
    let set = FieldSet::from_fields_v1(&value).unwrap();
    assert_eq!(set.spelt(), expected);
    assert_eq!(set.to_fields_v1().to_string(), stored);
}

#[test]
fn stored_form() {
    check_form("{}", &[]);
    check_form(r#"{"f:spec":{"f:replicas":{}}}"#, &[".spec.replicas"]);
    check_form(
        r#"{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}"#,
        &[".metadata.labels", ".metadata.labels.app"],
    );
    check_form(
        r#"{"f:p":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{}}}}"#,
        &[r#".p[containerPort=80,protocol="TCP"]"#, r#".p[containerPort=80,protocol="TCP"].name"#],
    );
    check_form(
        r#"{"f:s":{"v:\"a\"":{},"v:1":{},"v:1.5":{},"v:true":{}}}"#,
        &[".s[=1]", ".s[=1.5]", r#".s[="a"]"#, ".s[=true]"],
    );
    check_form(r#"{"f:s":{"i:3":{}}}"#, &[".s[3]"]);
    // Go escapes these in JSON.
    check_form(r#"{"f:s":{"v:\"a\\u003cb\\u0026\"":{}}}"#, &[r#".s[="a<b&"]"#]);
    // A name may have anything in it.
    check_form(r#"{"f:a.b/c:\"d":{}}"#, &[r#".a.b/c:"d"#]);
}

#[track_caller]
fn check_malformed(stored: &Value, expected: &str) {
    assert_eq!(FieldSet::from_fields_v1(stored).unwrap_err().to_string(), expected);
}

#[test]
fn malformed_form() {
    let step = |step: &str, what: &str| {
        format!("the fieldsV1 of metadata.managedFields has the step {step}: {what}")
    };
    check_malformed(&json!([]), &step("[]", "it must be an object"));
    check_malformed(&json!({"f:a": 1}), &step("1", "it must be an object"));
    check_malformed(&json!({"f": {}}), &step("f", "it has no colon"));
    check_malformed(&json!({"field:a": {}}), &step("field:a", "the colon is not its second character"));
    check_malformed(&json!({"i:x": {}}), &step("i:x", "it is no whole number"));
    check_malformed(&json!({"v:": {}}), &step("v:", "EOF while parsing a value at line 1 column 0"));
    check_malformed(&json!({"v:1 2": {}}), &step("v:1 2", "trailing characters at line 1 column 3"));
    check_malformed(
        &json!({"k:[]": {}}),
        &step("k:[]", "invalid type: sequence, expected a map at line 1 column 0"),
    );
    // Kinds of steps that are not known are dropped, and what is left may be the field around them.
    let set = FieldSet::from_fields_v1(&json!({"f:a": {"x:new": {}}, "x:new": {"anything": 1}})).unwrap();
    assert_eq!(set.spelt(), [".a"]);
}

fn read(stored: &Value) -> FieldSet {
    FieldSet::from_fields_v1(stored).unwrap()
}

#[test]
fn combinations() {
    let one = read(&json!({"f:a": {".": {}, "f:b": {}}, "f:c": {"f:d": {}}}));
    let two = read(&json!({"f:a": {}, "f:c": {"f:d": {}, "f:e": {}}, "f:g": {}}));
    assert_eq!(one.clone().union(&two).spelt(), [".a", ".g", ".a.b", ".c.d", ".c.e"]);
    assert_eq!(one.intersection(&two).spelt(), [".a", ".c.d"]);
    // A field goes alone; only a recursive difference takes what is inside it.
    assert_eq!(one.difference(&two).spelt(), [".a.b"]);
    assert!(one.without(&two).is_empty());
    assert_eq!(two.without(&one).spelt(), [".g", ".c.e"]);
    assert_eq!(one.leaves().spelt(), [".a.b", ".c.d"]);
    assert_eq!((one.len(), two.len(), FieldSet::default().len()), (3, 4, 0));
}

#[test]
fn numbers_compare_by_amount() {
    let value = |json: &str| PathElement::Value(serde_json::from_str(json).unwrap());
    assert_eq!(value("1"), value("1.0"));
    assert!(value("2") < value("10"));
    assert!(value("-1") < value("0.5"));
    assert!(value("0.5") < value("1"));
    assert!(value("18446744073709551615") > value("9223372036854775807"));
    assert!(value("1e40") > value("18446744073709551615"));
    // Not equal, though they are as floats.
    assert!(value("9007199254740993") > value("9007199254740992.0"));
    assert!(value("9999999") < value(r#""0""#), "numbers come before strings");
}
