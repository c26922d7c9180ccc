//! The whole agent, with a real API server, real network namespaces, and a proxy that speaks the raw protocol.

use super::*;
use crate::fixture::{Node, PodNet, shell, state};
use ambit_apiserver::{ApiServer, Storage};
use ambit_linux::seqpacket::Connection;
use ambit_names::label;
use ambit_proto::zds::workload_request::Payload;
use ambit_proto::zds::{Ack, WorkloadRequest, WorkloadResponse, ZdsHello, workload_response};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use prost::Message as _;
use serde_json::{Value, json};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

/// Longest wait for anything that must happen.
const LIMIT: Duration = Duration::from_secs(15);

/// Waits until a condition holds.
pub(super) async fn until<F: AsyncFnMut() -> bool>(what: &'static str, mut condition: F) {
    let reached = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, reached).await.unwrap_or_else(|_| panic!("not reached: {what}"));
}

/// A cluster with one namespace `shop`, a node, and what an agent on it needs.
pub(super) struct Cluster {
    pub(super) server: ApiServer,
    pub(super) node: Node,
    pub(super) settings: Settings,
    directory: tempfile::TempDir,
}

/// A running agent.
pub(super) struct Agent {
    task: JoinHandle<Result<(), Error>>,
    shutdown: Shutdown,
    readiness: Readiness,
}

impl Agent {
    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(LIMIT, self.task).await.expect("it stops").unwrap().unwrap();
    }

    pub(super) async fn stop_with_error(self) -> Error {
        self.shutdown.cancel();
        tokio::time::timeout(LIMIT, self.task).await.expect("it stops").unwrap().unwrap_err()
    }

    /// What a killed agent leaves: nothing is cleaned up.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err());
    }
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Cluster {
    pub(super) async fn new(mode: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let pki = ambit_trust::pki::ClusterPki::load_or_create(&at("pki"), &[]).unwrap();
        let server = ApiServer::open(ambit_apiserver::Settings {
            storage: Storage::Memory,
            listen: None,
            advertise: None,
            pki,
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
        });
        let server = server.await.unwrap();
        let node = Node::new();
        std::fs::create_dir(at("proc")).unwrap();
        let settings = Settings {
            run_dir: at("run"),
            handover_socket: at("zds/ztunnel.sock"),
            proc_root: at("proc"),
            host_netns: fd_path(&node.netns),
            health: free_address(),
            metrics: free_address(),
            ..Settings::new("n1")
        };
        let cluster = Self { server, node, settings, directory };
        let client = cluster.client();
        let labels = mode.map_or(json!({}), |mode| json!({ label::DATAPLANE_MODE: mode }));
        let namespace = json!({"metadata": {"name": "shop", "labels": labels}});
        create::<Namespace>(&Api::all(client.clone()), namespace).await;
        let account = json!({"metadata": {"name": "default"}});
        create::<ambit_api::core::v1::ServiceAccount>(&Api::namespaced(client, "shop"), account).await;
        cluster
    }

    pub(super) fn client(&self) -> kube::Client {
        self.server.client("ambit:test", &["system:masters"])
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), "shop")
    }

    fn start(&self) -> Agent {
        let (readiness, shutdown) = (Readiness::default(), Shutdown::new());
        let client = self.server.client("ambit:agent", &[]);
        let task = tokio::spawn(run(self.settings.clone(), client, readiness.clone(), shutdown.clone()));
        Agent { task, shutdown, readiness }
    }

    pub(super) async fn started(&self) -> Agent {
        let agent = self.start();
        until("the agent is ready", async || {
            assert!(!agent.task.is_finished(), "the agent ended");
            self.settings.handover_socket.exists() && agent.readiness.waiting_for().is_empty()
        })
        .await;
        agent
    }

    /// A pod that is scheduled to this node and has no network yet.
    pub(super) async fn create_pod(&self, name: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "ambit.local/demo-app:1"}]},
        });
        create(&self.pods(), pod).await
    }

    /// What the node's runtime reports once the pod runs, and the process it would have.
    pub(super) async fn report_running(&self, pod: &Pod, net: &PodNet) {
        let uid = ambit_node_plan::enroll::runtime_uid(pod);
        let process = self.settings.proc_root.join("4711");
        std::fs::create_dir_all(process.join("ns")).unwrap();
        std::os::unix::fs::symlink(fd_path(&net.netns), process.join("ns/net")).unwrap();
        std::fs::write(process.join("cgroup"), format!("0::/kubepods/pod{uid}/c1\n")).unwrap();
        std::fs::write(process.join("stat"), format!("4711 (pause) S {}1", "0 ".repeat(18))).unwrap();
        let address = net.address.to_string();
        let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        let name = pod.metadata.name.as_deref().unwrap();
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    pub(super) async fn label_namespace(&self, mode: Option<&str>) {
        let namespaces: Api<Namespace> = Api::all(self.client());
        let patch = Patch::Merge(json!({"metadata": {"labels": { label::DATAPLANE_MODE: mode }}}));
        namespaces.patch("shop", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn redirection(&self, name: &str) -> Option<String> {
        let pod = self.pods().get(name).await.unwrap();
        pod.metadata.annotations.unwrap_or_default().remove(ambit_names::annotation::REDIRECTION)
    }

    pub(super) async fn until_redirection(&self, name: &'static str, wanted: Option<&'static str>) {
        until("the annotation", async || self.redirection(name).await.as_deref() == wanted).await;
    }

    /// Posts an event as a plugin does.
    async fn post(&self, path: &str, body: &str) -> (u16, String) {
        post_to(&self.settings.run_dir.join(ambit_names::path::PLUGIN_EVENT_SOCKET), path, body).await
    }

    pub(super) async fn add(&self, pod: &Pod, net: &PodNet) -> (u16, String) {
        self.post("/ambit/v1/add", &event(pod, net).to_string()).await
    }

    pub(super) fn host_state(&self) -> String {
        state(&self.node.netns)
    }
}

/// One request on a Unix socket.
async fn post_to(socket: &Path, path: &str, body: &str) -> (u16, String) {
    let mut stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: unix\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(super) async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

fn fd_path(netns: &NetNs) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd()).into()
}

fn event(pod: &Pod, net: &PodNet) -> Value {
    json!({
        "Netns": fd_path(&net.netns), "PodName": pod.metadata.name, "PodNamespace": "shop",
        "IPs": [{"Interface": 0, "Address": {"IP": net.address, "Mask": "////AA=="}, "Gateway": net.gateway}],
        "ContainerID": "c1", "Interface": "eth0", "PodUID": ambit_node_plan::enroll::runtime_uid(pod),
    })
}

/// A proxy that takes everything over and notes what it was told.
pub(super) struct Proxy {
    told: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(super) fn connect(cluster: &Cluster) -> Self {
        let connection = Connection::connect(&cluster.settings.handover_socket).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let notes = told.clone();
        let task = tokio::spawn(async move {
            connection.send(&ZdsHello { version: 1 }.encode_to_vec(), None).await.unwrap();
            while let Ok(Some(packet)) = connection.recv(1024).await {
                let request = WorkloadRequest::decode(packet.bytes.as_slice()).unwrap();
                let note = match request.payload.unwrap() {
                    Payload::Add(add) => {
                        let netns =
                            packet.descriptors.into_iter().next().map(|fd| NetNs::from_fd(fd).unwrap());
                        let info = add.workload_info.unwrap();
                        format!("add {} {} {}", add.uid, netns.unwrap().id(), info.service_account)
                    }
                    Payload::Keep(keep) => format!("keep {}", keep.uid),
                    Payload::Del(delete) => format!("delete {}", delete.uid),
                    Payload::SnapshotSent(_) => "snapshot".to_owned(),
                };
                notes.lock().unwrap().push(note);
                let ack = WorkloadResponse {
                    payload: Some(workload_response::Payload::Ack(Ack { error: String::new() })),
                };
                if connection.send(&ack.encode_to_vec(), None).await.is_err() {
                    return;
                }
            }
        });
        Self { told, task }
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    async fn until_told(&self, wanted: &[String]) {
        until("the proxy is told", async || self.told().starts_with(wanted)).await;
        assert_eq!(self.told(), wanted);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap()
}

fn added(pod: &Pod, net: &PodNet) -> String {
    format!("add {} {} default", uid(pod), net.netns.id())
}

const TABLES: [&str; 3] = ["istio-ambient-nat", "istio-ambient-mangle", "istio-ambient-raw"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_captured_when_it_starts_released_with_the_label_and_captured_again_while_it_runs() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let net = cluster.node.add_pod();
    let (before, host_before) = (state(&net.netns), cluster.host_state());
    let agent = cluster.started().await;
    let proxy = Proxy::connect(&cluster);
    let pod = cluster.create_pod("web").await;
    // The plugin's event: rules, hand-over, annotation, in this order, before the answer.
    let (code, body) = cluster.add(&pod, &net).await;
    let expected =
        json!({"captured": true, "reason": "the namespace is labelled istio.io/dataplane-mode=ambient"});
    assert_eq!((code, serde_json::from_str::<Value>(&body).unwrap()), (200, expected));
    let captured = state(&net.netns);
    assert!(TABLES.iter().all(|table| captured.contains(table)), "{captured}");
    assert_eq!(cluster.redirection("web").await.as_deref(), Some("enabled"));
    proxy.until_told(&["snapshot".into(), added(&pod, &net)]).await;
    let probe = format!("elements = {{ {} comment \"{}\" }}", net.address, uid(&pod));
    assert!(cluster.host_state().contains(&probe), "{}", cluster.host_state());
    // The pod runs; nothing more happens. Then the label goes.
    cluster.report_running(&pod, &net).await;
    cluster.label_namespace(None).await;
    cluster.until_redirection("web", None).await;
    assert_eq!(state(&net.netns), before);
    assert!(!cluster.host_state().contains("elements"));
    let deleted = format!("delete {}", uid(&pod));
    proxy.until_told(&["snapshot".into(), added(&pod, &net), deleted.clone()]).await;
    // And comes back: the running pod is found by its process.
    cluster.label_namespace(Some("ambient")).await;
    cluster.until_redirection("web", Some("enabled")).await;
    assert_eq!(state(&net.netns), captured.clone());
    // The pod goes.
    cluster.pods().delete("web", &DeleteParams::default()).await.unwrap();
    let told = ["snapshot".into(), added(&pod, &net), deleted.clone(), added(&pod, &net), deleted];
    proxy.until_told(&told).await;
    assert!(!cluster.host_state().contains("elements"));
    agent.stop().await;
    assert_ne!(cluster.host_state(), host_before, "the host's rule stays for the next agent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv_01_without_a_proxy_a_pod_waits_and_starts_once_there_is_one() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let net = cluster.node.add_pod();
    let _agent = cluster.started().await;
    let pod = cluster.create_pod("web").await;
    let (code, body) = cluster.add(&pod, &net).await;
    assert_eq!(
        (code, body.as_str()),
        (500, "pod shop/web was not handed over to the node proxy: no proxy is connected\n")
    );
    assert_eq!(cluster.redirection("web").await.as_deref(), Some("pending"));
    let proxy = Proxy::connect(&cluster);
    proxy.until_told(&[added(&pod, &net), "snapshot".into()]).await;
    assert_eq!(cluster.add(&pod, &net).await.0, 200);
    assert_eq!(cluster.redirection("web").await.as_deref(), Some("enabled"));
    assert_eq!(proxy.told().len(), 2, "the proxy has it already");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv_01_pods_stay_captured_while_the_agent_is_away() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let net = cluster.node.add_pod();
    let before = state(&net.netns);
    let agent = cluster.started().await;
    let proxy = Proxy::connect(&cluster);
    let pod = cluster.create_pod("web").await;
    assert_eq!(cluster.add(&pod, &net).await.0, 200);
    cluster.report_running(&pod, &net).await;
    let captured = state(&net.netns);
    agent.kill().await;
    until("the proxy notices", async || proxy.task.is_finished()).await;
    assert_eq!(state(&net.netns), captured);
    // Someone damages the rules meanwhile: the next agent puts them right, and tells the proxy what there is.
    net.netns.run(|| crate::fixture::shell("nft flush chain inet istio-ambient-nat istio-output")).unwrap();
    cluster.settings.release_on_stop = true;
    let agent = cluster.started().await;
    assert_eq!(state(&net.netns), captured);
    let proxy = Proxy::connect(&cluster);
    proxy.until_told(&[added(&pod, &net), "snapshot".into()]).await;
    assert!(cluster.host_state().contains(&net.address.to_string()));
    // A stop that releases leaves nothing.
    agent.stop().await;
    assert_eq!(state(&net.netns), before);
    assert_eq!(cluster.redirection("web").await, None);
    assert!(!cluster.host_state().contains("istio-"), "{}", cluster.host_state());
    assert_eq!(proxy.told().last(), Some(&format!("delete {}", uid(&pod))));
    assert!(!cluster.settings.handover_socket.exists());
    assert!(!cluster.settings.run_dir.join("pluginevent.sock").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_captured_pod_whose_process_is_not_found_is_kept_and_found_later() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let net = cluster.node.add_pod();
    let agent = cluster.started().await;
    let proxy = Proxy::connect(&cluster);
    let pod = cluster.create_pod("web").await;
    assert_eq!(cluster.add(&pod, &net).await.0, 200);
    cluster.report_running(&pod, &net).await;
    drop(proxy);
    agent.stop().await;
    let (process, away) = (cluster.settings.proc_root.join("4711"), cluster.directory.path().join("away"));
    std::fs::rename(&process, &away).unwrap();
    let _agent = cluster.started().await;
    let proxy = Proxy::connect(&cluster);
    proxy.until_told(&[format!("keep {}", uid(&pod)), "snapshot".into()]).await;
    std::fs::rename(&away, &process).unwrap();
    proxy.until_told(&[format!("keep {}", uid(&pod)), "snapshot".into(), added(&pod, &net)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_are_not_the_mesh_s_are_let_be() {
    let mut cluster = Cluster::new(None).await;
    let net = cluster.node.add_pod();
    let before = state(&net.netns);
    let _agent = cluster.started().await;
    let pod = cluster.create_pod("web").await;
    let (code, body) = cluster.add(&pod, &net).await;
    assert_eq!(code, 200);
    assert!(
        body.contains(r#""captured":false"#) && body.contains("neither the pod nor its namespace"),
        "{body}"
    );
    // The field's plugin only asks for pods that it wants captured.
    let (code, body) = cluster.post("/cmdadd", &event(&pod, &net).to_string()).await;
    assert_eq!(code, 500);
    assert!(body.contains("pod shop/web is not to be captured"), "{body}");
    assert_eq!(state(&net.netns), before);
    assert_eq!(cluster.redirection("web").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_plugin_is_served_and_bad_events_are_refused() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let (net, other) = (cluster.node.add_pod(), cluster.node.add_pod());
    let before = state(&other.netns);
    let _agent = cluster.started().await;
    let _proxy = Proxy::connect(&cluster);
    let pod = cluster.create_pod("web").await;
    let foreign = |net: &PodNet| {
        let mut event = event(&pod, net);
        let fields = event.as_object_mut().unwrap();
        ["ContainerID", "Interface", "PodUID"].iter().for_each(|field| drop(fields.remove(*field)));
        event
    };
    let change = |field: &str, value: Value| {
        let mut event = foreign(&net);
        event[field] = value;
        event.to_string()
    };
    for (path, body, code, text) in [
        ("/cmdadd", String::new(), 400, "not an event"),
        ("/cmdadd", "{}".into(), 400, "missing field"),
        ("/ambit/v1/add", "[".into(), 400, "not an event"),
        ("/ambit/v1/del", "{}".into(), 404, "no such path"),
        ("/cmdadd", "x".repeat(100_000), 500, "length limit exceeded"),
        ("/cmdadd", change("IPs", Value::Null), 500, "names no address"),
        ("/cmdadd", change("Netns", json!("/dev/null")), 500, "not a network namespace"),
        ("/cmdadd", change("Netns", json!(fd_path(&other.netns))), 500, "holds none of its addresses"),
        ("/cmdadd", change("Netns", json!(cluster.settings.host_netns)), 500, "holds none of its addresses"),
        ("/cmdadd", change("PodName", json!("ghost")), 500, "pod shop/ghost is not known on this node"),
    ] {
        let (answered, said) = cluster.post(path, &body).await;
        assert_eq!(answered, code, "{path} {said}");
        assert!(said.contains(text), "{path}: {said}");
    }
    assert_eq!(state(&other.netns), before);
    assert_eq!(cluster.post("/cmdadd", &foreign(&net).to_string()).await.0, 200);
    assert_eq!(cluster.redirection("web").await.as_deref(), Some("enabled"));
}

/// One GET of a health or metrics address.
pub(super) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_metrics_are_served_and_a_second_agent_is_refused() {
    let cluster = Cluster::new(None).await;
    let agent = cluster.started().await;
    assert_eq!(get(cluster.settings.health, "/healthz").await, (200, "ok\n".into()));
    assert_eq!(get(cluster.settings.health, "/readyz").await, (200, "ok\n".into()));
    let blocker = agent.readiness.block("something");
    assert_eq!(get(cluster.settings.health, "/readyz").await, (503, "waiting for: something\n".into()));
    drop(blocker);
    cluster.post("/cmdadd", "").await;
    let (code, metrics) = get(cluster.settings.metrics, "/metrics").await;
    assert_eq!(code, 200);
    assert!(metrics.contains(r#"istio_cni_plugin_requests_total{response_code="400"} 1"#), "{metrics}");
    assert_eq!(get(cluster.settings.metrics, "/").await.0, 404);
    let second = cluster.start().task.await.unwrap().unwrap_err();
    let said = crate::error::with_causes(&second);
    assert!(said.contains("pluginevent.sock for events of the plugin"), "{said}");
    assert!(said.contains("is in use by a running process: stop it first"), "{said}");
    // The first is not disturbed.
    assert_eq!(get(cluster.settings.health, "/readyz").await.0, 200);
    assert_eq!(cluster.post("/cmdadd", "").await.0, 400);
}

#[tokio::test]
async fn what_the_machine_lacks_is_named() {
    let cluster = Cluster::new(None).await;
    let refused = async |change: fn(&mut Settings)| {
        let mut settings = cluster.settings.clone();
        change(&mut settings);
        let client = cluster.client();
        let error = run(settings, client, Readiness::default(), Shutdown::new()).await.unwrap_err();
        crate::error::with_causes(&error)
    };
    let said = refused(|settings| settings.host_netns = "/nowhere".into()).await;
    assert!(said.contains("cannot open the network namespace /nowhere: No such file"), "{said}");
    let said = refused(|settings| settings.run_dir = "/dev/null/x".into()).await;
    assert!(said.starts_with("cannot make the directory /dev/null/x: "), "{said}");
    let taken = std::net::TcpListener::bind(cluster.settings.health).unwrap();
    let said = refused(|_| {}).await;
    drop(taken);
    assert!(said.contains("for health: Address already in use"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv_06_an_agent_stopped_before_it_is_ready_leaves_nothing() {
    let mut cluster = Cluster::new(None).await;
    let before = cluster.host_state();
    cluster.settings.release_on_stop = true;
    // A user whose watches the API server refuses: the agent never gets ready.
    let client = cluster.server.client("nobody", &[]);
    let (readiness, shutdown) = (Readiness::default(), Shutdown::new());
    let task = tokio::spawn(run(cluster.settings.clone(), client, readiness.clone(), shutdown.clone()));
    until("it serves its health", async || {
        tokio::net::TcpStream::connect(cluster.settings.health).await.is_ok()
    })
    .await;
    assert_eq!(get(cluster.settings.health, "/healthz").await.0, 200);
    let (code, said) = get(cluster.settings.health, "/readyz").await;
    assert_eq!((code, said.as_str()), (503, "waiting for: node agent\n"));
    shutdown.cancel();
    // Whether the refusal or the stop comes first, nothing is left.
    let _ = tokio::time::timeout(LIMIT, task).await.expect("it stops").unwrap();
    assert_eq!(cluster.host_state(), before);
    assert!(!cluster.settings.handover_socket.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plugin_s_other_verbs_are_answered() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let net = cluster.node.add_pod();
    let _agent = cluster.started().await;
    let pod = cluster.create_pod("web").await;
    let event = event(&pod, &net).to_string();
    let (code, said) = cluster.post("/ambit/v1/status", "{}").await;
    assert!(code == 200 && said.contains(r#""ability":"cut""#), "{said}");
    let (code, said) = cluster.post("/ambit/v1/check", &event).await;
    assert!(code == 500 && said.contains("pod shop/web is not captured: it is not enrolled"), "{said}");
    let proxy = Proxy::connect(&cluster);
    assert_eq!(cluster.add(&pod, &net).await.0, 200);
    assert!(cluster.post("/ambit/v1/status", "{}").await.1.contains(r#""ability":"able""#));
    assert_eq!(cluster.post("/ambit/v1/check", &event).await, (200, "{}".to_owned()));
    net.netns.run(|| shell("nft flush table inet istio-ambient-nat")).unwrap();
    let (code, said) = cluster.post("/ambit/v1/check", &event).await;
    assert!(code == 500 && said.contains("istio-ambient-nat"), "{said}");
    assert_eq!(cluster.add(&pod, &net).await.0, 200, "an addition repairs it");
    assert_eq!(cluster.post("/ambit/v1/check", &event).await.0, 200);
    // The sandbox lives, then it is gone while the API server still has the pod.
    assert_eq!(cluster.post("/ambit/v1/gc", r#"{"container_ids":["c0","c1"]}"#).await.0, 200);
    assert_eq!(cluster.post("/ambit/v1/check", &event).await.0, 200);
    assert_eq!(cluster.post("/ambit/v1/gc", r#"{"container_ids":["c0"]}"#).await.0, 200);
    let deleted = format!("delete {}", uid(&pod));
    until("the proxy is told", async || proxy.told().last() == Some(&deleted)).await;
    assert!(!cluster.host_state().contains("elements"));
    let (code, said) = cluster.post("/ambit/v1/check", &event).await;
    assert!(code == 500 && said.contains("not enrolled"), "{said}");
    assert_eq!(cluster.post("/ambit/v1/gc", "{}").await.0, 400);
    // What the plugin says is taken, and what is no log is refused.
    let log = |path: &'static str, body: &'static str| {
        let socket = cluster.settings.run_dir.join(ambit_names::path::PLUGIN_LOG_SOCKET);
        async move { post_to(&socket, path, body).await.0 }
    };
    assert_eq!(
        log("/log", r#"["{\"level\":\"warn\",\"msg\":\"x\",\"pod\":\"y\"}", "no object"]"#).await,
        200
    );
    assert_eq!(log("/log", "3").await, 400);
    assert_eq!(log("/other", "[]").await, 404);
}
