//! Several clusters, each a real API server.

use crate::cluster::{Cluster, eventually};
use ambit_api::core::v1::ConfigMap;
use ambit_kube::{Change, ClusterId, Clusters, ObjectKey, Query};
use ambit_runtime::Shutdown;
use kube::ResourceExt;
use serde_json::json;
use std::sync::{Arc, Mutex};

/// A server with one ConfigMap of this name, in `default`.
async fn cluster_with(name: &str) -> Cluster {
    let cluster = Cluster::bare().await;
    let map = json!({"metadata": {"name": name, "labels": {"test": "yes"}}});
    cluster.create::<ConfigMap>("default", map).await;
    cluster
}

#[tokio::test]
async fn clusters_come_go_and_are_replaced_with_all_that_they_bring() {
    let [east, west, new_west] = [cluster_with("e").await, cluster_with("w").await, cluster_with("n").await];
    let (clusters, stop) = (Clusters::new(), Shutdown::new());
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let maps = clusters.follow::<ConfigMap>(Query::all().labels("test=yes"), {
        let log = log.clone();
        move |id, change: &Change<ConfigMap>| {
            let sign = if change.new.is_some() { '+' } else { '-' };
            log.lock().unwrap().push(format!("{sign}{id}/{}", change.latest().name_any()));
        }
    });
    let [e, w] = ["east", "west"].map(ClusterId::new);
    clusters.insert(e.clone(), east.client.clone());
    let running = tokio::spawn({
        let (clusters, stop) = (clusters.clone(), stop.clone());
        async move { clusters.run(&stop).await }
    });
    let logged = async |line: &str| {
        eventually(line, async || log.lock().unwrap().iter().any(|known| known == line).then_some(())).await;
    };
    logged("+east/e").await;
    clusters.insert(w.clone(), west.client.clone());
    logged("+west/w").await;
    assert!(maps.get(&w, &ObjectKey::namespaced("default", "w")).is_some());
    let names = || maps.list().iter().map(|(id, map)| format!("{id}/{}", map.name_any())).collect::<Vec<_>>();
    assert_eq!(names(), ["east/e", "west/w"]);

    clusters.insert(w.clone(), new_west.client.clone());
    logged("+west/n").await;
    clusters.remove(&e);
    logged("-east/e").await;
    eventually("the east has gone", async || maps.of(&e).is_none().then_some(())).await;
    assert_eq!(names(), ["west/n"]);
    assert_eq!(clusters.ids(), [w]);

    stop.cancel();
    running.await.expect("no panic").expect("no informer panics");
    logged("-west/n").await;
    let expected = ["+east/e", "+west/w", "-west/w", "+west/n", "-east/e", "-west/n"];
    assert_eq!(*log.lock().unwrap(), expected);
    for cluster in [east, west, new_west] {
        cluster.stop().await;
    }
}

#[tokio::test]
async fn a_cluster_that_never_answers_keeps_no_other_from_working() {
    let cluster = cluster_with("a").await;
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
    });
    let (clusters, stop) = (Clusters::new(), Shutdown::new());
    let maps = clusters.follow::<ConfigMap>(Query::all().labels("test=yes"), |_, _| {});
    clusters.insert(ClusterId::new("silent"), kube::Client::new(silent, "default"));
    clusters.insert(ClusterId::new("talks"), cluster.client.clone());
    let running = tokio::spawn({
        let (clusters, stop) = (clusters.clone(), stop.clone());
        async move { clusters.run(&stop).await }
    });
    eventually("the other one", async || (maps.list().len() == 1).then_some(())).await;
    assert!(!maps.has_synced());
    // It can be taken away while it is still being waited for.
    clusters.remove(&ClusterId::new("silent"));
    eventually("all that are left", async || maps.has_synced().then_some(())).await;
    stop.cancel();
    running.await.expect("no panic").expect("no informer panics");
    cluster.stop().await;
}
