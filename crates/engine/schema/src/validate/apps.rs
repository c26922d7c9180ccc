//! Validation of workloads that keep pods. Source: Kubernetes `pkg/apis/apps/validation/validation.go`.

use serde_json::{Value, json};

use super::metadata::selects;
use super::text;
use crate::fault::Faults;
use crate::path::Path;

/// Checks what Deployments and ReplicaSets share.
fn pod_keeper(spec: &Value, path: &Path<'_>, kind: &str, faults: &mut Faults) {
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        not_negative(spec, field, path, faults);
    }
    let selector = &spec["selector"];
    let empty = |field: &str| selector[field].as_object().is_none_or(serde_json::Map::is_empty);
    let no_expressions = selector["matchExpressions"].as_array().is_none_or(Vec::is_empty);
    if selector.is_object() && empty("matchLabels") && no_expressions {
        let message = format!("empty selector is invalid for {kind}");
        faults.invalid(&path.field("selector"), selector.clone(), message);
        return;
    }
    let template = path.field("template");
    let labels = &spec["template"]["metadata"]["labels"];
    if selector.is_object() && spec["template"].is_object() && !selects(selector, labels) {
        let shown = if labels.is_null() { json!({}) } else { labels.clone() };
        faults.invalid(
            &template.field("metadata").field("labels"),
            shown,
            "`selector` does not match template `labels`",
        );
    }
    let pod = &spec["template"]["spec"];
    let pod_path = template.field("spec");
    let restart = text(pod, "restartPolicy");
    if !matches!(restart, "" | "Always") {
        faults.not_supported(&pod_path.field("restartPolicy"), restart, &[Value::from("Always")]);
    }
    if !pod["activeDeadlineSeconds"].is_null() {
        let message = "activeDeadlineSeconds in ReplicaSet is not Supported";
        faults.forbidden(&pod_path.field("activeDeadlineSeconds"), message);
    }
}

pub(super) fn not_negative(object: &Value, field: &str, path: &Path<'_>, faults: &mut Faults) {
    if let Some(number) = object[field].as_i64().filter(|number| *number < 0) {
        faults.invalid(&path.field(field), number, "must be greater than or equal to 0");
    }
}

/// Checks the spec of a ReplicaSet.
pub(super) fn replica_set_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    pod_keeper(spec, path, "deployment", faults);
}

/// Checks the spec of a Deployment.
pub(super) fn deployment_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    pod_keeper(spec, path, "deployment", faults);
    not_negative(spec, "progressDeadlineSeconds", path, faults);
    let deadline = spec["progressDeadlineSeconds"].as_i64();
    let ready = spec["minReadySeconds"].as_i64().unwrap_or_default();
    if let Some(deadline) = deadline.filter(|deadline| *deadline <= ready) {
        faults.invalid(
            &path.field("progressDeadlineSeconds"),
            deadline,
            "must be greater than minReadySeconds",
        );
    }
    strategy(&spec["strategy"], &path.field("strategy"), faults);
}

/// Checks the spec of a StatefulSet.
pub(super) fn stateful_set_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    pod_keeper(spec, path, "statefulset", faults);
}

/// Checks the spec of a DaemonSet.
pub(super) fn daemon_set_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    pod_keeper(spec, path, "daemonset", faults);
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    let (update, fields) = (path.field("updateStrategy"), ["maxUnavailable", "maxSurge"]);
    let rolling_path = update.field("rollingUpdate");
    for field in fields {
        int_or_percent(&rolling[field], &rolling_path.field(field), faults);
    }
    if rolling.is_object() && fields.iter().all(|field| is_zero(&rolling[*field])) {
        let path = rolling_path.field("maxUnavailable");
        faults.invalid(&path, rolling["maxUnavailable"].clone(), "cannot be 0 when maxSurge is 0");
    }
}

/// What may change of a StatefulSet: its pods keep their names and their claims.
pub(super) fn stateful_set_update(new: &Value, old: &Value, faults: &mut Faults) {
    const MAY_CHANGE: [&str; 7] = [
        "minReadySeconds",
        "ordinals",
        "persistentVolumeClaimRetentionPolicy",
        "replicas",
        "revisionHistoryLimit",
        "template",
        "updateStrategy",
    ];
    let rest = |set: &Value| {
        let mut spec = set["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.retain(|field, _| !MAY_CHANGE.contains(&field.as_str()));
        }
        spec
    };
    if rest(new) != rest(old) {
        let message = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        faults.forbidden(&Path::Root.field("spec"), message);
    }
}

fn strategy(strategy: &Value, path: &Path<'_>, faults: &mut Faults) {
    let rolling = &strategy["rollingUpdate"];
    let rolling_path = path.field("rollingUpdate");
    if text(strategy, "type") == "Recreate" {
        if !rolling.is_null() {
            faults.forbidden(&rolling_path, "may not be specified when strategy `type` is 'Recreate'");
        }
        return;
    }
    for field in ["maxUnavailable", "maxSurge"] {
        int_or_percent(&rolling[field], &rolling_path.field(field), faults);
    }
    if is_zero(&rolling["maxUnavailable"]) && is_zero(&rolling["maxSurge"]) {
        let path = rolling_path.field("maxUnavailable");
        faults.invalid(&path, rolling["maxUnavailable"].clone(), "may not be 0 when `maxSurge` is 0");
    }
    if let Some(percent) = percent(&rolling["maxUnavailable"]).filter(|percent| *percent > 100) {
        let path = rolling_path.field("maxUnavailable");
        faults.invalid(&path, format!("{percent}%"), "must not be greater than 100%");
    }
}

fn percent(value: &Value) -> Option<u64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

fn is_zero(value: &Value) -> bool {
    value.as_i64() == Some(0) || percent(value) == Some(0)
}

pub(super) fn int_or_percent(value: &Value, path: &Path<'_>, faults: &mut Faults) {
    match value {
        Value::String(text) if percent(value).is_none() => {
            let message = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            faults.invalid(path, text.as_str(), message);
        }
        Value::Number(_) if value.as_i64().is_some_and(|number| number < 0) => {
            faults.invalid(path, value.clone(), "must be greater than or equal to 0");
        }
        _ => {}
    }
}

/// The selector of a workload stays what it was: its pods would be lost otherwise.
pub(super) fn selector_update(new: &Value, old: &Value, faults: &mut Faults) {
    let (selector, old) = (&new["spec"]["selector"], &old["spec"]["selector"]);
    if selector != old {
        faults.invalid(&Path::Root.field("spec").field("selector"), selector.clone(), "field is immutable");
    }
}
