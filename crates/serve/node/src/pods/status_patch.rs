//! Writes a pod's status as a patch that leaves what others write alone.

use crate::context::{Context, identity};
use crate::error::Error;
use ambit_api::core::v1::{Pod, PodStatus};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

/// Deadline of one write.
pub(super) const WRITE_WAIT: Duration = Duration::from_secs(10);

/// Writes `status`; the stored pod, or `None` if it is gone or is another of the same name.
pub(super) async fn write(context: &Context, pod: &Pod, status: &PodStatus) -> Result<Option<Pod>, Error> {
    let (namespace, name, uid) = identity(pod);
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let patch = Patch::Strategic(render(uid, pod.status.as_ref(), status));
    let params = PatchParams::default();
    let write = api.patch_status(name, &params, &patch);
    let attempt = || format!("write the status of pod {namespace}/{name}");
    match tokio::time::timeout(WRITE_WAIT, write).await {
        Ok(Ok(stored)) => Ok(Some(stored).filter(|stored| stored.metadata.uid.as_deref() == Some(uid))),
        Ok(Err(e)) if ambit_kube::is_not_found(&e) || ambit_kube::is_conflict(&e) => Ok(None),
        Ok(Err(source)) => Err(Error::Api { attempt: attempt(), source: Box::new(source) }),
        Err(_) => Err(Error::ApiDeadline { attempt: attempt(), seconds: WRITE_WAIT.as_secs() }),
    }
}

/// A strategic merge patch: conditions are merged by type, addresses by value, so what goes away is named.
fn render(uid: &str, before: Option<&PodStatus>, after: &PodStatus) -> Value {
    let mut status = json!(after);
    for field in ["reason", "message"] {
        if status.get(field).is_none() && before.is_some_and(|b| json!(b).get(field).is_some()) {
            status[field] = Value::Null;
        }
    }
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        for field in ["reason", "message"] {
            let missing = condition.get(field).is_none();
            if let Some(object) = condition.as_object_mut().filter(|_| missing) {
                object.insert(field.to_owned(), Value::Null);
            }
        }
    }
    let kept: Vec<&str> = after.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let old = before.and_then(|b| b.pod_ips.as_ref()).into_iter().flatten();
    let gone: Vec<Value> = old
        .filter(|ip| !kept.contains(&ip.ip.as_str()))
        .map(|ip| json!({ "$patch": "delete", "ip": ip.ip }))
        .collect();
    if !gone.is_empty() {
        let mut ips = status["podIPs"].as_array().cloned().unwrap_or_default();
        ips.extend(gone);
        status["podIPs"] = Value::Array(ips);
    }
    json!({ "metadata": { "uid": uid }, "status": status })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(before: Value, after: Value, expected: Value) {
        let before: PodStatus = serde_json::from_value(before).unwrap();
        let after: PodStatus = serde_json::from_value(after).unwrap();
        let expected = json!({ "metadata": { "uid": "u" }, "status": expected });
        assert_eq!(render("u", Some(&before), &after), expected);
    }

    #[test]
    fn what_goes_away_is_named() {
        check(json!({}), json!({ "phase": "Running" }), json!({ "phase": "Running" }));
        check(
            json!({ "reason": "Evicted", "message": "m" }),
            json!({ "phase": "Running" }),
            json!({ "phase": "Running", "reason": null, "message": null }),
        );
        check(
            json!({ "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] }),
            json!({ "podIPs": [{ "ip": "10.0.0.2" }, { "ip": "fd00::1" }] }),
            json!({ "podIPs": [{ "ip": "10.0.0.2" }, { "ip": "fd00::1" }, { "$patch": "delete", "ip": "10.0.0.1" }] }),
        );
        check(
            json!({ "conditions": [{ "type": "Ready", "status": "False", "reason": "R", "message": "m" }] }),
            json!({ "conditions": [{ "type": "Ready", "status": "True" }] }),
            json!({ "conditions": [{ "type": "Ready", "status": "True", "reason": null, "message": null }] }),
        );
    }
}
