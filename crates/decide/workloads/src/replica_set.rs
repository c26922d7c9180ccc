//! ReplicaSet: keeps so many pods of a template. Source of behaviour: upstream pkg/controller/replicaset.

use crate::expectations::Expectations;
use crate::ownership::{Claim, claim, controller_reference};
use crate::pod::{self, Availability};
use crate::selector;
use ambit_api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use ambit_api::core::v1::Pod;
use ambit_api::meta::{ObjectMeta, Time};
use jiff::Timestamp;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Creates or deletes per look, so that one set cannot keep others waiting. Source: upstream BurstReplicas.
const BURST: usize = 500;
/// A hint from the user which pods to delete first: lower first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// What is to be done for one ReplicaSet.
#[derive(Debug, Default)]
pub struct Plan {
    /// Pods to take. The caller makes sure that the set still exists with this uid before it does.
    pub adopt: Vec<Arc<Pod>>,
    /// Pods to let go.
    pub release: Vec<Arc<Pod>>,
    /// How many pods to create from [`new_pod`].
    pub create: usize,
    /// Pods to delete, most dispensable first.
    pub delete: Vec<Arc<Pod>>,
    /// The status as it should be, without the outcome of this plan's writes.
    pub status: ReplicaSetStatus,
    /// When a ready pod becomes available by the mere passing of time.
    pub look_again: Option<Duration>,
}

/// Decides from the pods of the set's namespace, as the view shows them, and the set's own unconfirmed writes.
pub fn plan(set: &ReplicaSet, pods: &[Arc<Pod>], expectations: &Expectations, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = &set.spec else { return plan };
    let mut mine = Vec::new();
    for pod in pods {
        match claim(&set.metadata, &spec.selector, &pod.metadata) {
            Claim::Owned => mine.push(pod),
            // A pod that has ended is of no use to anyone.
            Claim::Adopt if pod::is_active(pod) => plan.adopt.push(pod.clone()),
            Claim::Release => plan.release.push(pod.clone()),
            Claim::Adopt | Claim::Foreign => {}
        }
    }
    let going = |pod: &Pod| pod.metadata.uid.as_deref().is_some_and(|uid| expectations.is_deleted(uid));
    let staying = |pod: &&Arc<Pod>| pod::is_active(pod) && !going(pod);
    let active: Vec<&Arc<Pod>> = mine.iter().copied().filter(staying).collect();
    if set.metadata.deletion_timestamp.is_none() {
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
        let counted = active.len() + plan.adopt.len() + expectations.unseen_creates();
        plan.create = wanted.saturating_sub(counted).min(BURST);
        // Pods not seen yet cannot be chosen; what they are too many of goes once they are seen.
        let excess = counted.saturating_sub(wanted).min(active.len()).min(BURST);
        plan.delete = most_dispensable(active, excess);
    }
    let shown: Vec<&Arc<Pod>> = mine.into_iter().filter(|pod| pod::is_active(pod)).collect();
    (plan.status, plan.look_again) = status(set, &shown, now);
    plan
}

/// The pod that the set's template describes; the server completes its name.
pub fn new_pod(set: &ReplicaSet) -> Pod {
    let template = set.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
    let of_template = template.metadata.unwrap_or_default();
    let metadata = ObjectMeta {
        generate_name: Some(format!("{}-", set.metadata.name.as_deref().unwrap_or_default())),
        namespace: set.metadata.namespace.clone(),
        labels: of_template.labels,
        annotations: of_template.annotations,
        finalizers: of_template.finalizers,
        owner_references: Some(vec![controller_reference("apps/v1", "ReplicaSet", &set.metadata)]),
        ..ObjectMeta::default()
    };
    Pod { metadata, spec: template.spec, status: None }
}

/// The status with the condition that says whether writes for this set fail. `failure` is reason and message.
pub fn with_failure(
    mut status: ReplicaSetStatus,
    failure: Option<(&str, String)>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let mut conditions = status.conditions.take().unwrap_or_default();
    match failure {
        Some((reason, message)) => {
            let known =
                conditions.iter().find(|known| known.type_ == "ReplicaFailure" && known.status == "True");
            let since = known.and_then(|known| known.last_transition_time.clone()).unwrap_or(Time(now));
            conditions.retain(|condition| condition.type_ != "ReplicaFailure");
            conditions.push(ReplicaSetCondition {
                type_: "ReplicaFailure".to_owned(),
                status: "True".to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_transition_time: Some(since),
            });
        }
        None => conditions.retain(|condition| condition.type_ != "ReplicaFailure"),
    }
    status.conditions = (!conditions.is_empty()).then_some(conditions);
    status
}

fn status(set: &ReplicaSet, active: &[&Arc<Pod>], now: Timestamp) -> (ReplicaSetStatus, Option<Duration>) {
    let spec = set.spec.clone().unwrap_or_default();
    let template = spec.template.and_then(|template| template.metadata).and_then(|meta| meta.labels);
    let template = template.unwrap_or_default();
    let (mut labelled, mut ready, mut available, mut next) = (0, 0, 0, None::<Duration>);
    for pod in active {
        labelled += i32::from(selector::matches_all(&template, pod.metadata.labels.as_ref()));
        match pod::availability(pod, spec.min_ready_seconds.unwrap_or(0), now) {
            Availability::Available => (ready, available) = (ready + 1, available + 1),
            Availability::In(left) => {
                ready += 1;
                next = Some(next.map_or(left, |next| next.min(left)));
            }
            Availability::NotReady => {}
        }
    }
    let status = ReplicaSetStatus {
        replicas: i32::try_from(active.len()).unwrap_or(i32::MAX),
        fully_labeled_replicas: positive(labelled),
        ready_replicas: positive(ready),
        available_replicas: positive(available),
        observed_generation: set.metadata.generation,
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
        terminating_replicas: None,
    };
    (status, next)
}

/// Zero counts are left out, as upstream's encoding does.
fn positive(count: i32) -> Option<i32> {
    (count > 0).then_some(count)
}

/// The `count` pods whose loss costs least.
fn most_dispensable(mut pods: Vec<&Arc<Pod>>, count: usize) -> Vec<Arc<Pod>> {
    let mut on_node: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in &pods {
        *on_node.entry(node(pod)).or_default() += 1;
    }
    pods.sort_by(|a, b| compare(a, b, &on_node));
    pods.into_iter().take(count).cloned().collect()
}

/// Orders by what upstream's ActivePodsWithRanks compares, then by uid so that the order is total.
fn compare(a: &Pod, b: &Pod, on_node: &BTreeMap<&str, usize>) -> Ordering {
    let of_phase = |pod: &Pod| match pod::phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    let state = |pod: &Pod| (!node(pod).is_empty(), of_phase(pod), pod::is_ready(pod), deletion_cost(pod));
    let crowd = |pod: &Pod| Reverse(on_node.get(node(pod)).copied());
    let age = |pod: &Pod| {
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(pod::ready_since(pod)), Reverse(pod::restarts_max(pod)), Reverse(created))
    };
    state(a)
        .cmp(&state(b))
        .then_with(|| crowd(a).cmp(&crowd(b)))
        .then_with(|| age(a).cmp(&age(b)))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(DELETION_COST)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
