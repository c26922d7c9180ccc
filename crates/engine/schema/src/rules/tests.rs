use serde_json::{Value, json};

use super::*;
use crate::fault::FieldFault;

fn schema(rules: &Value) -> Value {
    json!({"type": "object", "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "maxReplicas": {"type": "integer"},
                "name": {"type": "string"},
                "names": {"type": "array", "items": {"type": "string"}},
            },
            "x-kubernetes-validations": rules,
        },
    }})
}

fn widget() -> (String, &'static str, &'static str) {
    ("example.com/v1".to_owned(), "example.com", "Widget")
}

fn check_object(rules: &Value, objects: (Option<&Value>, &Value), faults: &mut Faults) {
    let schema = schema(rules);
    RuleSet::of(&schema, widget()).check(&schema, objects, faults);
}

/// The faults of an object with this spec that replaces another, as text.
#[track_caller]
fn check(rules: &Value, (old, new): (Option<&Value>, &Value), expected: &[&str]) {
    let of = |spec: &Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "spec": spec});
    let mut faults = Faults::default();
    check_object(rules, (old.map(of).as_ref(), &of(new)), &mut faults);
    let texts: Vec<String> = faults.into_vec().iter().map(FieldFault::to_string).collect();
    assert_eq!(texts, expected, "{rules} {old:?} {new}");
}

#[test]
fn objects_are_held_to_the_rules() {
    let rules = json!([{"rule": "self.replicas <= self.maxReplicas", "message": "too many replicas"}]);
    check(&rules, (None, &json!({"replicas": 1, "maxReplicas": 2})), &[]);
    check(
        &rules,
        (None, &json!({"replicas": 3, "maxReplicas": 2})),
        &["spec: Invalid value: too many replicas"],
    );
    let told = json!([{"rule": "self.replicas > 0", "messageExpression": "'replicas is ' + string(self.replicas)",
        "reason": "FieldValueForbidden", "fieldPath": ".replicas"}]);
    check(&told, (None, &json!({"replicas": 0})), &["spec.replicas: Forbidden: replicas is 0"]);
    let own = json!([{"rule": "self.names.all(n, n.startsWith('a'))"}]);
    check(&own, (None, &json!({"names": ["ab", "ac"]})), &[]);
    check(
        &own,
        (None, &json!({"names": ["ab", "b"]})),
        &["spec: Invalid value: failed rule: self.names.all(n, n.startsWith('a'))"],
    );
}

#[test]
fn transitions_are_judged_when_there_is_an_old_value() {
    let rules = json!([{"rule": "self.name == oldSelf.name", "message": "name is immutable"}]);
    check(&rules, (None, &json!({"name": "a"})), &[]);
    check(&rules, (Some(&json!({"name": "a"})), &json!({"name": "a", "replicas": 1})), &[]);
    check(
        &rules,
        (Some(&json!({"name": "a"})), &json!({"name": "b"})),
        &["spec: Invalid value: name is immutable"],
    );
}

#[test]
fn what_was_wrong_before_and_has_not_changed_is_let_be() {
    let rules = json!([{"rule": "self.replicas > 0", "message": "none"}]);
    let wrong = json!({"replicas": 0});
    check(&rules, (Some(&wrong), &wrong), &[]);
    check(&rules, (Some(&wrong), &json!({"replicas": 0, "name": "x"})), &["spec: Invalid value: none"]);
    // Told at a place that has not changed, while the one that the rule is about has.
    let pointing =
        json!([{"rule": "self.replicas <= self.maxReplicas", "message": "many", "fieldPath": ".replicas"}]);
    check(
        &pointing,
        (Some(&json!({"replicas": 2, "maxReplicas": 3})), &json!({"replicas": 2, "maxReplicas": 1})),
        &["spec.replicas: Invalid value: many"],
    );
}

#[test]
fn a_rule_that_fails_on_an_object_refuses_it_and_says_why() {
    let rules = json!([{"rule": "self.names[7] == 'x'"}]);
    let mut faults = Faults::default();
    check_object(&rules, (None, &json!({"spec": {"names": []}})), &mut faults);
    let text = faults.into_vec()[0].to_string();
    assert!(
        text.starts_with("spec: Invalid value: rule \"self.names[7] == 'x'\" cannot be evaluated"),
        "{text}"
    );
}

/// The faults of a definition with one rule.
#[track_caller]
fn check_definition(rule: &Value, expected: &[&str]) {
    let mut faults = Faults::default();
    super::check(&Path::Root, &schema(&json!([rule])), &mut faults);
    let texts: Vec<String> = faults.into_vec().iter().map(FieldFault::to_string).collect();
    assert_eq!(texts.len(), expected.len(), "{texts:?}");
    for (text, expected) in texts.iter().zip(expected) {
        assert!(text.starts_with(expected), "{text} does not start with {expected}");
    }
}

#[test]
fn a_definition_is_held_to_what_can_be_evaluated() {
    const AT: &str = "properties[spec].x-kubernetes-validations[0]";
    let at = |rest: &str| format!("{AT}.{rest}");
    check_definition(&json!({"rule": "self.replicas > 0"}), &[]);
    check_definition(&json!({}), &[&at("rule: Required value")]);
    check_definition(
        &json!({"rule": "self.replicas >"}),
        &[&at("rule: Invalid value: \"self.replicas >\": compilation failed")],
    );
    check_definition(
        &json!({"rule": "cel.bind(x, self.replicas, x > 0)"}),
        &[&at(
            "rule: Invalid value: \"cel.bind(x, self.replicas, x > 0)\": compilation failed: bind is not supported",
        )],
    );
    for accepted in [
        "self.names.all(a, self.names.exists_one(b, a == b))",
        "self.names.map(name, size(name)).filter(length, length > 3).all(object, object > 4)",
        "type(self.replicas) == int && !has(self.name) || {'a': self.name}.exists(key, key == 'a')",
        "oldSelf.replicas <= self.replicas && optional.of(self.name).hasValue()",
    ] {
        check_definition(&json!({"rule": accepted}), &[]);
    }
    for (unknown, rule) in [
        ("request", "request.userInfo.username == 'a'"),
        ("replicas", "replicas > 0"),
        ("name", "self.names.exists(name, name == 'a') && name == 'b'"),
        ("authorizer", "authorizer.group('').check('get').allowed()"),
        ("object", "self.names.all(a, [a, {'b': object.b}].size() == 1)"),
    ] {
        let refused = format!("compilation failed: undeclared reference to '{unknown}'");
        check_definition(
            &json!({"rule": rule}),
            &[&at(&format!("rule: Invalid value: {rule:?}: {refused}"))],
        );
    }
    check_definition(
        &json!({"rule": "true", "messageExpression": "'a' +"}),
        &[&at("messageExpression: Invalid value")],
    );
    check_definition(&json!({"rule": "true", "message": "a\nb"}), &[&at("message: Invalid value")]);
    check_definition(&json!({"rule": "true", "reason": "Bad"}), &[&at("reason: Unsupported value")]);
    let long = "x".repeat(RULE_BYTES_MAX + 1);
    check_definition(&json!({"rule": long}), &[&at("rule: Invalid value")]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(128))]

    #[test]
    fn inv_08_no_rule_panics(rule in "(self|oldSelf|\\.|names|\\[|\\]|0|'|all|\\(|\\)|x|,| |\\+|==|\\?|!|-|1e9|has){0,12}", name in ".{0,8}") {
        let _ = compile(&rule);
        let mut faults = Faults::default();
        let object = json!({"spec": {"name": name, "names": [name], "replicas": 1}});
        check_object(&json!([{"rule": rule}]), (Some(&object), &object), &mut faults);
    }
}
