//! Node life-cycle: a node that no longer renews its lease is not ready any more, as far as anyone can tell.
//! Source of behaviour: upstream pkg/controller/nodelifecycle.

use ambit_api::coordination::v1::Lease;
use ambit_api::core::v1::{Node, NodeCondition};
use ambit_api::meta::Time;
use jiff::Timestamp;
use std::time::Duration;

/// Namespace of the nodes' leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Conditions that only the node itself knows.
const OF_THE_NODE: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// What to do about a node.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// It was heard of; look again after this time.
    Alive(Duration),
    /// It fell silent: write these conditions, by type.
    Silent(Vec<NodeCondition>),
    /// It fell silent, and its conditions say so already.
    KnownSilent,
}

/// Judges a node by its lease, and by its own heartbeat while it has none. `grace` is the silence allowed.
pub fn judge(node: &Node, lease: Option<&Lease>, grace: Duration, now: Timestamp) -> Verdict {
    let silent = heard_of(node, lease)
        .map_or(grace, |at| Duration::try_from(now.duration_since(at)).unwrap_or_default());
    if let Some(left) = grace.checked_sub(silent).filter(|left| !left.is_zero()) {
        return Verdict::Alive(left);
    }
    let known = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let unknown: Vec<NodeCondition> = OF_THE_NODE
        .iter()
        .filter_map(|kind| {
            let before = known.into_iter().flatten().find(|condition| condition.type_ == *kind);
            to_unknown(kind, before, now)
        })
        .collect();
    if unknown.is_empty() { Verdict::KnownSilent } else { Verdict::Silent(unknown) }
}

fn heard_of(node: &Node, lease: Option<&Lease>) -> Option<Timestamp> {
    let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref()).map(|time| time.0);
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    let beat = ready.and_then(|ready| ready.last_heartbeat_time.as_ref()).map(|time| time.0);
    let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    renewed.max(beat).max(created)
}

fn to_unknown(kind: &str, before: Option<&NodeCondition>, now: Timestamp) -> Option<NodeCondition> {
    let (reason, message) = match before {
        Some(before) if before.status == "Unknown" => return None,
        Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
        None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
    };
    Some(NodeCondition {
        type_: kind.to_owned(),
        status: "Unknown".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: before.and_then(|before| before.last_heartbeat_time.clone()),
        last_transition_time: Some(Time(now)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"conditions": [{"type": "Ready", "status": ready},
                {"type": "MemoryPressure", "status": "Unknown"}, {"type": "DiskPressure", "status": "Unknown"},
                {"type": "PIDPressure", "status": "Unknown"}]}}))
        .expect("a node")
    }

    fn lease(renewed: &str) -> Lease {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"renewTime": renewed}}))
            .expect("a lease")
    }

    #[track_caller]
    fn check(ready: &str, renewed: &str, expected: &str) {
        let now = "2026-01-01T01:00:00Z".parse().expect("a time");
        let seen = match judge(&node(ready), Some(&lease(renewed)), Duration::from_secs(50), now) {
            Verdict::Alive(left) => format!("alive {}", left.as_secs()),
            Verdict::Silent(conditions) => {
                conditions.iter().map(|c| format!("{}={}", c.type_, c.status)).collect::<Vec<_>>().join(",")
            }
            Verdict::KnownSilent => "known".to_owned(),
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_stale_lease_makes_the_node_unknown_once() {
        check("True", "2026-01-01T00:59:40.000000Z", "alive 30");
        check("True", "2026-01-01T00:59:10.000000Z", "Ready=Unknown");
        check("Unknown", "2026-01-01T00:59:10.000000Z", "known");
        // A node whose clock runs ahead is alive.
        check("True", "2026-01-01T01:00:10.000000Z", "alive 50");
    }
}
