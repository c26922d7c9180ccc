//! Deployments and ReplicaSets, from the user's side.

use crate::cluster::{Cluster, eventually};
use ambit_api::apps::v1::{Deployment, ReplicaSet};
use ambit_api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

fn deployment(replicas: i32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}},
                         "spec": {"containers": [{"name": "c", "image": image}]}}},
    })
}

async fn patch(cluster: &Cluster, patch: Value) {
    let api = cluster.api::<Deployment>("default");
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is patched");
}

/// Waits until the deployment says that so many pods of its newest template are available, and no others exist.
async fn await_complete(cluster: &Cluster, replicas: i32) -> Deployment {
    let api = cluster.api::<Deployment>("default");
    eventually(&format!("a deployment with {replicas} available"), async || {
        let deployment = api.get("web").await.expect("the deployment");
        let status = deployment.status.clone().unwrap_or_default();
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        let complete = counts.iter().all(|count| count.unwrap_or(0) == replicas)
            && status.observed_generation == deployment.metadata.generation;
        complete.then_some(deployment)
    })
    .await
}

fn condition(deployment: &Deployment, kind: &str) -> (String, String) {
    let conditions = deployment.status.as_ref().and_then(|status| status.conditions.as_ref());
    let condition =
        conditions.into_iter().flatten().find(|condition| condition.type_ == kind).expect("the condition");
    (condition.status.clone(), condition.reason.clone().unwrap_or_default())
}

#[tokio::test]
async fn a_deployment_lives_through_scaling_a_new_template_and_its_deletion() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("n1").await;
    cluster.create::<Deployment>("default", deployment(3, "app:1")).await;
    let complete = await_complete(&cluster, 3).await;
    assert_eq!(condition(&complete, "Available"), ("True".into(), "MinimumReplicasAvailable".into()));
    assert_eq!(condition(&complete, "Progressing"), ("True".into(), "NewReplicaSetAvailable".into()));
    assert_eq!(complete.annotations()["deployment.kubernetes.io/revision"], "1");

    patch(&cluster, json!({"spec": {"replicas": 5}})).await;
    await_complete(&cluster, 5).await;
    patch(&cluster, json!({"spec": {"replicas": 1}})).await;
    await_complete(&cluster, 1).await;
    let old = cluster.await_count::<Pod>("default", 1).await;

    let template = json!({"spec": {"containers": [{"name": "c", "image": "app:2"}]}});
    patch(&cluster, json!({"spec": {"template": template}})).await;
    let complete = await_complete(&cluster, 1).await;
    assert_eq!(complete.annotations()["deployment.kubernetes.io/revision"], "2");
    let new = cluster.await_count::<Pod>("default", 1).await;
    assert_ne!(old, new);
    let pod = cluster.api::<Pod>("default").get(&new[0]).await.expect("the new pod");
    assert_eq!(pod.spec.as_ref().unwrap().containers[0].image.as_deref(), Some("app:2"));
    assert!(pod.labels().contains_key("pod-template-hash"));
    assert_eq!(cluster.names::<ReplicaSet>("default").await.len(), 2, "the old set is kept for going back");
    eventually("an event that says how the update is done", async || {
        let events = cluster.api::<Event>("default").list(&ListParams::default()).await.expect("events");
        events.items.iter().any(|event| event.reason.as_deref() == Some("RecreatingPods")).then_some(())
    })
    .await;

    cluster
        .api::<Deployment>("default")
        .delete("web", &DeleteParams::default())
        .await
        .expect("it is deleted");
    cluster.await_count::<ReplicaSet>("default", 0).await;
    cluster.await_count::<Pod>("default", 0).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_replica_set_replaces_lost_pods_and_adopts_and_releases() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("n1").await;
    let orphan = json!({"metadata": {"name": "orphan", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "app:1"}]}});
    cluster.create::<Pod>("default", orphan).await;
    let mut set = deployment(2, "app:1");
    set["kind"] = json!("ReplicaSet");
    cluster.create::<ReplicaSet>("default", set).await;
    let pods = cluster.await_count::<Pod>("default", 2).await;
    assert!(pods.contains(&"orphan".to_owned()), "it counts: {pods:?}");

    let api = cluster.api::<Pod>("default");
    api.delete("orphan", &DeleteParams::default()).await.expect("it is deleted");
    eventually("a replacement", async || {
        let names = cluster.names::<Pod>("default").await;
        (names.len() == 2 && !names.contains(&"orphan".to_owned())).then_some(())
    })
    .await;

    let released = cluster.names::<Pod>("default").await.remove(0);
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"app": "debug"}}}));
    api.patch(&released, &PatchParams::default(), &relabel).await.expect("it is relabelled");
    cluster.await_count::<Pod>("default", 3).await;
    eventually("the release", async || {
        let pod = api.get(&released).await.expect("the pod stays");
        pod.owner_references().is_empty().then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_template_that_the_server_refuses_shows_as_a_condition() {
    let cluster = Cluster::start().await;
    let mut bad = deployment(2, "app:1");
    bad["spec"]["template"]["spec"]["serviceAccountName"] = json!("nobody");
    cluster.create::<Deployment>("default", bad).await;
    let api = cluster.api::<Deployment>("default");
    let deployment = eventually("a failure condition", async || {
        let deployment = api.get("web").await.expect("the deployment");
        let conditions = deployment.status.as_ref().and_then(|status| status.conditions.clone());
        conditions.into_iter().flatten().any(|c| c.type_ == "ReplicaFailure").then_some(deployment)
    })
    .await;
    assert_eq!(condition(&deployment, "Available").0, "False");
    cluster.stop().await;
}

#[tokio::test]
async fn a_restart_of_the_controllers_changes_nothing() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("n1").await;
    cluster.create::<Deployment>("default", deployment(3, "app:1")).await;
    await_complete(&cluster, 3).await;
    let pods = cluster.await_count::<Pod>("default", 3).await;
    // A second set of controllers on the same objects is the harder case of a restart: both act at once.
    cluster.start_controllers().await;
    patch(&cluster, json!({"metadata": {"annotations": {"touched": "yes"}}})).await;
    await_complete(&cluster, 3).await;
    assert_eq!(cluster.names::<Pod>("default").await, pods);
    cluster.stop().await;
}
