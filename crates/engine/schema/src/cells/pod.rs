//! Cells of pods.

use jiff::Timestamp;
use serde_json::Value;

use super::{age, age_cell, items, or_none, text};

/// Ready, Status, Restarts, Age, IP, Node, Nominated Node, Readiness Gates.
pub(super) fn pod(pod: &Value, now: Timestamp) -> Vec<Value> {
    let counts = Counts::of(pod);
    let status = &pod["status"];
    let first_ip = items(status, "podIPs").next().map_or(text(status, "podIP"), |ip| text(ip, "ip"));
    vec![
        format!("{}/{}", counts.ready, counts.total).into(),
        status_word(pod).into(),
        counts.restarts_text(now).into(),
        age_cell(pod, now),
        or_none(first_ip).into(),
        or_none(text(&pod["spec"], "nodeName")).into(),
        or_none(text(status, "nominatedNodeName")).into(),
        readiness_gates(pod).into(),
    ]
}

fn is_sidecar(container: &Value) -> bool {
    text(container, "restartPolicy") == "Always"
}

fn init_container<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    items(&pod["spec"], "initContainers").find(|container| text(container, "name") == name)
}

#[derive(Default)]
struct Counts<'a> {
    total: usize,
    ready: usize,
    restarts: i64,
    last_restart: &'a str,
}

impl<'a> Counts<'a> {
    fn of(pod: &'a Value) -> Counts<'a> {
        let sidecars =
            items(&pod["spec"], "initContainers").filter(|container| is_sidecar(container)).count();
        let mut counts =
            Counts { total: items(&pod["spec"], "containers").count() + sidecars, ..Counts::default() };
        let running = |status: &Value| status["ready"] == true && status["state"]["running"].is_object();
        let status = &pod["status"];
        let init = initializing(pod).is_some();
        for container in items(status, "initContainerStatuses") {
            let sidecar = init_container(pod, text(container, "name")).is_some_and(is_sidecar);
            if init || sidecar {
                counts.add_restarts(container);
            }
            if sidecar && container["started"] == true && container["ready"] == true {
                counts.ready += 1;
            }
        }
        if !init {
            for container in items(status, "containerStatuses") {
                counts.add_restarts(container);
                counts.ready += usize::from(running(container));
            }
        }
        counts
    }

    fn add_restarts(&mut self, container: &'a Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or_default();
        let finished = text(&container["lastState"]["terminated"], "finishedAt");
        // RFC 3339 in UTC sorts as text.
        self.last_restart = self.last_restart.max(finished);
    }

    fn restarts_text(&self, now: Timestamp) -> String {
        if self.restarts == 0 || self.last_restart.is_empty() {
            return self.restarts.to_string();
        }
        format!("{} ({} ago)", self.restarts, age::since(self.last_restart, now))
    }
}

/// What the first init container that is not done yet is at: `Init:0/2`, `Init:CrashLoopBackOff`.
fn initializing(pod: &Value) -> Option<String> {
    let total = items(&pod["spec"], "initContainers").count();
    for (index, status) in items(&pod["status"], "initContainerStatuses").enumerate() {
        let state = &status["state"];
        let sidecar = init_container(pod, text(status, "name")).is_some_and(is_sidecar);
        let terminated = &state["terminated"];
        if terminated["exitCode"] == 0 || sidecar && status["started"] == true {
            continue;
        }
        if terminated.is_object() {
            return Some(format!("Init:{}", terminated_word(terminated)));
        }
        let waiting = text(&state["waiting"], "reason");
        if !waiting.is_empty() && waiting != "PodInitializing" {
            return Some(format!("Init:{waiting}"));
        }
        return Some(format!("Init:{index}/{total}"));
    }
    None
}

fn terminated_word(terminated: &Value) -> String {
    let reason = text(terminated, "reason");
    let signal = terminated["signal"].as_i64().unwrap_or_default();
    match (reason, signal) {
        ("", 0) => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or_default()),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// The Status column: the phase, or what tells more.
fn status_word(pod: &Value) -> String {
    let status = &pod["status"];
    let gated = items(status, "conditions").any(|condition| {
        text(condition, "type") == "PodScheduled" && text(condition, "reason") == "SchedulingGated"
    });
    let mut word = match (text(status, "reason"), text(status, "phase")) {
        _ if gated => "SchedulingGated".to_owned(),
        ("", phase) => phase.to_owned(),
        (reason, _) => reason.to_owned(),
    };
    match initializing(pod) {
        Some(init) => word = init,
        None => container_word(pod, &mut word),
    }
    if pod["metadata"]["deletionTimestamp"].is_null() {
        return word;
    }
    match (text(status, "reason"), text(status, "phase")) {
        ("NodeLost", _) => "Unknown".to_owned(),
        (_, "Succeeded" | "Failed") => word,
        _ => "Terminating".to_owned(),
    }
}

/// What the containers are at; the first one has the last word.
fn container_word(pod: &Value, word: &mut String) {
    let statuses: Vec<_> = items(&pod["status"], "containerStatuses").collect();
    let mut has_running = false;
    for container in statuses.into_iter().rev() {
        let state = &container["state"];
        let waiting = text(&state["waiting"], "reason");
        if !waiting.is_empty() {
            waiting.clone_into(word);
        } else if state["terminated"].is_object() {
            *word = terminated_word(&state["terminated"]);
        } else if container["ready"] == true && state["running"].is_object() {
            has_running = true;
        }
    }
    // A pod with a finished container beside a running one is still running.
    if word == "Completed" && has_running {
        let ready = items(&pod["status"], "conditions")
            .any(|condition| text(condition, "type") == "Ready" && text(condition, "status") == "True");
        *word = if ready { "Running" } else { "NotReady" }.to_owned();
    }
}

fn readiness_gates(pod: &Value) -> String {
    let gates: Vec<_> = items(&pod["spec"], "readinessGates").collect();
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let met = gates.iter().filter(|gate| {
        items(&pod["status"], "conditions").any(|condition| {
            text(condition, "type") == text(gate, "conditionType") && text(condition, "status") == "True"
        })
    });
    format!("{}/{}", met.count(), gates.len())
}
