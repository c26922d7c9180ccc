//! The capture state of every pod of this node: kept for those who ask, counted, and told as events.

use crate::metrics::Metrics;
use ambit_api::core::v1::{ObjectReference, Pod};
use ambit_kube::{EventRecorder, EventType, ObjectKey};
use ambit_node_plan::enroll::state::{Capture, State};
use ambit_runtime::Clock;
use ambit_runtime::endpoint::Answer;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Path of the list of pods on the agent's health address.
pub const PODS_PATH: &str = "/debug/pods";

/// Capture state of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PodStatus {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// `captured`, `left-alone` or `undecided`: what labels and settings ask for.
    pub wanted: String,
    /// `captured`, `pending`, `failed`, `starting`, `left-alone`, `releasing` or `undecided`.
    pub state: String,
    /// When the state was reached, as RFC 3339; the agent's start at the earliest.
    pub since: String,
    /// Why: the rule that decided, or what went wrong.
    pub reason: String,
    /// Whether the node drops the pod's traffic until it is captured.
    pub kept_off: bool,
}

impl PodStatus {
    /// Whether something other than what was asked for is true of the pod.
    pub fn is_amiss(&self) -> bool {
        State::ALL.into_iter().any(|state| state.is_amiss() && state.word() == self.state)
    }
}

/// Capture states of all pods of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node.
    pub node: String,
    /// Its pods, by namespace and name.
    pub pods: Vec<PodStatus>,
}

struct Line {
    uid: String,
    capture: Capture,
    since: String,
    kept_off: bool,
}

/// What is known of the pods. Clones share it.
#[derive(Clone)]
pub(crate) struct Board {
    lines: Arc<Mutex<BTreeMap<ObjectKey, Line>>>,
    clock: Clock,
    events: EventRecorder,
    metrics: Metrics,
}

impl Board {
    pub(crate) fn new(events: EventRecorder, metrics: Metrics) -> Self {
        Self { lines: Arc::default(), clock: Clock, events, metrics }
    }

    /// Notes what is true of a pod. What is not as asked for becomes an event on it, once per cause. Returns the UID of
    /// an earlier pod of the same name.
    pub(crate) fn note(
        &self,
        key: &ObjectKey,
        pod: &Pod,
        capture: Capture,
        kept_off: bool,
    ) -> Option<String> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut lines = self.lines();
        let before = lines.get(key).filter(|line| line.uid == uid);
        let same = before.filter(|line| line.capture.state == capture.state);
        let since = same.map_or_else(|| format!("{:.0}", self.clock.timestamp()), |line| line.since.clone());
        let was_amiss = before.is_some_and(|line| line.capture.state.is_amiss());
        let changed = before.is_none_or(|line| line.capture != capture || line.kept_off != kept_off);
        if changed && (capture.state.is_amiss() || was_amiss) {
            self.tell(pod, &capture, kept_off);
        }
        let line = Line { uid: uid.clone(), capture, since, kept_off };
        self.count(&line, 1);
        let before = lines.insert(key.clone(), line)?;
        self.count(&before, -1);
        (before.uid != uid).then_some(before.uid)
    }

    /// Why a pod is pending, if it is.
    pub(crate) fn why_pending(&self, key: &ObjectKey, uid: &str) -> Option<String> {
        let lines = self.lines();
        let line = lines.get(key).filter(|line| line.uid == uid && line.capture.state == State::Pending)?;
        Some(line.capture.reason.clone())
    }

    /// A pod that is gone. Returns its UID.
    pub(crate) fn forget(&self, key: &ObjectKey) -> Option<String> {
        let before = self.lines().remove(key)?;
        self.count(&before, -1);
        Some(before.uid)
    }

    fn tell(&self, pod: &Pod, capture: &Capture, kept_off: bool) {
        let (kind, reason, what) = match capture.state {
            State::Pending => (EventType::Warning, "CapturePending", "waiting for the node proxy"),
            State::Failed => (EventType::Warning, "CaptureFailed", "could not be captured"),
            State::Releasing => (EventType::Warning, "ReleaseFailed", "could not be released"),
            State::Captured => (EventType::Normal, "Captured", "captured by the mesh"),
            State::Starting | State::LeftAlone | State::Undecided => {
                (EventType::Normal, "Released", "not captured by the mesh any more")
            }
        };
        let off = if kept_off { "; it is kept off the network until then" } else { "" };
        self.events.record(&reference(pod), kind, reason, format!("{what}: {}{off}", capture.reason));
    }

    fn count(&self, line: &Line, pods: i64) {
        self.metrics.add_state(line.capture.state.word(), pods);
        self.metrics.add_kept_off(if line.kept_off { pods } else { 0 });
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The states of all pods.
    pub(crate) fn read(&self, node: &str) -> NodeStatus {
        let lines = self.lines();
        let pods = lines.iter().map(|(key, line)| PodStatus {
            namespace: key.namespace.clone().unwrap_or_default(),
            name: key.name.clone(),
            uid: line.uid.clone(),
            wanted: line.capture.wanted.word().to_owned(),
            state: line.capture.state.word().to_owned(),
            since: line.since.clone(),
            reason: line.capture.reason.clone(),
            kept_off: line.kept_off,
        });
        NodeStatus { node: node.to_owned(), pods: pods.collect() }
    }

    /// The answer to [`PODS_PATH`].
    pub(crate) fn answer(&self, node: &str) -> Answer {
        match serde_json::to_string_pretty(&self.read(node)) {
            Ok(json) => (StatusCode::OK, "application/json", json + "\n"),
            Err(error) => ambit_runtime::endpoint::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
