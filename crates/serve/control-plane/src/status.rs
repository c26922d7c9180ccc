//! Writes the `ZtunnelAccepted` condition of AuthorizationPolicies.

use crate::owner::Conditions;
use ambit_api::istio::{AuthorizationPolicy, Condition};
use ambit_kube::{Informer, Next, Queue, is_not_found};
use ambit_mesh::{ObjectName, PolicyCondition};
use ambit_runtime::{Clock, Shutdown};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;

const TYPE: &str = "ZtunnelAccepted";

/// Writes conditions that differ.
pub(crate) struct StatusWriter {
    pub(crate) client: kube::Client,
    pub(crate) policies: Informer<AuthorizationPolicy>,
    pub(crate) conditions: Conditions,
    pub(crate) queue: Queue<ObjectName>,
    pub(crate) clock: Clock,
}

impl StatusWriter {
    /// Writes until `shutdown`.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let this = Arc::new(self);
        let handler = |name: ObjectName| {
            let this = this.clone();
            async move {
                this.write(&name).await?;
                Ok::<_, kube::Error>(Next::Done)
            }
        };
        this.queue.run(handler, &shutdown).await;
    }

    async fn write(&self, name: &ObjectName) -> Result<(), kube::Error> {
        let Some(policy) = self.policies.get(Some(&name.namespace), &name.name) else { return Ok(()) };
        let wanted = self.conditions.get(name);
        let Some(conditions) = merged(&policy, wanted.as_ref(), self.clock) else { return Ok(()) };
        let api: Api<AuthorizationPolicy> = Api::namespaced(self.client.clone(), &name.namespace);
        // The list of conditions is replaced whole: the resource version keeps another writer's from being lost.
        let patch = json!({
            "metadata": {"resourceVersion": policy.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        match api.patch_status(&name.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if is_not_found(&error) => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

/// The policy's conditions with ours as wanted; none when nothing differs.
fn merged(
    policy: &AuthorizationPolicy,
    wanted: Option<&PolicyCondition>,
    clock: Clock,
) -> Option<Vec<Condition>> {
    let mut conditions = policy.status.clone().unwrap_or_default().conditions;
    let at = conditions.iter().position(|c| c.type_ == TYPE);
    let Some(wanted) = wanted else {
        conditions.remove(at?);
        return Some(conditions);
    };
    let current = at.map(|at| conditions.remove(at));
    let status = if wanted.accepted { "True" } else { "False" };
    let same_status = current.as_ref().filter(|c| c.status == status);
    let new = Condition {
        type_: TYPE.to_owned(),
        status: status.to_owned(),
        reason: wanted.reason.to_owned(),
        message: wanted.message.clone(),
        last_transition_time: same_status
            .and_then(|c| c.last_transition_time.clone())
            .or_else(|| Some(format!("{:.0}", clock.timestamp()))),
        observed_generation: wanted.generation.map(|generation| json!(generation)),
    };
    if current.as_ref() == Some(&new) {
        return None;
    }
    conditions.push(new);
    Some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(accepted: bool) -> PolicyCondition {
        PolicyCondition { accepted, reason: "Accepted", message: "m".into(), generation: Some(3) }
    }

    #[test]
    fn only_differences_are_written_and_others_conditions_stay() {
        let mut policy: AuthorizationPolicy = serde_json::from_value(json!({
            "metadata": {"name": "p", "generation": 3},
            "status": {"conditions": [{"type": "Other", "status": "True"}]}
        }))
        .unwrap();
        let first = merged(&policy, Some(&wanted(true)), Clock).expect("it is new");
        assert_eq!(first.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Other", TYPE]);
        assert_eq!(first[1].observed_generation, Some(json!(3)));
        policy.status.as_mut().unwrap().conditions = first;
        assert_eq!(merged(&policy, Some(&wanted(true)), Clock), None);
        let newer = PolicyCondition { generation: Some(4), ..wanted(true) };
        assert!(merged(&policy, Some(&newer), Clock).is_some());
        let gone = merged(&policy, None, Clock).expect("it was there");
        assert_eq!(gone.len(), 1);
        policy.status = None;
        assert_eq!(merged(&policy, None, Clock), None);
    }
}
