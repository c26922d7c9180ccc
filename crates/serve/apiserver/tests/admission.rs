//! What the cluster adds to objects and refuses of them, as clients meet it.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use ambit_api::core::v1::{LimitRange, PersistentVolumeClaim, Pod, ServiceAccount};
use ambit_api::networking::v1::{Ingress, IngressClass};
use ambit_api::storage::v1::StorageClass;
use cluster::{TestCluster, object, refused};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

fn pod(name: &str, resources: &Value) -> Pod {
    let container = json!({"name": "c", "image": "i", "resources": resources});
    object(
        json!({"metadata": {"name": name}, "spec": {"automountServiceAccountToken": false, "containers": [container]}}),
    )
}

#[tokio::test]
async fn pods_get_the_defaults_of_their_namespace_and_keep_to_its_limits() {
    let cluster = TestCluster::in_memory().await;
    let ranges: Api<LimitRange> = Api::default_namespaced(cluster.client());
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let create = PostParams::default();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client());
    accounts.create(&create, &object(json!({"metadata": {"name": "default"}}))).await.unwrap();
    let range = |limits: Value| {
        object::<LimitRange>(json!({"metadata": {"name": "r"}, "spec": {"limits": [limits]}}))
    };
    let wrong = range(json!({"type": "Container", "min": {"cpu": 2}, "max": {"cpu": "1"}}));
    let told = refused(ranges.create(&create, &wrong).await, 422);
    assert!(
        told.contains(
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1"
        ),
        "{told}"
    );
    ranges.create(&create, &range(json!({"type": "Container", "max": {"cpu": "1"}}))).await.unwrap();

    let given = serde_json::to_value(pods.create(&create, &pod("a", &json!({}))).await.unwrap()).unwrap();
    let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    assert_eq!(given["spec"]["containers"][0]["resources"], resources);
    assert_eq!(
        given["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    assert_eq!(given["status"]["qosClass"], "Burstable");
    let told = refused(pods.create(&create, &pod("b", &json!({"limits": {"cpu": "1500m"}}))).await, 403);
    assert_eq!(told, "pods \"b\" is forbidden: maximum cpu usage per Container is 1, but limit is 1500m");
    let told = refused(pods.create(&create, &pod("b", &json!({"requests": {"cpu": "2"}}))).await, 403);
    assert!(told.contains("but request is 2"), "{told}");
    cluster.stop().await;
}

#[tokio::test]
async fn claims_and_ingresses_get_the_default_class() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let create = PostParams::default();
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let claim = |name: &str, class: Option<&str>| {
        let mut spec =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        if let Some(class) = class {
            spec["storageClassName"] = class.into();
        }
        object::<PersistentVolumeClaim>(json!({"metadata": {"name": name}, "spec": spec}))
    };
    let class_of = |claim: PersistentVolumeClaim| claim.spec.unwrap().storage_class_name;
    assert_eq!(class_of(claims.create(&create, &claim("early", None)).await.unwrap()), None);
    let default =
        |prefix: &str| json!({"name": "d", "annotations": {format!("{prefix}/is-default-class"): "true"}});
    let class = json!({"metadata": default("storageclass.kubernetes.io"), "provisioner": "example.com/p"});
    Api::<StorageClass>::all(client.clone()).create(&create, &object(class)).await.unwrap();
    assert_eq!(class_of(claims.create(&create, &claim("a", None)).await.unwrap()).as_deref(), Some("d"));
    assert_eq!(
        class_of(claims.create(&create, &claim("none", Some(""))).await.unwrap()).as_deref(),
        Some("")
    );

    let class =
        json!({"metadata": default("ingressclass.kubernetes.io"), "spec": {"controller": "example.com/c"}});
    Api::<IngressClass>::all(client.clone()).create(&create, &object(class)).await.unwrap();
    let spec = json!({"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}});
    let ingresses: Api<Ingress> = Api::default_namespaced(client);
    let ingress = object(json!({"metadata": {"name": "i"}, "spec": spec}));
    let made = ingresses.create(&create, &ingress).await.unwrap();
    assert_eq!(made.spec.unwrap().ingress_class_name.as_deref(), Some("d"));
    cluster.stop().await;
}
