//! Cluster roles take up the rules of others.

use crate::cluster::{Cluster, eventually};
use ambit_api::rbac::v1::ClusterRole;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

#[tokio::test]
async fn an_aggregate_follows_its_parts() {
    let cluster = Cluster::start().await;
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    let create = async |role: Value| {
        let role: ClusterRole = serde_json::from_value(role).expect("a role");
        roles.create(&PostParams::default(), &role).await.expect("it is created");
    };
    let widgets = async |wanted: bool| {
        eventually("the rules of the view role", async || {
            let rules = roles.get("view").await.expect("a default role").rules.unwrap_or_default();
            // The rules of its own part stay.
            assert!(rules.iter().any(|r| r.resources.iter().flatten().any(|r| r == "pods")));
            let has = rules.iter().any(|r| r.resources.iter().flatten().any(|r| r == "widgets"));
            (has == wanted).then_some(())
        })
        .await;
    };
    let rule = json!({"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["widgets"]});
    create(json!({"metadata": {"name": "widgets"}, "rules": [rule]})).await;
    let label = |value: Value| {
        Patch::Merge(json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": value}}}))
    };
    roles.patch("widgets", &PatchParams::default(), &label("true".into())).await.expect("labelled");
    widgets(true).await;
    roles.patch("widgets", &PatchParams::default(), &label(Value::Null)).await.expect("unlabelled");
    widgets(false).await;
    roles.patch("widgets", &PatchParams::default(), &label("true".into())).await.expect("labelled");
    widgets(true).await;
    roles.delete("widgets", &DeleteParams::default()).await.expect("deleted");
    widgets(false).await;
    cluster.stop().await;
}
