//! What every namespace gets.

use crate::cluster::{Cluster, ROOT_CA, eventually};
use ambit_api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

#[tokio::test]
async fn every_namespace_has_its_account_and_root_certificate_and_gets_them_back() {
    let cluster = Cluster::start().await;
    cluster.create_namespace("shop").await;
    for namespace in ["default", "kube-system", "shop"] {
        let accounts = cluster.api::<ServiceAccount>(namespace);
        eventually("the account", async || accounts.get_opt("default").await.expect("an answer")).await;
    }
    let maps = cluster.api::<ConfigMap>("shop");
    let has_root = async || {
        let map = maps.get_opt("kube-root-ca.crt").await.expect("an answer")?;
        (map.data.as_ref()?.get("ca.crt")? == ROOT_CA).then_some(())
    };
    eventually("the root certificate", has_root).await;

    let edit = Patch::Merge(json!({"data": {"ca.crt": "edited"}}));
    maps.patch("kube-root-ca.crt", &PatchParams::default(), &edit).await.expect("it is edited");
    eventually("the certificate restored", has_root).await;
    maps.delete("kube-root-ca.crt", &DeleteParams::default()).await.expect("it is deleted");
    eventually("the certificate back", has_root).await;
    let accounts = cluster.api::<ServiceAccount>("shop");
    accounts.delete("default", &DeleteParams::default()).await.expect("it is deleted");
    eventually("the account back", async || accounts.get_opt("default").await.expect("an answer")).await;
    cluster.stop().await;
}
