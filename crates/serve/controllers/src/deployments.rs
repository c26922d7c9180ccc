//! Runs the Deployment decider.

use crate::claims::{self, Claimant};
use crate::error::{Attempt, Error, is_namespace_terminating, unless_exists, unless_gone};
use crate::views::Views;
use ambit_api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use ambit_api::core::v1::Pod;
use ambit_kube::{Change, EventRecorder, EventType, Next, ObjectKey, Queue};
use ambit_runtime::{Clock, Shutdown};
use ambit_workloads::deployment::{self, Scale};
use ambit_workloads::{ownership, pod, selector};
use kube::api::{Api, DeleteParams, Patch, Preconditions};
use kube::{Resource, ResourceExt};
use serde_json::json;

/// Name of this controller in field ownership.
const MANAGER: &str = "deployment-controller";

pub(crate) struct Deployments {
    views: Views,
    queue: Queue<ObjectKey>,
    events: EventRecorder,
}

impl Deployments {
    pub(crate) fn new(views: &Views, workers: usize, events: EventRecorder) -> Self {
        let queue = views.queue("deployments", workers);
        views.deployments.on_change({
            let queue = queue.clone();
            move |change: &Change<Deployment>| queue.add(ObjectKey::of(change.latest().as_ref()))
        });
        views.replica_sets.on_change({
            let (views, queue) = (views.clone(), queue.clone());
            move |change: &Change<ReplicaSet>| set_changed(change, &views, &queue)
        });
        views.pods.on_change({
            let (views, queue) = (views.clone(), queue.clone());
            move |change: &Change<Pod>| pod_changed(change, &views, &queue)
        });
        Self { views: views.clone(), queue, events }
    }

    pub(crate) async fn run(&self, stop: &Shutdown) {
        self.queue.run(|key| self.sync(key), stop).await;
    }

    async fn sync(&self, key: ObjectKey) -> Result<Next, Error> {
        let (Some(deployment), Some(namespace)) = (self.views.deployments.by_key(&key), &key.namespace)
        else {
            return Ok(Next::Done);
        };
        let (sets, pods) = (self.views.replica_sets.list_in(namespace), self.views.pods.list_in(namespace));
        let plan = deployment::plan(&deployment, &sets, &pods, Clock.timestamp());
        let api: Api<ReplicaSet> = Api::namespaced(self.views.client.clone(), namespace);
        let claimant = Claimant { client: &self.views.client, manager: MANAGER, owner: deployment.as_ref() };
        claimant.adopt(&plan.adopt).await?;
        claimant.release(&plan.release).await?;
        for scale in &plan.scale {
            self.scale(&deployment, scale, &api).await?;
        }
        for set in &plan.annotate {
            let answer = api.replace(&set.name_any(), &claims::post(MANAGER), set).await;
            unless_gone(answer).attempt("annotate replica set", set.name_any())?;
        }
        if plan.recreates_instead {
            let message =
                "Rolling updates are not available: the old pods are stopped before the new ones start";
            self.events.record(&deployment.object_ref(&()), EventType::Warning, "RecreatingPods", message);
        }
        // The revision comes after the set that it numbers, else a failure in between would skip one.
        let mut status = plan.status;
        if let Some(set) = &plan.create
            && !self.create(&deployment, set, &api).await?
        {
            let collisions = status.collision_count.unwrap_or(0).saturating_add(1);
            status.collision_count = Some(collisions);
            self.write_status(&deployment, status).await?;
            return Err(Error::NameTaken { name: set.name_any() });
        }
        let current = match plan.revision {
            Some(revision) => self.write_revision(&deployment, revision).await?,
            None => Some(deployment.as_ref().clone()),
        };
        for set in &plan.delete {
            let same = Preconditions { uid: set.uid(), resource_version: set.resource_version() };
            let answer = api.delete(&set.name_any(), &DeleteParams::default().preconditions(same)).await;
            unless_gone(answer).attempt("delete replica set", set.name_any())?;
        }
        if let Some(current) = current {
            self.write_status(&current, status).await?;
        }
        Ok(plan.look_again.map_or(Next::Done, Next::After))
    }

    async fn scale(
        &self,
        deployment: &Deployment,
        scale: &Scale,
        api: &Api<ReplicaSet>,
    ) -> Result<(), Error> {
        let name = scale.set.name_any();
        let answer = api.replace(&name, &claims::post(MANAGER), &scale.set).await;
        if unless_gone(answer).attempt("scale replica set", &name)?.is_some() {
            self.record_scaling(deployment, &name, scale.from, scale.to);
        }
        Ok(())
    }

    fn record_scaling(&self, deployment: &Deployment, set: &str, from: i32, to: i32) {
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
        self.events.record(&deployment.object_ref(&()), EventType::Normal, "ScalingReplicaSet", message);
    }

    /// Creates the set; false when an object that is not this very set has its name.
    async fn create(
        &self,
        deployment: &Deployment,
        set: &ReplicaSet,
        api: &Api<ReplicaSet>,
    ) -> Result<bool, Error> {
        let name = set.name_any();
        let answer = api.create(&claims::post(MANAGER), set).await;
        if answer.as_ref().is_err_and(is_namespace_terminating) {
            return Ok(true);
        }
        if unless_exists(answer).attempt("create replica set", &name)?.is_some() {
            let size = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            self.record_scaling(deployment, &name, 0, size);
            return Ok(true);
        }
        // The view may lag behind our own create.
        let existing = api.get_opt(&name).await.attempt("read replica set", &name)?;
        let uid = deployment.metadata.uid.as_deref();
        Ok(existing.is_none_or(|existing| ownership::is_controlled_by(&existing.metadata, uid)))
    }

    async fn write_revision(
        &self,
        deployment: &Deployment,
        revision: String,
    ) -> Result<Option<Deployment>, Error> {
        let patch = json!({"metadata": {
            "uid": deployment.metadata.uid, "annotations": {deployment::REVISION: revision}}});
        let answer = self
            .api(deployment)
            .patch(&deployment.name_any(), &claims::patch(MANAGER), &Patch::Merge(patch))
            .await;
        unless_gone(answer).attempt("write the revision of", deployment.name_any())
    }

    async fn write_status(&self, deployment: &Deployment, status: DeploymentStatus) -> Result<(), Error> {
        if deployment.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let updated = Deployment { status: Some(status), ..deployment.clone() };
        let answer = self
            .api(deployment)
            .replace_status(&deployment.name_any(), &claims::post(MANAGER), &updated)
            .await;
        unless_gone(answer).attempt("write the status of", deployment.name_any()).map(drop)
    }

    fn api(&self, deployment: &Deployment) -> Api<Deployment> {
        Api::namespaced(self.views.client.clone(), &deployment.namespace().unwrap_or_default())
    }
}

fn set_changed(change: &Change<ReplicaSet>, views: &Views, queue: &Queue<ObjectKey>) {
    let namespace = change.latest().namespace().unwrap_or_default();
    for set in change.old.iter().chain(&change.new) {
        if let Some(owner) =
            ownership::controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment")
        {
            queue.add(ObjectKey::namespaced(namespace.clone(), owner.name.clone()));
        }
    }
    let Some(orphan) = change.new.as_ref().filter(|set| ownership::controller_of(&set.metadata).is_none())
    else {
        return;
    };
    for deployment in views.deployments.list_in(&namespace) {
        let spec = deployment.spec.as_ref();
        if spec.is_some_and(|spec| selector::matches(&spec.selector, orphan.metadata.labels.as_ref())) {
            queue.add(ObjectKey::of(deployment.as_ref()));
        }
    }
}

/// A recreation waits for the last old pod to end.
fn pod_changed(change: &Change<Pod>, views: &Views, queue: &Queue<ObjectKey>) {
    if change.new.as_ref().is_some_and(|pod| !pod::is_terminal(pod)) {
        return;
    }
    let pod = change.latest();
    let namespace = pod.namespace().unwrap_or_default();
    let Some(owner) = ownership::controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet")
    else {
        return;
    };
    let Some(set) = views.replica_sets.get(Some(&namespace), &owner.name) else { return };
    if let Some(owner) = ownership::controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment") {
        queue.add(ObjectKey::namespaced(namespace, owner.name.clone()));
    }
}
