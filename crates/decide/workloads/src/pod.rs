//! What controllers ask of a pod's status.

use ambit_api::core::v1::{Pod, PodCondition};
use jiff::Timestamp;
use std::time::Duration;

/// The condition of that type.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Whether the pod says that it is ready.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when the pod is ready; none while it is not, or when it does not say.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// The pod's phase; empty before the first status.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether all containers have ended for good.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod counts for its controller: it neither ended nor is it being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// How far a pod is on its way to being available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// It has been ready for long enough.
    Available,
    /// It is ready, and will be available after this time if it stays so.
    In(Duration),
    /// It is not ready.
    NotReady,
}

/// Whether the pod has been ready for `min_ready_seconds`.
pub fn availability(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Availability {
    if !is_ready(pod) {
        return Availability::NotReady;
    }
    let wanted = Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
    if wanted.is_zero() {
        return Availability::Available;
    }
    let Some(since) = ready_since(pod) else { return Availability::In(wanted) };
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    match wanted.checked_sub(passed) {
        None | Some(Duration::ZERO) => Availability::Available,
        Some(left) => Availability::In(left),
    }
}

/// How often containers of the pod were restarted, at most over its containers.
pub fn restarts_max(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(ready: &str, min_ready_seconds: i32, expected: Availability) {
        let pod = json!({"status": {"conditions": [
            {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let now = "2026-01-01T00:00:30Z".parse().expect("a time");
        assert_eq!(availability(&pod, min_ready_seconds, now), expected);
    }

    #[test]
    fn a_pod_is_available_after_min_ready_seconds() {
        check("True", 0, Availability::Available);
        check("True", 30, Availability::Available);
        check("True", 31, Availability::In(Duration::from_secs(1)));
        check("False", 0, Availability::NotReady);
    }
}
