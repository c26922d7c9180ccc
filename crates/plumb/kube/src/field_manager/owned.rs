//! Whether an object is as its manager wants it, judged by the fields that the server says the manager owns.
//!
//! That takes no schema: which lists are merged, and by which keys, shows in the paths of the owned fields. What cannot be
//! judged counts as different, which costs a request that changes nothing. Source: KEP-555, and the format of `fieldsV1`
//! in apimachinery, `meta/v1.FieldsV1`.

use serde_json::{Map, Value};

/// Fields of the metadata that can be owned; the rest is the server's, or names the object.
const OWNED_METADATA: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// What a manager owns by applying, of an object itself or of a subresource. None if the object was read without its
/// managers; `{}` if the manager owns nothing.
pub(super) fn owned_fields(live: &Value, manager: &str, subresource: Option<&str>) -> Option<Value> {
    let managers = live["metadata"]["managedFields"].as_array().filter(|managers| !managers.is_empty())?;
    let ours = managers.iter().find(|one| {
        one["manager"] == manager
            && one["operation"] == "Apply"
            && one["subresource"].as_str().unwrap_or_default() == subresource.unwrap_or_default()
    });
    Some(ours.map_or_else(|| Value::Object(Map::new()), |one| one["fieldsV1"].clone()))
}

/// The configuration to be applied, of an object as its kind is written: without what the server sets.
pub(super) fn configuration(mut object: Value, api_version: &str, kind: &str) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| {
            OWNED_METADATA.contains(&key.as_str()) || matches!(&**key, "name" | "namespace")
        });
    }
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object
}

/// Whether applying `configuration` would change nothing: its fields are those that are owned, and have their values in
/// `live`.
pub(super) fn is_in_force(owned: &Value, configuration: &Value, live: &Value) -> bool {
    let Some(mut wanted) = configuration.as_object().cloned() else { return false };
    wanted.retain(|key, _| key != "apiVersion" && key != "kind");
    if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| OWNED_METADATA.contains(&key.as_str()));
        if metadata.is_empty() {
            wanted.remove("metadata");
        }
    }
    let Some(owned) = owned.as_object() else { return false };
    if owned.is_empty() || wanted.is_empty() {
        return owned.is_empty() && wanted.is_empty();
    }
    fits(owned, &Value::Object(wanted), live)
}

/// Judges a value by the fields that are owned of it.
fn fits(owned: &Map<String, Value>, wanted: &Value, live: &Value) -> bool {
    let below = owned.iter().filter(|(path, _)| *path != ".");
    let parts = below.map(|(path, below)| path.split_once(':').zip(below.as_object()));
    let Some(parts) = parts.collect::<Option<Vec<_>>>() else { return false };
    match (wanted, live) {
        // Owned as a whole, or an empty one that others may fill: which of them does not show.
        _ if parts.is_empty() => wanted == live,
        (Value::Object(wanted), Value::Object(live)) => {
            wanted.len() == parts.len()
                && parts.iter().all(|((kind, name), below)| match (wanted.get(*name), live.get(*name)) {
                    (Some(wanted), Some(live)) => *kind == "f" && fits(below, wanted, live),
                    _ => false,
                })
        }
        (Value::Array(wanted), Value::Array(live)) => {
            wanted.len() == parts.len()
                && parts.iter().all(|((kind, name), below)| match *kind {
                    "k" => item_fits(name, below, wanted, live),
                    "v" => serde_json::from_str(name)
                        .is_ok_and(|value: Value| wanted.contains(&value) && live.contains(&value)),
                    // By its place, which says nothing about who else changed the list.
                    _ => false,
                })
        }
        _ => false,
    }
}

/// Judges one item of a list that is merged by keys.
fn item_fits(keys: &str, below: &Map<String, Value>, wanted: &[Value], live: &[Value]) -> bool {
    let Ok(keys) = serde_json::from_str::<Map<String, Value>>(keys) else { return false };
    let has = |item: &Value| keys.iter().all(|(key, value)| item.get(key) == Some(value));
    // A key that has a default need not be in what is wanted.
    let may_have =
        |item: &&Value| keys.iter().all(|(key, value)| item.get(key).is_none_or(|own| own == value));
    let mut candidates = wanted.iter().filter(may_have);
    let (Some(wanted), None) = (candidates.next(), candidates.next()) else { return false };
    let Some(live) = live.iter().find(|item| has(item)) else { return false };
    let without_defaults: Map<String, Value> = below
        .iter()
        .filter(|(path, _)| {
            let name = path.strip_prefix("f:").unwrap_or_default();
            !keys.contains_key(name) || wanted.get(name).is_some()
        })
        .map(|(path, below)| (path.clone(), below.clone()))
        .collect();
    fits(&without_defaults, wanted, live)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(owned: Value, wanted: Value, live: Value, expected: bool) {
        let wanted = configuration(wanted, "v1", "Thing");
        assert_eq!(is_in_force(&owned, &wanted, &live), expected, "{owned}\n{wanted}\n{live}");
    }

    #[test]
    fn values_and_fields_must_be_the_same() {
        let owned = json!({"f:spec": {"f:a": {}, "f:b": {}}});
        let live = json!({"spec": {"a": 1, "b": [1, 2], "others": true}, "status": {}});
        check(owned.clone(), json!({"spec": {"a": 1, "b": [1, 2]}}), live.clone(), true);
        check(owned.clone(), json!({"spec": {"a": 2, "b": [1, 2]}}), live.clone(), false);
        check(owned.clone(), json!({"spec": {"a": 1, "b": [2, 1]}}), live.clone(), false);
        check(owned.clone(), json!({"spec": {"a": 1, "b": [1, 2], "others": true}}), live.clone(), false);
        check(owned.clone(), json!({"spec": {"a": 1}}), live.clone(), false);
        check(owned.clone(), json!({}), live.clone(), false);
        check(owned, json!({"spec": {"a": 1, "b": [1, 2]}}), json!({"spec": {"b": [1, 2]}}), false);
        check(json!({}), json!({"spec": {"a": 1}}), live.clone(), false);
        check(json!({}), json!({}), live, true);
    }

    #[test]
    fn names_and_what_the_server_sets_are_not_compared() {
        let owned = json!({"f:metadata": {"f:labels": {"f:app": {}}}});
        let wanted = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": null, "labels": {"app": "x"}}});
        let live = json!({"metadata": {"name": "a", "uid": "v", "labels": {"app": "x", "other": "y"}}});
        check(owned, wanted.clone(), live.clone(), true);
        check(json!({}), json!({"metadata": {"name": "a"}}), live, true);
        let kept = configuration(wanted, "v1", "Thing");
        let expected = json!({"apiVersion": "v1", "kind": "Thing",
            "metadata": {"name": "a", "namespace": "n", "labels": {"app": "x"}}});
        assert_eq!(kept, expected);
    }

    #[test]
    fn lists_are_merged_as_ownership_says() {
        let owned = json!({"f:spec": {"f:ports": {
            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:name": {}}}}});
        let port = |port: u64, name: &str| json!({"containerPort": port, "name": name});
        let mut full = port(80, "web");
        full["protocol"] = "TCP".into();
        let live = json!({"spec": {"ports": [port(9, "others"), full.clone()]}});
        let wanted = |ports: Value| json!({"spec": {"ports": ports}});
        check(owned.clone(), wanted(json!([port(80, "web")])), live.clone(), true);
        check(owned.clone(), wanted(json!([port(80, "new")])), live.clone(), false);
        check(owned.clone(), wanted(json!([port(80, "web"), port(81, "b")])), live.clone(), false);
        check(owned.clone(), wanted(json!([port(80, "web"), port(80, "b")])), live.clone(), false);
        check(owned.clone(), wanted(json!([])), live.clone(), false);
        check(owned.clone(), wanted(json!([full])), live.clone(), false);
        check(
            owned,
            wanted(json!([port(80, "web")])),
            json!({"spec": {"ports": [port(9, "others")]}}),
            false,
        );
    }

    #[test]
    fn sets_and_empty_values() {
        let owned = json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"a\"": {}}}});
        let with = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
        check(owned.clone(), with(json!(["a"])), with(json!(["b", "a"])), true);
        check(owned.clone(), with(json!(["a"])), with(json!(["b"])), false);
        check(owned.clone(), with(json!(["b"])), with(json!(["b", "a"])), false);
        check(owned, with(json!(["a", "b"])), with(json!(["b", "a"])), false);
        let empty = json!({"f:spec": {}});
        check(empty.clone(), json!({"spec": {}}), json!({"spec": {}}), true);
        check(empty.clone(), json!({"spec": {}}), json!({"spec": {"others": 1}}), false);
        check(empty.clone(), json!({"spec": {}}), json!({}), false);
        check(empty, json!({"spec": {"a": 1}}), json!({"spec": {"a": 1}}), true);
        check(json!({"f:l": {"i:0": {}}}), json!({"l": [1]}), json!({"l": [1]}), false);
        check(json!({"f:a": 3}), json!({"a": 1}), json!({"a": 1}), false);
        check(json!(null), json!({"a": 1}), json!({"a": 1}), false);
    }

    #[test]
    fn the_right_owner_is_found() {
        let entry = |manager: &str, operation: &str, subresource: Option<&str>, field: &str| json!({"manager": manager, "operation": operation, "subresource": subresource, "fieldsV1": {field: {}}});
        let live = json!({"metadata": {"managedFields": [
            entry("m", "Update", None, "f:a"), entry("x", "Apply", None, "f:b"),
            entry("m", "Apply", Some("status"), "f:c"), entry("m", "Apply", None, "f:d")]}});
        assert_eq!(owned_fields(&live, "m", None), Some(json!({"f:d": {}})));
        assert_eq!(owned_fields(&live, "m", Some("status")), Some(json!({"f:c": {}})));
        assert_eq!(owned_fields(&live, "n", None), Some(json!({})));
        assert_eq!(owned_fields(&json!({"metadata": {}}), "m", None), None);
    }
}
