//! A full node: 500 pods, many of them at once, and a thousand deletions while proxies come and go.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use ambit_agent::Settings;
use ambit_api::core::v1::{Namespace, Pod, ServiceAccount};
use ambit_apiserver::{ApiServer, Storage};
use ambit_linux::netns::NetNs;
use ambit_linux::seqpacket::Connection;
use ambit_linux::{descriptors, link};
use ambit_proto::zds::workload_request::Payload as Asked;
use ambit_proto::zds::{Ack, WorkloadRequest, WorkloadResponse, ZdsHello, workload_response::Payload};
use ambit_runtime::{Entropy, Readiness, Shutdown};
use ambit_trust::pki::ClusterPki;
use futures::{StreamExt as _, stream};
use kube::api::{Api, DeleteParams, PostParams};
use prost::Message as _;
use rand::Rng as _;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const PODS: usize = 500;
/// Pods whose plugins ask at the same moment; the others come in smaller groups.
const AT_ONCE: usize = 100;
const LATER_AT_ONCE: usize = 16;
/// Each deletes all pods: a thousand in all.
const ROUNDS: usize = 2;
/// Long enough for any machine; only a lock-up waits for it.
const PATIENCE: Duration = Duration::from_secs(180);
/// Longest time to answer a plugin. Source: what container runtimes wait for.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const PACKET_BYTES_MAX: usize = 1024;

struct Full {
    server: ApiServer,
    settings: Settings,
    host: NetNs,
    pods: Vec<NetNs>,
    directory: tempfile::TempDir,
}

fn path_of(netns: &NetNs) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd()).into()
}

fn free() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn address(n: usize) -> String {
    format!("10.244.{}.{}", n / 250, n % 250 + 2)
}

fn name(n: usize) -> String {
    format!("pod-{n:03}")
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let reached = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("not reached: {what}"));
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

impl Full {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = ApiServer::open(ambit_apiserver::Settings {
            storage: Storage::Memory,
            listen: None,
            advertise: None,
            pki: ClusterPki::in_memory(&[]).unwrap(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
        })
        .await
        .unwrap();
        let client = server.client("test", &["system:masters"]);
        let labels = json!({"istio.io/dataplane-mode": "ambient"});
        create::<Namespace>(
            &Api::all(client.clone()),
            json!({"metadata": {"name": "full", "labels": labels}}),
        )
        .await;
        let account = json!({"metadata": {"name": "default"}});
        create::<ServiceAccount>(&Api::namespaced(client, "full"), account).await;
        let host = NetNs::create_private().unwrap();
        let pods = (0..PODS).map(|n| {
            let netns = NetNs::create_private().unwrap();
            let address = format!("{}/32", address(n)).parse().unwrap();
            netns
                .run(|| link::add_bridge("eth0").and_then(|()| link::add_address("eth0", address)))
                .unwrap()
                .unwrap();
            netns
        });
        let pods = pods.collect();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("proc")).unwrap();
        let settings = Settings {
            run_dir: at("run"),
            handover_socket: at("zds.sock"),
            proc_root: at("proc"),
            host_netns: path_of(&host),
            health: free(),
            metrics: free(),
            release_on_stop: true,
            ..Settings::new("n1")
        };
        Self { server, settings, host, pods, directory }
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.server.client("test", &["system:masters"]), "full")
    }

    /// Creates a pod and asks for its capture as the plugin does.
    async fn add(&self, n: usize) {
        let pod = json!({"metadata": {"name": name(n)}, "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "ambit.local/demo-app:1"}]}});
        let pod = create(&self.api(), pod).await;
        let event = json!({
            "Netns": path_of(&self.pods[n]), "PodName": name(n), "PodNamespace": "full", "ContainerID": format!("c{n}"),
            "IPs": [{"Interface": 0, "Address": {"IP": address(n), "Mask": "/////w=="}}],
            "Interface": "eth0", "PodUID": pod.metadata.uid,
        });
        let socket = self.settings.run_dir.join(ambit_names::path::PLUGIN_EVENT_SOCKET);
        let event = event.to_string();
        let answer = tokio::time::timeout(ANSWER_MAX, post(&socket, "/ambit/v1/add", &event));
        let answer = answer.await.unwrap_or_else(|_| panic!("{} was not answered in time", name(n)));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"captured\":true"), "{answer}");
    }

    async fn add_all(&self) {
        futures::future::join_all((0..AT_ONCE).map(|n| self.add(n))).await;
        stream::iter(AT_ONCE..PODS).map(|n| self.add(n)).buffer_unordered(LATER_AT_ONCE).count().await;
    }

    async fn delete_all(&self) {
        let api = self.api();
        let deleted = stream::iter(0..PODS).map(|n| {
            let api = api.clone();
            async move { drop(api.delete(&name(n), &DeleteParams::default()).await.unwrap()) }
        });
        deleted.buffer_unordered(LATER_AT_ONCE).count().await;
    }

    /// Pods that the agent says it has captured.
    async fn captured(&self) -> usize {
        let text = get(self.settings.metrics, "/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix("ambit_agent_captured_pods "));
        line.expect("the metric").trim().parse().unwrap()
    }

    fn host_rules(&self) -> String {
        let list = || Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        String::from_utf8(self.host.run(list).unwrap().stdout).unwrap()
    }

    /// Addresses that probes may reach, or that are kept off.
    fn host_elements(&self) -> usize {
        self.host_rules().matches("10.244.").count()
    }
}

async fn post(socket: &Path, path: &str, body: &str) -> String {
    let mut stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A proxy that says hello and acknowledges messages; ends after `messages`. Returns the pods that it holds then.
async fn proxy(socket: &Path, messages: usize) -> BTreeSet<String> {
    let mut held = BTreeSet::new();
    let Ok(connection) = Connection::connect(socket) else { return held };
    let ack = WorkloadResponse { payload: Some(Payload::Ack(Ack { error: String::new() })) }.encode_to_vec();
    if connection.send(&ZdsHello { version: 1 }.encode_to_vec(), None).await.is_err() {
        return held;
    }
    for _ in 0..messages {
        let Ok(Some(packet)) = connection.recv(PACKET_BYTES_MAX).await else { break };
        match WorkloadRequest::decode(packet.bytes.as_slice()).unwrap().payload.unwrap() {
            Asked::Add(add) => drop(held.insert(add.uid)),
            Asked::Keep(keep) => drop(held.insert(keep.uid)),
            Asked::Del(delete) => drop(held.remove(&delete.uid)),
            Asked::SnapshotSent(_) => {}
        }
        if connection.send(&ack, None).await.is_err() {
            break;
        }
    }
    held
}

/// Proxies that come and go, some in the midst of their snapshot, until told to stop.
async fn restless(socket: PathBuf, stop: Shutdown) {
    while !stop.is_cancelled() {
        let messages = Entropy.rng().random_range(0..60);
        tokio::select! {
            _ = proxy(&socket, messages) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Open descriptors once nothing is on its way any more: the lowest number seen over a while.
async fn settled_descriptors() -> u64 {
    let mut lowest = u64::MAX;
    for _ in 0..20 {
        lowest = lowest.min(descriptors::open().unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    lowest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv_07_a_full_node_takes_many_pods_at_once_and_a_thousand_deletions_and_keeps_nothing() {
    descriptors::raise_limit().unwrap();
    let full = Full::new().await;
    let rules_before = full.host_rules();
    let (readiness, stop) = (Readiness::default(), Shutdown::new());
    let client = full.server.client("ambit:agent", &[]);
    let agent =
        tokio::spawn(ambit_agent::run(full.settings.clone(), client, readiness.clone(), stop.clone()));
    let socket = full.settings.handover_socket.clone();
    until("the agent is ready", async || socket.exists() && readiness.waiting_for().is_empty()).await;
    let mut descriptors_after = Vec::new();
    for round in 0..ROUNDS {
        let steady = tokio::spawn({
            let socket = socket.clone();
            async move { proxy(&socket, usize::MAX).await }
        });
        until("a proxy is connected", async || {
            get(full.settings.metrics, "/metrics").await.contains("\nztunnel_connected 1")
        })
        .await;
        full.add_all().await;
        assert_eq!(full.captured().await, PODS);
        assert_eq!(full.host_elements(), PODS, "each pod's address, for probes");
        // Now proxies come and go while all pods are deleted.
        steady.abort();
        let rest = Shutdown::new();
        let coming: Vec<_> = (0..3).map(|_| tokio::spawn(restless(socket.clone(), rest.clone()))).collect();
        full.delete_all().await;
        until("all pods are forgotten", async || full.captured().await == 0).await;
        rest.cancel();
        for one in coming {
            one.await.unwrap();
        }
        assert_eq!(full.host_elements(), 0, "{}", full.host_rules());
        // The next proxy is told of no pod at all: its snapshot is one message, its end.
        until("the proxies that came and went are gone", async || {
            get(full.settings.metrics, "/metrics").await.contains("\nztunnel_connected 0")
        })
        .await;
        assert_eq!(proxy(&socket, 1).await, BTreeSet::new(), "round {round}");
        descriptors_after.push(settled_descriptors().await);
    }
    assert_eq!(descriptors_after[0], descriptors_after[ROUNDS - 1], "descriptors after each round");
    assert!(readiness.waiting_for().is_empty(), "{:?}", readiness.waiting_for());
    stop.cancel();
    tokio::time::timeout(PATIENCE, agent).await.expect("it stops").unwrap().unwrap();
    assert_eq!(full.host_rules(), rules_before);
    drop(full.directory);
}
