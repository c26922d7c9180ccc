//! An API server in memory and a control plane on it.

use ambit_apiserver::{ApiServer, Settings as ApiServerSettings, Storage};
use ambit_control_plane::Settings;
use ambit_runtime::{Readiness, Shutdown};
use ambit_trust::pki::ClusterPki;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Time for anything to happen: far more than it takes, so that only a fault runs into it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Polls until `probe` gives a value.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &'static str,
    mut probe: impl FnMut() -> F,
) -> T {
    let polling = async {
        loop {
            if let Some(value) = probe().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, polling).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// A running control plane.
pub(crate) struct ControlPlane {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<Result<(), ambit_control_plane::Error>>,
}

/// An API server with the mesh's kinds and namespaces.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// What the control plane speaks as: it works with its own role alone.
    control_plane: kube::Client,
    server: ApiServerTask,
}

struct ApiServerTask {
    shutdown: Shutdown,
    task: JoinHandle<Result<(), ambit_apiserver::Error>>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let server = ApiServer::open(ApiServerSettings {
            storage: Storage::Memory,
            listen: None,
            advertise: None,
            pki: ClusterPki::in_memory(&[]).unwrap(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            cluster_domain: "cluster.local".to_owned(),
        })
        .await
        .unwrap();
        let client = server.client("ambit:test", &["system:masters"]);
        let control_plane = server.client("ambit:control-plane", &[]);
        let shutdown = Shutdown::new();
        let task = tokio::spawn(server.run(Readiness::default(), shutdown.clone()));
        let cluster = Self { client, control_plane, server: ApiServerTask { shutdown, task } };
        let crds: Api<ambit_api::apiextensions::CustomResourceDefinition> = Api::all(cluster.client.clone());
        for crd in ambit_api::crds() {
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
        for namespace in ["istio-system", "demo"] {
            cluster
                .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
                .await;
        }
        cluster
    }

    pub(crate) async fn stop(self) {
        self.server.shutdown.cancel();
        self.server.task.await.unwrap().unwrap();
    }

    /// Starts a control plane and waits until it is ready.
    pub(crate) async fn control_plane(&self) -> ControlPlane {
        self.start_control_plane().await.ready().await
    }

    /// Starts a control plane.
    pub(crate) async fn start_control_plane(&self) -> Starting {
        self.start_control_plane_with(Settings::default()).await
    }

    /// Starts a control plane with these settings, on addresses of its own.
    pub(crate) async fn start_control_plane_with(&self, settings: Settings) -> Starting {
        let (address, metrics) = (free_address(), free_address());
        let settings = Settings { listen: address, metrics: Some(metrics), ..settings };
        let (readiness, shutdown) = (Readiness::default(), Shutdown::new());
        let mut running = Box::pin(ambit_control_plane::run(
            settings,
            self.control_plane.clone(),
            readiness.clone(),
            shutdown.clone(),
        ));
        // It blocks readiness when it is first polled.
        assert!(futures::poll!(&mut running).is_pending());
        let task = tokio::spawn(running);
        Starting { readiness, control_plane: ControlPlane { address, metrics, shutdown, task } }
    }

    fn api(&self, object: &Value) -> (Api<DynamicObject>, String) {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("/kind")));
        let api = match text("/metadata/namespace") {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        };
        (api, text("/metadata/name").to_owned())
    }

    /// Creates an object; its status, if it has one, is written as well.
    pub(crate) async fn create(&self, object: Value) -> DynamicObject {
        let (api, name) = self.api(&object);
        let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        // A new kind takes a moment to be served.
        let created = eventually("the object is created", async || {
            match api.create(&PostParams::default(), &typed).await {
                Ok(created) => Some(created),
                Err(kube::Error::Api(status)) if status.code == 404 => None,
                Err(error) => panic!("{name}: {error}"),
            }
        })
        .await;
        if let Some(status) = object.get("status") {
            let patch = Patch::Merge(json!({"status": status}));
            api.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
        }
        created
    }

    pub(crate) async fn patch(&self, of: &Value, patch: Value) {
        let (api, name) = self.api(of);
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn read(&self, of: &Value) -> Option<Value> {
        let (api, name) = self.api(of);
        let object = api.get_opt(&name).await.unwrap()?;
        Some(serde_json::to_value(object).unwrap())
    }

    /// The message of the event with this reason about a ConfigMap of the system namespace, once there is one.
    pub(crate) async fn event(&self, map: &str, reason: &'static str) -> String {
        let events: Api<ambit_api::core::v1::Event> = Api::namespaced(self.client.clone(), "istio-system");
        let look = async || {
            let events = events.list(&ListParams::default()).await.unwrap().items.into_iter();
            let of = |event: &ambit_api::core::v1::Event| {
                event.reason.as_deref() == Some(reason) && event.involved_object.name.as_deref() == Some(map)
            };
            events.into_iter().find(of)?.message
        };
        eventually("the event is told", look).await
    }

    pub(crate) async fn delete(&self, of: &Value) {
        let (api, name) = self.api(of);
        // Pods go at once: there is no node that would end them.
        let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        api.delete(&name, &now).await.unwrap();
    }

    /// A token of an account, bound to a pod.
    pub(crate) async fn token(&self, pod: &Value, audience: &str) -> String {
        let pod = self.read(pod).await.expect("the pod exists");
        let text = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let accounts: Api<ambit_api::core::v1::ServiceAccount> =
            Api::namespaced(self.client.clone(), text("/metadata/namespace"));
        let request = serde_json::from_value(json!({
            "spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef":
                {"apiVersion": "v1", "kind": "Pod", "name": text("/metadata/name"), "uid": text("/metadata/uid")}}
        }))
        .unwrap();
        let account = text("/spec/serviceAccountName");
        let issued = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
        issued.status.unwrap().token
    }
}

/// A control plane that may not be ready yet.
pub(crate) struct Starting {
    pub(crate) readiness: Readiness,
    control_plane: ControlPlane,
}

impl Starting {
    /// Waits until it is ready.
    pub(crate) async fn ready(self) -> ControlPlane {
        let task = &self.control_plane.task;
        eventually("the control plane is ready", async || {
            (self.readiness.waiting_for().is_empty() || task.is_finished()).then_some(())
        })
        .await;
        assert!(!task.is_finished(), "the control plane ended at once");
        self.control_plane
    }
}

/// What the endpoint of the metrics answers.
pub(crate) async fn ask(control_plane: &ControlPlane, path: &str) -> String {
    let mut connection = TcpStream::connect(control_plane.metrics).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

impl ControlPlane {
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(DEADLINE, self.task).await.expect("it ends soon").unwrap().unwrap();
    }
}

/// An address that is free now; the system hands out others before it hands out this one again.
fn free_address() -> SocketAddr {
    let probe = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    probe.local_addr().unwrap()
}

/// A service account.
pub(crate) fn account(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": name}})
}

/// A running, ready and captured pod.
pub(crate) fn pod(namespace: &str, name: &str, account: &str, node: &str, ip: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name},
                     "annotations": {"ambient.istio.io/redirection": "enabled"}},
        "spec": {"serviceAccountName": account, "nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                   "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// The node proxy's pod on a node.
pub(crate) fn proxy(node: &str) -> Value {
    pod("istio-system", &format!("ztunnel-{node}"), "ztunnel", node, "192.0.2.1")
}
