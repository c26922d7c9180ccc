use super::*;
use proptest::prelude::*;

fn entry() -> Entry {
    Entry {
        run_dir: "/var/run/istio-cni".into(),
        exclude_namespaces: vec!["kube-system".into()],
        pod_namespace: "istio-system".into(),
    }
}

fn types(text: &str) -> Vec<String> {
    plugins(text).unwrap().iter().map(|p| p["type"].as_str().unwrap_or_default().to_owned()).collect()
}

const ENTRY: &str = r#"{"cni_agent_run_dir":"/var/run/istio-cni","exclude_namespaces":["kube-system"],"pod_namespace":"istio-system","type":"ambit-cni"}"#;

#[track_caller]
fn check_insert(before: &str, after: &str) {
    let inserted = insert(before, &entry()).unwrap();
    assert_eq!(inserted, after.replace("ENTRY", ENTRY));
    assert_eq!(remove(&inserted).unwrap(), before);
    assert_eq!(insert(&inserted, &entry()).unwrap(), inserted, "a second time changes nothing");
}

#[test]
fn the_entry_comes_last_and_nothing_else_changes() {
    check_insert(
        "{\n  \"plugins\": [\n    {\"type\": \"bridge\"}\n  ], \"z\": 1.0e3}\n",
        "{\n  \"plugins\": [\n    {\"type\": \"bridge\"},\n    ENTRY\n  ], \"z\": 1.0e3}\n",
    );
    check_insert(
        r#"{"plugins":[{"type":"a","x":"]},{"},{"type":"b","plugins":[1]}],"name":"\"n"}"#,
        "{\"plugins\":[{\"type\":\"a\",\"x\":\"]},{\"},{\"type\":\"b\",\"plugins\":[1]},\n    ENTRY],\"name\":\"\\\"n\"}",
    );
}

#[track_caller]
fn check_remove(before: &str, after: &str) {
    assert_eq!(remove(before).unwrap(), after);
}

#[test]
fn entries_anywhere_in_the_list_are_removed() {
    check_remove(r#"{"plugins":[ {"type":"ambit-cni"} , {"type":"b"}]}"#, r#"{"plugins":[ {"type":"b"}]}"#);
    check_remove(
        r#"{"plugins":[{"type":"a"}, {"type":"ambit-cni"}, {"type":"b"}]}"#,
        r#"{"plugins":[{"type":"a"}, {"type":"b"}]}"#,
    );
    check_remove(
        r#"{"plugins":[{"type":"ambit-cni"},{"type":"a"},{"type":"ambit-cni"}]}"#,
        r#"{"plugins":[{"type":"a"}]}"#,
    );
    check_remove(r#"{"plugins":[{"type":"a"}]}"#, r#"{"plugins":[{"type":"a"}]}"#);
}

#[track_caller]
fn check_refused(text: &str, expected: &str) {
    let error = insert(text, &entry()).expect_err(text).to_string();
    assert!(error.contains(expected), "{text}: {error}");
}

#[test]
fn what_is_not_a_list_is_refused() {
    check_refused("", "not JSON");
    check_refused("{", "not JSON");
    check_refused("[]", "no list");
    check_refused(r#"{"plugins": []}"#, "no list");
    check_refused(r#"{"plugins": {"type": "a"}}"#, "no list");
    check_refused(r#"{"plugins": [{"type": "ambit-cni"}]}"#, "no list");
    check_refused(r#"{"type": "bridge"}"#, "single plugin");
}

#[test]
fn a_list_of_ones_own_has_the_plugins_in_order() {
    let list = render("ambit", &[json!({"type": "bridge"}), entry().to_value()]);
    assert_eq!(types(&list), ["bridge", "ambit-cni"]);
    let value: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&value["name"], &value["cniVersion"]), (&json!("ambit"), &json!("1.0.0")));
    assert_eq!(types(&remove(&list).unwrap()), ["bridge"]);
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~\u{e9}\"\\\\\n]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"{}\\[\\],:]{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn an_edit_and_its_undo_give_back_every_byte(
        others in prop::collection::vec(json_value(), 1..4),
        extra in prop::collection::btree_map("[a-z]{1,6}", json_value(), 0..4),
        compact in any::<bool>(),
    ) {
        let mut list: serde_json::Map<String, Value> = extra.into_iter().collect();
        list.insert("plugins".into(), Value::from(others));
        let list = Value::Object(list);
        let text = if compact { list.to_string() } else { format!("{list:#}") };
        let inserted = insert(&text, &entry()).unwrap();
        let last = plugins(&inserted).unwrap().pop();
        prop_assert_eq!(last, Some(entry().to_value()));
        prop_assert_eq!(remove(&inserted).unwrap(), text);
    }

    #[test]
    fn no_text_makes_an_edit_panic(text in "[\\[\\]{}\",:a-z0-9\\\\ ]{0,40}", tail in ".{0,20}") {
        let _ = insert(&text, &entry());
        let _ = insert(&format!("{{\"plugins\":[{text}]{tail}"), &entry());
    }
}
