//! Cells of volumes and their drivers.

use jiff::Timestamp;
use serde_json::Value;

use super::{age_cell, items, text};

/// Access modes in their short form, in Kubernetes' order.
fn access_modes(modes: &Value) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.as_array().into_iter().flatten().any(|of| of == mode);
    let shown: Vec<_> = known.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect();
    shown.join(",")
}

/// The text of a field; `fallback` when it is absent.
fn or<'a>(object: &'a Value, field: &str, fallback: &'a str) -> &'a str {
    object[field].as_str().unwrap_or(fallback)
}

/// Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, Reason, Age, VolumeMode.
pub(super) fn volume(volume: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&volume["spec"], &volume["status"]);
    let claim = &spec["claimRef"];
    let claim = match claim.is_object() {
        true => format!("{}/{}", text(claim, "namespace"), text(claim, "name")),
        false => String::new(),
    };
    let phase = match volume["metadata"]["deletionTimestamp"].is_string() {
        true => "Terminating",
        false => text(status, "phase"),
    };
    vec![
        text(&spec["capacity"], "storage").into(),
        access_modes(&spec["accessModes"]).into(),
        text(spec, "persistentVolumeReclaimPolicy").into(),
        phase.into(),
        claim.into(),
        text(spec, "storageClassName").into(),
        or(spec, "volumeAttributesClassName", "<unset>").into(),
        text(status, "reason").into(),
        age_cell(volume, now),
        or(spec, "volumeMode", "<unset>").into(),
    ]
}

/// Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, VolumeMode.
pub(super) fn claim(claim: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&claim["spec"], &claim["status"]);
    let volume = text(spec, "volumeName");
    let phase = match claim["metadata"]["deletionTimestamp"].is_string() {
        true => "Terminating",
        false => text(status, "phase"),
    };
    let bound = |shown: String| if volume.is_empty() { String::new() } else { shown };
    vec![
        phase.into(),
        volume.into(),
        bound(text(&status["capacity"], "storage").to_owned()).into(),
        bound(access_modes(&status["accessModes"])).into(),
        text(spec, "storageClassName").into(),
        or(spec, "volumeAttributesClassName", "<unset>").into(),
        age_cell(claim, now),
        or(spec, "volumeMode", "<unset>").into(),
    ]
}

/// Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age.
pub(super) fn class(class: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        text(class, "provisioner").into(),
        or(class, "reclaimPolicy", "Delete").into(),
        or(class, "volumeBindingMode", "Immediate").into(),
        class["allowVolumeExpansion"].as_bool().unwrap_or_default().into(),
        age_cell(class, now),
    ]
}

/// AttachRequired, PodInfoOnMount, StorageCapacity, TokenRequests, RequiresRepublish, Modes, Age.
pub(super) fn driver(driver: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &driver["spec"];
    let is = |field: &str, unset: bool| Value::from(spec[field].as_bool().unwrap_or(unset));
    let audiences: Vec<_> = items(spec, "tokenRequests").map(|request| text(request, "audience")).collect();
    let modes: Vec<_> = items(spec, "volumeLifecycleModes").filter_map(Value::as_str).collect();
    vec![
        is("attachRequired", true),
        is("podInfoOnMount", false),
        is("storageCapacity", false),
        if audiences.is_empty() { "<unset>".into() } else { audiences.join(",").into() },
        is("requiresRepublish", false),
        modes.join(",").into(),
        age_cell(driver, now),
    ]
}

/// Drivers, Age.
pub(super) fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    vec![items(&node["spec"], "drivers").count().into(), age_cell(node, now)]
}

/// Attacher, PV, Node, Attached, Age.
pub(super) fn attachment(attachment: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &attachment["spec"];
    vec![
        text(spec, "attacher").into(),
        text(&spec["source"], "persistentVolumeName").into(),
        text(spec, "nodeName").into(),
        attachment["status"]["attached"].as_bool().unwrap_or_default().into(),
        age_cell(attachment, now),
    ]
}

/// DriverName, Age.
pub(super) fn attributes_class(class: &Value, now: Timestamp) -> Vec<Value> {
    vec![text(class, "driverName").into(), age_cell(class, now)]
}

/// State, Age.
pub(super) fn resource_claim(claim: &Value, now: Timestamp) -> Vec<Value> {
    let status = &claim["status"];
    let mut states = Vec::new();
    if claim["metadata"]["deletionTimestamp"].is_string() {
        states.push("deleted");
    }
    match (status["allocation"].is_object(), items(status, "reservedFor").next().is_some()) {
        (true, true) => states.extend(["allocated", "reserved"]),
        (true, false) => states.push("allocated"),
        _ => states.push("pending"),
    }
    vec![states.join(",").into(), age_cell(claim, now)]
}

/// Node, Driver, Pool, Age.
pub(super) fn resource_slice(slice: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &slice["spec"];
    vec![
        text(spec, "nodeName").into(),
        text(spec, "driver").into(),
        text(&spec["pool"], "name").into(),
        age_cell(slice, now),
    ]
}

/// Min Available, Max Unavailable, Allowed Disruptions, Age.
pub(super) fn disruption_budget(budget: &Value, now: Timestamp) -> Vec<Value> {
    let shown = |field: &str| match &budget["spec"][field] {
        Value::Null => "N/A".to_owned(),
        Value::String(percent) => percent.clone(),
        number => number.to_string(),
    };
    vec![
        shown("minAvailable").into(),
        shown("maxUnavailable").into(),
        budget["status"]["disruptionsAllowed"].as_i64().unwrap_or_default().into(),
        age_cell(budget, now),
    ]
}

/// Handler, Age.
pub(super) fn runtime_class(class: &Value, now: Timestamp) -> Vec<Value> {
    vec![text(class, "handler").into(), age_cell(class, now)]
}

/// Value, Global-Default, Age, PreemptionPolicy.
pub(super) fn priority_class(class: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        class["value"].as_i64().unwrap_or_default().into(),
        class["globalDefault"].as_bool().unwrap_or_default().into(),
        age_cell(class, now),
        text(class, "preemptionPolicy").into(),
    ]
}
