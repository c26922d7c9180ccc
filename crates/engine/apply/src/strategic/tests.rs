use proptest::prelude::{Just, Strategy as _, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use serde_json::{Map, Value, json};

use super::{FieldStrategy, ListMerge, MergeStrategy, strategic_merge};

/// A type like a pod: `containers` merge by name and so do their `env`; `finalizers` merge by value; `args` and
/// `tolerations` are replaced; `volumes` merge by name; `limits` is replaced as a whole.
struct Pod;

impl MergeStrategy for Pod {
    fn field(&self, name: &str) -> Option<FieldStrategy<'_>> {
        let (list, replace) = match name {
            "containers" | "env" | "volumes" => (ListMerge::ByKey("name"), false),
            "finalizers" => (ListMerge::ByValue, false),
            "args" | "tolerations" | "labels" | "strategy" => (ListMerge::Replace, false),
            "limits" => (ListMerge::Replace, true),
            _ => return None,
        };
        Some(FieldStrategy { list, replace, inner: Box::new(Pod) })
    }
}

#[track_caller]
fn check(document: Value, patch: Value, expected: Value) {
    assert_eq!(strategic_merge(document, &patch, &Pod).unwrap(), expected);
}

#[track_caller]
fn check_fault(document: Value, patch: Value, expected: &str) {
    assert_eq!(strategic_merge(document, &patch, &Pod).unwrap_err().to_string(), expected);
}

#[test]
fn maps() {
    check(
        json!({"labels": {"a": "1", "b": "2"}}),
        json!({"labels": {"a": null, "c": "3"}, "x": 1}),
        json!({"labels": {"b": "2", "c": "3"}, "x": 1}),
    );
    check(
        json!({"labels": {"a": "1"}}),
        json!({"labels": {"$patch": "replace", "b": "2"}}),
        json!({"labels": {"b": "2"}}),
    );
    check(json!({"labels": {"a": "1"}}), json!({"labels": {"$patch": "delete"}}), json!({"labels": {}}));
    check(
        json!({"labels": {"a": "1"}}),
        json!({"labels": {"$patch": "merge", "b": "2"}}),
        json!({"labels": {"a": "1", "b": "2"}}),
    );
    check(json!({"limits": {"a": "1"}}), json!({"limits": {"b": "2"}}), json!({"limits": {"b": "2"}}));
    check(json!({}), json!({"labels": {"a": null, "b": {"c": null}}}), json!({"labels": {"b": {}}}));
    check(json!({"a": 1}), json!({"a": {"b": 2}}), json!({"a": {"b": 2}}));
}

#[test]
fn lists_by_key() {
    let document =
        || json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "2"}]});
    check(
        document(),
        json!({"containers": [{"name": "a", "image": "9", "args": ["y"]}]}),
        json!({"containers": [{"name": "a", "image": "9", "args": ["y"]}, {"name": "b", "image": "2"}]}),
    );
    check(
        document(),
        json!({"containers": [{"name": "c", "image": "3"}]}),
        json!({"containers": [{"name": "c", "image": "3"}, {"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "2"}]}),
    );
    check(
        document(),
        json!({"containers": [{"name": "a", "$patch": "delete"}]}),
        json!({"containers": [{"name": "b", "image": "2"}]}),
    );
    check(
        document(),
        json!({"containers": [{"$patch": "replace"}, {"name": "z"}]}),
        json!({"containers": [{"name": "z"}]}),
    );
    check(document(), json!({"containers": null}), json!({}));
    check(
        json!({}),
        json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "b"}]}),
        json!({"containers": [{"name": "b"}]}),
    );
}

#[test]
fn order_of_lists() {
    check(
        json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "server"}]}),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
        json!({"containers": [{"name": "b"}, {"name": "a"}, {"name": "server"}]}),
    );
    check(
        json!({"containers": [{"name": "a"}, {"name": "server"}, {"name": "b"}]}),
        json!({
            "$setElementOrder/containers": [{"name": "a"}, {"name": "c"}, {"name": "b"}],
            "containers": [{"name": "c"}],
        }),
        json!({"containers": [{"name": "a"}, {"name": "c"}, {"name": "server"}, {"name": "b"}]}),
    );
    check(
        json!({"finalizers": ["a", "b"]}),
        json!({"$setElementOrder/finalizers": ["b", "c"], "finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}),
        json!({"finalizers": ["b", "c"]}),
    );
    check(json!({}), json!({"$setElementOrder/containers": [{"name": "a"}]}), json!({}));
}

#[test]
fn lists_by_value() {
    check(
        json!({"finalizers": ["a", "b"]}),
        json!({"finalizers": ["b", "c"]}),
        json!({"finalizers": ["a", "b", "c"]}),
    );
    check(
        json!({"finalizers": ["a", "b", "a"]}),
        json!({"$deleteFromPrimitiveList/finalizers": ["a"]}),
        json!({"finalizers": ["b"]}),
    );
}

#[test]
fn retained_keys() {
    check(
        json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
        json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
        json!({"strategy": {"type": "Recreate"}}),
    );
    check(
        json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        json!({"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {}, "emptyDir": null}]}),
        json!({"volumes": [{"name": "v", "secret": {}}]}),
    );
}

#[test]
fn faults() {
    check_fault(
        json!({"containers": [{"name": "a", "env": []}]}),
        json!({"containers": [{"name": "a", "env": [{"value": "x"}]}]}),
        "the strategic merge patch is invalid at \"containers[name=a].env\": an item lacks \"name\", by which items of this list are matched",
    );
    check_fault(
        json!({}),
        json!({"$patch": "overwrite"}),
        "the strategic merge patch is invalid at \".\": unknown patch type \"overwrite\": know delete, replace and merge",
    );
    check_fault(
        json!({"strategy": {}}),
        json!({"strategy": {"$retainKeys": ["a"], "b": 1}}),
        "the strategic merge patch is invalid at \"strategy\": the patch sets \"b\", which its $retainKeys does not list",
    );
    check_fault(
        json!({}),
        json!({"$setElementOrder/tolerations": []}),
        "the strategic merge patch is invalid at \"tolerations\": the list does not merge, so its order or deletions cannot be patched",
    );
    check_fault(
        json!({"containers": []}),
        json!({"containers": ["a"]}),
        "the strategic merge patch is invalid at \"containers\": items of this list must be objects",
    );
    check_fault(
        json!({}),
        json!([]),
        "the patch is malformed: a strategic merge patch of an object must be an object",
    );
}

/// The patch that turns one object into another, written as kubectl writes it.
fn diff(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in new {
        match (old.get(key), value) {
            (Some(before), value) if before == value => {}
            (Some(Value::Object(before)), Value::Object(value)) => {
                patch.insert(key.clone(), Value::Object(diff(before, value)));
            }
            (Some(Value::Array(before)), Value::Array(after)) if key == "containers" || key == "env" => {
                diff_by_key(&mut patch, key, before, after);
            }
            (Some(Value::Array(before)), Value::Array(after)) if key == "finalizers" => {
                let gone: Vec<_> = before.iter().filter(|item| !after.contains(item)).cloned().collect();
                let fresh: Vec<_> = after.iter().filter(|item| !before.contains(item)).cloned().collect();
                patch.insert(format!("$setElementOrder/{key}"), after.clone().into());
                patch.insert(format!("$deleteFromPrimitiveList/{key}"), gone.into());
                patch.insert(key.clone(), fresh.into());
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    patch.extend(old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null)));
    patch
}

fn diff_by_key(patch: &mut Map<String, Value>, key: &str, before: &[Value], after: &[Value]) {
    let find =
        |list: &[Value], item: &Value| list.iter().find(|other| other["name"] == item["name"]).cloned();
    let mut items = Vec::new();
    for item in after {
        match find(before, item) {
            Some(old) if old == *item => {}
            Some(old) => {
                let mut part = diff(old.as_object().unwrap(), item.as_object().unwrap());
                part.insert("name".to_owned(), item["name"].clone());
                items.push(Value::Object(part));
            }
            None => items.push(item.clone()),
        }
    }
    let gone = before.iter().filter(|item| find(after, item).is_none());
    items.extend(gone.map(|item| json!({"name": item["name"], "$patch": "delete"})));
    let order: Vec<_> = after.iter().map(|item| json!({"name": item["name"]})).collect();
    patch.insert(format!("$setElementOrder/{key}"), order.into());
    patch.insert(key.to_owned(), items.into());
}

fn scalar() -> impl proptest::strategy::Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        (0..3).prop_map(Value::from),
        "[a-c]".prop_map(Value::from)
    ]
}

/// Lists of objects with distinct names.
fn named(
    fields: impl proptest::strategy::Strategy<Value = Map<String, Value>>,
) -> impl proptest::strategy::Strategy<Value = Value> {
    prop::collection::btree_map("[a-e]", fields, 0..4)
        .prop_map(|items| {
            items
                .into_iter()
                .map(|(name, mut fields)| {
                    fields.insert("name".to_owned(), name.into());
                    Value::Object(fields)
                })
                .collect::<Vec<_>>()
        })
        .prop_flat_map(|items| Just(items).prop_shuffle())
        .prop_map(Value::from)
}

fn fields(
    parts: Vec<(&'static str, proptest::strategy::BoxedStrategy<Value>)>,
) -> impl proptest::strategy::Strategy<Value = Map<String, Value>> {
    let parts: Vec<_> = parts
        .into_iter()
        .map(|(name, part)| {
            prop::option::of(part).prop_map(move |part| part.map(|part| (name.to_owned(), part)))
        })
        .collect();
    parts.prop_map(|parts| parts.into_iter().flatten().collect())
}

fn pod() -> impl proptest::strategy::Strategy<Value = Value> {
    let text = || "[a-c]".prop_map(Value::from).boxed();
    let labels = || prop::collection::btree_map("[a-c]", "[x-z]", 0..3).prop_map(|of| json!(of)).boxed();
    let finalizers = prop::collection::btree_set("[a-e]", 0..4)
        .prop_map(|of| of.into_iter().collect::<Vec<_>>())
        .prop_shuffle();
    let env = named(fields(vec![("value", text())])).boxed();
    let args = prop::collection::vec("[a-c]", 0..3).prop_map(|of| json!(of)).boxed();
    let containers = named(fields(vec![("image", text()), ("env", env), ("args", args)])).boxed();
    fields(vec![
        ("labels", labels()),
        ("containers", containers),
        ("finalizers", finalizers.prop_map(|of| json!(of)).boxed()),
        ("other", scalar().boxed()),
    ])
    .prop_map(Value::Object)
}

fn anything() -> impl proptest::strategy::Strategy<Value = Value> {
    let key = prop_oneof![
        Just("containers".to_owned()),
        Just("name".to_owned()),
        Just("finalizers".to_owned()),
        Just("$patch".to_owned()),
        Just("$retainKeys".to_owned()),
        Just("$setElementOrder/containers".to_owned()),
        Just("$setElementOrder/finalizers".to_owned()),
        Just("$deleteFromPrimitiveList/finalizers".to_owned()),
        "[a-c]",
    ];
    let leaf = prop_oneof![Just(Value::Null), scalar(), Just(json!("delete")), Just(json!("replace"))];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(key.clone(), inner, 0..4).prop_map(|of| json!(of)),
        ]
    })
}

proptest! {
    /// A patch made of the difference gives the target.
    #[test]
    fn the_difference_gives_the_target(old in pod(), new in pod()) {
        let patch = Value::Object(diff(old.as_object().unwrap(), new.as_object().unwrap()));
        prop_assert_eq!(strategic_merge(old, &patch, &Pod).unwrap(), new, "patch {}", patch);
    }

    /// Nothing a client sends panics, and no directive ends up in an object.
    #[test]
    fn anything_is_answered(document in pod(), patch in anything()) {
        if let Ok(patched) = strategic_merge(document, &patch, &Pod) {
            let text = patched.to_string();
            prop_assert!(!text.contains("\"$patch\":") && !text.contains("\"$retainKeys\":"), "{}", text);
        }
    }

    /// An empty patch changes nothing.
    #[test]
    fn nothing_changes_nothing(document in pod()) {
        prop_assert_eq!(strategic_merge(document.clone(), &json!({}), &Pod).unwrap(), document);
    }
}
