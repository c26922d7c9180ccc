//! What the control plane writes to the cluster.

use crate::client::root;
use crate::cluster::{Cluster, eventually};
use serde_json::{Value, json};

fn root_of(namespace: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": "istio-ca-root-cert"}})
}

#[tokio::test]
async fn the_root_is_in_every_namespace_and_comes_back() {
    let cluster = Cluster::start().await;
    let control_plane = cluster.control_plane().await;
    let root = root(&cluster).await;
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "later"}})).await;
    let published = async |namespace: &str| {
        let read = cluster.read(&root_of(namespace)).await?;
        (read["data"]["root-cert.pem"] == *root && read["metadata"]["labels"]["istio.io/config"] == "true")
            .then_some(())
    };
    for namespace in ["demo", "later", "default", "kube-system"] {
        eventually("the root is published", || published(namespace)).await;
    }
    cluster.patch(&root_of("demo"), json!({"data": {"root-cert.pem": "nonsense", "mine": "x"}})).await;
    eventually("drift is repaired", || published("demo")).await;
    assert_eq!(cluster.read(&root_of("demo")).await.unwrap()["data"]["mine"], "x");
    cluster.delete(&root_of("later")).await;
    eventually("a deleted one comes back", || published("later")).await;
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn policies_show_whether_they_are_in_force() {
    let cluster = Cluster::start().await;
    let control_plane = cluster.control_plane().await;
    let policy = |name: &str, spec: Value| {
        json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"namespace": "demo", "name": name}, "spec": spec})
    };
    let good = policy("good", json!({"rules": [{}]}));
    cluster.create(good.clone()).await;
    cluster.create(policy("audit", json!({"action": "AUDIT"}))).await;
    let condition = async |of: &Value| {
        let read = cluster.read(of).await?;
        let condition = read["status"]["conditions"].get(0)?.clone();
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let current = condition["observedGeneration"] == read["metadata"]["generation"];
        current.then(|| format!("{} {} {}", text("type"), text("status"), text("reason")))
    };
    let accepted = "ZtunnelAccepted True Accepted";
    assert_eq!(eventually("it has a condition", || condition(&good)).await, accepted);
    let audit = policy("audit", json!({}));
    let refused = "ZtunnelAccepted False UnsupportedValue";
    assert_eq!(eventually("it has a condition", || condition(&audit)).await, refused);
    // A change that loses part of the policy is told, for the new generation.
    cluster.patch(&good, json!({"spec": {"rules": [{"to": [{"operation": {"methods": ["GET"]}}]}]}})).await;
    let lossy = "ZtunnelAccepted True UnsupportedValue";
    eventually("the new condition", async || condition(&good).await.filter(|c| c == lossy)).await;
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_broken_root_stops_the_control_plane_and_is_not_replaced() {
    let cluster = Cluster::start().await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "istio.io/ca-root",
        "metadata": {"namespace": "istio-system", "name": "istio-ca-secret"},
        "data": {"ca-cert.pem": "bm9uZQ==", "ca-key.pem": "bm9uZQ=="}});
    cluster.create(secret.clone()).await;
    let settings = ambit_control_plane::Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..ambit_control_plane::Settings::default()
    };
    let readiness = ambit_runtime::Readiness::default();
    let shutdown = ambit_runtime::Shutdown::new();
    let error =
        ambit_control_plane::run(settings, cluster.client.clone(), readiness, shutdown).await.unwrap_err();
    assert!(error.to_string().starts_with("Secret istio-system/istio-ca-secret holds no usable"), "{error}");
    assert_eq!(cluster.read(&secret).await.unwrap()["data"], secret["data"]);
    cluster.stop().await;
}
