//! One pod's next steps.

use super::observed::{Container, ContainerState, Observed};
use super::plan::{Effect, Failure, FailureKind, Input, KillReason, Note, Outcome, Plan, ProbeTask};
use super::probe::ProbeKind;
use super::status::{self, Extra, StatusInput};
use super::track::{RESTART_DELAY, RESTART_DELAY_MAX, Track};
use super::{RestartPolicy, grace_of, init_containers, is_terminal, spec_of, support};
use ambit_api::core::v1::{Container as Spec, Pod};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Ended runs of one container that are kept, so that the previous log can be read.
const RUNS_KEPT: usize = 2;

/// What is remembered of a pod between plans.
#[derive(Debug, Default)]
pub struct Life {
    tracks: BTreeMap<String, Track>,
    sandbox_retry: Option<(Timestamp, u32)>,
    stopped: BTreeSet<String>,
    ending_since: Option<Timestamp>,
    cleaned: bool,
    deleted: bool,
    refusal_noted: bool,
}

/// One planning round: the input with its lost runs added, and the plan in the making.
struct Round<'a> {
    pod: &'a Pod,
    spec: &'a ambit_api::core::v1::PodSpec,
    policy: RestartPolicy,
    observed: &'a Observed,
    now: Timestamp,
    plan: Plan,
    /// The containers to start, with their attempts.
    starts: Vec<(String, u32)>,
}

impl Round<'_> {
    fn wake_at(&mut self, at: Timestamp) {
        self.plan.wake_at = Some(self.plan.wake_at.map_or(at, |before| before.min(at)));
    }

    fn kill(&mut self, run: &Container, grace: Duration, reason: KillReason) {
        let (id, name) = (run.id.clone(), run.name.clone());
        self.plan.effects.push(Effect::KillContainer { id, name, grace, reason });
    }
}

impl Life {
    /// What to do now.
    pub fn plan(&mut self, input: Input<'_>) -> Plan {
        let Input { pod, gone, observed, addresses, now } = input;
        let spec = spec_of(pod);
        let observed = observed.with_remembered(pod, now);
        self.follow_runs(&observed);
        let policy = RestartPolicy::of(&spec);
        let mut round = Round {
            pod,
            spec: &spec,
            policy,
            observed: &observed,
            now,
            plan: Plan::default(),
            starts: Vec::new(),
        };
        let ending = gone || pod.metadata.deletion_timestamp.is_some();
        let refusal = support::unsupported(pod).filter(|_| !ending && !is_terminal(pod));
        if let Some(message) = &refusal {
            self.refuse(&mut round, message);
        }
        let status = status::compute(&StatusInput {
            pod,
            observed: &observed,
            addresses,
            extras: self.extras(&round, ending),
            now,
        });
        let done = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        if ending {
            self.plan_end(&mut round, gone);
        } else if done {
            self.plan_rest(&mut round);
        } else if refusal.is_none() {
            self.plan_run(&mut round);
        }
        let mut plan = round.plan;
        plan.status = (!gone && !self.deleted && pod.status.as_ref() != Some(&status)).then_some(status);
        plan
    }

    /// Takes the outcome of an effect or probe into account.
    pub fn record(&mut self, pod: &Pod, outcome: Outcome, now: Timestamp) {
        match outcome {
            Outcome::SandboxCreated => self.sandbox_retry = None,
            Outcome::SandboxFailed => {
                let count = self.sandbox_retry.map_or(0, |(_, count)| count) + 1;
                let delay = doubled(Duration::from_secs(1), count, Duration::from_secs(10));
                self.sandbox_retry = Some((now + delay, count));
            }
            Outcome::SandboxStopped { id } => {
                self.stopped.insert(id);
            }
            Outcome::Started { name, attempt } => {
                let track = self.tracks.entry(name).or_default();
                track.retry = None;
                if attempt > 0 {
                    track.count_restart(now);
                }
            }
            Outcome::StartFailed { name, failure } => self.record_failure(name, failure, now),
            Outcome::Probed { task, passed } => self.record_probe(pod, &task, passed),
            Outcome::CleanedUp => self.cleaned = true,
            Outcome::Deleted => self.deleted = true,
        }
    }

    fn record_failure(&mut self, name: String, failure: Failure, now: Timestamp) {
        let track = self.tracks.entry(name).or_default();
        let count = track.retry.as_ref().map_or(0, |(_, _, count)| *count) + 1;
        let delay = match failure.kind {
            FailureKind::ImagePull | FailureKind::ImageNeverPull => {
                doubled(RESTART_DELAY, count, RESTART_DELAY_MAX)
            }
            // Its run has ended and is followed by the next one as after a crash.
            FailureKind::Run => return track.count_restart(now),
            FailureKind::Config | FailureKind::Create => {
                doubled(Duration::from_secs(1), count, Duration::from_secs(30))
            }
        };
        track.retry = Some((failure, now + delay, count));
    }

    fn record_probe(&mut self, pod: &Pod, task: &ProbeTask, passed: bool) {
        let spec = spec_of(pod);
        let all = init_containers(&spec).iter().chain(&spec.containers);
        let probe = all.filter(|c| c.name == task.container).find_map(|c| task.kind.of(c));
        let Some(track) = self.tracks.get_mut(&task.container).filter(|t| t.run == task.run) else { return };
        if let Some(probe) = probe {
            track.probes.entry(task.kind).or_default().record(probe, passed);
        }
    }

    /// Probe results belong to one run: a new run starts without any.
    fn follow_runs(&mut self, observed: &Observed) {
        for run in observed.containers.iter().rev() {
            self.tracks.entry(run.name.clone()).or_default();
        }
        for (name, track) in &mut self.tracks {
            if let Some(run) = observed.newest(name)
                && run.id != track.run
            {
                track.run.clone_from(&run.id);
                track.probes.clear();
            }
        }
    }

    fn refuse(&mut self, round: &mut Round<'_>, message: &str) {
        for container in init_containers(round.spec).iter().chain(&round.spec.containers) {
            let failure = Failure { kind: FailureKind::Config, message: message.to_owned() };
            self.tracks.entry(container.name.clone()).or_default().retry = Some((failure, round.now, 1));
        }
        if !std::mem::replace(&mut self.refusal_noted, true) {
            round.plan.notes.push(Note { reason: "Failed", message: message.to_owned(), container: None });
        }
    }

    /// What the status needs to know beside what the runtime shows.
    fn extras(&self, round: &Round<'_>, ending: bool) -> BTreeMap<String, Extra> {
        let all = init_containers(round.spec).iter().chain(&round.spec.containers);
        all.map(|spec| {
            let Some(track) = self.tracks.get(&spec.name) else {
                return (spec.name.clone(), Extra::default());
            };
            let newest = round.observed.newest(&spec.name);
            let restarts =
                |run: &&Container| run.exit_code().is_some_and(|c| restarts(round.policy, spec, c));
            let until = newest.filter(restarts).and_then(|run| track.back_off_until(run));
            let back_off = until.filter(|(until, _)| !ending && round.now < *until).map(|(_, delay)| delay);
            let failure = track.retry.as_ref().filter(|_| !ending);
            let extra = Extra {
                failure: failure.map(|(failure, _, count)| waiting_reason(failure, *count, spec)),
                back_off,
                started: track.has_started(spec),
                ready: track.is_ready(spec),
            };
            (spec.name.clone(), extra)
        })
        .collect()
    }

    /// A pod that should run.
    fn plan_run(&mut self, round: &mut Round<'_>) {
        let observed = round.observed;
        let current = observed.current();
        let is_stray = |run: &&Container| run.is_running() && current.is_none_or(|s| s.id != run.sandbox);
        let strays: Vec<_> = observed.containers.iter().filter(is_stray).collect();
        if !strays.is_empty() {
            let grace = grace_of(round.pod);
            strays.iter().for_each(|run| round.kill(run, grace, KillReason::SandboxChanged));
            return;
        }
        for sandbox in observed.sandboxes.iter().filter(|s| current.is_none_or(|c| c.id != s.id)) {
            round.plan.effects.push(Effect::StopSandbox { id: sandbox.id.clone() });
            round.plan.effects.push(Effect::RemoveSandbox { id: sandbox.id.clone() });
        }
        self.plan_containers(round, current.map(|s| s.id.as_str()));
        let starts = std::mem::take(&mut round.starts);
        match current {
            Some(sandbox) => round.plan.effects.extend(starts.into_iter().map(|(name, attempt)| {
                Effect::StartContainer { name, attempt, sandbox: sandbox.id.clone() }
            })),
            None if !starts.is_empty() => self.plan_sandbox(round),
            None => {}
        }
        remove_old_runs(round);
    }

    fn plan_sandbox(&mut self, round: &mut Round<'_>) {
        if let Some((at, _)) = self.sandbox_retry.filter(|(at, _)| round.now < *at) {
            return round.wake_at(at);
        }
        let attempt = round.observed.sandboxes.first().map_or(0, |s| s.attempt + 1);
        round.plan.effects.push(Effect::CreateSandbox { attempt });
    }

    /// Finds the containers to start now; kills and probes go to the plan.
    fn plan_containers(&mut self, round: &mut Round<'_>, sandbox: Option<&str>) {
        let in_sandbox = |run: &Container| sandbox == Some(run.sandbox.as_str());
        let spec = round.spec;
        // Once the others have started, the run-once containers are not looked at any more.
        let initialized =
            spec.containers.iter().any(|c| round.observed.newest(&c.name).is_some_and(in_sandbox));
        for container in init_containers(spec) {
            let run = round.observed.newest(&container.name);
            let here = run.filter(|run| in_sandbox(run));
            let complete = match here {
                Some(run) if run.is_running() => {
                    self.watch(round, container, run) && status::is_sidecar(container)
                }
                Some(run)
                    if !status::is_sidecar(container) && (initialized || run.exit_code() == Some(0)) =>
                {
                    true
                }
                None if initialized && !status::is_sidecar(container) => true,
                _ => {
                    self.plan_start(round, container, run, here.is_none());
                    false
                }
            };
            if !complete && !initialized {
                return;
            }
        }
        for container in &spec.containers {
            match round.observed.newest(&container.name) {
                Some(run) if run.is_running() => {
                    self.watch(round, container, run);
                }
                run => self.plan_start(round, container, run, false),
            }
        }
    }

    /// Decides on a container that does not run. `again`: it has to run in a new sandbox whatever its exit code.
    fn plan_start(&mut self, round: &mut Round<'_>, spec: &Spec, run: Option<&Container>, again: bool) {
        let track = self.tracks.entry(spec.name.clone()).or_default();
        if let Some((_, at, _)) = track.retry.as_ref().filter(|(_, at, _)| round.now < *at) {
            return round.wake_at(*at);
        }
        let Some(run) = run else { return round.starts.push((spec.name.clone(), 0)) };
        let Some(code) = run.exit_code() else {
            // Made but never started: the node stopped between the two.
            let (id, name) = (run.id.clone(), run.name.clone());
            round.plan.effects.push(Effect::RemoveContainer { id, name, attempt: run.attempt });
            return round.starts.push((spec.name.clone(), run.attempt));
        };
        if !again && !restarts(round.policy, spec, code) {
            return;
        }
        match track.back_off_until(run).filter(|(until, _)| !again && round.now < *until) {
            Some((until, _)) => {
                if track.noted_attempt.replace(run.attempt) != Some(run.attempt) {
                    round.plan.notes.push(back_off_note(round.pod, &spec.name));
                }
                round.wake_at(until);
            }
            None => round.starts.push((spec.name.clone(), run.attempt + 1)),
        }
    }

    /// Decides on a running container; whether it counts as started.
    fn watch(&self, round: &mut Round<'_>, spec: &Spec, run: &Container) -> bool {
        let Some(track) = self.tracks.get(&spec.name) else { return false };
        if let Some(kind) = track.failing(spec) {
            let own = kind.of(spec).and_then(|p| p.termination_grace_period_seconds);
            let own = own.map(|s| Duration::from_secs(s.max(0).unsigned_abs()));
            round.kill(run, own.unwrap_or_else(|| grace_of(round.pod)), KillReason::Probe(kind));
            return false;
        }
        let started = track.has_started(spec);
        let ContainerState::Running { started: since } = run.state else { return started };
        for kind in ProbeKind::ALL {
            let wanted = if kind == ProbeKind::Startup { !started } else { started };
            if wanted && kind.of(spec).is_some() {
                let (container, run) = (spec.name.clone(), run.id.clone());
                round.plan.probes.push(ProbeTask { container, run, kind, started: since });
            }
        }
        started
    }

    /// A pod that has ended: its sandbox goes, its containers and logs stay until it is deleted.
    fn plan_rest(&mut self, round: &mut Round<'_>) {
        let running: Vec<_> = round.observed.containers.iter().filter(|c| c.is_running()).collect();
        let grace = grace_of(round.pod);
        running.iter().for_each(|run| round.kill(run, grace, KillReason::PodEnds));
        if running.is_empty() {
            let left = round.observed.sandboxes.iter().filter(|s| !self.stopped.contains(&s.id));
            round.plan.effects.extend(left.map(|s| Effect::StopSandbox { id: s.id.clone() }));
        }
    }

    /// A pod that is to be deleted.
    fn plan_end(&mut self, round: &mut Round<'_>, gone: bool) {
        let since = *self.ending_since.get_or_insert(round.now);
        let elapsed = Duration::try_from(round.now.duration_since(since)).unwrap_or_default();
        let grace = grace_of(round.pod).saturating_sub(elapsed);
        let running: Vec<_> = round.observed.containers.iter().filter(|c| c.is_running()).collect();
        if !running.is_empty() {
            running.iter().for_each(|run| round.kill(run, grace, KillReason::PodEnds));
            return;
        }
        for sandbox in &round.observed.sandboxes {
            round.plan.effects.push(Effect::StopSandbox { id: sandbox.id.clone() });
            round.plan.effects.push(Effect::RemoveSandbox { id: sandbox.id.clone() });
        }
        if !self.cleaned {
            round.plan.effects.push(Effect::CleanUp);
        }
        if !gone && !self.deleted {
            round.plan.effects.push(Effect::DeletePod);
        }
        round.plan.finished = gone && round.plan.effects.is_empty();
    }
}

/// Whether an ended container runs again; sidecars always do.
fn restarts(policy: RestartPolicy, spec: &Spec, exit_code: i32) -> bool {
    if status::is_sidecar(spec) {
        return true;
    }
    policy.restarts(exit_code)
}

fn remove_old_runs(round: &mut Round<'_>) {
    let containers = init_containers(round.spec).iter().chain(&round.spec.containers);
    for container in containers {
        let in_runtime = round.observed.runs(&container.name).filter(|run| !run.sandbox.is_empty());
        for run in in_runtime.skip(RUNS_KEPT).filter(|run| !run.is_running()) {
            let (id, name) = (run.id.clone(), run.name.clone());
            round.plan.effects.push(Effect::RemoveContainer { id, name, attempt: run.attempt });
        }
    }
}

/// The reason and text a container waits with after a failed start. Source: kubelet's container states.
fn waiting_reason(failure: &Failure, count: u32, spec: &Spec) -> (&'static str, String) {
    let image = spec.image.as_deref().unwrap_or_default();
    match failure.kind {
        FailureKind::ImageNeverPull => ("ErrImageNeverPull", failure.message.clone()),
        FailureKind::ImagePull if count < 2 => ("ErrImagePull", failure.message.clone()),
        FailureKind::ImagePull => {
            ("ImagePullBackOff", format!("Back-off pulling image {image:?}: {}", failure.message))
        }
        FailureKind::Config => ("CreateContainerConfigError", failure.message.clone()),
        FailureKind::Create => ("CreateContainerError", failure.message.clone()),
        FailureKind::Run => ("RunContainerError", failure.message.clone()),
    }
}

fn back_off_note(pod: &Pod, container: &str) -> Note {
    let message =
        format!("Back-off restarting failed container {container} in pod {}", status::full_name(pod));
    Note { reason: "BackOff", message, container: Some(container.to_owned()) }
}

/// `first`, doubled with each count above 1, up to `max`.
fn doubled(first: Duration, count: u32, max: Duration) -> Duration {
    let factor = 1_u32.checked_shl(count.saturating_sub(1)).filter(|f| *f != 0).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(max)
}

#[cfg(test)]
mod tests;
