//! An agent, as a process of its own, that is killed at any step of an enrollment, or loses its API server.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[allow(dead_code, reason = "some of it is for other tests")]
#[path = "../src/fixture.rs"]
mod fixture;

use ambit_agent::Settings;
use ambit_api::core::v1::{Namespace, Pod, ServiceAccount};
use ambit_apiserver::{ApiServer, Storage};
use ambit_linux::seqpacket::Connection;
use ambit_proto::zds::{Ack, WorkloadResponse, ZdsHello, workload_response::Payload};
use ambit_runtime::{Clock, Readiness, Shutdown};
use ambit_trust::pki::{ClusterPki, kubeconfig};
use fixture::{Node, PodNet, state};
use kube::api::{Api, DeleteParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use prost::Message as _;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Where the child finds its settings: a folder with a kubeconfig.
const CHILD: &str = "AMBIT_TEST_AGENT";
/// The node's network namespace, for the child.
const CHILD_NODE: &str = "AMBIT_TEST_AGENT_NODE";
/// Addresses of the child's health and metrics.
const CHILD_ADDRESSES: &str = "AMBIT_TEST_AGENT_ADDRESSES";
/// Kills, spread evenly over the time that an enrollment takes.
const KILLS: u32 = 24;
/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Port on the node that a pod must not reach past the proxy.
const OUTSIDE: u16 = 7000;
/// Time for a packet that is let through to arrive: everything is on one machine.
const ARRIVAL: Duration = Duration::from_millis(300);

struct World {
    admin: kube::Client,
    /// The last agent's, which runs in this process.
    agent: kube::Client,
    way: Way,
    node: Node,
    settings: Settings,
    outside: TcpListener,
    directory: tempfile::TempDir,
}

/// The way of the agent to the API server, which can be cut.
struct Way {
    address: SocketAddr,
    open: tokio::sync::watch::Sender<bool>,
}

impl Way {
    async fn to(target: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let open = tokio::sync::watch::Sender::new(true);
        let state = open.subscribe();
        tokio::spawn(async move {
            while let Ok((mut agent, _)) = listener.accept().await {
                let mut state = state.clone();
                tokio::spawn(async move {
                    if *state.borrow() {
                        let mut server = tokio::net::TcpStream::connect(target).await.unwrap();
                        tokio::select! {
                            _ = tokio::io::copy_bidirectional(&mut agent, &mut server) => {}
                            _ = state.wait_for(|open| !open) => {}
                        }
                    }
                });
            }
        });
        Self { address, open }
    }
}

fn settings_in(directory: &Path, node: PathBuf, health: SocketAddr, metrics: SocketAddr) -> Settings {
    Settings {
        run_dir: directory.join("run"),
        handover_socket: directory.join("zds.sock"),
        proc_root: directory.join("proc"),
        host_netns: node,
        health,
        metrics,
        release_on_stop: true,
        ..Settings::new("n1")
    }
}

/// Not a test of its own: the agent that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_agent() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let directory = Path::new(&directory);
    let addresses = std::env::var(CHILD_ADDRESSES).unwrap();
    let (health, metrics) = addresses.split_once(' ').unwrap();
    let node = std::env::var(CHILD_NODE).unwrap().into();
    let settings = settings_in(directory, node, health.parse().unwrap(), metrics.parse().unwrap());
    let config = Kubeconfig::read_from(directory.join("kubeconfig")).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    let client = kube::Client::try_from(config).unwrap();
    ambit_agent::run(settings, client, Readiness::default(), Shutdown::new()).await.unwrap();
}

fn fd_path(netns: &ambit_linux::netns::NetNs) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd()).into()
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let reached = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("not reached: {what}"));
}

/// A request on a stream; empty when nobody answers.
async fn ask(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    request: String,
) -> String {
    let mut answer = String::new();
    if stream.write_all(request.as_bytes()).await.is_ok() {
        // Cut short when the agent is killed: what is there by then is the answer.
        let _ = stream.read_to_string(&mut answer).await;
    }
    answer
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("proc")).unwrap();
        let pki = ClusterPki::in_memory(&["127.0.0.1".into()]).unwrap();
        let server = ApiServer::open(ambit_apiserver::Settings {
            storage: Storage::Memory,
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            advertise: None,
            pki: pki.clone(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
        })
        .await
        .unwrap();
        let address = server.address().unwrap();
        let shown = pki.issue_client("ambit:agent", &[], Duration::from_secs(3600)).unwrap();
        let way = Way::to(address).await;
        let text =
            kubeconfig(&format!("https://{}", way.address), pki.ca_pem(), &shown.cert_pem, &shown.key_pem);
        std::fs::write(directory.path().join("kubeconfig"), text).unwrap();
        let (admin, agent) = (server.client("test", &["system:masters"]), server.client("ambit:agent", &[]));
        let client = admin.clone();
        let labels = json!({"istio.io/dataplane-mode": "ambient"});
        create::<Namespace>(
            &Api::all(client.clone()),
            json!({"metadata": {"name": "shop", "labels": labels}}),
        )
        .await;
        let account = json!({"metadata": {"name": "default"}});
        create::<ServiceAccount>(&Api::namespaced(client, "shop"), account).await;
        let node = Node::new();
        let settings = settings_in(directory.path(), fd_path(&node.netns), free(), free());
        let outside = fixture::listen(&node.netns, ([0, 0, 0, 0], OUTSIDE));
        outside.set_nonblocking(true).unwrap();
        // It ends with the test.
        tokio::spawn(server.run(Readiness::default(), Shutdown::new()));
        Self { admin, agent, way, node, settings, outside, directory }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), "shop")
    }

    fn spawn(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_agent", "--nocapture"])
            .env(CHILD, self.directory.path())
            .env(CHILD_NODE, fd_path(&self.node.netns))
            .env(CHILD_ADDRESSES, format!("{} {}", self.settings.health, self.settings.metrics))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    async fn get(&self, address: SocketAddr, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        match tokio::net::TcpStream::connect(address).await {
            Ok(stream) => ask(stream, request).await,
            Err(_) => String::new(),
        }
    }

    /// Waits until the agent is ready and has a proxy.
    async fn until_ready(&self) {
        until("the agent is ready and has a proxy", async || {
            self.get(self.settings.health, "/readyz").await.starts_with("HTTP/1.1 200")
                && self.get(self.settings.metrics, "/metrics").await.contains("\nztunnel_connected 1")
        })
        .await;
    }

    async fn create_pod(&self, name: &str) -> Pod {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "ambit.local/demo-app:1"}]}});
        create(&self.pods(), pod).await
    }

    /// Whether the agent answered that the pod is captured.
    async fn add(&self, pod: &Pod, net: &PodNet) -> bool {
        let event = json!({
            "Netns": fd_path(&net.netns), "PodName": pod.metadata.name, "PodNamespace": "shop",
            "IPs": [{"Interface": 0, "Address": {"IP": net.address, "Mask": "////AA=="}, "Gateway": net.gateway}],
            "ContainerID": "c1", "Interface": "eth0", "PodUID": pod.metadata.uid,
        });
        let event = event.to_string();
        let request = format!(
            "POST /ambit/v1/add HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{event}",
            event.len()
        );
        let socket = self.settings.run_dir.join(ambit_names::path::PLUGIN_EVENT_SOCKET);
        match tokio::net::UnixStream::connect(socket).await {
            Ok(stream) => {
                let answer = ask(stream, request).await;
                answer.starts_with("HTTP/1.1 200") && answer.contains("\"captured\":true")
            }
            Err(_) => false,
        }
    }

    /// Whether a connection of the pod's gets past the proxy.
    fn leaks(&self, net: &PodNet) -> bool {
        let to = SocketAddr::from((net.gateway, OUTSIDE));
        let connected = net.netns.run(|| TcpStream::connect_timeout(&to, ARRIVAL)).unwrap();
        let end = Clock.now() + ARRIVAL;
        loop {
            match self.outside.accept() {
                Ok(_) => return true,
                Err(_) if connected.is_ok() && Clock.now() < end => {
                    std::thread::sleep(Duration::from_millis(2))
                }
                Err(_) => return false,
            }
        }
    }
}

/// A proxy that takes everything over, and comes back when its agent does.
async fn proxy(socket: PathBuf) {
    let ack = WorkloadResponse { payload: Some(Payload::Ack(Ack { error: String::new() })) }.encode_to_vec();
    loop {
        if let Ok(connection) = Connection::connect(&socket)
            && connection.send(&ZdsHello { version: 1 }.encode_to_vec(), None).await.is_ok()
        {
            while let Ok(Some(_)) = connection.recv(1024).await {
                if connection.send(&ack, None).await.is_err() {
                    break;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// INV-01: whenever the agent is killed, a pod whose start it has granted is captured, and one whose start it has not
/// granted is once the next agent has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv_01_an_agent_killed_at_any_step_lets_no_pod_start_uncaptured() {
    let mut world = World::new().await;
    let before = state(&world.node.netns);
    let proxying = tokio::spawn(proxy(world.settings.handover_socket.clone()));
    // One enrollment that nobody disturbs tells how long they take here.
    let (mut pods, mut agent) = (Vec::new(), world.spawn());
    world.until_ready().await;
    let net = world.node.add_pod();
    assert!(world.leaks(&net), "a pod that is not captured reaches the outside");
    let pod = world.create_pod("first").await;
    let begun = Clock.now();
    assert!(world.add(&pod, &net).await);
    let whole = Clock.now() - begun;
    assert!(!world.leaks(&net));
    pods.push((pod, net));
    let mut granted_in_time = 0;
    for kill in 0..KILLS {
        let net = world.node.add_pod();
        let pod = world.create_pod(&format!("pod-{kill}")).await;
        let (granted, ()) = tokio::join!(world.add(&pod, &net), async {
            tokio::time::sleep(whole * kill / KILLS).await;
            agent.kill().unwrap();
        });
        agent.wait().unwrap();
        assert!(!granted || !world.leaks(&net), "kill {kill}: its start was granted, and it is not captured");
        granted_in_time += u32::from(granted);
        for (pod, net) in &pods {
            assert!(!world.leaks(net), "kill {kill}: {:?} is not captured any more", pod.metadata.name);
        }
        agent = world.spawn();
        world.until_ready().await;
        // The runtime asks again, in the same sandbox.
        assert!(granted || world.add(&pod, &net).await, "kill {kill}: not captured by the next agent");
        assert!(!world.leaks(&net), "kill {kill}");
        pods.push((pod, net));
    }
    assert!(granted_in_time < KILLS, "no kill came in time");
    // An agent that stops in order leaves the node as it was.
    agent.kill().unwrap();
    agent.wait().unwrap();
    let (readiness, stop) = (Readiness::default(), Shutdown::new());
    let last =
        tokio::spawn(ambit_agent::run(world.settings.clone(), world.agent.clone(), readiness, stop.clone()));
    world.until_ready().await;
    for (pod, _) in &pods {
        world.pods().delete(pod.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await.unwrap();
    }
    until("all pods are forgotten", async || {
        world.get(world.settings.metrics, "/metrics").await.contains("\nambit_agent_captured_pods 0")
    })
    .await;
    stop.cancel();
    last.await.unwrap().unwrap();
    proxying.abort();
    // Links of pods come and go with the test; rules do not.
    let rules = |state: &str| state.split("1: lo:").next().unwrap().to_owned();
    assert_eq!(rules(&state(&world.node.netns)), rules(&before));
}

/// INV-01: without its API server an agent keeps what it has captured, grants no start that it cannot judge, and catches
/// up afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv_01_an_agent_whose_api_server_is_gone_keeps_pods_captured_and_catches_up() {
    let mut world = World::new().await;
    let proxying = tokio::spawn(proxy(world.settings.handover_socket.clone()));
    let mut agent = world.spawn();
    world.until_ready().await;
    let (net, later) = (world.node.add_pod(), world.node.add_pod());
    let pod = world.create_pod("first").await;
    assert!(world.add(&pod, &net).await);
    world.way.open.send_replace(false);
    let next = world.create_pod("next").await;
    assert!(!world.add(&next, &later).await, "a pod that the agent does not know");
    world.pods().delete("first", &DeleteParams::default()).await.unwrap();
    assert!(!world.leaks(&net));
    assert!(world.get(world.settings.health, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(world.get(world.settings.metrics, "/metrics").await.contains("\nambit_agent_captured_pods 1"));
    world.way.open.send_replace(true);
    until("the deleted pod is forgotten", async || {
        world.get(world.settings.metrics, "/metrics").await.contains("\nambit_agent_captured_pods 0")
    })
    .await;
    assert!(world.add(&next, &later).await);
    assert!(!world.leaks(&later));
    agent.kill().unwrap();
    agent.wait().unwrap();
    proxying.abort();
}
