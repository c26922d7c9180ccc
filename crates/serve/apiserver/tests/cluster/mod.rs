//! A server of a test, with clients of it.
#![allow(dead_code, reason = "each test binary uses some of this")]

use ambit_apiserver::{ApiServer, DiskError, Error, Settings, Storage};
use ambit_runtime::{Clock, Readiness, Shutdown};
use ambit_trust::pki::{ClusterPki, kubeconfig};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Long enough for anything that will happen at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server.
pub(crate) struct TestCluster {
    pub(crate) pki: ClusterPki,
    pub(crate) address: SocketAddr,
    client: kube::Client,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<Result<(), ambit_apiserver::Error>>,
}

impl TestCluster {
    pub(crate) async fn in_memory() -> Self {
        Self::with(Storage::Memory).await
    }

    pub(crate) async fn with(storage: Storage) -> Self {
        let pki = ClusterPki::in_memory(&["127.0.0.1".into(), "localhost".into()]).unwrap();
        let settings = Settings {
            storage,
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            advertise: Some(SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 6443))),
            pki: pki.clone(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
        };
        let end = Clock.now() + PATIENCE;
        let server = loop {
            match ApiServer::open(settings.clone()).await {
                // The database of an ended server is released once the tasks of its last client have ended.
                Err(Error::Disk(DiskError::Locked { .. })) if Clock.now() < end => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                opened => break opened.unwrap(),
            }
        };
        let address = server.address().unwrap();
        let client = server.client("admin", &["system:masters"]);
        let shutdown = Shutdown::new();
        let task = tokio::spawn(server.run(Readiness::default(), shutdown.clone()));
        Self { pki, address, client, shutdown, task }
    }

    /// A client in this process.
    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// An administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> String {
        self.kubeconfig_for(self.address, self.pki.ca_pem())
    }

    /// This cluster's administrator, for a server elsewhere.
    pub(crate) fn kubeconfig_for(&self, address: SocketAddr, ca_pem: &str) -> String {
        let admin = self.pki.issue_client("admin", &["system:masters"], Duration::from_secs(600)).unwrap();
        kubeconfig(&format!("https://{address}"), ca_pem, &admin.cert_pem, &admin.key_pem)
    }

    /// A client over TLS, with the administrator's certificate.
    pub(crate) async fn tls_client(&self) -> kube::Client {
        let config = Kubeconfig::from_yaml(&self.kubeconfig()).unwrap();
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        kube::Client::try_from(config).unwrap()
    }

    /// Ends the server.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// An object from JSON.
pub(crate) fn object<K: serde::de::DeserializeOwned>(value: serde_json::Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// The message of a refusal with that code.
pub(crate) fn refused<T: std::fmt::Debug>(outcome: Result<T, kube::Error>, code: u16) -> String {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == code => status.message.clone(),
        other => panic!("{other:?}"),
    }
}
