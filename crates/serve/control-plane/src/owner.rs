//! The one owner of the collections: applies batches, publishes snapshots.

use crate::metrics::Metrics;
use crate::pending::Pending;
use crate::snapshot::Snapshot;
use ambit_mesh::{Mesh, MeshSettings, ObjectName, PolicyCondition};
use ambit_runtime::{Clock, Shutdown};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::watch;
use tracing::{debug, error, warn};

/// Conditions that policies should show. Clones share one state.
#[derive(Clone, Default)]
pub(crate) struct Conditions(Arc<Mutex<BTreeMap<ObjectName, PolicyCondition>>>);

impl Conditions {
    pub(crate) fn get(&self, policy: &ObjectName) -> Option<PolicyCondition> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(policy).cloned()
    }

    fn set(&self, policy: &ObjectName, condition: Option<&PolicyCondition>) {
        let mut conditions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match condition {
            Some(condition) => drop(conditions.insert(policy.clone(), condition.clone())),
            None => drop(conditions.remove(policy)),
        }
    }
}

/// Owns the collections.
pub(crate) struct Owner {
    mesh: Arc<Mutex<Mesh>>,
    pending: Pending,
    snapshots: watch::Sender<Arc<Snapshot>>,
    conditions: Conditions,
    metrics: Metrics,
    on_condition: Box<dyn Fn(&ObjectName) + Send>,
}

impl Owner {
    /// `on_condition` is called with each policy whose condition has changed; it must not block.
    pub(crate) fn new(
        settings: MeshSettings,
        pending: Pending,
        conditions: Conditions,
        metrics: Metrics,
        on_condition: impl Fn(&ObjectName) + Send + 'static,
    ) -> Self {
        Self {
            mesh: Arc::new(Mutex::new(Mesh::new(settings))),
            pending,
            snapshots: watch::Sender::default(),
            conditions,
            metrics,
            on_condition: Box::new(on_condition),
        }
    }

    pub(crate) fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// The collections, to look at between batches.
    pub(crate) fn mesh(&self) -> Arc<Mutex<Mesh>> {
        self.mesh.clone()
    }

    /// Applies what waits, as one batch.
    pub(crate) fn step(&mut self) {
        let mut mesh = self.mesh.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = self.pending.take(&mesh.inputs);
        if batch.is_empty() {
            return;
        }
        let objects = batch.len();
        let outputs = mesh.outputs;
        let now = Clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let commit = mesh.graph.apply(batch.at(now));
        for fault in commit.faults() {
            self.metrics.faulted();
            error!(
                collection = fault.collection,
                key = fault.key,
                message = fault.message,
                "a transformation panicked, its last result stays in force: please report this"
            );
        }
        for change in commit.changes(outputs.notices) {
            if let Some(notice) = change.after {
                warn!(object = %change.key, notice = %notice, "cannot honour what an object asks for");
            }
        }
        for change in commit.changes(outputs.conditions) {
            self.conditions.set(change.key, change.after.map(AsRef::as_ref));
            (self.on_condition)(change.key);
        }
        let next = self.snapshots.borrow().next(&commit, &outputs);
        let Some(snapshot) = next else { return };
        let (addresses, policies) = (snapshot.addresses.len(), snapshot.policies.len());
        debug!(objects, addresses, policies, "published a snapshot");
        self.metrics.published(&snapshot);
        self.snapshots.send_replace(Arc::new(snapshot));
    }

    /// Applies batches until `shutdown`. What gathers while one is applied is the next one.
    pub(crate) async fn run(mut self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = self.pending.wait() => self.step(),
                () = shutdown.cancelled() => return,
            }
        }
    }
}
