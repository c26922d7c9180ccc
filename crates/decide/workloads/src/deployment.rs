//! Deployment: one ReplicaSet per template, of which one runs. Source of behaviour: upstream pkg/controller/deployment.
//!
//! A changed template is rolled out by recreation, whatever the strategy says: the old ReplicaSets go to zero, and
//! when their pods have ended the new one starts. A plan says so when the strategy asked for more.

mod replica_sets;
mod status;

pub use replica_sets::{new_replica_set, template_hash};

use crate::ownership::{Claim, claim};
use crate::pod;
use ambit_api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use ambit_api::core::v1::Pod;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Annotation with the number of the rollout, on the Deployment and its ReplicaSets.
pub const REVISION: &str = "deployment.kubernetes.io/revision";

/// A ReplicaSet to bring to another size.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    /// The set with the new size, as it was seen otherwise.
    pub set: ReplicaSet,
    /// Its size before.
    pub from: i32,
    /// Its size after.
    pub to: i32,
}

/// What is to be done for one Deployment, in this order.
#[derive(Debug, Default)]
pub struct Plan {
    /// ReplicaSets to take. The caller makes sure that the Deployment still exists with this uid before it does.
    pub adopt: Vec<Arc<ReplicaSet>>,
    /// ReplicaSets to let go.
    pub release: Vec<Arc<ReplicaSet>>,
    /// ReplicaSets to resize.
    pub scale: Vec<Scale>,
    /// The ReplicaSet of a new template. If another object has its name, count a collision and look again.
    pub create: Option<ReplicaSet>,
    /// ReplicaSets whose revision or size annotations changed.
    pub annotate: Vec<ReplicaSet>,
    /// The revision to write on the Deployment.
    pub revision: Option<String>,
    /// ReplicaSets beyond the history limit.
    pub delete: Vec<Arc<ReplicaSet>>,
    /// The status as it should be.
    pub status: DeploymentStatus,
    /// When the progress deadline passes.
    pub look_again: Option<Duration>,
    /// The rollout that starts here asked for a rolling update and is done by recreation.
    pub recreates_instead: bool,
}

/// Decides from the ReplicaSets and pods of the Deployment's namespace.
pub fn plan(deployment: &Deployment, sets: &[Arc<ReplicaSet>], pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = &deployment.spec else { return plan };
    let mut mine = Vec::new();
    for set in sets {
        match claim(&deployment.metadata, &spec.selector, &set.metadata) {
            Claim::Owned => mine.push(set.clone()),
            Claim::Adopt => plan.adopt.push(set.clone()),
            Claim::Release => plan.release.push(set.clone()),
            Claim::Foreign => {}
        }
    }
    let (new, old) = replica_sets::split(deployment, mine);
    let stays = deployment.metadata.deletion_timestamp.is_none();
    // What is adopted counts from the next look on; deciding without it could start a second set.
    if stays && plan.adopt.is_empty() {
        roll_out(deployment, new.as_ref(), &old, pods, &mut plan);
    }
    (plan.status, plan.look_again) =
        status::status(deployment, new.as_ref(), &old, plan.create.is_some(), now);
    plan
}

fn roll_out(
    deployment: &Deployment,
    new: Option<&Arc<ReplicaSet>>,
    old: &[Arc<ReplicaSet>],
    pods: &[Arc<Pod>],
    plan: &mut Plan,
) {
    let Some(spec) = &deployment.spec else { return };
    let wanted = spec.replicas.unwrap_or(1);
    if spec.paused == Some(true) {
        // A paused Deployment is still scaled, but no template is rolled out.
        let active = new.or_else(|| old.iter().rev().find(|set| size(set) > 0));
        plan.scale.extend(active.and_then(|set| resized(set, wanted)));
        return;
    }
    for set in old {
        plan.scale.extend(resized(set, 0));
    }
    let revision = replica_sets::next_revision(old);
    let old_runs = old.iter().any(|set| has_running(set, pods));
    match new {
        Some(new) => {
            let revision = revision.max(replica_sets::revision(new));
            plan.revision = replica_sets::changed_revision(&deployment.metadata, revision);
            if !old_runs {
                plan.scale.extend(resized(new, wanted));
            }
            let scaled = plan.scale.iter_mut().find(|scale| scale.set.metadata.uid == new.metadata.uid);
            match scaled {
                Some(scale) => {
                    replica_sets::annotate(&mut scale.set, revision, wanted);
                }
                None => {
                    let mut annotated = new.as_ref().clone();
                    if replica_sets::annotate(&mut annotated, revision, wanted) {
                        plan.annotate.push(annotated);
                    }
                }
            }
            if !old_runs {
                plan.delete = replica_sets::beyond_history(old, spec.revision_history_limit.unwrap_or(10));
            }
        }
        // Old pods end first: two versions never run side by side.
        None if old_runs || !plan.scale.is_empty() => {
            plan.recreates_instead = asks_for_rolling(deployment) && !plan.scale.is_empty();
        }
        None => {
            plan.revision = replica_sets::changed_revision(&deployment.metadata, revision);
            plan.create = Some(new_replica_set(deployment, revision));
        }
    }
}

fn asks_for_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("Recreate")
}

fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn resized(set: &Arc<ReplicaSet>, to: i32) -> Option<Scale> {
    let from = size(set);
    if from == to || set.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let mut resized = set.as_ref().clone();
    resized.spec.get_or_insert_default().replicas = Some(to);
    Some(Scale { set: resized, from, to })
}

/// Whether a pod of the set has not ended yet, be it that it is going.
fn has_running(set: &ReplicaSet, pods: &[Arc<Pod>]) -> bool {
    let uid = set.metadata.uid.as_deref();
    pods.iter().any(|pod| crate::ownership::is_controlled_by(&pod.metadata, uid) && !pod::is_terminal(pod))
}

#[cfg(test)]
mod tests;
