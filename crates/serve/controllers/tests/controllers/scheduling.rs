//! Pods find their node, and nodes that fall silent are no longer trusted.

use crate::cluster::{Cluster, eventually};
use ambit_api::coordination::v1::Lease;
use ambit_api::core::v1::{Event, Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

fn pod(name: &str, more: &Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "app:1"}]});
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn await_node(cluster: &Cluster, name: &str, node: &str) {
    let pods = cluster.api::<Pod>("default");
    eventually(&format!("{name} on {node}"), async || {
        let pod = pods.get(name).await.expect("the pod");
        (pod.spec.as_ref()?.node_name.as_deref() == Some(node)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn pods_wait_for_a_node_that_takes_them() {
    let mut cluster = Cluster::start().await;
    cluster.create::<Pod>("default", pod("any", &json!({}))).await;
    let picky = json!({"nodeSelector": {"kubernetes.io/hostname": "n2"}});
    cluster.create::<Pod>("default", pod("picky", &picky)).await;
    let pods = cluster.api::<Pod>("default");
    eventually("a condition that says why", async || {
        let pod = pods.get("any").await.expect("the pod");
        let condition = ambit_workloads::pod::condition(&pod, "PodScheduled")?;
        let why = (condition.status.as_str(), condition.reason.as_deref(), condition.message.as_deref());
        (why == ("False", Some("Unschedulable"), Some("no nodes available to schedule pods"))).then_some(())
    })
    .await;
    cluster.add_node("n1").await;
    await_node(&cluster, "any", "n1").await;
    let message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    eventually("an event that says why", async || {
        let events = cluster.api::<Event>("default").list(&ListParams::default()).await.expect("events");
        let fits = |event: &Event| {
            event.reason.as_deref() == Some("FailedScheduling") && event.message.as_deref() == Some(message)
        };
        events.items.iter().any(fits).then_some(())
    })
    .await;
    cluster.add_node("n2").await;
    await_node(&cluster, "picky", "n2").await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_node_whose_lease_is_stale_becomes_unknown() {
    let mut cluster = Cluster::bare().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).expect("a node");
    nodes.create(&PostParams::default(), &node).await.expect("it registers");
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    cluster.patch_status(&nodes, "n1", ready).await;
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1",
        "renewTime": "2026-01-01T00:00:00.000000Z"}});
    cluster.create::<Lease>("kube-node-lease", lease).await;
    cluster.start_controllers_with_grace(std::time::Duration::from_millis(1)).await;
    eventually("the node unknown", async || {
        let status = nodes.get("n1").await.expect("the node").status?;
        status.conditions?.iter().any(|c| c.type_ == "Ready" && c.status == "Unknown").then_some(())
    })
    .await;
    cluster.stop().await;
}
