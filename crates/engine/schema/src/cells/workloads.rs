//! Cells of workloads that keep pods.

use jiff::Timestamp;
use serde_json::Value;

use super::{age_cell, entries, items, or_none, text};

fn count(object: &Value, field: &str) -> i64 {
    object[field].as_i64().unwrap_or_default()
}

/// Ready, Up-to-date, Available, Age, Containers, Images, Selector.
pub(super) fn deployment(deployment: &Value, now: Timestamp) -> Vec<Value> {
    let status = &deployment["status"];
    let mut cells: Vec<Value> = vec![
        format!("{}/{}", count(status, "readyReplicas"), count(&deployment["spec"], "replicas")).into(),
        count(status, "updatedReplicas").into(),
        count(status, "availableReplicas").into(),
        age_cell(deployment, now),
    ];
    cells.extend(template_cells(deployment));
    cells
}

/// Desired, Current, Ready, Age, Containers, Images, Selector.
pub(super) fn replica_set(set: &Value, now: Timestamp) -> Vec<Value> {
    let status = &set["status"];
    let mut cells: Vec<Value> = vec![
        count(&set["spec"], "replicas").into(),
        count(status, "replicas").into(),
        count(status, "readyReplicas").into(),
        age_cell(set, now),
    ];
    cells.extend(template_cells(set));
    cells
}

fn template_cells(object: &Value) -> [Value; 3] {
    let containers = &object["spec"]["template"]["spec"];
    let joined =
        |field| items(containers, "containers").map(|of| text(of, field)).collect::<Vec<_>>().join(",");
    [joined("name").into(), joined("image").into(), label_selector(&object["spec"]["selector"]).into()]
}

/// A label selector as text, sorted by key.
fn label_selector(selector: &Value) -> String {
    let equal = entries(&selector["matchLabels"])
        .map(|(key, value)| (key.clone(), format!("{key}={}", value.as_str().unwrap_or_default())));
    let expressions = items(selector, "matchExpressions").map(|expression| {
        let key = text(expression, "key");
        let values: Vec<_> = items(expression, "values").filter_map(Value::as_str).collect();
        let values = values.join(",");
        let text = match text(expression, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        (key.to_owned(), text)
    });
    let mut parts: Vec<_> = equal.chain(expressions).collect();
    parts.sort();
    let parts: Vec<_> = parts.into_iter().map(|(_, text)| text).collect();
    or_none(&parts.join(",")).to_owned()
}
