//! Validation of volumes, their classes, and of what limits pods. Sources: Kubernetes `pkg/apis/{core,storage,policy,scheduling,
//! autoscaling}/validation/validation.go`.

use serde_json::Value;

use super::apps::int_or_percent;
use super::{items, text};
use crate::fault::Faults;
use crate::path::Path;

/// Largest value of a class that is not the system's. Source: `pkg/apis/scheduling/types.go`.
const PRIORITY_MAX: i64 = 1_000_000_000;
/// What the names of the system's classes begin with.
const SYSTEM_PREFIX: &str = "system-";
const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let path = path.field("accessModes");
    let mut count = 0;
    for (index, mode) in items(spec, "accessModes") {
        count += 1;
        if !MODES.iter().any(|known| mode == known) {
            faults.not_supported(&path.index(index), mode.clone(), &MODES.map(Value::from));
        }
    }
    if count == 0 {
        faults.required(&path, "at least 1 access mode is required");
    } else if count > 1 && items(spec, "accessModes").any(|(_, mode)| mode == "ReadWriteOncePod") {
        faults.forbidden(&path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// Checks the spec of a PersistentVolumeClaim.
pub(super) fn claim_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    access_modes(spec, path, faults);
    let resources = path.field("resources");
    if spec["resources"]["requests"]["storage"].is_null() {
        faults.required(&resources.field("requests").key("storage"), "");
    }
}

/// What may change of a claim: it may grow.
pub(super) fn claim_update(new: &Value, old: &Value, faults: &mut Faults) {
    let rest = |claim: &Value| {
        let mut spec = claim["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.retain(|field, _| !matches!(field.as_str(), "resources" | "volumeAttributesClassName"));
            // It is bound once.
            if text(&old["spec"], "volumeName").is_empty() {
                spec.remove("volumeName");
            }
        }
        spec
    };
    if rest(new) != rest(old) {
        let message = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        faults.forbidden(&Path::Root.field("spec"), message);
    }
}

/// Checks the spec of a PersistentVolume.
pub(super) fn volume_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    access_modes(spec, path, faults);
    if spec["capacity"]["storage"].is_null() {
        faults.required(&path.field("capacity"), "");
    }
    const SOURCES: [&str; 9] = [
        "csi",
        "hostPath",
        "local",
        "nfs",
        "iscsi",
        "fc",
        "awsElasticBlockStore",
        "gcePersistentDisk",
        "azureDisk",
    ];
    let others = [
        "azureFile",
        "cephfs",
        "cinder",
        "flexVolume",
        "flocker",
        "glusterfs",
        "photonPersistentDisk",
        "portworxVolume",
        "quobyte",
        "rbd",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    ];
    match SOURCES.iter().chain(&others).filter(|source| spec[**source].is_object()).count() {
        0 => faults.required(path, "must specify a volume type"),
        1 => {}
        _ => faults.forbidden(path, "may not specify more than 1 volume type"),
    }
}

/// Checks a StorageClass.
pub(super) fn class(class: &Value, path: &Path<'_>, faults: &mut Faults) {
    if text(class, "provisioner").is_empty() {
        faults.required(&path.field("provisioner"), "");
    }
}

/// What may not change of a StorageClass: volumes were made by it.
pub(super) fn class_update(new: &Value, old: &Value, faults: &mut Faults) {
    for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        if new[field] != old[field] {
            faults.forbidden(&Path::Root.field(field), &*format!("updates to {field} are forbidden."));
        }
    }
}

/// Checks a PriorityClass.
pub(super) fn priority_class(class: &Value, path: &Path<'_>, faults: &mut Faults) {
    let (name, value) = (text(&class["metadata"], "name"), class["value"].as_i64().unwrap_or_default());
    let known = matches!(
        (name, value),
        ("system-cluster-critical", 2_000_000_000) | ("system-node-critical", 2_000_001_000)
    );
    if known {
        return;
    }
    if name.starts_with(SYSTEM_PREFIX) {
        let path = path.field("metadata");
        faults.forbidden(
            &path.field("name"),
            "priority class names with 'system-' prefix are reserved for system use only",
        );
    }
    if value > PRIORITY_MAX {
        let message = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        faults.forbidden(&path.field("value"), message);
    }
}

/// What may not change of a PriorityClass: pods have its value.
pub(super) fn priority_class_update(new: &Value, old: &Value, faults: &mut Faults) {
    for field in ["value", "preemptionPolicy"] {
        if new[field] != old[field] {
            faults.forbidden(&Path::Root.field(field), "may not be changed in an update.");
        }
    }
}

/// Checks the spec of a PodDisruptionBudget.
pub(super) fn disruption_budget_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        faults.invalid(path, "object", "minAvailable and maxUnavailable cannot be both set");
    }
    for field in ["minAvailable", "maxUnavailable"] {
        int_or_percent(&spec[field], &path.field(field), faults);
    }
}

/// Checks the spec of a HorizontalPodAutoscaler.
pub(super) fn autoscaler_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let (min, max) =
        (spec["minReplicas"].as_i64().unwrap_or(1), spec["maxReplicas"].as_i64().unwrap_or_default());
    if min < 1 {
        faults.invalid(&path.field("minReplicas"), min, "must be greater than or equal to 1");
    }
    if max < 1 {
        faults.invalid(&path.field("maxReplicas"), max, "must be greater than 0");
    } else if max < min {
        faults.invalid(&path.field("maxReplicas"), max, "must be greater than or equal to `minReplicas`");
    }
    let target = path.field("scaleTargetRef");
    for field in ["kind", "name"] {
        if text(&spec["scaleTargetRef"], field).is_empty() {
            faults.required(&target.field(field), "");
        }
    }
}
