//! Status of a Deployment: counts and the conditions Available and Progressing.

use ambit_api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use ambit_api::meta::Time;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Seconds without progress after which a rollout counts as failed, unless set. Source: API defaults.
const PROGRESS_DEADLINE_SECONDS: i32 = 600;

/// A condition's state before its times are known.
struct Wanted {
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// The status, and when the progress deadline passes. `creates` says that a new set is about to be created.
pub(super) fn status(
    deployment: &Deployment,
    new: Option<&Arc<ReplicaSet>>,
    old: &[Arc<ReplicaSet>],
    creates: bool,
    now: Timestamp,
) -> (DeploymentStatus, Option<Duration>) {
    let known = deployment.status.clone().unwrap_or_default();
    let all = || new.into_iter().chain(old);
    let sum = |count: fn(&ReplicaSet) -> i32| all().map(|set| count(set)).sum::<i32>();
    let of = |set: &ReplicaSet, count: fn(&ambit_api::apps::v1::ReplicaSetStatus) -> Option<i32>| {
        set.status.as_ref().and_then(count).unwrap_or(0)
    };
    let replicas = |set: &ReplicaSet| set.status.as_ref().map_or(0, |status| status.replicas);
    let total = sum(replicas);
    let available = all().map(|set| of(set, |status| status.available_replicas)).sum::<i32>();
    let ready = all().map(|set| of(set, |status| status.ready_replicas)).sum::<i32>();
    let updated = new.map_or(0, |set| replicas(set));
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let positive = |count: i32| (count > 0).then_some(count);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: positive(total),
        updated_replicas: positive(updated),
        ready_replicas: positive(ready),
        available_replicas: positive(available),
        // Counted against what is wanted as well, so that a Deployment without pods does not look complete.
        unavailable_replicas: positive(total.max(wanted) - available),
        collision_count: known.collision_count,
        conditions: None,
        terminating_replicas: known.terminating_replicas,
    };
    let mut conditions = known.conditions.clone().unwrap_or_default();
    set(&mut conditions, availability(wanted, available), now);
    let complete = updated == wanted && total == wanted && available >= wanted && !creates && new.is_some();
    let progress = Progress { deployment, new, before: &known, after: &status, complete, creates };
    let look_again = progress.judge(&mut conditions, now);
    copy_failure(&mut conditions, new, now);
    status.conditions = Some(conditions);
    (status, look_again)
}

fn availability(wanted: i32, available: i32) -> Wanted {
    // Without a rolling update no pod may be missing for long: every wanted one has to be there.
    let (status, reason, message) = if available >= wanted {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    Wanted { kind: "Available", status, reason, message: message.to_owned() }
}

struct Progress<'a> {
    deployment: &'a Deployment,
    new: Option<&'a Arc<ReplicaSet>>,
    before: &'a DeploymentStatus,
    after: &'a DeploymentStatus,
    complete: bool,
    creates: bool,
}

impl Progress<'_> {
    /// Sets Progressing; returns when its deadline passes. Source: upstream deployment/progress.go.
    fn judge(&self, conditions: &mut Vec<DeploymentCondition>, now: Timestamp) -> Option<Duration> {
        let spec = self.deployment.spec.as_ref()?;
        let known = conditions.iter().find(|condition| condition.type_ == "Progressing").cloned();
        let reason_before = known.as_ref().and_then(|known| known.reason.as_deref()).unwrap_or_default();
        if spec.paused == Some(true) {
            set(conditions, self.wanted("Unknown", "DeploymentPaused", "Deployment is paused"), now);
            return None;
        }
        if self.complete {
            let message = format!("{} has successfully progressed.", self.subject());
            set(conditions, self.wanted("True", "NewReplicaSetAvailable", &message), now);
            return None;
        }
        if self.creates {
            let message = format!("Created new replica set \"{}\"", self.new_name());
            set(conditions, self.wanted("True", "NewReplicaSetCreated", &message), now);
        } else if self.has_progressed()
            || matches!(reason_before, "" | "DeploymentPaused" | "NewReplicaSetAvailable")
        {
            let message = format!("{} is progressing.", self.subject());
            // The times tell when it last progressed: they move even if nothing else does.
            conditions.retain(|condition| condition.type_ != "Progressing");
            let mut updated = made(self.wanted("True", "ReplicaSetUpdated", &message), now);
            if let Some(known) = known.filter(|known| known.status == "True") {
                updated.last_transition_time = known.last_transition_time;
            }
            conditions.push(updated);
        } else {
            return self.judge_deadline(conditions, known.as_ref()?, now);
        }
        Some(self.deadline())
    }

    fn judge_deadline(
        &self,
        conditions: &mut Vec<DeploymentCondition>,
        known: &DeploymentCondition,
        now: Timestamp,
    ) -> Option<Duration> {
        if known.reason.as_deref() == Some("ProgressDeadlineExceeded") {
            return None;
        }
        let since = known.last_update_time.as_ref().map_or(now, |time| time.0);
        let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        match self.deadline().checked_sub(passed) {
            Some(left) if !left.is_zero() => Some(left),
            _ => {
                let message = format!("{} has timed out progressing.", self.subject());
                set(conditions, self.wanted("False", "ProgressDeadlineExceeded", &message), now);
                None
            }
        }
    }

    fn deadline(&self) -> Duration {
        let spec = self.deployment.spec.as_ref();
        let seconds =
            spec.and_then(|spec| spec.progress_deadline_seconds).unwrap_or(PROGRESS_DEADLINE_SECONDS);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }

    fn has_progressed(&self) -> bool {
        let (before, after) = (self.before, self.after);
        let old =
            |status: &DeploymentStatus| status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0);
        after.updated_replicas > before.updated_replicas
            || old(after) < old(before)
            || after.ready_replicas > before.ready_replicas
            || after.available_replicas > before.available_replicas
            || after.observed_generation > before.observed_generation
    }

    fn wanted(&self, status: &'static str, reason: &'static str, message: &str) -> Wanted {
        Wanted { kind: "Progressing", status, reason, message: message.to_owned() }
    }

    fn subject(&self) -> String {
        match self.new {
            Some(new) => format!("ReplicaSet \"{}\"", new.metadata.name.as_deref().unwrap_or_default()),
            None => {
                format!("Deployment \"{}\"", self.deployment.metadata.name.as_deref().unwrap_or_default())
            }
        }
    }

    fn new_name(&self) -> String {
        super::new_replica_set(self.deployment, 0).metadata.name.unwrap_or_default()
    }
}

/// Shows the failure of the running set as the Deployment's own.
fn copy_failure(conditions: &mut Vec<DeploymentCondition>, new: Option<&Arc<ReplicaSet>>, now: Timestamp) {
    let of_set = new.and_then(|set| set.status.as_ref()).and_then(|status| status.conditions.as_ref());
    let failure = of_set.into_iter().flatten().find(|condition| condition.type_ == "ReplicaFailure");
    match failure {
        Some(failure) if failure.status == "True" => {
            let message = failure.message.clone().unwrap_or_default();
            let known = conditions.iter().find(|condition| condition.type_ == "ReplicaFailure");
            if known.is_some_and(|known| known.message.as_ref() == Some(&message)) {
                return;
            }
            let wanted = Wanted { kind: "ReplicaFailure", status: "True", reason: "FailedCreate", message };
            set(conditions, wanted, now);
        }
        _ => conditions.retain(|condition| condition.type_ != "ReplicaFailure"),
    }
}

fn made(wanted: Wanted, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: wanted.kind.to_owned(),
        status: wanted.status.to_owned(),
        reason: Some(wanted.reason.to_owned()),
        message: Some(wanted.message),
        last_transition_time: Some(Time(now)),
        last_update_time: Some(Time(now)),
    }
}

/// Replaces the condition unless it says the same; keeps the transition time while the status stays.
fn set(conditions: &mut Vec<DeploymentCondition>, wanted: Wanted, now: Timestamp) {
    let mut new = made(wanted, now);
    let known = conditions.iter().find(|condition| condition.type_ == new.type_);
    if let Some(known) = known {
        if known.status == new.status && known.reason == new.reason && known.message == new.message {
            return;
        }
        if known.status == new.status {
            new.last_transition_time = known.last_transition_time.clone();
        }
    }
    conditions.retain(|condition| condition.type_ != new.type_);
    conditions.push(new);
}
