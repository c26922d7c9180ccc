//! Which node a pod goes to: one that is ready and that the pod's own rules allow, with the fewest pods.
//! Resources, host ports, volumes, affinity between pods and priorities are not weighed yet.

use ambit_api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The scheduler that a pod gets unless it names another one.
const OUR_NAME: &str = "default-scheduler";

/// What to do with a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It has a node, has ended, is going, or another scheduler's: nothing.
    Leave,
    /// Bind it to this node.
    Bind(String),
    /// It waits for its gates to be removed.
    Gated,
    /// No node takes it now; why, in upstream's words.
    Unschedulable(String),
}

/// Decides for one pod. `pods_on` counts the pods of each node by name.
pub fn plan(pod: &Pod, nodes: &[Arc<Node>], pods_on: &BTreeMap<String, usize>) -> Verdict {
    let Some(spec) = &pod.spec else { return Verdict::Leave };
    let ours = spec.scheduler_name.as_deref().is_none_or(|name| name == OUR_NAME);
    let bound = spec.node_name.as_deref().is_some_and(|node| !node.is_empty());
    if bound || !ours || !crate::pod::is_active(pod) {
        return Verdict::Leave;
    }
    if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        return Verdict::Gated;
    }
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<(usize, &str)> = None;
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        match refusal(pod, node) {
            Some(reason) => *refusals.entry(reason).or_default() += 1,
            None => {
                let candidate = (pods_on.get(name).copied().unwrap_or(0), name);
                best = Some(best.map_or(candidate, |best| best.min(candidate)));
            }
        }
    }
    match best {
        Some((_, name)) => Verdict::Bind(name.to_owned()),
        None => Verdict::Unschedulable(explain(nodes.len(), &refusals)),
    }
}

fn explain(nodes: usize, refusals: &BTreeMap<String, usize>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let reasons: Vec<String> = refusals.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    format!("0/{nodes} nodes are available: {}.", reasons.join(", "))
}

/// Why the node does not take the pod.
fn refusal(pod: &Pod, node: &Node) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if !is_ready(node) {
        return Some("node(s) were not ready".to_owned());
    }
    if !fits_selectors(pod, node) {
        return Some("node(s) didn't match Pod's node affinity/selector".to_owned());
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let node_spec = node.spec.as_ref();
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if node_spec.and_then(|spec| spec.unschedulable) == Some(true) && !tolerates(tolerations, &cordon) {
        return Some("node(s) were unschedulable".to_owned());
    }
    let taints = node_spec.into_iter().flat_map(|spec| spec.taints.iter().flatten());
    let untolerated = taints
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        .find(|taint| !tolerates(tolerations, taint))?;
    let value = untolerated.value.as_deref().unwrap_or_default();
    Some(format!("node(s) had untolerated taint {{{}: {value}}}", untolerated.key))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Source of behaviour: upstream component-helpers ToleratesTaint.
fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| {
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let key = toleration.key.as_deref().unwrap_or_default();
        let fits = (effect.is_empty() || effect == taint.effect) && (key.is_empty() || key == taint.key);
        fits && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => {
                !key.is_empty()
                    && toleration.value.as_deref().unwrap_or_default()
                        == taint.value.as_deref().unwrap_or_default()
            }
            "Exists" => true,
            _ => false,
        }
    })
}

fn fits_selectors(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let labels = node.metadata.labels.as_ref();
    let selected =
        spec.node_selector.as_ref().is_none_or(|wanted| crate::selector::matches_all(wanted, labels));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required.is_none_or(|required| required.node_selector_terms.iter().any(|term| takes(term, node)))
}

/// A term without requirements takes no node. Source: API reference of NodeSelectorTerm.
fn takes(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |key: &str| node.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let field = |key: &str| if key == "metadata.name" { node.metadata.name.as_deref() } else { None };
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|requirement| holds(requirement, label(&requirement.key)))
        && fields.iter().all(|requirement| holds(requirement, field(&requirement.key)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let limit = values.first().and_then(|limit| number(limit));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(limit).is_some_and(|(value, limit)| value > limit),
        "Lt" => value.and_then(number).zip(limit).is_some_and(|(value, limit)| value < limit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(name: &str, spec: Value, ready: &str) -> Arc<Node> {
        let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "cpus": "8"}},
            "spec": spec, "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        Arc::new(serde_json::from_value(node).expect("a node"))
    }

    fn ready(name: &str) -> Arc<Node> {
        node(name, json!({}), "True")
    }

    #[track_caller]
    fn check(pod_spec: Value, nodes: &[Arc<Node>], expected: &str) {
        let mut spec = json!({"containers": []});
        spec.as_object_mut().unwrap().extend(pod_spec.as_object().unwrap().clone());
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("a pod");
        let counts = BTreeMap::from([("a".to_owned(), 5), ("b".to_owned(), 2)]);
        let seen = match plan(&pod, nodes, &counts) {
            Verdict::Leave => "leave".to_owned(),
            Verdict::Bind(node) => format!("bind {node}"),
            Verdict::Gated => "gated".to_owned(),
            Verdict::Unschedulable(why) => why,
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_pod_goes_to_the_ready_node_with_the_fewest_pods() {
        check(json!({}), &[ready("a"), ready("b")], "bind b");
        check(json!({}), &[ready("a"), node("b", json!({}), "Unknown")], "bind a");
        check(json!({"nodeSelector": {"kubernetes.io/hostname": "a"}}), &[ready("a"), ready("b")], "bind a");
        check(json!({"nodeName": "a"}), &[ready("a")], "leave");
        check(json!({"schedulerName": "mine"}), &[ready("a")], "leave");
        check(json!({"schedulingGates": [{"name": "g"}]}), &[ready("a")], "gated");
    }

    #[test]
    fn what_no_node_takes_is_explained() {
        let mismatch = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
        check(json!({}), &[], "no nodes available to schedule pods");
        check(json!({"nodeSelector": {"disk": "ssd"}}), &[ready("a")], mismatch);
        let cordoned = node("a", json!({"unschedulable": true}), "True");
        let down = node("b", json!({}), "False");
        let both = "0/2 nodes are available: 1 node(s) were not ready, 1 node(s) were unschedulable.";
        check(json!({}), &[cordoned, down], both);
        let tainted =
            || node("a", json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}), "True");
        check(json!({}), &[tainted()], "0/1 nodes are available: 1 node(s) had untolerated taint {k: v}.");
        check(json!({"tolerations": [{"key": "k", "value": "v"}]}), &[tainted()], "bind a");
        check(json!({"tolerations": [{"operator": "Exists"}]}), &[tainted()], "bind a");
    }

    #[test]
    fn required_node_affinity_is_honoured() {
        let wants = |operator: &str, values: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "cpus", "operator": operator, "values": values}]}]
            }}}})
        };
        let mismatch = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
        check(wants("Gt", json!(["4"])), &[ready("a")], "bind a");
        check(wants("Lt", json!(["4"])), &[ready("a")], mismatch);
        check(wants("In", json!(["8"])), &[ready("a")], "bind a");
        check(wants("NotIn", json!(["8"])), &[ready("a")], mismatch);
        check(wants("Exists", json!([])), &[ready("a")], "bind a");
        check(wants("Near", json!(["8"])), &[ready("a")], mismatch);
    }
}
