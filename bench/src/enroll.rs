//! The agent's start on a full node: 500 pods that run already are found, captured and handed over; and an agent that comes
//! after it takes them up again.
//!
//! API server and agent are the real ones, the agent in a process of its own. Every pod has a network namespace; the
//! processes by which they are found are files that look like /proc. The proxy's side acknowledges at once.

use crate::add::{acknowledge, create, namespace, path_of};
use crate::measure::{Suite, proportional};
use ambit_api::core::v1::{Namespace, Pod, ServiceAccount};
use ambit_apiserver::{ApiServer, Storage};
use ambit_kube::Liveness;
use ambit_linux::descriptors;
use ambit_linux::netns::NetNs;
use ambit_runtime::{Clock, Readiness, Shutdown};
use ambit_trust::pki::{ClusterPki, kubeconfig};
use anyhow::{Context as _, Result, bail, ensure};
use kube::api::{Api, Patch, PatchParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const ENROLLED: &str = "agent/500 running pods, start to all captured";
const TAKEN_UP: &str = "agent/500 captured pods, start to taken up";
const MEMORY: &str = "agent/memory with 500 pods";
const NAMES: [&str; 3] = [ENROLLED, TAKEN_UP, MEMORY];
/// Begins the name of the work that a fresh process does.
pub(crate) const AGENT: &str = "agent:";
const PODS: usize = 500;
/// Starts of an agent on a node whose pods are captured.
const RESTARTS: usize = 5;
const NODE: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// What the agent's process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    directory: PathBuf,
    host: PathBuf,
    health: SocketAddr,
    metrics: SocketAddr,
}

pub(crate) fn run(suite: &mut Suite) -> Result<()> {
    if !NAMES.iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    let host = match NetNs::create_private() {
        Ok(host) => host,
        Err(error) => {
            NAMES.iter().for_each(|name| suite.skip(name, format!("{error}: run as root")));
            return Ok(());
        }
    };
    descriptors::raise_limit()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(measured(suite, &host))
}

async fn measured(suite: &mut Suite, host: &NetNs) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let pki = ClusterPki::in_memory(&["127.0.0.1".to_owned()])?;
    let server = ApiServer::open(ambit_apiserver::Settings {
        storage: Storage::Memory,
        listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        advertise: None,
        pki: pki.clone(),
        service_cidr: ambit_names::cluster::SERVICE_CIDR.parse()?,
        cluster_domain: ambit_names::mesh::CLUSTER_DOMAIN.into(),
    })
    .await?;
    let address = server.address().context("the API server does not listen")?;
    let shown = pki.issue_client("ambit:agent", &[], PATIENCE * 60)?;
    let text = kubeconfig(&format!("https://{address}"), pki.ca_pem(), &shown.cert_pem, &shown.key_pem);
    std::fs::write(directory.path().join("kubeconfig"), text)?;
    let client = server.client("bench", &["system:masters"]);
    let stop = Shutdown::new();
    let serving = tokio::spawn(server.run(Readiness::default(), stop.clone()));
    let namespaces: Vec<NetNs> = (0..PODS).map(|n| namespace(&pod_address(n))).collect::<Result<_>>()?;
    pods(&client, directory.path(), &namespaces).await?;

    let place = Place {
        directory: directory.path().to_owned(),
        host: path_of(host),
        health: free()?,
        metrics: free()?,
    };
    let (first, memory) = start(&place, true).await?;
    let mut taken_up = Vec::new();
    for _ in 0..RESTARTS {
        taken_up.push(start(&place, false).await?.0);
    }
    if suite.wants(ENROLLED) {
        suite.record(ENROLLED, vec![first]);
    }
    if suite.wants(TAKEN_UP) {
        suite.record(TAKEN_UP, taken_up);
    }
    suite.record_bytes(MEMORY, memory);
    stop.cancel();
    serving.await??;
    Ok(())
}

/// Starts an agent and a proxy, and waits until all pods are captured and the agent is ready. Returns how long that took,
/// and the agent's memory then.
async fn start(place: &Place, first: bool) -> Result<(Duration, u64)> {
    let begun = Clock.now();
    let work = format!("{AGENT}{}", serde_json::to_string(place)?);
    let process = Command::new(std::env::current_exe()?)
        .args(["--once", &work])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut agent = Ended(process);
    let stop = Shutdown::new();
    let proxy = tokio::spawn(acknowledge(place.directory.join("zds.sock"), stop.clone()));
    let all = format!("\nambit_agent_captured_pods {PODS}");
    loop {
        let ready = get(place.health, "/readyz").await.starts_with("HTTP/1.1 200");
        if ready && get(place.metrics, "/metrics").await.contains(&all) {
            break;
        }
        ensure!(agent.0.try_wait()?.is_none(), "the agent ended by itself");
        if Clock.now() - begun > PATIENCE {
            bail!("the agent has not captured all pods after {PATIENCE:?} (first start: {first})");
        }
        tokio::time::sleep(PAUSE).await;
    }
    let took = Clock.now() - begun;
    let memory = proportional(agent.0.id())?;
    stop.cancel();
    proxy.await??;
    drop(agent);
    Ok((took, memory))
}

/// A process that ends with the value, as a crash would end it: what it captured stays captured.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = tokio::net::TcpStream::connect(address).await {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        if stream.write_all(request.as_bytes()).await.is_ok() {
            // What is cut short is not the answer that is waited for.
            let _ = stream.read_to_string(&mut answer).await;
        }
    }
    answer
}

fn pod_address(n: usize) -> String {
    format!("10.244.{}.{}", n / 250, n % 250 + 2)
}

/// Pods that run, each with a process that looks like one of it.
async fn pods(client: &kube::Client, directory: &Path, namespaces: &[NetNs]) -> Result<()> {
    let labels = json!({"istio.io/dataplane-mode": "ambient"});
    let namespace = json!({"metadata": {"name": "bench", "labels": labels}});
    create::<Namespace>(&Api::all(client.clone()), namespace).await?;
    let account = json!({"metadata": {"name": "default"}});
    create::<ServiceAccount>(&Api::namespaced(client.clone(), "bench"), account).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "bench");
    for (n, netns) in namespaces.iter().enumerate() {
        let name = format!("pod-{n}");
        let containers = json!([{"name": "app", "image": "ambit.local/demo-app:1"}]);
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": NODE, "containers": containers}});
        create(&pods, pod).await?;
        let address = pod_address(n);
        let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        let pod = pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        let uid = pod.metadata.uid.context("no UID")?;
        let process = directory.join("proc").join((1000 + n).to_string());
        std::fs::create_dir_all(process.join("ns"))?;
        std::os::unix::fs::symlink(path_of(netns), process.join("ns/net"))?;
        std::fs::write(process.join("cgroup"), format!("0::/kubepods/pod{uid}/c1\n"))?;
        std::fs::write(process.join("stat"), format!("{} (pause) S {}1", 1000 + n, "0 ".repeat(18)))?;
    }
    Ok(())
}

/// The agent, until it is ended.
pub(crate) fn agent(place: &str) -> Result<()> {
    let Place { directory, host, health, metrics } = serde_json::from_str(place)?;
    let settings = ambit_agent::Settings {
        run_dir: directory.join("run"),
        handover_socket: directory.join("zds.sock"),
        proc_root: directory.join("proc"),
        host_netns: host,
        health,
        metrics,
        ..ambit_agent::Settings::new(NODE)
    };
    tokio::runtime::Runtime::new()?.block_on(async {
        let config = Kubeconfig::read_from(directory.join("kubeconfig"))?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let client = ambit_kube::connect(config, Liveness::default())?;
        Ok(ambit_agent::run(settings, client, Readiness::default(), Shutdown::new()).await?)
    })
}
