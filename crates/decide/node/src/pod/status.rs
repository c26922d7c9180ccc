//! The pod status that clients see. Source: kubelet's status generation.

use super::observed::{Container, ContainerState, Observed};
use super::resources::qos_class;
use super::{RestartPolicy, init_containers, is_host_network, is_terminal, spec_of};
use ambit_api::core::v1::{
    Container as Spec, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use ambit_api::meta::Time;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Longest termination message in bytes. Source: the API's `terminationMessagePath`.
const TERMINATION_MESSAGE_BYTES_MAX: usize = 4096;

/// The node's own addresses, the main one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses(pub Vec<IpAddr>);

/// What the status needs to know of a container beside what the runtime shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    /// Why its start failed.
    pub(crate) failure: Option<(&'static str, String)>,
    /// The delay before its next start, if it is being waited for.
    pub(crate) back_off: Option<Duration>,
    /// Whether its startup probe passed.
    pub(crate) started: bool,
    /// Whether its startup and readiness probes passed.
    pub(crate) ready: bool,
}

pub(crate) struct StatusInput<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) observed: &'a Observed,
    pub(crate) addresses: &'a Addresses,
    pub(crate) extras: BTreeMap<String, Extra>,
    pub(crate) now: Timestamp,
}

/// API times have whole seconds.
pub fn truncate_to_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn time(at: Timestamp) -> Time {
    Time(truncate_to_second(at))
}

/// `name_namespace(uid)`, as event texts name a pod.
pub(crate) fn full_name(pod: &Pod) -> String {
    let part = |value: &Option<String>| value.clone().unwrap_or_default();
    let meta = &pod.metadata;
    format!("{}_{}({})", part(&meta.name), part(&meta.namespace), part(&meta.uid))
}

/// Whether a container among the run-once ones is one that keeps running. Source: KEP-753.
pub(crate) fn is_sidecar(spec: &Spec) -> bool {
    spec.restart_policy.as_deref() == Some("Always")
}

/// The pod's status: the stored one with everything the node is in charge of brought up to date.
pub(crate) fn compute(input: &StatusInput<'_>) -> PodStatus {
    let spec = spec_of(input.pod);
    let stored = input.pod.status.clone().unwrap_or_default();
    let init = init_containers(&spec);
    let statuses = |list: &[Spec]| list.iter().map(|c| container_status(input, c)).collect::<Vec<_>>();
    let (init_statuses, mut app_statuses) = (statuses(init), statuses(&spec.containers));
    let phase = if is_terminal(input.pod) {
        stored.phase.clone().unwrap_or_default()
    } else {
        phase_of(&spec, &init_statuses, &app_statuses).to_owned()
    };
    if phase != "Running" {
        app_statuses.iter_mut().filter(|s| !is_running(s)).for_each(|s| s.ready = false);
    }
    let conditions = conditions(input, &phase, (&init_statuses, &app_statuses));
    let ips = pod_ips(input, &stored);
    PodStatus {
        conditions: Some(conditions),
        container_statuses: Some(app_statuses).filter(|s| !s.is_empty()),
        init_container_statuses: Some(init_statuses).filter(|s| !s.is_empty()),
        host_ip: input.addresses.0.first().map(ToString::to_string),
        host_ips: Some(input.addresses.0.iter().map(|ip| HostIP { ip: ip.to_string() }).collect()),
        observed_generation: input.pod.metadata.generation.or(stored.observed_generation),
        phase: Some(phase),
        pod_ip: ips.first().map(|ip| ip.ip.clone()),
        pod_ips: Some(ips).filter(|ips| !ips.is_empty()),
        qos_class: Some(stored.qos_class.clone().unwrap_or_else(|| qos_class(&spec).to_owned())),
        start_time: stored.start_time.clone().or_else(|| Some(time(input.now))),
        ..stored
    }
}

/// The sandbox's addresses; the last known ones when it is gone.
fn pod_ips(input: &StatusInput<'_>, stored: &PodStatus) -> Vec<PodIP> {
    let sandbox = input.observed.current();
    let ips = if is_host_network(input.pod) {
        if sandbox.is_some() { input.addresses.0.as_slice() } else { &[] }
    } else {
        sandbox.map_or(&[][..], |s| s.ips.as_slice())
    };
    if ips.is_empty() {
        return stored.pod_ips.clone().unwrap_or_default();
    }
    ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect()
}

fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    status.state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code)
}

fn container_status(input: &StatusInput<'_>, spec: &Spec) -> ContainerStatus {
    let mut runs = input.observed.runs(&spec.name);
    let (newest, previous) = (runs.next(), runs.next());
    let extra = input.extras.get(&spec.name).cloned().unwrap_or_default();
    let stored = stored_status(input.pod, &spec.name);
    let state =
        newest.map_or_else(|| waiting_first(input.pod, &extra), |run| run_state(input.pod, run, &extra));
    let shown_waiting = state.waiting.is_some();
    let ended = |run: &Container| {
        run_terminated(run).map(|t| ApiState { terminated: Some(t), ..ApiState::default() })
    };
    let last_state = if shown_waiting { newest.and_then(ended) } else { previous.and_then(ended) };
    let kept = stored.and_then(|s| s.last_state.clone()).filter(|s| s.terminated.is_some());
    let running = state.running.is_some();
    let completed_init = is_init(input.pod, &spec.name) && !is_sidecar(spec);
    let ready = if completed_init {
        newest.and_then(Container::exit_code) == Some(0)
    } else {
        running && extra.ready
    };
    ContainerStatus {
        name: spec.name.clone(),
        image: newest.map_or_else(|| spec.image.clone().unwrap_or_default(), |run| run.image.clone()),
        image_id: newest.map(|run| run.image_id.clone()).unwrap_or_default(),
        container_id: newest.map(|run| format!("containerd://{}", run.id)),
        restart_count: newest.map_or(0, |run| i32::try_from(run.attempt).unwrap_or(i32::MAX)),
        last_state: last_state.or(kept),
        ready,
        started: Some(running && extra.started),
        state: Some(state),
        ..ContainerStatus::default()
    }
}

fn is_init(pod: &Pod, name: &str) -> bool {
    pod.spec.as_ref().is_some_and(|spec| init_containers(spec).iter().any(|c| c.name == name))
}

fn stored_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let app = status.container_statuses.iter().flatten();
    app.chain(status.init_container_statuses.iter().flatten()).find(|s| s.name == name)
}

/// The state of a container that never ran.
fn waiting_first(pod: &Pod, extra: &Extra) -> ApiState {
    let has_init = pod.spec.as_ref().is_some_and(|spec| !init_containers(spec).is_empty());
    let default = if has_init { "PodInitializing" } else { "ContainerCreating" };
    match &extra.failure {
        Some((reason, message)) => waiting(reason, Some(message.clone())),
        None => waiting(default, None),
    }
}

fn run_state(pod: &Pod, run: &Container, extra: &Extra) -> ApiState {
    match &run.state {
        ContainerState::Created => waiting("ContainerCreating", None),
        ContainerState::Running { started } => ApiState {
            running: Some(ContainerStateRunning { started_at: Some(time(*started)) }),
            ..ApiState::default()
        },
        ContainerState::Exited { .. } => match (&extra.failure, extra.back_off) {
            (Some((reason, message)), _) => waiting(reason, Some(message.clone())),
            (None, Some(delay)) => {
                let message = format!(
                    "back-off {} restarting failed container={} pod={}",
                    go_duration(delay),
                    run.name,
                    full_name(pod)
                );
                waiting("CrashLoopBackOff", Some(message))
            }
            (None, None) => ApiState { terminated: run_terminated(run), ..ApiState::default() },
        },
    }
}

fn waiting(reason: &str, message: Option<String>) -> ApiState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ApiState { waiting: Some(waiting), ..ApiState::default() }
}

/// Whole seconds the way Go prints a duration: `10s`, `1m20s`, `5m0s`.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}

fn run_terminated(run: &Container) -> Option<ContainerStateTerminated> {
    let ContainerState::Exited { started, finished, code, reason, message } = &run.state else { return None };
    let default = if *code == 0 { "Completed" } else { "Error" };
    let mut message = message.clone();
    if message.len() > TERMINATION_MESSAGE_BYTES_MAX {
        let end = (0..=TERMINATION_MESSAGE_BYTES_MAX).rev().find(|i| message.is_char_boundary(*i));
        message.truncate(end.unwrap_or_default());
    }
    Some(ContainerStateTerminated {
        container_id: Some(format!("containerd://{}", run.id)),
        exit_code: *code,
        started_at: Some(time(started.unwrap_or(*finished))),
        finished_at: Some(time(*finished)),
        reason: Some(if reason.is_empty() { default.to_owned() } else { reason.clone() }),
        message: Some(message).filter(|m| !m.is_empty()),
        ..ContainerStateTerminated::default()
    })
}

/// Source: kubelet's `getPhase`.
fn phase_of(
    spec: &ambit_api::core::v1::PodSpec,
    init: &[ContainerStatus],
    app: &[ContainerStatus],
) -> &'static str {
    let policy = RestartPolicy::of(spec);
    for (container, status) in init_containers(spec).iter().zip(init) {
        match exit_code(status) {
            _ if is_sidecar(container) => {}
            Some(0) => {}
            Some(_) if policy == RestartPolicy::Never => return "Failed",
            // Once the others run, the record of a run-once container may be gone.
            _ if app.iter().any(|s| s.container_id.is_some()) => {}
            _ => return "Pending",
        }
    }
    let never_ran =
        |s: &ContainerStatus| exit_code(s).is_none() && !is_running(s) && s.container_id.is_none();
    if app.is_empty() || app.iter().any(never_ran) {
        return "Pending";
    }
    let final_code = |s: &ContainerStatus| exit_code(s).filter(|code| !policy.restarts(*code));
    let codes: Vec<_> = app.iter().filter_map(final_code).collect();
    match codes.len() == app.len() {
        false => "Running",
        true if codes.iter().all(|code| *code == 0) => "Succeeded",
        true => "Failed",
    }
}

fn conditions(
    input: &StatusInput<'_>,
    phase: &str,
    (init, app): (&[ContainerStatus], &[ContainerStatus]),
) -> Vec<PodCondition> {
    let spec = spec_of(input.pod);
    let unready = names(app.iter().filter(|s| !s.ready));
    let containers = match phase {
        "Succeeded" => (false, "PodCompleted", None),
        "Failed" => (false, "PodFailed", None),
        _ if unready.is_empty() => (true, "", None),
        _ => (false, "ContainersNotReady", Some(format!("containers with unready status: [{unready}]"))),
    };
    let stored = input.pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let stored: Vec<_> = stored.collect();
    let holds = |type_: &str| stored.iter().any(|c| c.type_ == type_ && c.status == "True");
    let gates = spec.readiness_gates.iter().flatten().map(|g| g.condition_type.as_str());
    let closed: Vec<_> = gates.filter(|gate| !holds(gate)).collect();
    let ready = if containers.0 && !closed.is_empty() {
        let list = closed.iter().map(|gate| format!("condition {gate} is not true")).collect::<Vec<_>>();
        (false, "ReadinessGatesNotReady", Some(list.join(", ")))
    } else {
        containers.clone()
    };
    let has_network =
        input.observed.current().is_some_and(|s| is_host_network(input.pod) || !s.ips.is_empty());
    let own = [
        ("PodReadyToStartContainers", (has_network, "", None)),
        ("Initialized", initialized(&spec, phase, (init, app))),
        ("Ready", ready),
        ("ContainersReady", containers),
        ("PodScheduled", (true, "", None)),
    ];
    let mut result: Vec<PodCondition> = stored
        .iter()
        .filter(|c| own.iter().all(|(type_, _)| *type_ != c.type_))
        .map(|c| (*c).clone())
        .collect();
    result.extend(own.into_iter().map(|(type_, (holds, reason, message))| {
        let before = stored.iter().find(|c| c.type_ == type_).copied();
        condition(
            input,
            before,
            PodCondition {
                type_: type_.to_owned(),
                status: if holds { "True" } else { "False" }.to_owned(),
                reason: Some(reason.to_owned()).filter(|r| !r.is_empty()),
                message,
                ..PodCondition::default()
            },
        )
    }));
    result
}

type Verdict = (bool, &'static str, Option<String>);

fn initialized(
    spec: &ambit_api::core::v1::PodSpec,
    phase: &str,
    (init, app): (&[ContainerStatus], &[ContainerStatus]),
) -> Verdict {
    let incomplete = |(container, status): (&Spec, &&ContainerStatus)| {
        if is_sidecar(container) { status.started != Some(true) } else { exit_code(status) != Some(0) }
    };
    let pairs = init_containers(spec).iter().zip(init.iter().collect::<Vec<_>>());
    let left: Vec<_> = pairs.filter(|(c, s)| incomplete((c, s))).map(|(_, s)| s).collect();
    match phase {
        "Succeeded" => (true, "PodCompleted", None),
        _ if left.is_empty() || app.iter().any(|s| s.container_id.is_some()) => (true, "", None),
        _ => {
            let message = format!("containers with incomplete status: [{}]", names(left.into_iter()));
            (false, "ContainersNotInitialized", Some(message))
        }
    }
}

fn names<'a>(statuses: impl Iterator<Item = &'a ContainerStatus>) -> String {
    statuses.map(|s| s.name.as_str()).collect::<Vec<_>>().join(" ")
}

/// The condition with the times it keeps from `before`.
fn condition(input: &StatusInput<'_>, before: Option<&PodCondition>, new: PodCondition) -> PodCondition {
    let unchanged = before.filter(|c| c.status == new.status);
    PodCondition {
        last_transition_time: unchanged
            .and_then(|c| c.last_transition_time.clone())
            .or_else(|| Some(time(input.now))),
        last_probe_time: before.and_then(|c| c.last_probe_time.clone()),
        observed_generation: input.pod.metadata.generation,
        ..new
    }
}
