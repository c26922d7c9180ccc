//! Cells of the cluster's own kinds.

use jiff::Timestamp;
use serde_json::Value;

use super::{age, age_cell, entries, items, or_none, text};

/// Label prefix that gives a node a role.
const NODE_ROLE: &str = "node-role.kubernetes.io/";
/// Label that gives a node its one role, in the old way.
const NODE_ROLE_OLD: &str = "kubernetes.io/role";

/// Status, Age.
pub(super) fn namespace(namespace: &Value, now: Timestamp) -> Vec<Value> {
    vec![text(&namespace["status"], "phase").into(), age_cell(namespace, now)]
}

/// Status, Roles, Age, Version, Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime.
pub(super) fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let info = &node["status"]["nodeInfo"];
    let or_unknown = |field| match text(info, field) {
        "" => Value::from("<unknown>"),
        known => known.into(),
    };
    vec![
        node_status(node).into(),
        node_roles(node).into(),
        age_cell(node, now),
        text(info, "kubeletVersion").into(),
        node_address(node, "InternalIP").into(),
        node_address(node, "ExternalIP").into(),
        or_unknown("osImage"),
        or_unknown("kernelVersion"),
        or_unknown("containerRuntimeVersion"),
    ]
}

fn node_status(node: &Value) -> String {
    let ready = items(&node["status"], "conditions").find(|condition| text(condition, "type") == "Ready");
    let word = match ready.map(|condition| text(condition, "status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = if node["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
    format!("{word}{cordoned}")
}

fn node_roles(node: &Value) -> String {
    let role = |(key, value): (&String, &Value)| match key.strip_prefix(NODE_ROLE) {
        Some(role) => Some(role.to_owned()),
        None if key == NODE_ROLE_OLD => value.as_str().map(str::to_owned),
        None => None,
    };
    let mut roles: Vec<String> =
        entries(&node["metadata"]["labels"]).filter_map(role).filter(|role| !role.is_empty()).collect();
    roles.sort();
    roles.dedup();
    or_none(&roles.join(",")).to_owned()
}

fn node_address<'a>(node: &'a Value, kind: &str) -> &'a str {
    let address = items(&node["status"], "addresses").find(|address| text(address, "type") == kind);
    or_none(address.map_or("", |address| text(address, "address")))
}

fn entry_count(value: &Value) -> usize {
    entries(value).count()
}

/// Data, Age.
pub(super) fn config_map(map: &Value, now: Timestamp) -> Vec<Value> {
    vec![(entry_count(&map["data"]) + entry_count(&map["binaryData"])).into(), age_cell(map, now)]
}

/// Type, Data, Age.
pub(super) fn secret(secret: &Value, now: Timestamp) -> Vec<Value> {
    vec![text(secret, "type").into(), entry_count(&secret["data"]).into(), age_cell(secret, now)]
}

/// Secrets, Age.
pub(super) fn service_account(account: &Value, now: Timestamp) -> Vec<Value> {
    vec![items(account, "secrets").count().into(), age_cell(account, now)]
}

/// Holder, Age.
pub(super) fn lease(lease: &Value, now: Timestamp) -> Vec<Value> {
    vec![text(&lease["spec"], "holderIdentity").into(), age_cell(lease, now)]
}

/// Created At.
pub(super) fn definition(definition: &Value, _now: Timestamp) -> Vec<Value> {
    vec![definition["metadata"]["creationTimestamp"].clone()]
}

/// Columns of Events beside the name.
pub(super) const EVENT_COLUMNS: &[&str] =
    &["Last Seen", "Type", "Reason", "Object", "*Subobject", "*Source", "Message", "*First Seen", "*Count"];

/// Last Seen, Type, Reason, Object, Subobject, Source, Message, First Seen, Count; of both Event kinds.
pub(super) fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    let either =
        |new: &str, old: &str| if event[new].is_null() { event[old].clone() } else { event[new].clone() };
    let about = either("regarding", "involvedObject");
    let source = either("deprecatedSource", "source");
    let count = either("deprecatedCount", "count");
    let last = either("deprecatedLastTimestamp", "lastTimestamp");
    let first = either("deprecatedFirstTimestamp", "firstTimestamp");
    let first_seen = first.as_str().unwrap_or(text(event, "eventTime")).to_owned();
    let series = &event["series"];
    let last_seen = match (series.is_object(), last.as_str()) {
        (true, _) => text(series, "lastObservedTime").to_owned(),
        (false, Some(last)) => last.to_owned(),
        (false, None) => first_seen.clone(),
    };
    let count = if series.is_object() { series["count"].clone() } else { count };
    let kind = text(&about, "kind").to_lowercase();
    let object = match text(&about, "name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let message = text(event, if event["note"].is_null() { "message" } else { "note" }).trim();
    vec![
        age::since(&last_seen, now).into(),
        text(event, "type").into(),
        text(event, "reason").into(),
        object.into(),
        text(&about, "fieldPath").into(),
        source_text(event, &source).into(),
        message.into(),
        age::since(&first_seen, now).into(),
        count.as_i64().unwrap_or(1).into(),
    ]
}

fn source_text(event: &Value, source: &Value) -> String {
    let reporter = match text(event, "reportingController") {
        "" => text(event, "reportingComponent"),
        controller => controller,
    };
    let component = if text(source, "component").is_empty() { reporter } else { text(source, "component") };
    match text(source, "host") {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}
