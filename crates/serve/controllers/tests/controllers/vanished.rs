//! A server that vanishes without a word: nothing closes the connection, packets just stop coming.

use crate::cluster::{PATIENCE, eventually};
use ambit_api::core::v1::ConfigMap;
use ambit_apiserver::{ApiServer, Storage};
use ambit_kube::{Informers, Liveness, Query, connect};
use ambit_runtime::{Readiness, Shutdown};
use ambit_trust::pki::{ClusterPki, kubeconfig};
use kube::api::{Api, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Output};
use std::time::Duration;

/// Set in the child that has a network of its own.
const CHILD: &str = "AMBIT_TEST_OWN_NETWORK";
/// Quick, so that the test is: much below what a watch waits for by itself.
const LIVENESS: Liveness = Liveness {
    idle: Duration::from_secs(1),
    interval: Duration::from_secs(1),
    lost_after: Duration::from_secs(3),
};
/// Every packet in this network namespace is dropped on its way in.
const DROP: &str =
    "add table inet cut; add chain inet cut in { type filter hook input priority 0; policy drop; }";

fn nft(rules: &str) {
    let Output { status, stderr, .. } = Command::new("nft").arg(rules).output().expect("nft runs");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}

/// Not a test of its own: runs in the network that the test below makes.
#[tokio::test]
async fn child_whose_server_vanishes() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let pki = ClusterPki::in_memory(&["127.0.0.1".to_owned()]).expect("keys");
    let settings = ambit_apiserver::Settings {
        storage: Storage::Memory,
        listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        advertise: None,
        pki: pki.clone(),
        service_cidr: "10.96.0.0/16".parse().expect("a network"),
        cluster_domain: "cluster.local".to_owned(),
    };
    let server = ApiServer::open(settings).await.expect("an API server");
    let address = server.address().expect("it listens");
    let near = server.client("near", &["system:masters"]);
    let shutdown = Shutdown::new();
    let serving = tokio::spawn(server.run(Readiness::default(), shutdown.clone()));
    let admin =
        pki.issue_client("far", &["system:masters"], Duration::from_secs(600)).expect("a certificate");
    let text = kubeconfig(&format!("https://{address}"), pki.ca_pem(), &admin.cert_pem, &admin.key_pem);
    let config = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
    let config =
        Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.expect("a config");
    let informers = Informers::new(connect(config, LIVENESS).expect("a client"));
    let maps = informers.informer::<ConfigMap>(Query::all().namespace("default"));
    tokio::time::timeout(PATIENCE, informers.run_and_wait(&shutdown))
        .await
        .expect("in time")
        .expect("synced");

    nft(DROP);
    eventually("the loss is noticed", || async { maps.synced().trouble() }).await;
    let written: Api<ConfigMap> = Api::default_namespaced(near);
    let map = serde_json::from_value(serde_json::json!({"metadata": {"name": "meanwhile"}})).expect("a map");
    written.create(&PostParams::default(), &map).await.expect("written in process");
    assert!(maps.get(Some("default"), "meanwhile").is_none(), "the network is cut");
    nft("delete table inet cut");
    eventually("the view is up to date", || async { maps.get(Some("default"), "meanwhile") }).await;
    assert_eq!(maps.synced().trouble(), None);
    shutdown.cancel();
    serving.await.expect("it ended").expect("in order");
}

#[test]
fn a_server_that_vanishes_without_a_word_is_noticed_and_found_again() {
    let script = format!(
        "ip link set lo up && exec {} --exact vanished::child_whose_server_vanishes --nocapture",
        std::env::current_exe().expect("this program").display()
    );
    let ran = Command::new("unshare").args(["--net", "sh", "-c", &script]).env(CHILD, "1").output();
    let ran = ran.expect("unshare runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}
