//! Disruption budgets, as evictions meet them. Source: kubernetes pkg/registry/core/pod/storage/eviction.go.

use crate::cluster::Cluster;
use crate::modify::change;
use crate::ownership::Record;
use crate::request::{Effect, Part, Target, text};
use crate::status::{Answer, Failure};
use ambit_schema::selects;
use serde_json::Value;
use std::sync::Arc;

/// Evicted pods that a budget remembers until they are gone at most. Source: eviction.go.
const DISRUPTED_PODS_MAX: usize = 2000;
/// Seconds after which a client may ask again.
const RETRY_SECONDS: u32 = 10;

/// Takes one disruption from the budget of a pod that runs, if there is one.
pub(crate) async fn allow(
    cluster: &Arc<Cluster>,
    effect: Effect,
    target: &Target,
    pod: &Value,
) -> Answer<()> {
    let phase = text(pod, "/status/phase");
    // One that has ended, has not begun or is going already disrupts nothing.
    if matches!(phase, "Succeeded" | "Failed" | "Pending") || pod["metadata"]["deletionTimestamp"].is_string()
    {
        return Ok(());
    }
    let budgets = cluster.values("policy/poddisruptionbudgets", Some(&target.namespace));
    let mut of_pod = budgets.into_iter().filter(|budget| {
        selects(&budget["spec"]["selector"], &pod["metadata"]["labels"])
            && budget["spec"]["selector"].is_object()
    });
    let Some(budget) = of_pod.next() else { return Ok(()) };
    if of_pod.next().is_some() {
        return Err(Failure::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    let status = &budget["status"];
    let number = |field: &str| status[field].as_i64().unwrap_or_default();
    let policy = text(&budget, "/spec/unhealthyPodEvictionPolicy");
    if !is_ready(pod)
        && (policy == "AlwaysAllow"
            || number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0)
    {
        return Ok(());
    }
    let kind = cluster.built_in("policy", "v1", "PodDisruptionBudget");
    let of = Target::new(&kind, &target.namespace, text(&budget, "/metadata/name"));
    let now = cluster.now_text();
    let taken = change(cluster, &of, (Part::Status, effect, &Record::Keep), |budget| {
        check(budget)?;
        let mut new = budget.clone();
        let left = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or_default() - 1;
        new["status"]["disruptionsAllowed"] = left.into();
        new["status"]["disruptedPods"][&*target.name] = now.as_str().into();
        Ok(new)
    });
    taken.await.map(|_| ())
}

fn check(budget: &Value) -> Answer<()> {
    let name = text(budget, "/metadata/name");
    let refuse = |message: String, cause: &str| {
        Err(Failure::disruption(&message).cause("DisruptionBudget", cause).retry_after(RETRY_SECONDS))
    };
    let status = &budget["status"];
    let cannot = "Cannot evict pod as it would violate the pod's disruption budget.";
    if status["observedGeneration"].as_i64().unwrap_or_default()
        < budget["metadata"]["generation"].as_i64().unwrap_or_default()
    {
        return refuse(
            cannot.into(),
            &format!("The disruption budget {name} is still being processed by the server."),
        );
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > DISRUPTED_PODS_MAX) {
        return refuse(cannot.into(), "too many evictions not confirmed by the disruption controller");
    }
    if status["disruptionsAllowed"].as_i64().unwrap_or_default() <= 0 {
        let number = |field: &str| status[field].as_i64().unwrap_or_default();
        let cause = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            number("desiredHealthy"),
            number("currentHealthy")
        );
        return refuse(cannot.into(), &cause);
    }
    Ok(())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|of| of["type"] == "Ready" && of["status"] == "True")
}
