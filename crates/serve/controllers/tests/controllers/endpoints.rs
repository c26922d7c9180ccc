//! EndpointSlices follow services and pods.

use crate::cluster::{Cluster, eventually};
use ambit_api::core::v1::{Pod, Service};
use ambit_api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "app:1", "ports": [{"name": "http", "containerPort": 8080}]}]}})
}

/// Waits until the service's slices hold exactly these pods with this readiness, sorted by name.
async fn await_endpoints(cluster: &Cluster, expected: &[(&str, bool)]) -> Vec<EndpointSlice> {
    let slices = cluster.api::<EndpointSlice>("default");
    let of_service = ListParams::default().labels("kubernetes.io/service-name=web");
    eventually(&format!("endpoints {expected:?}"), async || {
        let slices = slices.list(&of_service).await.expect("slices").items;
        let mut seen: Vec<(String, bool)> = slices
            .iter()
            .flat_map(|slice| &slice.endpoints)
            .map(|endpoint| {
                let target = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
                let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
                (target.unwrap_or_default(), ready.unwrap_or(false))
            })
            .collect();
        seen.sort();
        let expected: Vec<(String, bool)> =
            expected.iter().map(|&(name, ready)| (name.to_owned(), ready)).collect();
        (seen == expected && !slices.is_empty()).then_some(slices)
    })
    .await
}

#[tokio::test]
async fn slices_follow_the_readiness_of_pods() {
    let mut cluster = Cluster::start().await;
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}});
    cluster.create::<Service>("default", service).await;
    await_endpoints(&cluster, &[]).await;
    cluster.add_node("n1").await;
    for name in ["a", "b"] {
        cluster.create::<Pod>("default", pod(name)).await;
    }
    let slices = await_endpoints(&cluster, &[("a", true), ("b", true)]).await;
    assert_eq!(slices.len(), 1);
    let slice = &slices[0];
    assert_eq!(slice.labels()["endpointslice.kubernetes.io/managed-by"], "endpointslice-controller.k8s.io");
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(8080));
    assert_eq!(slice.endpoints[0].node_name.as_deref(), Some("n1"));
    assert_eq!(slice.endpoints[0].zone.as_deref(), Some("zone-a"));

    let pods = cluster.api::<Pod>("default");
    let unready = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    cluster.patch_status(&pods, "a", unready).await;
    await_endpoints(&cluster, &[("a", false), ("b", true)]).await;
    pods.delete("a", &DeleteParams::default()).await.expect("it is deleted");
    await_endpoints(&cluster, &[("b", true)]).await;

    cluster.api::<Service>("default").delete("web", &DeleteParams::default()).await.expect("it is deleted");
    eventually("the slices gone with their service", async || {
        let of_service = ListParams::default().labels("kubernetes.io/service-name=web");
        let slices = cluster.api::<EndpointSlice>("default").list(&of_service).await.expect("slices");
        slices.items.is_empty().then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_edited_or_deleted_slice_is_put_right() {
    let cluster = Cluster::start().await;
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"clusterIP": "None", "selector": {"app": "web"}}});
    cluster.create::<Service>("default", service).await;
    let slice = await_endpoints(&cluster, &[]).await.remove(0);
    let api = cluster.api::<EndpointSlice>("default");
    api.delete(&slice.name_any(), &DeleteParams::default()).await.expect("it is deleted");
    let again = eventually("another slice", async || {
        let names = cluster.names::<EndpointSlice>("default").await;
        names.into_iter().find(|name| name.starts_with("web-") && *name != slice.name_any())
    })
    .await;
    let stray = json!([{"addresses": ["10.0.0.1"]}]);
    let edit = kube::api::Patch::Merge(json!({ "endpoints": stray }));
    api.patch(&again, &kube::api::PatchParams::default(), &edit).await.expect("it is edited");
    await_endpoints(&cluster, &[]).await;
    cluster.stop().await;
}
