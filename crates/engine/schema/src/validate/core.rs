//! Validation of the small kinds of the core group and of leases. Source: Kubernetes
//! `pkg/apis/core/validation/validation.go`, `pkg/apis/coordination/validation/validation.go`.

use serde_json::Value;

use super::names;
use super::{items, text};
use crate::fault::Faults;
use crate::path::Path;

/// Bytes of all values of a ConfigMap or Secret together, at most.
const DATA_BYTES_MAX: usize = 1024 * 1024;

fn keys(object: &Value, field: &str, faults: &mut Faults) {
    for (key, _) in object[field].as_object().into_iter().flatten() {
        if let Err(message) = names::config_key(key) {
            faults.invalid(&Path::Root.field(field).key(key), key.as_str(), message);
        }
    }
}

fn bytes(object: &Value, field: &str, in_base64: bool) -> usize {
    let values = object[field].as_object().into_iter().flatten();
    let length = |text: &str| if in_base64 { text.trim_end_matches('=').len() * 3 / 4 } else { text.len() };
    values.filter_map(|(_, value)| value.as_str()).map(length).sum()
}

/// Checks a ConfigMap.
pub(super) fn config_map(object: &Value, path: &Path<'_>, faults: &mut Faults) {
    keys(object, "data", faults);
    keys(object, "binaryData", faults);
    for (key, _) in object["binaryData"].as_object().into_iter().flatten() {
        if object["data"].get(key).is_some() {
            faults.invalid(
                &path.field("data").key(key),
                key.as_str(),
                format!("duplicate of key present in data: {key}"),
            );
        }
    }
    if bytes(object, "data", false) + bytes(object, "binaryData", true) > DATA_BYTES_MAX {
        faults.too_long(path, DATA_BYTES_MAX);
    }
}

/// Checks a Secret: its keys, its size, and what its type demands.
pub(super) fn secret(object: &Value, path: &Path<'_>, faults: &mut Faults) {
    keys(object, "data", faults);
    let data = path.field("data");
    if bytes(object, "data", true) > DATA_BYTES_MAX {
        faults.too_long(&data, DATA_BYTES_MAX);
    }
    let demanded: &[&str] = match text(object, "type") {
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if text(&object["metadata"]["annotations"], key).is_empty() {
                faults.required(&path.field("metadata").field("annotations").key(key), "");
            }
            &[]
        }
        "kubernetes.io/basic-auth" => {
            if object["data"].get("username").is_none() && object["data"].get("password").is_none() {
                faults.required(&data.key("username"), "");
                faults.required(&data.key("password"), "");
            }
            &[]
        }
        _ => &[],
    };
    for key in demanded.iter().filter(|key| object["data"].get(**key).is_none()) {
        faults.required(&data.key(key), "");
    }
}

/// Data that was once marked immutable stays, and so does the mark.
pub(super) fn immutable_data_update(new: &Value, old: &Value, faults: &mut Faults) {
    if old["immutable"] != true {
        return;
    }
    let message = "field is immutable when `immutable` is set";
    if new["immutable"] != true {
        faults.forbidden(&Path::Root.field("immutable"), message);
    }
    for field in ["data", "binaryData"] {
        if new[field] != old[field] {
            faults.forbidden(&Path::Root.field(field), message);
        }
    }
}

/// A Secret also keeps its type.
pub(super) fn secret_update(new: &Value, old: &Value, faults: &mut Faults) {
    if new["type"] != old["type"] {
        faults.invalid(&Path::Root.field("type"), new["type"].clone(), "field is immutable");
    }
    immutable_data_update(new, old, faults);
}

/// Checks the spec of a Lease.
pub(super) fn lease_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
        faults.invalid(&path.field("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    if let Some(count) = spec["leaseTransitions"].as_i64().filter(|count| *count < 0) {
        faults.invalid(&path.field("leaseTransitions"), count, "must be greater than or equal to 0");
    }
}

/// Checks an Event: it stands in the namespace of what it is about; about cluster-scoped objects, in `default`.
pub(super) fn event(event: &Value, path: &Path<'_>, faults: &mut Faults) {
    let about = text(&event["involvedObject"], "namespace");
    let namespace = text(&event["metadata"], "namespace");
    let fits = if about.is_empty() {
        matches!(namespace, "" | "default" | "kube-system")
    } else {
        about == namespace
    };
    if !fits {
        let path = path.field("involvedObject");
        faults.invalid(&path.field("namespace"), about, "does not match event.namespace");
    }
}

/// Checks a reference to an object in the same namespace.
pub(super) fn local_reference(reference: &Value, path: &Path<'_>, faults: &mut Faults) {
    if text(reference, "name").is_empty() {
        faults.required(&path.field("name"), "");
    }
}

/// Checks a Node.
pub(super) fn node(node: &Value, path: &Path<'_>, faults: &mut Faults) {
    let spec = path.field("spec");
    for (index, cidr) in items(&node["spec"], "podCIDRs") {
        let cidr = cidr.as_str().unwrap_or_default();
        if cidr.parse::<ipnet::IpNet>().is_err() {
            let message = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            faults.invalid(&spec.field("podCIDRs").index(index), cidr, message);
        }
    }
    let taints = spec.field("taints");
    for (index, taint) in items(&node["spec"], "taints") {
        let path = taints.index(index);
        if let Err(message) = names::qualified_name(text(taint, "key")) {
            faults.invalid(&path.field("key"), text(taint, "key"), message);
        }
        if let Err(message) = names::label_value(text(taint, "value")) {
            faults.invalid(&path.field("value"), text(taint, "value"), message);
        }
        let same = |other: &Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
        if items(&node["spec"], "taints").take(index).any(|(_, other)| same(other)) {
            faults.duplicate(&path, taint.clone());
        }
    }
}

/// A Node keeps the pod network and the provider's name it was given.
pub(super) fn node_update(new: &Value, old: &Value, faults: &mut Faults) {
    let spec = Path::Root.field("spec");
    for field in ["podCIDR", "podCIDRs", "providerID"] {
        let before = &old["spec"][field];
        let unset = before.is_null() || before == "";
        if !unset && new["spec"][field] != *before {
            faults
                .forbidden(&spec.field(field), format!("node updates may not change {field} once it is set"));
        }
    }
}
