//! One cluster per test: API server, controllers, and a node that only flips the status of its pods.

use ambit_api::apiextensions::CustomResourceDefinition;
use ambit_api::core::v1::{Namespace, Node, Pod};
use ambit_apiserver::{ApiServer, Storage};
use ambit_controllers::Settings;
use ambit_kube::{Change, Informers, Next, ObjectKey, Query, Queue};
use ambit_runtime::{Readiness, Shutdown};
use ambit_trust::pki::ClusterPki;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{GroupVersionKind, NamespaceResourceScope};
use kube::discovery::ApiResource;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinSet;

/// Long enough for any machine; only a failing test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(10);
/// The root certificate that the controllers publish.
pub(crate) const ROOT_CA: &str = "-----BEGIN CERTIFICATE-----\ntest\n-----END CERTIFICATE-----\n";

pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// What the controllers speak as: they work with their own role alone.
    controllers: Client,
    shutdown: Shutdown,
    tasks: JoinSet<()>,
}

impl Cluster {
    /// An API server alone.
    pub(crate) async fn bare() -> Self {
        let pki = ClusterPki::in_memory(&["127.0.0.1".to_owned()]).expect("keys");
        let settings = ambit_apiserver::Settings {
            storage: Storage::Memory,
            listen: None,
            advertise: None,
            pki,
            service_cidr: "10.96.0.0/16".parse().expect("a network"),
            cluster_domain: "cluster.local".to_owned(),
        };
        let server = ApiServer::open(settings).await.expect("an API server");
        let client = server.client("ambit:test", &["system:masters"]);
        let controllers = server.client("ambit:controllers", &[]);
        let mut cluster = Self { client, controllers, shutdown: Shutdown::new(), tasks: JoinSet::new() };
        let shutdown = cluster.shutdown.clone();
        cluster
            .tasks
            .spawn(async move { server.run(Readiness::default(), shutdown).await.expect("it serves") });
        cluster
    }

    /// An API server with controllers, ready.
    pub(crate) async fn start() -> Self {
        let mut cluster = Self::bare().await;
        cluster.start_controllers().await;
        cluster
    }

    pub(crate) async fn start_controllers(&mut self) {
        self.start_controllers_with_grace(Settings::default().node_grace).await;
    }

    pub(crate) async fn start_controllers_with_grace(&mut self, node_grace: Duration) {
        let (client, readiness, shutdown) =
            (self.controllers.clone(), Readiness::default(), self.shutdown.clone());
        let settings = Settings { root_ca_pem: ROOT_CA.to_owned(), node_grace, ..Settings::default() };
        let ready = readiness.clone();
        // The guard is taken as soon as the task runs; until then nothing says that it is not ready.
        let starting = readiness.block("test");
        self.tasks.spawn(async move {
            let mut run = std::pin::pin!(ambit_controllers::run(settings, client, readiness, shutdown));
            let begun = futures::poll!(&mut run);
            drop(starting);
            match begun {
                Poll::Ready(outcome) => outcome.expect("controllers run"),
                Poll::Pending => run.await.expect("controllers run"),
            }
        });
        eventually("the controllers are ready", async || ready.waiting_for().is_empty().then_some(())).await;
    }

    /// Registers a ready node, and acts as it: pods bound to it run and are ready, deleted ones stop.
    pub(crate) async fn add_node(&mut self, name: &'static str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "zone-a"}}});
        let node = serde_json::from_value(node).expect("a node");
        nodes.create(&PostParams::default(), &node).await.expect("the node registers");
        self.patch_status(&nodes, name, json!({"conditions": [{"type": "Ready", "status": "True"}]})).await;
        let (client, shutdown) = (self.client.clone(), self.shutdown.clone());
        self.tasks.spawn(act_as_node(client, name, shutdown));
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn create<K>(&self, namespace: &str, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).expect("an object of the kind");
        self.api::<K>(namespace).create(&PostParams::default(), &object).await.expect("it is created")
    }

    pub(crate) async fn create_namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a namespace");
        namespaces.create(&PostParams::default(), &namespace).await.expect("the namespace is created");
    }

    /// Defines a custom kind in the group `test.ambit.dev`.
    pub(crate) async fn define(&self, plural: &str, kind: &str, scope: &str) -> ApiResource {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let definition = json!({
            "metadata": {"name": format!("{plural}.test.ambit.dev")},
            "spec": {"group": "test.ambit.dev", "scope": scope,
                "names": {"plural": plural, "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
        });
        let definition = serde_json::from_value(definition).expect("a definition");
        definitions.create(&PostParams::default(), &definition).await.expect("it is defined");
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("test.ambit.dev", "v1", kind), plural)
    }

    pub(crate) async fn patch_status<K>(&self, api: &Api<K>, name: &str, status: Value)
    where
        K: Clone + Debug + DeserializeOwned,
    {
        let patch = Patch::Strategic(json!({ "status": status }));
        api.patch_status(name, &PatchParams::default(), &patch).await.expect("the status is written");
    }

    /// Names of all objects of a kind in a namespace, sorted.
    pub(crate) async fn names<K>(&self, namespace: &str) -> Vec<String>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let list = self.api::<K>(namespace).list(&ListParams::default()).await.expect("a list");
        let mut names: Vec<String> = list.items.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    }

    /// Waits until there are so many objects of a kind in a namespace.
    pub(crate) async fn await_count<K>(&self, namespace: &str, count: usize) -> Vec<String>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let what = format!("{count} of {} in {namespace}", K::plural(&()));
        eventually(&what, async || {
            let names = self.names::<K>(namespace).await;
            (names.len() == count).then_some(names)
        })
        .await
    }

    /// Stops everything; all tasks must end by themselves.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = async {
            while let Some(task) = self.tasks.join_next().await {
                task.expect("no task panics");
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("everything stops");
    }
}

/// Looks until there is an answer.
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("waited in vain for: {what}"))
}

/// What the node's runtime writes for its pods.
async fn act_as_node(client: Client, name: &'static str, shutdown: Shutdown) {
    let informers = Informers::new(client.clone());
    let pods = informers.informer::<Pod>(Query::all().fields(format!("spec.nodeName={name}")));
    let queue = Queue::new("node");
    pods.on_change({
        let queue = queue.clone();
        move |change: &Change<Pod>| queue.add(ObjectKey::of(change.latest().as_ref()))
    });
    if informers.run_and_wait(&shutdown).await.is_ok() {
        queue
            .run(
                |key| {
                    let (client, pod) = (client.clone(), pods.by_key(&key));
                    async move {
                        let Some(pod) = pod else { return Ok(Next::Done) };
                        run_pod(&client, &pod).await.map(|()| Next::Done)
                    }
                },
                &shutdown,
            )
            .await;
    }
    informers.join().await.expect("no informer panics");
}

async fn run_pod(client: &Client, pod: &Pod) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    if pod.metadata.deletion_timestamp.is_some() {
        return match api.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await {
            Err(error) if !ambit_kube::is_not_found(&error) => Err(error),
            _ => Ok(()),
        };
    }
    if pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).is_some() {
        return Ok(());
    }
    // An address that is the pod's own as long as names are.
    let number =
        pod.name_any().bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let ip = format!("10.244.{}.{}", number >> 8 & 0xff, number & 0xff);
    let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let patch = Patch::Strategic(json!({ "status": status }));
    match api.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await {
        Err(error) if !ambit_kube::is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}
