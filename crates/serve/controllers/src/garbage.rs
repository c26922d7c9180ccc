//! Runs owner garbage collection: watches the metadata of every kind, and carries out what the graph decides.

mod monitors;

use crate::claims;
use crate::error::{Attempt, Error, unless_gone};
use crate::views::Views;
use ambit_api::meta::OwnerReference;
use ambit_kube::{EventRecorder, EventType, Next, Queue};
use ambit_runtime::{Blocker, Shutdown};
use ambit_workloads::garbage::{Action, FOREGROUND, Graph, Node, Owner, Propagation};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, Preconditions, PropagationPolicy};
use kube::core::PartialObjectMeta;
use kube::discovery::{ApiResource, Scope};
use kube::{Client, ResourceExt};
use monitors::Monitors;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Name of this controller in field ownership.
const MANAGER: &str = "garbage-collector";
/// How soon to ask again about an owner that nobody can judge now.
const UNKNOWN_DELAY: Duration = Duration::from_secs(5);
/// How soon to ask again about an owner that exists but that no view shows: its end would not be noticed.
const UNSEEN_DELAY: Duration = Duration::from_secs(30);

/// A kind that is watched.
#[derive(Debug, PartialEq)]
pub(crate) struct Kind {
    api: ApiResource,
    scope: Scope,
}

type SharedGraph = Arc<Mutex<Graph<Arc<Kind>>>>;
type Metadata = PartialObjectMeta<DynamicObject>;

pub(crate) struct Garbage {
    client: Client,
    graph: SharedGraph,
    /// Uids.
    queue: Queue<String>,
    monitors: Monitors,
    events: EventRecorder,
}

impl Garbage {
    pub(crate) fn new(views: &Views, workers: usize) -> Self {
        let queue = views.queue("garbage", workers);
        let graph = SharedGraph::default();
        let client = views.client.clone();
        let monitors = Monitors::new(client.clone(), graph.clone(), queue.clone());
        let events = EventRecorder::new(client.clone(), "garbage-collector-controller", None);
        Self { client, graph, queue, monitors, events }
    }

    /// Starts the watches, drops `starting` once all have synced, and works until `stop`.
    pub(crate) async fn run(self, starting: Blocker, stop: &Shutdown) {
        let synced = Shutdown::new();
        let watch = self.monitors.run(&synced, stop);
        let work = async {
            tokio::select! {
                () = stop.cancelled() => return,
                () = synced.cancelled() => drop(starting),
            }
            self.queue.run(|uid| self.sync(uid), stop).await;
        };
        tokio::join!(watch, work, self.events.run(stop));
    }

    async fn sync(&self, uid: String) -> Result<Next, Error> {
        let (node, unknown, misplaced) = {
            let graph = self.graph.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(node) = graph.node(&uid).cloned() else { return Ok(Next::Done) };
            (node, graph.unknown_owners(&uid), graph.misplaced_owners(&uid))
        };
        let mut answers = HashMap::new();
        for owner in unknown {
            answers.insert(owner.uid.clone(), self.ask(&node, &owner).await?);
        }
        for owner in misplaced {
            self.record_misplaced(&uid, &node, &owner);
        }
        let action = self.graph.lock().unwrap_or_else(PoisonError::into_inner).decide(&uid, &answers);
        let unseen = answers.values().any(|owner| *owner == Owner::Present);
        match action {
            Action::Leave if unseen => Ok(Next::After(UNSEEN_DELAY)),
            Action::Leave => Ok(Next::Done),
            Action::Wait => Ok(Next::After(UNKNOWN_DELAY)),
            Action::Dependents(uids) => {
                uids.into_iter().for_each(|uid| self.queue.add(uid));
                Ok(Next::Done)
            }
            Action::Release(uids) => self.release(&uid, uids).await,
            action => self.write(&uid, &node, action).await,
        }
    }

    /// Asks the server about an owner that no view shows.
    async fn ask(&self, node: &Node<Arc<Kind>>, owner: &OwnerReference) -> Result<Owner, Error> {
        let Some(kind) = self.monitors.kind_of(&owner.api_version, &owner.kind) else {
            return Ok(Owner::Unknown);
        };
        let api = match (&kind.scope, &node.namespace) {
            (Scope::Cluster, _) => Api::<DynamicObject>::all_with(self.client.clone(), &kind.api),
            (Scope::Namespaced, Some(namespace)) => {
                Api::namespaced_with(self.client.clone(), namespace, &kind.api)
            }
            // A cluster-scoped object cannot have an owner in a namespace: it could be any namespace's.
            (Scope::Namespaced, None) => return Ok(Owner::Absent),
        };
        let found = api.get_metadata_opt(&owner.name).await.attempt("read owner", &owner.name)?;
        let Some(found) = found.filter(|found| found.metadata.uid.as_ref() == Some(&owner.uid)) else {
            return Ok(Owner::Absent);
        };
        let waits =
            found.metadata.deletion_timestamp.is_some() && found.finalizers().iter().any(|f| f == FOREGROUND);
        Ok(if waits { Owner::Waiting } else { Owner::Present })
    }

    /// Removes an object from the owners of others. Their events bring the object back.
    async fn release(&self, owner: &str, dependents: Vec<String>) -> Result<Next, Error> {
        for uid in dependents {
            let node = self.graph.lock().unwrap_or_else(PoisonError::into_inner).node(&uid).cloned();
            let Some(node) = node else { continue };
            let Some(live) = self.live(&uid, &node).await? else { continue };
            let mut owners = live.metadata.owner_references.clone().unwrap_or_default();
            owners.retain(|known| known.uid != owner);
            self.patch(&node, &live, json!({"ownerReferences": owners})).await?;
        }
        Ok(Next::Done)
    }

    async fn write(&self, uid: &str, node: &Node<Arc<Kind>>, action: Action) -> Result<Next, Error> {
        let Some(live) = self.live(uid, node).await? else { return Ok(Next::Done) };
        let owners_live = live.metadata.owner_references.clone().unwrap_or_default();
        if owners_live != node.owners {
            // Decided on an old state: take the new one and decide again.
            let kind = node.resource.clone();
            self.graph
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .observe(uid, Node::new(kind, &live.metadata));
            self.queue.add(uid.to_owned());
            return Ok(Next::Done);
        }
        match action {
            Action::KeepOwners(owners) => self.patch(node, &live, json!({"ownerReferences": owners})).await?,
            Action::RemoveFinalizer(finalizer) => {
                let mut finalizers = live.finalizers().to_vec();
                finalizers.retain(|known| known != finalizer);
                self.patch(node, &live, json!({"finalizers": finalizers})).await?;
            }
            Action::UnblockAndDelete(propagation) => {
                let mut owners = owners_live;
                owners.iter_mut().for_each(|owner| owner.block_owner_deletion = Some(false));
                self.patch(node, &live, json!({"ownerReferences": owners})).await?;
                self.delete(node, &live, propagation, None).await?;
            }
            Action::Delete(propagation) => {
                self.delete(node, &live, propagation, live.resource_version()).await?;
            }
            Action::Leave | Action::Wait | Action::Dependents(_) | Action::Release(_) => {}
        }
        Ok(Next::Done)
    }

    /// The object as the server has it, unless it has gone.
    async fn live(&self, uid: &str, node: &Node<Arc<Kind>>) -> Result<Option<Metadata>, Error> {
        let found = self.api(node).get_metadata_opt(&node.name).await.attempt("read", &node.name)?;
        Ok(found.filter(|found| found.metadata.uid.as_deref() == Some(uid)))
    }

    async fn patch(&self, node: &Node<Arc<Kind>>, live: &Metadata, mut metadata: Value) -> Result<(), Error> {
        metadata["uid"] = json!(live.metadata.uid);
        metadata["resourceVersion"] = json!(live.metadata.resource_version);
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let answer = self.api(node).patch_metadata(&node.name, &claims::patch(MANAGER), &patch).await;
        unless_gone(answer).attempt("write the metadata of", &node.name).map(drop)
    }

    async fn delete(
        &self,
        node: &Node<Arc<Kind>>,
        live: &Metadata,
        propagation: Propagation,
        resource_version: Option<String>,
    ) -> Result<(), Error> {
        let policy = match propagation {
            Propagation::Background => PropagationPolicy::Background,
            Propagation::Foreground => PropagationPolicy::Foreground,
            Propagation::Orphan => PropagationPolicy::Orphan,
        };
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        let same = Preconditions { uid: live.uid(), resource_version };
        let answer = self.api(node).delete(&node.name, &params.preconditions(same)).await;
        unless_gone(answer).attempt("delete", &node.name)?;
        let kind = &node.resource.api.kind;
        tracing::info!(kind, namespace = node.namespace, name = node.name, "deleted an object without owner");
        Ok(())
    }

    fn record_misplaced(&self, uid: &str, node: &Node<Arc<Kind>>, owner: &OwnerReference) {
        let object = ambit_api::core::v1::ObjectReference {
            api_version: Some(node.resource.api.api_version.clone()),
            kind: Some(node.resource.api.kind.clone()),
            namespace: node.namespace.clone(),
            name: Some(node.name.clone()),
            uid: Some(uid.to_owned()),
            ..Default::default()
        };
        let message = format!(
            "ownerRef [{}/{}, name: {}, uid: {}] does not exist in namespace {:?}",
            owner.api_version,
            owner.kind,
            owner.name,
            owner.uid,
            node.namespace.as_deref().unwrap_or_default()
        );
        self.events.record(&object, EventType::Warning, "OwnerRefInvalidNamespace", message);
    }

    fn api(&self, node: &Node<Arc<Kind>>) -> Api<DynamicObject> {
        match &node.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &node.resource.api),
            None => Api::all_with(self.client.clone(), &node.resource.api),
        }
    }
}
