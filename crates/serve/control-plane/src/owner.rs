//! The one owner of the collections: applies batches, publishes snapshots.

use crate::metrics::Metrics;
use crate::pending::Pending;
use crate::snapshot::{Name, Snapshot, Table};
use ambit_collect::{Collection, Commit};
use ambit_mesh::{Mesh, MeshSettings, ObjectName, PolicyCondition, Resource};
use ambit_runtime::Shutdown;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
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
    mesh: Mesh,
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
            mesh: Mesh::new(settings),
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

    /// Applies what waits, as one batch.
    pub(crate) fn step(&mut self) {
        let batch = self.pending.take(&self.mesh.inputs);
        if batch.is_empty() {
            return;
        }
        let objects = batch.len();
        let outputs = self.mesh.outputs;
        let commit = self.mesh.graph.apply(batch);
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
        let last = self.snapshots.borrow().clone();
        let addresses = next(&last.addresses, &commit, outputs.addresses);
        let policies = next(&last.policies, &commit, outputs.authorizations);
        if addresses.is_none() && policies.is_none() {
            return;
        }
        let addresses = addresses.unwrap_or_else(|| last.addresses.clone());
        let policies = policies.unwrap_or_else(|| last.policies.clone());
        debug!(objects, addresses = addresses.len(), policies = policies.len(), "published a snapshot");
        let snapshot = Snapshot::new(addresses, policies);
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

/// The next table, if a batch changed anything in it.
fn next(last: &Table, commit: &Commit<'_>, of: Collection<String, Resource>) -> Option<Arc<Table>> {
    let changes: Vec<(Name, Option<Arc<Resource>>)> =
        commit.changes(of).map(|change| (change.key.as_str().into(), change.after.cloned())).collect();
    (!changes.is_empty()).then(|| Arc::new(last.with(changes)))
}
