//! Runs the EndpointSlice decider.

use crate::claims;
use crate::error::{Attempt, Error, is_namespace_terminating, unless_gone};
use crate::ledger::Ledger;
use crate::views::Views;
use ambit_api::core::v1::{Node, Pod, Service};
use ambit_api::discovery::v1::EndpointSlice;
use ambit_kube::{Change, Next, ObjectKey, Queue};
use ambit_names::label;
use ambit_runtime::Shutdown;
use ambit_workloads::endpoint_slice::{self, Surroundings};
use ambit_workloads::selector;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use std::sync::Arc;
use std::time::Duration;

/// Name of this controller in field ownership.
const MANAGER: &str = "endpointslice-controller";
/// How long to wait for the view to show our own writes before looking whether it ever will.
const LAG_CHECK: Duration = Duration::from_secs(31);

pub(crate) struct EndpointSlices {
    views: Views,
    queue: Queue<ObjectKey>,
    ledger: Ledger,
}

impl EndpointSlices {
    pub(crate) fn new(views: &Views, workers: usize) -> Self {
        let queue = views.queue("endpoint slices", workers);
        let ledger = Ledger::new();
        views.services.on_change({
            let (queue, ledger) = (queue.clone(), ledger.clone());
            move |change: &Change<Service>| {
                if let (None, Some(uid)) = (&change.new, &change.latest().metadata.uid) {
                    ledger.forget(uid);
                }
                queue.add(ObjectKey::of(change.latest().as_ref()));
            }
        });
        views.pods.on_change({
            let (views, queue) = (views.clone(), queue.clone());
            move |change: &Change<Pod>| pod_changed(change, &views, &queue)
        });
        views.slices.on_change({
            let (queue, ledger) = (queue.clone(), ledger.clone());
            move |change: &Change<EndpointSlice>| slice_changed(change, &queue, &ledger)
        });
        views.nodes.on_change({
            let (views, queue) = (views.clone(), queue.clone());
            move |change: &Change<Node>| node_changed(change, &views, &queue)
        });
        Self { views: views.clone(), queue, ledger }
    }

    pub(crate) async fn run(&self, stop: &Shutdown) {
        self.queue.run(|key| self.sync(key), stop).await;
    }

    async fn sync(&self, key: ObjectKey) -> Result<Next, Error> {
        let (Some(service), Some(namespace)) = (self.views.services.by_key(&key), &key.namespace) else {
            return Ok(Next::Done);
        };
        if !endpoint_slice::is_ours(&service) {
            return Ok(Next::Done);
        }
        let owner = service.uid().unwrap_or_default();
        let api: Api<EndpointSlice> = Api::namespaced(self.views.client.clone(), namespace);
        let slices = if self.ledger.is_overdue(&owner) {
            let live = api.list(&ListParams::default()).await.attempt("list the endpoint slices of", &key)?;
            self.ledger.forget(&owner);
            live.items.into_iter().map(Arc::new).collect()
        } else if !self.ledger.snapshot(&owner).is_empty() {
            // Without our own last writes the plan would repeat them. Their events bring the key back.
            return Ok(Next::After(LAG_CHECK));
        } else {
            self.views.slices.list_in(namespace)
        };
        let (pods, nodes) = (self.views.pods.list_in(namespace), self.views.nodes.list());
        let around = Surroundings { pods: &pods, nodes: &nodes, slices: &slices };
        let plan = endpoint_slice::plan(&service, around);
        for slice in &plan.create {
            self.create(&owner, slice, &api).await?;
        }
        for slice in &plan.update {
            let answer = api.replace(&slice.name_any(), &claims::post(MANAGER), slice).await;
            unless_gone(answer).attempt("update endpoint slice", slice.name_any())?;
        }
        for slice in &plan.delete {
            self.delete(&owner, slice, &api).await?;
        }
        Ok(Next::Done)
    }

    async fn create(
        &self,
        owner: &str,
        slice: &EndpointSlice,
        api: &Api<EndpointSlice>,
    ) -> Result<(), Error> {
        self.ledger.update(owner, |expectations, _| expectations.creating());
        match api.create(&claims::post(MANAGER), slice).await {
            Ok(created) => {
                let uid = created.uid().unwrap_or_default();
                self.ledger.update(owner, |expectations, tick| expectations.created(&uid, tick));
                Ok(())
            }
            Err(error) => {
                self.ledger.update(owner, |expectations, _| expectations.create_failed());
                if is_namespace_terminating(&error) {
                    return Ok(());
                }
                Err(error).attempt(
                    "create an endpoint slice",
                    slice.metadata.generate_name.as_deref().unwrap_or_default(),
                )
            }
        }
    }

    async fn delete(
        &self,
        owner: &str,
        slice: &EndpointSlice,
        api: &Api<EndpointSlice>,
    ) -> Result<(), Error> {
        let uid = slice.uid().unwrap_or_default();
        self.ledger.update(owner, |expectations, tick| expectations.deleting(&uid, tick));
        let same = Preconditions { uid: slice.uid(), resource_version: slice.resource_version() };
        let answer = api.delete(&slice.name_any(), &DeleteParams::default().preconditions(same)).await;
        if answer.is_err() {
            self.ledger.update(owner, |expectations, _| expectations.delete_failed(&uid));
        }
        unless_gone(answer).attempt("delete endpoint slice", slice.name_any()).map(drop)
    }
}

/// Services that take the pod, before or after.
fn pod_changed(change: &Change<Pod>, views: &Views, queue: &Queue<ObjectKey>) {
    let namespace = change.latest().namespace().unwrap_or_default();
    for service in views.services.list_in(&namespace) {
        let Some(wanted) = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { continue };
        let mut versions = change.old.iter().chain(&change.new);
        if versions.any(|pod| selector::matches_all(wanted, pod.metadata.labels.as_ref())) {
            queue.add(ObjectKey::of(service.as_ref()));
        }
    }
}

fn slice_changed(change: &Change<EndpointSlice>, queue: &Queue<ObjectKey>, ledger: &Ledger) {
    let latest = change.latest();
    let going = change.new.as_ref().is_none_or(|slice| slice.metadata.deletion_timestamp.is_some());
    for owner in latest.owner_references() {
        ledger.saw(&owner.uid, latest.metadata.uid.as_deref().unwrap_or_default(), going);
    }
    let namespace = latest.namespace().unwrap_or_default();
    // An edit may have taken the label away: both versions name a service.
    for slice in change.old.iter().chain(&change.new) {
        if let Some(service) = slice.labels().get(label::SERVICE_NAME) {
            queue.add(ObjectKey::namespaced(namespace.clone(), service.clone()));
        }
    }
}

/// A node's zone shows in the endpoints of its pods.
fn node_changed(change: &Change<Node>, views: &Views, queue: &Queue<ObjectKey>) {
    let labels = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.metadata.labels.clone());
    if labels(&change.old) != labels(&change.new) {
        for service in views.services.list() {
            queue.add(ObjectKey::of(service.as_ref()));
        }
    }
}
