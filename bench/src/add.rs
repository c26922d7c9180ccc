//! The start of a pod: the plugin's process, the agent, the rules, the hand-over and its acknowledgement.
//!
//! API server, agent and plugin are the real ones, and every pod has a namespace of its own. The proxy's side of the
//! hand-over acknowledges at once, so that the figures are those of what runs before it.

use crate::measure::Suite;
use ambit_api::core::v1::{Namespace, Pod, ServiceAccount};
use ambit_apiserver::{ApiServer, Storage};
use ambit_linux::netns::NetNs;
use ambit_linux::seqpacket::Connection;
use ambit_linux::{link, nft};
use ambit_proto::zds::{Ack, Version, WorkloadResponse, ZdsHello, workload_response::Payload};
use ambit_runtime::{Clock, Readiness, Shutdown};
use ambit_trust::pki::ClusterPki;
use anyhow::{Context, Result, bail, ensure};
use kube::api::{Api, PostParams};
use prost::Message as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Pods that are added one after the other, and again all at once.
const PODS: usize = 100;
/// Runs of the plugin against an agent that answers at once.
const PLUGIN_RUNS: usize = 200;
const NODE: &str = "bench";
const NAMES: [&str; 3] =
    ["cni/plugin process alone", "agent/pod added, one after the other", "agent/pod added, 100 at once"];
/// Largest packet of the hand-over, in bytes.
const PACKET_BYTES_MAX: usize = 1024;
/// Time for the parts to start, and pause between looks.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) fn run(suite: &mut Suite, programs: &Path) -> Result<()> {
    if !NAMES.iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    let Some(plugin) = suite.program(programs.join("ambit-cni"), &NAMES) else { return Ok(()) };
    let node = match NetNs::create_private() {
        Ok(node) => node,
        Err(error) => {
            NAMES.iter().for_each(|name| suite.skip(name, format!("{error}: run as root")));
            return Ok(());
        }
    };
    let host = path_of(&node);
    let [alone, one_by_one, at_once] = node.run(|| -> Result<_> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let alone = plugin_alone(&plugin)?;
        let [one_by_one, at_once] = runtime.block_on(added(&plugin, host))?;
        Ok([alone, one_by_one, at_once])
    })??;
    for (name, samples) in NAMES.iter().zip([alone, one_by_one, at_once]) {
        suite.record(name, samples);
    }
    Ok(())
}

/// A path on which any process can open the namespace, as long as this one keeps it.
pub(crate) fn path_of(namespace: &NetNs) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd()).into()
}

/// The plugin against a socket that says yes.
fn plugin_alone(plugin: &Path) -> Result<Vec<Duration>> {
    let directory = tempfile::tempdir()?;
    let listener = UnixListener::bind(directory.path().join(ambit_names::path::PLUGIN_EVENT_SOCKET))?;
    let answers = std::thread::spawn(move || -> Result<()> {
        for _ in 0..PLUGIN_RUNS {
            let (mut stream, _) = listener.accept()?;
            // The plugin sends its request in one piece.
            ensure!(stream.read(&mut [0; 4096])? > 0, "the plugin sent nothing");
            let body = r#"{"captured":true,"reason":"benchmark"}"#;
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        }
        Ok(())
    });
    let place =
        Place { namespace: "/proc/self/ns/net".into(), pod: "web".into(), address: "10.244.0.2".into() };
    let samples = (0..PLUGIN_RUNS).map(|_| add(plugin, directory.path(), &place)).collect();
    answers.join().map_err(|_| anyhow::anyhow!("the answering thread panicked"))??;
    samples
}

/// A pod to be added.
struct Place {
    namespace: PathBuf,
    pod: String,
    address: String,
}

/// Runs the plugin as a container runtime does, and tells how long that took.
fn add(plugin: &Path, run_dir: &Path, place: &Place) -> Result<Duration> {
    let configuration = json!({
        "cniVersion": "1.0.0", "name": "bench", "type": "ambit-cni", "cni_agent_run_dir": run_dir,
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": place.namespace}],
            "ips": [{"address": format!("{}/32", place.address), "interface": 0}],
        },
    });
    let arguments = format!("K8S_POD_NAMESPACE=bench;K8S_POD_NAME={}", place.pod);
    let start = Clock.now();
    let mut child = Command::new(plugin)
        .env_clear()
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", &place.pod)
        .env("CNI_NETNS", &place.namespace)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_ARGS", arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("no standard input")?.write_all(configuration.to_string().as_bytes())?;
    let output = child.wait_with_output()?;
    let took = Clock.now().duration_since(start);
    if !output.status.success() {
        bail!("the plugin failed: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(took)
}

/// Adds pods through the real parts.
async fn added(plugin: &Path, host: PathBuf) -> Result<[Vec<Duration>; 2]> {
    let directory = tempfile::tempdir()?;
    let server = ApiServer::open(ambit_apiserver::Settings {
        storage: Storage::Memory,
        listen: None,
        advertise: None,
        pki: ClusterPki::load_or_create(directory.path(), &[])?,
        service_cidr: ambit_names::cluster::SERVICE_CIDR.parse()?,
        cluster_domain: ambit_names::mesh::CLUSTER_DOMAIN.into(),
    })
    .await?;
    let client = server.client("bench", &["system:masters"]);
    objects(&client).await?;
    let stop = Shutdown::new();
    let settings = ambit_agent::Settings {
        run_dir: directory.path().join("run"),
        handover_socket: directory.path().join("handover.sock"),
        host_netns: host,
        ..ambit_agent::Settings::new(NODE)
    };
    let (run_dir, socket) = (settings.run_dir.clone(), settings.handover_socket.clone());
    let serving = tokio::spawn(server.run(Readiness::default(), stop.clone()));
    let agent = tokio::spawn(ambit_agent::run(settings, client, Readiness::default(), stop.clone()));
    let proxy = tokio::spawn(acknowledge(socket, stop.clone()));
    let samples = tokio::select! {
        samples = both_ways(plugin, run_dir) => samples,
        ended = agent => bail!("the agent ended: {ended:?}"),
    };
    stop.cancel();
    proxy.await??;
    serving.await??;
    samples
}

async fn both_ways(plugin: &Path, run_dir: PathBuf) -> Result<[Vec<Duration>; 2]> {
    let socket = run_dir.join(ambit_names::path::PLUGIN_EVENT_SOCKET);
    let is_there = async {
        while !socket.exists() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_there).await.context("the agent's socket did not appear")?;
    let namespaces: Vec<NetNs> = (0..2 * PODS).map(|n| namespace(&address(n))).collect::<Result<_>>()?;
    let place =
        |n: usize| Place { namespace: path_of(&namespaces[n]), pod: format!("pod-{n}"), address: address(n) };
    let shared: Arc<(PathBuf, PathBuf)> = Arc::new((plugin.to_owned(), run_dir));
    let mut samples = [Vec::new(), Vec::new()];
    for n in 0..PODS {
        let (shared, place) = (Arc::clone(&shared), place(n));
        samples[0].push(tokio::task::spawn_blocking(move || add(&shared.0, &shared.1, &place)).await??);
    }
    let rules = namespaces[0].run(nft::tables)??;
    ensure!(!rules.is_empty(), "the first pod has no rules: it was not captured");
    let mut tasks = tokio::task::JoinSet::new();
    for n in PODS..2 * PODS {
        let (shared, place) = (Arc::clone(&shared), place(n));
        tasks.spawn_blocking(move || add(&shared.0, &shared.1, &place));
    }
    while let Some(sample) = tasks.join_next().await {
        samples[1].push(sample??);
    }
    Ok(samples)
}

fn address(n: usize) -> String {
    format!("10.244.{}.{}", n / 250, n % 250 + 2)
}

/// A pod's namespace, with the pod's address on a link.
pub(crate) fn namespace(address: &str) -> Result<NetNs> {
    let namespace = NetNs::create_private()?;
    let address: ipnet::IpNet = format!("{address}/32").parse()?;
    namespace.run(|| link::add_bridge("eth0").and_then(|()| link::add_address("eth0", address)))??;
    Ok(namespace)
}

/// The namespace and its pods.
async fn objects(client: &kube::Client) -> Result<()> {
    let labels = json!({"istio.io/dataplane-mode": "ambient"});
    create::<Namespace>(&Api::all(client.clone()), json!({"metadata": {"name": "bench", "labels": labels}}))
        .await?;
    create::<ServiceAccount>(
        &Api::namespaced(client.clone(), "bench"),
        json!({"metadata": {"name": "default"}}),
    )
    .await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "bench");
    for n in 0..2 * PODS {
        let containers = json!([{"name": "app", "image": "ambit.local/demo-app:1"}]);
        let pod = json!({"metadata": {"name": format!("pod-{n}")}, "spec": {"nodeName": NODE, "containers": containers}});
        create(&pods, pod).await?;
    }
    Ok(())
}

/// Creates an object from JSON.
pub(crate) async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: kube::Resource + Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// A proxy that has a pod as soon as it hears of it.
pub(crate) async fn acknowledge(socket: PathBuf, stop: Shutdown) -> Result<()> {
    let connect = async {
        loop {
            match Connection::connect(&socket) {
                Ok(connection) => return connection,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    let connection = tokio::time::timeout(PATIENCE, connect).await.context("the agent took no proxy")?;
    connection.send(&ZdsHello { version: Version::V1.into() }.encode_to_vec(), None).await?;
    let ack = WorkloadResponse { payload: Some(Payload::Ack(Ack::default())) }.encode_to_vec();
    loop {
        // The descriptors that come along are closed with the packet.
        let packet = tokio::select! {
            packet = connection.recv(PACKET_BYTES_MAX) => packet?,
            () = stop.cancelled() => return Ok(()),
        };
        if packet.is_none() {
            return Ok(());
        }
        connection.send(&ack, None).await?;
    }
}
