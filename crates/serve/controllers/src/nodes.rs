//! Runs the judgement on silent nodes.

use crate::claims;
use crate::error::{Attempt, Error, unless_gone};
use crate::views::Views;
use ambit_api::coordination::v1::Lease;
use ambit_api::core::v1::Node;
use ambit_kube::{Change, EventRecorder, EventType, Next, Queue};
use ambit_runtime::{Clock, Shutdown};
use ambit_workloads::node_health::{self, Verdict};
use kube::api::{Api, Patch};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::time::Duration;

/// Name of this controller in field ownership.
const MANAGER: &str = "node-controller";
/// Added to the moment of judgement, so that it does not come just before the silence is complete.
const MARGIN: Duration = Duration::from_millis(100);

pub(crate) struct Nodes {
    views: Views,
    grace: Duration,
    /// Names of nodes.
    queue: Queue<String>,
    events: EventRecorder,
}

impl Nodes {
    pub(crate) fn new(views: &Views, workers: usize, grace: Duration, events: EventRecorder) -> Self {
        let queue: Queue<String> = views.queue("nodes", workers);
        views.nodes.on_change({
            let queue = queue.clone();
            move |change: &Change<Node>| queue.add(change.latest().name_any())
        });
        views.leases.on_change({
            let queue = queue.clone();
            move |change: &Change<Lease>| queue.add(change.latest().name_any())
        });
        Self { views: views.clone(), grace, queue, events }
    }

    pub(crate) async fn run(&self, stop: &Shutdown) {
        self.queue.run(|name| self.sync(name), stop).await;
    }

    async fn sync(&self, name: String) -> Result<Next, Error> {
        let Some(node) = self.views.nodes.get(None, &name) else { return Ok(Next::Done) };
        let lease = self.views.leases.get(Some(node_health::LEASE_NAMESPACE), &name);
        let conditions = match node_health::judge(&node, lease.as_deref(), self.grace, Clock.timestamp()) {
            Verdict::Alive(left) => return Ok(Next::After(left + MARGIN)),
            Verdict::KnownSilent => return Ok(Next::Done),
            Verdict::Silent(conditions) => conditions,
        };
        let api: Api<Node> = Api::all(self.views.client.clone());
        let patch = json!({"metadata": {"uid": node.metadata.uid}, "status": {"conditions": conditions}});
        let answer = api.patch_status(&name, &claims::patch(MANAGER), &Patch::Strategic(patch)).await;
        unless_gone(answer).attempt("write the status of node", &name)?;
        tracing::warn!(node = name, "the node fell silent");
        let message = format!("Node {name} status is now: NodeNotReady");
        self.events.record(&node.object_ref(&()), EventType::Normal, "NodeNotReady", message);
        Ok(Next::Done)
    }
}
