//! From kubectl's client-side apply to server-side apply: what the annotation of the former says was applied needs no
//! force to be taken over. Source: apimachinery `managedfields/internal/lastapplied*.go`.

use serde_json::Value;

use super::compare::compare;
use super::conflict::Conflicts;
use super::set::FieldSet;
use super::value_type::ValueType;

/// The annotation in which client-side apply keeps the configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Bytes that the annotations of an object may have, names and values together; the bound of upstream's validation.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// Whether the manager is the one that goes on where client-side apply ended. Who wants none of it takes another name.
pub(super) fn is_heir(manager: &str) -> bool {
    manager == "kubectl"
}

/// The conflicts that are left where client-side apply had the fields and their values are those it gave them; `None`
/// when there are none.
pub(super) fn contested<T: ValueType>(
    live: &Value,
    conflicts: Conflicts,
    api_version: &str,
    value_type: &T,
) -> Option<Conflicts> {
    let Some(allowed) = unchanged_since(live, api_version, value_type) else { return Some(conflicts) };
    let left: Vec<_> = conflicts.0.into_iter().filter(|conflict| !allowed.contains(&conflict.path)).collect();
    (!left.is_empty()).then_some(Conflicts(left))
}

/// The fields that client-side apply set and that have the same value still.
fn unchanged_since<T: ValueType>(live: &Value, api_version: &str, value_type: &T) -> Option<FieldSet> {
    let text = annotations(live)?.get(LAST_APPLIED)?.as_str().filter(|text| !text.is_empty())?;
    let config: Value = serde_json::from_str(text).ok()?;
    if config.get("apiVersion")?.as_str()? != api_version {
        return None;
    }
    let changes = compare(&config, live, value_type);
    Some(FieldSet::of(&config, value_type).difference(&changes.set().union(&changes.removed)))
}

/// Brings the annotation, where the object has one, to what is applied now.
pub(super) fn renew(object: &mut Value, config: &Value) {
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return;
    };
    if annotations.get(LAST_APPLIED).and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    annotations.insert(LAST_APPLIED.to_owned(), Value::from(format!("{config}\n")));
    let bytes: usize =
        annotations.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > ANNOTATIONS_BYTES_MAX {
        annotations.remove(LAST_APPLIED);
    }
}

fn annotations(object: &Value) -> Option<&serde_json::Map<String, Value>> {
    object.pointer("/metadata/annotations")?.as_object()
}
