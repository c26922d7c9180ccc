//! What may change in a pod. Source: Kubernetes `ValidatePodUpdate` in `pkg/apis/core/validation/validation.go`.

use serde_json::Value;

use super::{items, text};
use crate::fault::Faults;
use crate::path::Path;

const ALLOWED: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks an update of a pod through its main resource.
pub(super) fn pod_update(new: &Value, old: &Value, faults: &mut Faults) {
    let path = Path::Root.field("spec");
    let (new, old) = (&new["spec"], &old["spec"]);
    let mut counts_differ = false;
    for list in ["containers", "initContainers"] {
        if items(new, list).count() != items(old, list).count() {
            faults.forbidden(&path.field(list), "pod updates may not add or remove containers");
            counts_differ = true;
        }
    }
    if counts_differ {
        return;
    }
    deadline(new, old, &path, faults);
    tolerations(new, old, &path, faults);
    let mut rest = new.clone();
    take_back_allowed(&mut rest, old);
    if rest != *old {
        let differences = difference(&rest, old);
        faults.forbidden(&path, format!("{ALLOWED}\n{}", differences.join("\n")));
    }
}

/// A deadline may be set and shortened.
fn deadline(new: &Value, old: &Value, path: &Path<'_>, faults: &mut Faults) {
    let path = path.field("activeDeadlineSeconds");
    match (new["activeDeadlineSeconds"].as_i64(), old["activeDeadlineSeconds"].as_i64()) {
        (Some(new), Some(old)) if new > old => {
            faults.invalid(&path, new, "must be less than or equal to previous value");
        }
        (None, Some(_)) => {
            faults.invalid(&path, Value::Null, "must not update from a positive integer to nil value");
        }
        _ => {}
    }
}

fn tolerations(new: &Value, old: &Value, path: &Path<'_>, faults: &mut Faults) {
    let mut kept = items(old, "tolerations").map(|(_, toleration)| toleration);
    if !kept.all(|toleration| items(new, "tolerations").any(|(_, other)| other == toleration)) {
        faults.forbidden(
            &path.field("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
}

/// Undoes the allowed changes, so that whatever still differs was not allowed.
fn take_back_allowed(spec: &mut Value, old: &Value) {
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, (_, before)) in containers.zip(items(old, list)) {
            if text(container, "image") != text(before, "image") && !text(container, "image").is_empty() {
                put(container, "image", &before["image"]);
            }
        }
    }
    put(spec, "activeDeadlineSeconds", &old["activeDeadlineSeconds"]);
    put(spec, "tolerations", &old["tolerations"]);
    // Gates can only be lifted; a new one would be seen as a difference.
    let gates = items(old, "schedulingGates").count();
    if items(spec, "schedulingGates").count() <= gates
        && items(spec, "schedulingGates")
            .all(|(_, gate)| items(old, "schedulingGates").any(|(_, other)| other == gate))
    {
        put(spec, "schedulingGates", &old["schedulingGates"]);
    }
    let grace = "terminationGracePeriodSeconds";
    if spec[grace] == 1 && old[grace].as_i64().is_some_and(|seconds| seconds < 0) {
        put(spec, grace, &old[grace]);
    }
}

fn put(object: &mut Value, field: &str, value: &Value) {
    let Some(map) = object.as_object_mut() else { return };
    if value.is_null() {
        map.remove(field);
    } else {
        map.insert(field.to_owned(), value.clone());
    }
}

/// The fields that differ, by name.
fn difference(new: &Value, old: &Value) -> Vec<String> {
    let keys =
        |value: &Value| value.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect::<Vec<_>>();
    let mut names = keys(new);
    names.extend(keys(old));
    names.sort();
    names.dedup();
    names.retain(|name| new[name.as_str()] != old[name.as_str()]);
    names.into_iter().map(|name| format!("  spec.{name} differs")).collect()
}
