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
pub(super) fn label_selector(selector: &Value) -> String {
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

/// Ready, Age, Containers, Images.
pub(super) fn stateful_set(set: &Value, now: Timestamp) -> Vec<Value> {
    let ready = format!("{}/{}", count(&set["status"], "readyReplicas"), count(&set["spec"], "replicas"));
    let [containers, images, _] = template_cells(set);
    vec![ready.into(), age_cell(set, now), containers, images]
}

/// Desired, Current, Ready, Up-to-date, Available, Node Selector, Age, Containers, Images, Selector.
pub(super) fn daemon_set(set: &Value, now: Timestamp) -> Vec<Value> {
    let status = &set["status"];
    let numbers = [
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    ];
    let mut cells: Vec<Value> = numbers.iter().map(|field| count(status, field).into()).collect();
    cells.push(super::selector_text(&set["spec"]["template"]["spec"]["nodeSelector"]).into());
    cells.push(age_cell(set, now));
    cells.extend(template_cells(set));
    cells
}

/// Controller, Revision, Age.
pub(super) fn controller_revision(revision: &Value, now: Timestamp) -> Vec<Value> {
    let owner = items(&revision["metadata"], "ownerReferences").find(|owner| owner["controller"] == true);
    let owner = owner.map_or("<none>".to_owned(), |owner| {
        let group = text(owner, "apiVersion").split_once('/').map_or("", |(group, _)| group);
        let kind = text(owner, "kind").to_lowercase();
        match group {
            "" => format!("{kind}/{}", text(owner, "name")),
            group => format!("{kind}.{group}/{}", text(owner, "name")),
        }
    });
    vec![owner.into(), count(revision, "revision").into(), age_cell(revision, now)]
}

/// Desired, Current, Ready, Age, Containers, Images, Selector.
pub(super) fn replication_controller(controller: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = replica_set(controller, now);
    if let Some(selector) = cells.last_mut() {
        *selector = super::selector_text(&controller["spec"]["selector"]).into();
    }
    cells
}

/// Status, Completions, Duration, Age, Containers, Images, Selector.
pub(super) fn job(job: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&job["spec"], &job["status"]);
    let has = |kind: &str| items(status, "conditions").any(|of| of["type"] == kind && of["status"] == "True");
    let word = match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if job["metadata"]["deletionTimestamp"].is_string() => "Terminating",
        () if has("Suspended") => "Suspended",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    };
    let succeeded = count(status, "succeeded");
    let completions = match (spec["completions"].as_i64(), spec["parallelism"].as_i64().unwrap_or_default()) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let end = status["completionTime"].as_str().and_then(|time| time.parse().ok()).unwrap_or(now);
    let duration = status["startTime"].as_str().map_or(String::new(), |start| super::age::since(start, end));
    let mut cells: Vec<Value> = vec![word.into(), completions.into(), duration.into(), age_cell(job, now)];
    cells.extend(template_cells(job));
    cells
}

/// Schedule, Timezone, Suspend, Active, Last Schedule, Age, Containers, Images, Selector.
pub(super) fn cron_job(cron: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &cron["spec"];
    let last = cron["status"]["lastScheduleTime"].as_str();
    let suspend = if spec["suspend"] == true { "True" } else { "False" };
    let mut cells: Vec<Value> = vec![
        text(spec, "schedule").into(),
        or_none(text(spec, "timeZone")).into(),
        suspend.into(),
        items(&cron["status"], "active").count().into(),
        last.map_or("<none>".to_owned(), |last| super::age::since(last, now)).into(),
        age_cell(cron, now),
    ];
    cells.extend(template_cells(&spec["jobTemplate"]));
    cells
}

/// Reference, Targets, MinPods, MaxPods, Replicas, Age.
pub(super) fn autoscaler(scaler: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &scaler["spec"];
    let of = &spec["scaleTargetRef"];
    let shown: Vec<String> = items(spec, "metrics").map(|metric| target(metric, &scaler["status"])).collect();
    vec![
        format!("{}/{}", text(of, "kind"), text(of, "name")).into(),
        or_none(&shown.join(", ")).into(),
        spec["minReplicas"].as_i64().map_or("<unset>".to_owned(), |min| min.to_string()).into(),
        count(spec, "maxReplicas").into(),
        count(&scaler["status"], "currentReplicas").into(),
        age_cell(scaler, now),
    ]
}

/// A metric's current and wanted value; the current one is what a controller has told, if one did.
fn target(metric: &Value, status: &Value) -> String {
    let kind = text(metric, "type");
    let part = match kind {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        _ => "external",
    };
    let wanted = &metric[part]["target"];
    let current = items(status, "currentMetrics")
        .find(|of| text(of, "type") == kind && of[part]["name"] == metric[part]["name"])
        .map(|of| &of[part]["current"]);
    let name = match part {
        "resource" | "containerResource" => format!("{}: ", text(&metric[part], "name")),
        _ => String::new(),
    };
    if let Some(percent) = wanted["averageUtilization"].as_i64() {
        let now = current.and_then(|of| of["averageUtilization"].as_i64());
        let now = now.map_or("<unknown>".to_owned(), |now| format!("{now}%"));
        return format!("{name}{now}/{percent}%");
    }
    let (field, mark) =
        if wanted["averageValue"].is_string() { ("averageValue", " (avg)") } else { ("value", "") };
    let now = current.and_then(|of| of[field].as_str()).unwrap_or("<unknown>");
    format!("{name}{now}/{}{mark}", text(wanted, field))
}

/// Containers, Images, Pod Labels.
pub(super) fn pod_template(template: &Value, _now: Timestamp) -> Vec<Value> {
    let containers = &template["template"]["spec"];
    let joined =
        |field| items(containers, "containers").map(|of| text(of, field)).collect::<Vec<_>>().join(",");
    let labels = super::selector_text(&template["template"]["metadata"]["labels"]);
    vec![joined("name").into(), joined("image").into(), labels.into()]
}
