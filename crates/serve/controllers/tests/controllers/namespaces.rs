//! Namespaces empty themselves before they go.

use crate::cluster::{Cluster, eventually};
use ambit_api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

#[tokio::test]
async fn a_deleted_namespace_empties_and_goes() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("n1").await;
    cluster.create_namespace("shop").await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "app:1"}]}});
    cluster.create::<Pod>("shop", pod).await;
    cluster.create::<Secret>("shop", json!({"metadata": {"name": "s"}})).await;
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}});
    cluster.create::<Service>("shop", service).await;
    let held = json!({"metadata": {"name": "held", "finalizers": ["test.ambit.dev/hold"]}});
    cluster.create::<ConfigMap>("shop", held).await;

    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.delete("shop", &DeleteParams::default()).await.expect("it is deleted");
    let status = eventually("a condition that says what holds it", async || {
        let status = namespaces.get("shop").await.expect("it is held").status?;
        let holds = |c: &ambit_api::core::v1::NamespaceCondition| {
            c.type_ == "NamespaceFinalizersRemaining" && c.status == "True"
        };
        status.conditions.iter().flatten().any(holds).then_some(status)
    })
    .await;
    assert_eq!(status.phase.as_deref(), Some("Terminating"));
    let messages: Vec<String> =
        status.conditions.iter().flatten().filter_map(|c| c.message.clone()).collect();
    assert!(messages.iter().any(|message| message.contains("test.ambit.dev/hold in 1")), "{messages:?}");
    cluster.await_count::<Pod>("shop", 0).await;
    cluster.await_count::<ConfigMap>("shop", 1).await;
    let late = serde_json::from_value(json!({"metadata": {"name": "late"}})).expect("a secret");
    let refused = cluster.api::<Secret>("shop").create(&PostParams::default(), &late).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403), "nothing new comes in");

    let maps = cluster.api::<ConfigMap>("shop");
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &release).await.expect("it is released");
    eventually("the namespace gone", async || match namespaces.get_opt("shop").await.expect("an answer") {
        Some(_) => None,
        None => Some(()),
    })
    .await;
    assert!(cluster.names::<ConfigMap>("shop").await.is_empty());
    cluster.stop().await;
}
