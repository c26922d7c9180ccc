//! Objects between the version they are stored in and the version a client speaks.

use crate::object::{Object, encode};
use ambit_schema::ResourceType;
use bytes::Bytes;
use serde_json::Value;

/// Names of a core/v1 Event's fields and their names in events.k8s.io/v1. Source: k8s.io/kubernetes
/// pkg/apis/events/v1/conversion.go.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Whether objects are stored as this version has them.
pub(crate) fn is_stored_form(kind: &ResourceType) -> bool {
    kind.stored_as.version == kind.version && kind.stored_as.group == kind.group
}

/// From the stored version to that of `kind`.
pub(crate) fn from_stored(kind: &ResourceType, mut value: Value) -> Value {
    if !is_stored_form(kind) {
        value["apiVersion"] = kind.api_version().into();
        if kind.group == "events.k8s.io" {
            rename(&mut value, EVENT_FIELDS);
        }
    }
    value
}

/// From the version of `kind` to the stored one.
pub(crate) fn to_stored(kind: &ResourceType, mut value: Value) -> Value {
    if !is_stored_form(kind) {
        value["apiVersion"] = kind.stored_as.api_version().into();
        if kind.group == "events.k8s.io" {
            rename(&mut value, EVENT_FIELDS.map(|(core, new)| (new, core)));
        }
    }
    value
}

/// The JSON of a stored object in the version of `kind`.
pub(crate) fn json(kind: &ResourceType, object: &Object) -> Bytes {
    if is_stored_form(kind) { object.json().clone() } else { encode(&from_stored(kind, object.value())) }
}

fn rename(value: &mut Value, fields: [(&str, &str); 7]) {
    if let Some(map) = value.as_object_mut() {
        for (from, to) in fields {
            if let Some(field) = map.remove(from) {
                map.insert(to.to_owned(), field);
            }
        }
    }
}
