use super::*;
use crate::pod::observed::Sandbox;
use crate::pod::status::Addresses;
use ambit_api::core::v1::PodStatus;
use ambit_api::meta::Time;
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn addresses() -> Addresses {
    Addresses(vec!["192.0.2.1".parse().unwrap()])
}

fn pod(spec: Value) -> Pod {
    let metadata = json!({ "name": "web", "namespace": "demo", "uid": "u1" });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

fn one(policy: &str) -> Pod {
    pod(json!({ "restartPolicy": policy, "containers": [{ "name": "a", "image": "i" }] }))
}

fn sandbox(id: &str, attempt: u32, ready: bool) -> Sandbox {
    Sandbox { id: id.into(), attempt, ready, ips: vec!["10.0.0.2".parse().unwrap()] }
}

fn run(name: &str, attempt: u32, state: ContainerState) -> Container {
    let id = format!("{name}{attempt}");
    let (sandbox, image) = ("s0".to_owned(), "i".to_owned());
    Container { id, name: name.into(), attempt, sandbox, image, image_id: "sha".into(), state }
}

fn running(name: &str, attempt: u32) -> Container {
    run(name, attempt, ContainerState::Running { started: at(0) })
}

fn exited(name: &str, attempt: u32, code: i32, finished: i64) -> Container {
    let (reason, message) = (String::new(), String::new());
    let state =
        ContainerState::Exited { started: Some(at(0)), finished: at(finished), code, reason, message };
    run(name, attempt, state)
}

/// The newest run of each container first, as the runtime lists them.
fn seen(containers: Vec<Container>) -> Observed {
    Observed { sandboxes: vec![sandbox("s0", 0, true)], containers }
}

fn plan_at(life: &mut Life, pod: &Pod, observed: Observed, second: i64) -> Plan {
    life.plan(Input { pod, gone: false, observed, addresses: &addresses(), now: at(second) })
}

fn start(name: &str, attempt: u32) -> Effect {
    Effect::StartContainer { name: name.into(), attempt, sandbox: "s0".into() }
}

fn kill(run: &str, name: &str, grace: u64, reason: KillReason) -> Effect {
    Effect::KillContainer { id: run.into(), name: name.into(), grace: Duration::from_secs(grace), reason }
}

fn stop(id: &str) -> Effect {
    Effect::StopSandbox { id: id.into() }
}

fn remove(id: &str) -> Effect {
    Effect::RemoveSandbox { id: id.into() }
}

/// The effects of the first plan of a pod that was not looked at before.
#[track_caller]
fn check(pod: &Pod, observed: Observed, expected: &[Effect]) {
    assert_eq!(plan_at(&mut Life::default(), pod, observed, 100).effects, expected);
}

/// Phase, `state of each container`, and the reasons why the pod is not ready.
#[track_caller]
fn check_status(pod: &Pod, observed: Observed, expected: (&str, &[&str], Option<&str>)) {
    let status = plan_at(&mut Life::default(), pod, observed, 100).status.unwrap();
    check_shown(&status, expected);
}

#[track_caller]
fn check_shown(status: &PodStatus, (phase, states, ready): (&str, &[&str], Option<&str>)) {
    let init = status.init_container_statuses.iter().flatten();
    let all = init.chain(status.container_statuses.iter().flatten());
    let shown: Vec<_> = all
        .map(|s| {
            let state = s.state.as_ref().unwrap();
            let word = if state.running.is_some() {
                "running".to_owned()
            } else if let Some(t) = &state.terminated {
                format!("{}({})", t.reason.as_deref().unwrap(), t.exit_code)
            } else {
                state.waiting.as_ref().unwrap().reason.clone().unwrap()
            };
            format!("{} {word} {} {}", s.name, s.restart_count, s.ready)
        })
        .collect();
    assert_eq!(shown, states);
    assert_eq!(status.phase.as_deref(), Some(phase));
    let condition = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(condition.status == "True", ready.is_none());
    assert_eq!(condition.reason.as_deref(), ready);
}

#[test]
fn a_new_pod_gets_a_sandbox_and_then_its_containers() {
    let pod = pod(json!({ "containers": [{ "name": "a" }, { "name": "b" }] }));
    check(&pod, Observed::default(), &[Effect::CreateSandbox { attempt: 0 }]);
    check(&pod, seen(vec![]), &[start("a", 0), start("b", 0)]);
    check(&pod, seen(vec![running("a", 0)]), &[start("b", 0)]);
    check(&pod, seen(vec![running("a", 0), running("b", 0)]), &[]);
    let states = ["a ContainerCreating 0 false", "b ContainerCreating 0 false"];
    check_status(&pod, seen(vec![]), ("Pending", &states, Some("ContainersNotReady")));
    let states = ["a running 0 true", "b ContainerCreating 0 false"];
    check_status(&pod, seen(vec![running("a", 0)]), ("Pending", &states, Some("ContainersNotReady")));
    let states = ["a running 0 true", "b running 0 true"];
    check_status(&pod, seen(vec![running("a", 0), running("b", 0)]), ("Running", &states, None));
}

#[test]
fn a_created_container_that_was_never_started_is_made_again() {
    let removed = Effect::RemoveContainer { id: "a2".into(), name: "a".into(), attempt: 2 };
    check(&one("Always"), seen(vec![run("a", 2, ContainerState::Created)]), &[removed, start("a", 2)]);
}

#[test]
fn run_once_containers_run_in_order_before_the_others() {
    let spec = json!({
        "restartPolicy": "OnFailure",
        "initContainers": [{ "name": "x" }, { "name": "y" }],
        "containers": [{ "name": "a" }],
    });
    let pod = pod(spec);
    check(&pod, seen(vec![]), &[start("x", 0)]);
    check(&pod, seen(vec![running("x", 0)]), &[]);
    check(&pod, seen(vec![exited("x", 0, 1, 90)]), &[start("x", 1)]);
    check(&pod, seen(vec![exited("x", 0, 0, 90)]), &[start("y", 0)]);
    let done = vec![exited("y", 0, 0, 91), exited("x", 0, 0, 90)];
    check(&pod, seen(done.clone()), &[start("a", 0)]);
    // Once started, a restart of the others does not run them again, even if their records are gone.
    check(&pod, seen(vec![exited("a", 0, 1, 95)]), &[start("a", 1)]);
    let states = ["x Completed(0) 0 true", "y PodInitializing 0 false", "a PodInitializing 0 false"];
    let half = seen(vec![exited("x", 0, 0, 90)]);
    check_status(&pod, half, ("Pending", &states, Some("ContainersNotReady")));
    // A new sandbox runs them again.
    let mut lost = seen([vec![exited("a", 0, 1, 95)], done].concat());
    lost.sandboxes = vec![sandbox("s1", 1, true)];
    let again = Effect::StartContainer { name: "x".into(), attempt: 1, sandbox: "s1".into() };
    check(&pod, lost, &[again]);
}

#[test]
fn a_failed_run_once_container_fails_a_pod_that_never_restarts() {
    let pod = pod(json!({
        "restartPolicy": "Never", "initContainers": [{ "name": "x" }], "containers": [{ "name": "a" }],
    }));
    let observed = seen(vec![exited("x", 0, 3, 90)]);
    let states = ["x Error(3) 0 false", "a PodInitializing 0 false"];
    check_status(&pod, observed.clone(), ("Failed", &states, Some("PodFailed")));
    check(&pod, observed, &[stop("s0")]);
}

#[test]
fn a_sidecar_starts_before_and_does_not_hold_back_the_end() {
    let pod = pod(json!({
        "restartPolicy": "Never",
        "initContainers": [{ "name": "s", "restartPolicy": "Always" }],
        "containers": [{ "name": "a" }],
    }));
    check(&pod, seen(vec![]), &[start("s", 0)]);
    check(&pod, seen(vec![running("s", 0)]), &[start("a", 0)]);
    check(&pod, seen(vec![running("a", 0), exited("s", 0, 0, 90)]), &[start("s", 1)]);
    let ended = seen(vec![exited("a", 0, 0, 90), running("s", 0)]);
    check(&pod, ended.clone(), &[kill("s0", "s", 30, KillReason::PodEnds)]);
    let states = ["s running 0 true", "a Completed(0) 0 false"];
    check_status(&pod, ended, ("Succeeded", &states, Some("PodCompleted")));
}

#[test]
fn restart_policies() {
    let ended = |code| seen(vec![exited("a", 0, code, 90)]);
    check(&one("Always"), ended(0), &[start("a", 1)]);
    check(&one("OnFailure"), ended(1), &[start("a", 1)]);
    check(&one("OnFailure"), ended(0), &[stop("s0")]);
    check(&one("Never"), ended(1), &[stop("s0")]);
    check_status(&one("Never"), ended(1), ("Failed", &["a Error(1) 0 false"], Some("PodFailed")));
    let states = ["a Completed(0) 0 false"];
    check_status(&one("OnFailure"), ended(0), ("Succeeded", &states, Some("PodCompleted")));
    let states = ["a Completed(0) 0 false"];
    check_status(&one("Always"), ended(0), ("Running", &states, Some("ContainersNotReady")));
}

#[test]
fn restarts_back_off_and_are_told_once() {
    let (mut life, pod) = (Life::default(), one("Always"));
    let started = |life: &mut Life, attempt, second| {
        life.record(&pod, Outcome::Started { name: "a".into(), attempt }, at(second))
    };
    started(&mut life, 0, 0);
    let crashed = |attempt, second| seen(vec![exited("a", attempt, 1, second)]);
    assert_eq!(plan_at(&mut life, &pod, crashed(0, 5), 5).effects, [start("a", 1)]);
    started(&mut life, 1, 5);
    let plan = plan_at(&mut life, &pod, crashed(1, 6), 7);
    assert_eq!((plan.effects, plan.wake_at), (vec![], Some(at(16))));
    let text = "Back-off restarting failed container a in pod web_demo(u1)";
    assert_eq!(plan.notes.iter().map(|n| n.message.as_str()).collect::<Vec<_>>(), [text]);
    let status = plan.status.unwrap();
    check_shown(&status, ("Running", &["a CrashLoopBackOff 1 false"], Some("ContainersNotReady")));
    let shown = &status.container_statuses.as_ref().unwrap()[0];
    let waiting = shown.state.as_ref().unwrap().waiting.as_ref().unwrap();
    let text = "back-off 10s restarting failed container=a pod=web_demo(u1)";
    assert_eq!(waiting.message.as_deref(), Some(text));
    let last = shown.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.container_id.as_deref()), (1, Some("containerd://a1")));
    assert_eq!(plan_at(&mut life, &pod, crashed(1, 6), 15).notes, []);
    assert_eq!(plan_at(&mut life, &pod, crashed(1, 6), 16).effects, [start("a", 2)]);

    let mut second = 16;
    let delays: Vec<_> = (2..9)
        .map(|attempt| {
            started(&mut life, attempt, second);
            let until = plan_at(&mut life, &pod, crashed(attempt, second), second).wake_at.unwrap();
            let delay = until.as_second() - at(second).as_second();
            second += delay;
            delay
        })
        .collect();
    assert_eq!(delays, [20, 40, 80, 160, 300, 300, 300]);
    // A container that kept running for long starts over.
    started(&mut life, 9, second + 1000);
    let plan = plan_at(&mut life, &pod, crashed(9, second + 1000), second + 1000);
    assert_eq!(plan.wake_at, Some(at(second + 1010)));
}

#[test]
fn failed_starts_are_shown_and_tried_again_later() {
    let (mut life, pod) = (Life::default(), one("Always"));
    let mut fail = |kind, second| {
        let failure = Failure { kind, message: "why".into() };
        life.record(&pod, Outcome::StartFailed { name: "a".into(), failure }, at(second));
        let plan = plan_at(&mut life, &pod, seen(vec![]), second);
        assert_eq!(plan.effects, []);
        let shown = plan.status.unwrap().container_statuses.unwrap().remove(0);
        let waiting = shown.state.unwrap().waiting.unwrap();
        (
            waiting.reason.unwrap(),
            waiting.message.unwrap(),
            plan.wake_at.unwrap().as_second() - at(second).as_second(),
        )
    };
    assert_eq!(fail(FailureKind::ImagePull, 0), ("ErrImagePull".into(), "why".into(), 10));
    let text = "Back-off pulling image \"i\": why";
    assert_eq!(fail(FailureKind::ImagePull, 10), ("ImagePullBackOff".into(), text.into(), 20));
    assert_eq!(fail(FailureKind::ImageNeverPull, 30), ("ErrImageNeverPull".into(), "why".into(), 40));
    assert_eq!(fail(FailureKind::Config, 70), ("CreateContainerConfigError".into(), "why".into(), 8));
    assert_eq!(fail(FailureKind::Create, 78), ("CreateContainerError".into(), "why".into(), 16));
    assert_eq!(plan_at(&mut life, &pod, seen(vec![]), 94).effects, [start("a", 0)]);
    life.record(&pod, Outcome::Started { name: "a".into(), attempt: 0 }, at(94));
    let plan = plan_at(&mut life, &pod, seen(vec![running("a", 0)]), 95);
    check_shown(&plan.status.unwrap(), ("Running", &["a running 0 true"], None));
}

#[test]
fn a_failed_sandbox_is_tried_again_with_growing_delays() {
    let (mut life, pod) = (Life::default(), one("Always"));
    let mut second = 0;
    let delays: Vec<_> = (0..6)
        .map(|_| {
            let plan = plan_at(&mut life, &pod, Observed::default(), second);
            assert_eq!(plan.effects, [Effect::CreateSandbox { attempt: 0 }]);
            life.record(&pod, Outcome::SandboxFailed, at(second));
            let plan = plan_at(&mut life, &pod, Observed::default(), second);
            assert_eq!(plan.effects, []);
            let delay = plan.wake_at.unwrap().as_second() - at(second).as_second();
            second += delay;
            delay
        })
        .collect();
    assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
}

#[test]
fn a_dead_sandbox_is_replaced_with_everything_in_it() {
    let pod = one("Always");
    let dead = |containers| Observed { sandboxes: vec![sandbox("s0", 0, false)], containers };
    let first = dead(vec![running("a", 0)]);
    check(&pod, first, &[kill("a0", "a", 30, KillReason::SandboxChanged)]);
    let then = dead(vec![exited("a", 0, 137, 99)]);
    check(&pod, then, &[stop("s0"), remove("s0"), Effect::CreateSandbox { attempt: 1 }]);
    let two = Observed {
        sandboxes: vec![sandbox("s1", 1, true), sandbox("s0", 0, false)],
        containers: vec![exited("a", 0, 137, 99)],
    };
    let again = Effect::StartContainer { name: "a".into(), attempt: 1, sandbox: "s1".into() };
    check(&pod, two, &[stop("s0"), remove("s0"), again]);
}

#[test]
fn runs_that_the_runtime_lost_are_remembered_from_the_status() {
    let with = |policy: &str, state: Value| {
        let mut pod = one(policy);
        pod.status = serde_json::from_value(json!({ "phase": "Running", "containerStatuses": [{
            "name": "a", "image": "i", "imageID": "sha", "ready": true, "restartCount": 4,
            "containerID": "containerd://old", "state": state,
        }] }))
        .unwrap();
        pod
    };
    let was_running = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
    check(&with("Always", was_running.clone()), Observed::default(), &[Effect::CreateSandbox { attempt: 0 }]);
    check(&with("Always", was_running.clone()), seen(vec![]), &[start("a", 5)]);
    let states = ["a ContainerStatusUnknown(137) 4 false"];
    let never = with("Never", was_running);
    check_status(&never, Observed::default(), ("Failed", &states, Some("PodFailed")));
    let ended =
        json!({ "terminated": { "exitCode": 0, "reason": "Completed", "containerID": "containerd://old" } });
    check(&with("Never", ended), Observed::default(), &[]);
}

#[test]
fn only_the_last_two_runs_are_kept() {
    let runs = vec![running("a", 3), exited("a", 2, 1, 9), exited("a", 1, 1, 8), exited("a", 0, 1, 7)];
    let gone =
        |attempt: u32| Effect::RemoveContainer { id: format!("a{attempt}"), name: "a".into(), attempt };
    check(&one("Always"), seen(runs), &[gone(1), gone(0)]);
}

fn probed(kinds: &[&str]) -> Pod {
    let mut container = json!({ "name": "a", "image": "i" });
    for kind in kinds {
        container[*kind] = json!({ "tcpSocket": { "port": 1 }, "failureThreshold": 2 });
    }
    pod(json!({ "containers": [container] }))
}

#[test]
fn probes_gate_readiness_and_restart() {
    use ProbeKind::{Liveness, Readiness, Startup};
    let pod = probed(&["startupProbe", "livenessProbe", "readinessProbe"]);
    let mut life = Life::default();
    let mut look = |results: &[(ProbeKind, bool)], second| {
        for (kind, passed) in results {
            let (container, run) = ("a".to_owned(), "a0".to_owned());
            let task = ProbeTask { container, run, kind: *kind, started: at(0) };
            life.record(&pod, Outcome::Probed { task, passed: *passed }, at(second));
        }
        let plan = plan_at(&mut life, &pod, seen(vec![running("a", 0)]), second);
        let status = plan.status.unwrap().container_statuses.unwrap().remove(0);
        let kinds: Vec<_> = plan.probes.iter().map(|p| p.kind).collect();
        (kinds, status.started.unwrap(), status.ready, plan.effects)
    };
    assert_eq!(look(&[], 0), (vec![Startup], false, false, vec![]));
    assert_eq!(look(&[(Startup, false)], 1), (vec![Startup], false, false, vec![]));
    assert_eq!(look(&[(Startup, true)], 2), (vec![Liveness, Readiness], true, false, vec![]));
    assert_eq!(look(&[(Readiness, true)], 3), (vec![Liveness, Readiness], true, true, vec![]));
    assert_eq!(look(&[(Readiness, false)], 4), (vec![Liveness, Readiness], true, true, vec![]));
    assert_eq!(look(&[(Readiness, false)], 5), (vec![Liveness, Readiness], true, false, vec![]));
    assert_eq!(look(&[(Liveness, false)], 6), (vec![Liveness, Readiness], true, false, vec![]));
    let killed = vec![kill("a0", "a", 30, KillReason::Probe(Liveness))];
    assert_eq!(look(&[(Liveness, false)], 7), (vec![], true, false, killed));
}

#[test]
fn probe_results_of_an_earlier_run_do_not_count() {
    let (mut life, pod) = (Life::default(), probed(&["readinessProbe"]));
    plan_at(&mut life, &pod, seen(vec![running("a", 1)]), 0);
    let (container, run) = ("a".to_owned(), "a0".to_owned());
    let task = ProbeTask { container, run, kind: ProbeKind::Readiness, started: at(0) };
    life.record(&pod, Outcome::Probed { task, passed: true }, at(1));
    let status = plan_at(&mut life, &pod, seen(vec![running("a", 1)]), 2).status.unwrap();
    check_shown(&status, ("Running", &["a running 1 false"], Some("ContainersNotReady")));
}

#[test]
fn a_deleted_pod_ends_within_its_grace_and_is_then_removed() {
    let mut pod = one("Always");
    pod.metadata.deletion_timestamp = Some(Time(at(20)));
    pod.metadata.deletion_grace_period_seconds = Some(20);
    let mut life = Life::default();
    let up = seen(vec![running("a", 0)]);
    let effects = |life: &mut Life, observed, second| plan_at(life, &pod, observed, second).effects;
    assert_eq!(effects(&mut life, up.clone(), 0), [kill("a0", "a", 20, KillReason::PodEnds)]);
    assert_eq!(effects(&mut life, up, 15), [kill("a0", "a", 5, KillReason::PodEnds)]);
    let ended = seen(vec![exited("a", 0, 143, 16)]);
    let plan = plan_at(&mut life, &pod, ended, 16);
    check_shown(&plan.status.unwrap(), ("Running", &["a Error(143) 0 false"], Some("ContainersNotReady")));
    assert_eq!(plan.effects, [stop("s0"), remove("s0"), Effect::CleanUp, Effect::DeletePod]);
    life.record(&pod, Outcome::CleanedUp, at(17));
    assert_eq!(effects(&mut life, Observed::default(), 17), [Effect::DeletePod]);
    life.record(&pod, Outcome::Deleted, at(18));
    let plan = plan_at(&mut life, &pod, Observed::default(), 18);
    assert_eq!((plan.effects, plan.status, plan.finished), (vec![], None, false));
    let input =
        Input { pod: &pod, gone: true, observed: Observed::default(), addresses: &addresses(), now: at(19) };
    assert!(life.plan(input).finished);
}

#[test]
fn a_pod_that_vanished_is_ended_without_touching_the_store() {
    let pod = one("Always");
    let mut life = Life::default();
    let mut gone =
        |observed| life.plan(Input { pod: &pod, gone: true, observed, addresses: &addresses(), now: at(0) });
    let plan = gone(seen(vec![running("a", 0)]));
    assert_eq!((plan.effects, plan.status), (vec![kill("a0", "a", 30, KillReason::PodEnds)], None));
    let plan = gone(seen(vec![exited("a", 0, 0, 0)]));
    assert_eq!(plan.effects, [stop("s0"), remove("s0"), Effect::CleanUp]);
}

#[test]
fn a_pod_that_cannot_run_here_says_why_and_gets_no_sandbox() {
    let pod = pod(json!({ "containers": [{ "name": "a" }], "runtimeClassName": "x" }));
    let mut life = Life::default();
    let plan = plan_at(&mut life, &pod, Observed::default(), 0);
    assert_eq!((plan.effects, plan.notes.len()), (vec![], 1));
    let states = ["a CreateContainerConfigError 0 false"];
    check_shown(&plan.status.unwrap(), ("Pending", &states, Some("ContainersNotReady")));
    assert_eq!(plan_at(&mut life, &pod, Observed::default(), 1).notes, []);
}

#[test]
fn an_unchanged_status_is_not_written_again_and_keeps_its_times() {
    let (mut life, mut pod) = (Life::default(), one("Always"));
    pod.status = plan_at(&mut life, &pod, seen(vec![]), 1).status;
    assert_eq!(plan_at(&mut life, &pod, seen(vec![]), 2).status, None);
    let ready = plan_at(&mut life, &pod, seen(vec![running("a", 0)]), 3).status.unwrap();
    let changed: Vec<_> = ready
        .conditions
        .iter()
        .flatten()
        .map(|c| (c.type_.as_str(), c.last_transition_time.as_ref().unwrap().0 == at(3)))
        .collect();
    let expected = [
        ("PodReadyToStartContainers", false),
        ("Initialized", false),
        ("Ready", true),
        ("ContainersReady", true),
        ("PodScheduled", false),
    ];
    assert_eq!(changed, expected);
    assert_eq!((ready.start_time.unwrap().0, ready.pod_ip.as_deref()), (at(1), Some("10.0.0.2")));
    assert_eq!(
        (ready.host_ip.as_deref(), ready.qos_class.as_deref()),
        (Some("192.0.2.1"), Some("BestEffort"))
    );
}

#[test]
fn conditions_of_others_are_left_alone_and_gates_count() {
    let mut pod =
        pod(json!({ "containers": [{ "name": "a" }], "readinessGates": [{ "conditionType": "g" }] }));
    pod.status =
        serde_json::from_value(json!({ "conditions": [{ "type": "DisruptionTarget", "status": "True" }] }))
            .unwrap();
    let status = plan_at(&mut Life::default(), &pod, seen(vec![running("a", 0)]), 1).status.unwrap();
    assert_eq!(status.conditions.as_ref().unwrap()[0].type_, "DisruptionTarget");
    check_shown(&status, ("Running", &["a running 0 true"], Some("ReadinessGatesNotReady")));
}
