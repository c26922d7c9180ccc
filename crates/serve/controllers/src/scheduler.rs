//! Runs the scheduling decision: binds pods, and says why when none can be.

use crate::claims;
use crate::error::{Attempt, Error, unless_gone};
use crate::views::Views;
use ambit_api::core::v1::{Binding, Node, ObjectReference, Pod};
use ambit_api::meta::{ObjectMeta, Time};
use ambit_kube::{Change, EventRecorder, EventType, Next, ObjectKey, Queue};
use ambit_runtime::{Clock, Shutdown};
use ambit_workloads::schedule::{self, Verdict};
use kube::api::{Api, Patch};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of this controller in field ownership.
const MANAGER: &str = "default-scheduler";

pub(crate) struct Scheduler {
    views: Views,
    queue: Queue<ObjectKey>,
    events: EventRecorder,
}

impl Scheduler {
    pub(crate) fn new(views: &Views, workers: usize, events: EventRecorder) -> Self {
        let queue = views.queue("scheduler", workers);
        views.pods.on_change({
            let queue = queue.clone();
            move |change: &Change<Pod>| {
                if change.new.as_ref().is_some_and(|pod| waits(pod)) {
                    queue.add(ObjectKey::of(change.latest().as_ref()));
                }
            }
        });
        views.nodes.on_change({
            let (views, queue) = (views.clone(), queue.clone());
            move |change: &Change<Node>| {
                if matters(change) {
                    for pod in views.pods.list().iter().filter(|pod| waits(pod)) {
                        queue.add(ObjectKey::of(pod.as_ref()));
                    }
                }
            }
        });
        Self { views: views.clone(), queue, events }
    }

    pub(crate) async fn run(&self, stop: &Shutdown) {
        self.queue.run(|key| self.sync(key), stop).await;
    }

    async fn sync(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(pod) = self.views.pods.by_key(&key).filter(|pod| waits(pod)) else { return Ok(Next::Done) };
        let mut pods_on: BTreeMap<String, usize> = BTreeMap::new();
        for pod in self.views.pods.list() {
            if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
                *pods_on.entry(node.clone()).or_default() += 1;
            }
        }
        match schedule::plan(&pod, &self.views.nodes.list(), &pods_on) {
            Verdict::Leave => {}
            Verdict::Bind(node) => self.bind(&pod, node).await?,
            Verdict::Gated => {
                let message = "Scheduling is blocked due to non-empty scheduling gates";
                self.refuse(&pod, "SchedulingGated", message).await?;
            }
            Verdict::Unschedulable(why) => {
                self.events.record(&pod.object_ref(&()), EventType::Warning, "FailedScheduling", why.clone());
                self.refuse(&pod, "Unschedulable", &why).await?;
            }
        }
        Ok(Next::Done)
    }

    async fn bind(&self, pod: &Pod, node: String) -> Result<(), Error> {
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                uid: pod.uid(),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node.clone()),
                ..ObjectReference::default()
            },
        };
        let answer =
            self.api(pod).create_subresource("binding", &name, &claims::post(MANAGER), &binding).await;
        match answer {
            Ok::<serde_json::Value, _>(_) => {
                let message = format!("Successfully assigned {namespace}/{name} to {node}");
                self.events.record(&pod.object_ref(&()), EventType::Normal, "Scheduled", message);
                Ok(())
            }
            // It went, or somebody bound it: the next event tells.
            Err(error) if ambit_kube::is_not_found(&error) || ambit_kube::is_conflict(&error) => Ok(()),
            Err(error) => Err(error).attempt("bind pod", name),
        }
    }

    /// Says in the pod's status why it waits. A node that changes brings the pod back.
    async fn refuse(&self, pod: &Pod, reason: &str, message: &str) -> Result<(), Error> {
        let known = ambit_workloads::pod::condition(pod, "PodScheduled");
        let says = |known: &ambit_api::core::v1::PodCondition| {
            known.reason.as_deref() == Some(reason) && known.message.as_deref() == Some(message)
        };
        if known.is_some_and(says) {
            return Ok(());
        }
        let since = match known.filter(|known| known.status == "False") {
            Some(known) => known.last_transition_time.clone(),
            None => Some(Time(Clock.timestamp())),
        };
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": since}]}});
        let answer = self
            .api(pod)
            .patch_status(&pod.name_any(), &claims::patch(MANAGER), &Patch::Strategic(patch))
            .await;
        unless_gone(answer).attempt("write the status of pod", pod.name_any()).map(drop)
    }

    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.views.client.clone(), &pod.namespace().unwrap_or_default())
    }
}

fn waits(pod: &Pod) -> bool {
    let bound =
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty());
    !bound && ambit_workloads::pod::is_active(pod)
}

/// Whether a node's change can make a pod fit: heartbeats do not.
fn matters(change: &Change<Node>) -> bool {
    let of = |node: &Option<Arc<Node>>| {
        let node = node.as_ref()?;
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        Some((node.metadata.labels.clone(), node.spec.clone(), ready))
    };
    of(&change.old) != of(&change.new)
}
