//! Runs the ReplicaSet decider.

use crate::claims::{self, Claimant};
use crate::error::{Attempt, Error, is_namespace_terminating, unless_gone};
use crate::ledger::Ledger;
use crate::views::Views;
use ambit_api::apps::v1::ReplicaSet;
use ambit_api::core::v1::Pod;
use ambit_kube::{Change, EventRecorder, EventType, Next, ObjectKey, Queue};
use ambit_runtime::{Clock, Shutdown};
use ambit_workloads::replica_set;
use ambit_workloads::{ownership, selector};
use futures::future::join_all;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::{Resource, ResourceExt};
use std::sync::Arc;

/// Name of this controller in field ownership.
const MANAGER: &str = "replicaset-controller";

pub(crate) struct ReplicaSets {
    views: Views,
    queue: Queue<ObjectKey>,
    ledger: Ledger,
    events: EventRecorder,
}

impl ReplicaSets {
    pub(crate) fn new(views: &Views, workers: usize, events: EventRecorder) -> Self {
        let queue = views.queue("replica sets", workers);
        let ledger = Ledger::new();
        views.replica_sets.on_change({
            let (queue, ledger) = (queue.clone(), ledger.clone());
            move |change: &Change<ReplicaSet>| {
                if let (None, Some(uid)) = (&change.new, &change.latest().metadata.uid) {
                    ledger.forget(uid);
                }
                queue.add(ObjectKey::of(change.latest().as_ref()));
            }
        });
        views.pods.on_change({
            let (views, queue, ledger) = (views.clone(), queue.clone(), ledger.clone());
            move |change: &Change<Pod>| pod_changed(change, &views, &queue, &ledger)
        });
        Self { views: views.clone(), queue, ledger, events }
    }

    pub(crate) async fn run(&self, stop: &Shutdown) {
        self.queue.run(|key| self.sync(key), stop).await;
    }

    async fn sync(&self, key: ObjectKey) -> Result<Next, Error> {
        let (Some(set), Some(namespace)) = (self.views.replica_sets.by_key(&key), &key.namespace) else {
            return Ok(Next::Done);
        };
        let uid = set.uid().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.views.client.clone(), namespace);
        let pods = if self.ledger.is_overdue(&uid) {
            let live = api.list(&ListParams::default()).await.attempt("list the pods of", &key)?;
            self.ledger.forget(&uid);
            live.items.into_iter().map(Arc::new).collect()
        } else {
            self.views.pods.list_in(namespace)
        };
        let plan = replica_set::plan(&set, &pods, &self.ledger.snapshot(&uid), Clock.timestamp());
        let claimant = Claimant { client: &self.views.client, manager: MANAGER, owner: set.as_ref() };
        claimant.adopt(&plan.adopt).await?;
        claimant.release(&plan.release).await?;
        let created = self.create(&set, plan.create, &api).await;
        let deleted = self.delete(&set, &plan.delete, &api).await;
        let failure = match (&created, &deleted) {
            (Err(error), _) => Some(("FailedCreate", text(error))),
            (_, Err(error)) => Some(("FailedDelete", text(error))),
            _ => None,
        };
        let status = replica_set::with_failure(plan.status, failure, Clock.timestamp());
        self.write_status(&set, status).await?;
        created.and(deleted)?;
        Ok(plan.look_again.map_or(Next::Done, Next::After))
    }

    /// Creates in batches of 1, 2, 4, …: a template that the server refuses costs one request, not hundreds.
    async fn create(&self, set: &ReplicaSet, count: usize, api: &Api<Pod>) -> Result<(), Error> {
        let (mut left, mut batch) = (count, 1);
        while left > 0 {
            let size = batch.min(left);
            let outcomes = join_all((0..size).map(|_| self.create_one(set, api))).await;
            outcomes.into_iter().collect::<Result<(), Error>>()?;
            left -= size;
            batch *= 2;
        }
        Ok(())
    }

    async fn create_one(&self, set: &ReplicaSet, api: &Api<Pod>) -> Result<(), Error> {
        let owner = set.uid().unwrap_or_default();
        self.ledger.update(&owner, |expectations, _| expectations.creating());
        match api.create(&claims::post(MANAGER), &replica_set::new_pod(set)).await {
            Ok(pod) => {
                let uid = pod.uid().unwrap_or_default();
                self.ledger.update(&owner, |expectations, tick| expectations.created(&uid, tick));
                let message = format!("Created pod: {}", pod.name_any());
                self.events.record(&set.object_ref(&()), EventType::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                self.ledger.update(&owner, |expectations, _| expectations.create_failed());
                if is_namespace_terminating(&error) {
                    return Ok(());
                }
                let message = format!("Error creating: {error}");
                self.events.record(&set.object_ref(&()), EventType::Warning, "FailedCreate", message);
                Err(error).attempt("create a pod of", set.name_any())
            }
        }
    }

    async fn delete(&self, set: &ReplicaSet, pods: &[Arc<Pod>], api: &Api<Pod>) -> Result<(), Error> {
        let outcomes = join_all(pods.iter().map(|pod| self.delete_one(set, pod, api))).await;
        outcomes.into_iter().collect()
    }

    async fn delete_one(&self, set: &ReplicaSet, pod: &Pod, api: &Api<Pod>) -> Result<(), Error> {
        let (owner, uid) = (set.uid().unwrap_or_default(), pod.uid().unwrap_or_default());
        self.ledger.update(&owner, |expectations, tick| expectations.deleting(&uid, tick));
        let same = Preconditions { uid: pod.uid(), resource_version: None };
        match unless_gone(api.delete(&pod.name_any(), &DeleteParams::default().preconditions(same)).await) {
            Ok(_) => {
                let message = format!("Deleted pod: {}", pod.name_any());
                self.events.record(&set.object_ref(&()), EventType::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            // Another pod has the name by now, so this one has gone.
            Err(error) if ambit_kube::is_conflict(&error) => Ok(()),
            Err(error) => {
                self.ledger.update(&owner, |expectations, _| expectations.delete_failed(&uid));
                let message = format!("Error deleting: {error}");
                self.events.record(&set.object_ref(&()), EventType::Warning, "FailedDelete", message);
                Err(error).attempt("delete pod", pod.name_any())
            }
        }
    }

    async fn write_status(
        &self,
        set: &ReplicaSet,
        status: ambit_api::apps::v1::ReplicaSetStatus,
    ) -> Result<(), Error> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<ReplicaSet> =
            Api::namespaced(self.views.client.clone(), &set.namespace().unwrap_or_default());
        let updated = ReplicaSet { status: Some(status), ..set.clone() };
        let answer = api.replace_status(&set.name_any(), &claims::post(MANAGER), &updated).await;
        unless_gone(answer).attempt("write the status of", set.name_any()).map(drop)
    }
}

fn text(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn pod_changed(change: &Change<Pod>, views: &Views, queue: &Queue<ObjectKey>, ledger: &Ledger) {
    let latest = change.latest();
    let namespace = latest.namespace().unwrap_or_default();
    let uid = latest.uid().unwrap_or_default();
    let going = change.new.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    for pod in change.old.iter().chain(&change.new) {
        let Some(owner) = ownership::controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet")
        else {
            continue;
        };
        ledger.saw(&owner.uid, &uid, going);
        queue.add(ObjectKey::namespaced(namespace.clone(), owner.name.clone()));
    }
    if ownership::controller_of(&latest.metadata).is_none() && !going {
        let fits = |set: &&Arc<ReplicaSet>| {
            let spec = set.spec.as_ref();
            spec.is_some_and(|spec| selector::matches(&spec.selector, latest.metadata.labels.as_ref()))
        };
        for set in views.replica_sets.list_in(&namespace).iter().filter(fits) {
            queue.add(ObjectKey::of(set.as_ref()));
        }
    }
}
