//! A node that nobody else sees: network namespaces for it and its pods, mounts of its own, an API server, and the
//! programs that run on it, all of them real but the node proxy, which takes over whatever it is given.

use ambit_api::core::v1::{Namespace, Pod, ServiceAccount};
use ambit_linux::mount;
use ambit_linux::netns::NetNs;
use ambit_linux::seqpacket::Connection;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

/// Long enough for any machine; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between looks.
const PAUSE: Duration = Duration::from_millis(20);
/// A user other than root, as whom the processes of pods run.
const NOBODY: u32 = 65534;
/// Where containerd and CRI-O record the sandboxes that live.
const RESULTS: &str = "/var/lib/cni/results";
pub(crate) const CONF: &str = "10-a.conflist";
pub(crate) const LIST: &str =
    "{\"name\": \"n\", \"cniVersion\": \"1.0.0\", \"plugins\": [{\"type\": \"bridge\"}]}\n";

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until<F: AsyncFnMut() -> bool>(what: &str, mut condition: F) -> impl Future<Output = ()> {
    let what = what.to_owned();
    async move {
        let reached = async {
            while !condition().await {
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("not reached: {what}"));
    }
}

/// Runs a shell's commands and returns what they print.
#[track_caller]
pub(crate) fn shell(commands: &str) -> String {
    let output = Command::new("sh").args(["-ec", commands]).output().unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A process that ends with the test.
pub(crate) struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends it as a supervisor does.
    pub(crate) async fn stop(mut self) -> ExitStatus {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        let mut ended = None;
        until("the program has ended", async || {
            ended = self.0.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        ended.unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pod on the node: its network, and a process in it.
pub(crate) struct PodNet {
    pub(crate) netns: NetNs,
    pub(crate) address: String,
    process: Program,
}

/// The node.
pub(crate) struct Lab {
    dir: tempfile::TempDir,
    client: kube::Client,
    pods: u8,
    _api_server: Program,
}

/// Runs a test on a node of its own.
pub(crate) fn on_a_node<F: AsyncFnOnce(Lab) + Send>(test: F) {
    std::thread::scope(|scope| {
        let node = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root");
            let none: Option<&str> = None;
            nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            if Path::new(RESULTS).is_dir() {
                mount::tmpfs(Path::new(RESULTS), None, 0o700).unwrap();
            }
            let runtime =
                || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let node = NetNs::create_private().unwrap();
            node.run(|| runtime().unwrap().block_on(async { test(Lab::new().await).await })).unwrap();
        });
        node.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

impl Lab {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["conf", "bin", "proc", "netns"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        // The node's first process is on the node's network, as is whoever looks.
        let first = dir.path().join("proc/1/ns");
        fs::create_dir_all(&first).unwrap();
        std::os::unix::fs::symlink("/proc/self/ns/net", first.join("net")).unwrap();
        fs::write(dir.path().join("plugin"), "#!/bin/false\n").unwrap();
        fs::write(dir.path().join("conf").join(CONF), LIST).unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ambit"));
        command.args(["--log", "warn", "apiserver", "--write-kubeconfig"]).arg(&kubeconfig);
        let api_server = Program::start(&mut command);
        until("the API server has written the kubeconfig", async || kubeconfig.exists()).await;
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        let client = kube::Client::try_from(config).unwrap();
        let lab = Self { dir, client, pods: 0, _api_server: api_server };
        until("the API server answers", async || lab.client.apiserver_version().await.is_ok()).await;
        let shop = json!({"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}}});
        lab.create::<Namespace>(&Api::all(lab.client()), shop).await;
        let account = json!({"metadata": {"name": "default"}});
        lab.create::<ServiceAccount>(&Api::namespaced(lab.client(), "shop"), account).await;
        lab
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn create<K>(&self, api: &Api<K>, object: Value) -> K
    where
        K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
    {
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
    }

    /// A command of the program with the node's places, `agent` with an action or without.
    pub(crate) fn agent(&self, action: &[&str]) -> Command {
        let mut command = self.agent_of(Command::new("env"), &self.at("kubeconfig"));
        command.args(action);
        command
    }

    /// The same behind another program, with another kubeconfig.
    pub(crate) fn agent_of(&self, mut command: Command, kubeconfig: &Path) -> Command {
        command.env_clear().env("PATH", std::env::var("PATH").unwrap_or_default());
        command.arg(env!("CARGO_BIN_EXE_ambit"));
        command.args(["--log", "warn", "agent", "--node-name", "n1", "--metrics", "127.0.0.1:15014"]);
        command.arg("--kubeconfig").arg(kubeconfig);
        for (flag, name) in [
            ("--run-dir", "run/istio-cni"),
            ("--handover-socket", "run/ztunnel.sock"),
            ("--proc-root", "proc"),
            ("--cni-conf-dir", "conf"),
            ("--cni-bin-dir", "bin"),
            ("--cni-plugin", "plugin"),
        ] {
            command.arg(flag).arg(self.at(name));
        }
        command
    }

    /// A running agent that is ready.
    pub(crate) async fn start_agent(&self) -> Program {
        self.start(Command::new("env"), &self.at("kubeconfig"), &[]).await
    }

    /// The same, started by another program that becomes it, with another kubeconfig and more flags.
    pub(crate) async fn start(&self, by: Command, kubeconfig: &Path, flags: &[&str]) -> Program {
        let agent = Program::start(self.agent_of(by, kubeconfig).args(flags));
        until("the agent is ready", async || self.get(8000, "/readyz").await.0 == 200).await;
        agent
    }

    /// One GET on the node's loopback; 0 when nobody answers.
    pub(crate) async fn get(&self, port: u16, path: &str) -> (u16, String) {
        let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else {
            return (0, String::new());
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        if stream.write_all(request.as_bytes()).await.is_err()
            || stream.read_to_string(&mut answer).await.is_err()
        {
            return (0, String::new());
        }
        split(&answer)
    }

    /// A pod's network, with a process of an ordinary user in it and the name that a runtime gives it, mounted only now.
    pub(crate) fn make_pod_net(&mut self) -> PodNet {
        self.pods += 1;
        let n = self.pods;
        let netns = NetNs::create_private().unwrap();
        let there = format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd());
        shell(&format!(
            "ip link add v{n} type veth peer name eth0 netns {there}
             ip addr add 10.9.{n}.1/24 dev v{n}
             ip link set v{n} up"
        ));
        let process = netns.run(|| {
            shell(&format!(
                "ip addr add 10.9.{n}.2/24 dev eth0
                 ip link set eth0 addrgenmode none up
                 ip route add default via 10.9.{n}.1
                 timeout 60 sh -c 'while ip route show table all | grep -q linkdown; do sleep 0.01; done'"
            ));
            Program::start(Command::new("sleep").arg("1000").uid(NOBODY).gid(NOBODY))
        });
        let process = process.unwrap();
        let name = self.at(&format!("netns/{n}"));
        fs::write(&name, "").unwrap();
        mount::bind(Path::new(&there), &name, mount::Access::ReadWrite).unwrap();
        PodNet { netns, address: format!("10.9.{n}.2"), process }
    }

    pub(crate) fn pods_of_shop(&self) -> Api<Pod> {
        Api::namespaced(self.client(), "shop")
    }

    /// A pod that is scheduled to the node, and is added to its network by the plugin: the agent's answer.
    pub(crate) async fn add(&self, name: &str, net: &PodNet) -> (u16, String) {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "ambit.local/demo-app:1"}]},
        });
        let pod = self.create(&self.pods_of_shop(), pod).await;
        let uid = pod.metadata.uid.unwrap();
        let event = json!({
            "Netns": self.at(&format!("netns/{}", self.pods)), "PodName": name, "PodNamespace": "shop",
            "IPs": [{"Interface": 0, "Address": {"IP": net.address, "Mask": "////AA=="}, "Gateway": ""}],
            "ContainerID": name, "Interface": "eth0", "PodUID": uid,
        });
        let answer = self.post("/ambit/v1/add", &event.to_string()).await;
        self.show_process(&uid, net);
        let status = json!({"status": {
            "phase": "Running", "podIP": net.address, "podIPs": [{"ip": net.address}]}});
        let patch = Patch::Merge(status);
        self.pods_of_shop().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        answer
    }

    async fn post(&self, path: &str, body: &str) -> (u16, String) {
        let socket = self.at("run/istio-cni/pluginevent.sock");
        let mut stream = tokio::net::UnixStream::connect(socket).await.unwrap();
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        split(&answer)
    }

    /// The pod's process, in the cgroup that a runtime would have made for it.
    fn show_process(&self, uid: &str, net: &PodNet) {
        let pid = net.process.pid();
        let directory = self.at("proc").join(pid.to_string());
        fs::create_dir_all(directory.join("ns")).unwrap();
        std::os::unix::fs::symlink(format!("/proc/{pid}/ns/net"), directory.join("ns/net")).unwrap();
        fs::copy(format!("/proc/{pid}/stat"), directory.join("stat")).unwrap();
        let uid = uid.replace('-', "_");
        let slice = format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice");
        fs::write(directory.join("cgroup"), format!("0::/{slice}/cri-containerd-c{pid}.scope\n")).unwrap();
    }

    pub(crate) async fn label_namespace(&self, mode: Option<&str>) {
        let namespaces: Api<Namespace> = Api::all(self.client());
        let patch = Patch::Merge(json!({"metadata": {"labels": {"istio.io/dataplane-mode": mode}}}));
        namespaces.patch("shop", &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn redirection(&self, name: &str) -> Option<String> {
        let pod = self.pods_of_shop().get(name).await.unwrap();
        pod.metadata.annotations.unwrap_or_default().remove("ambient.istio.io/redirection")
    }

    pub(crate) async fn until_redirection(&self, name: &str, wanted: Option<&str>) {
        until("the annotation", async || self.redirection(name).await.as_deref() == wanted).await;
    }

    pub(crate) fn conf(&self) -> String {
        fs::read_to_string(self.at("conf").join(CONF)).unwrap_or_default()
    }

    /// What a runtime remembers of a sandbox that it made with the present configuration.
    pub(crate) fn record_sandbox(&self) -> PathBuf {
        use base64::Engine as _;
        let record = Path::new(RESULTS).join("n-sandbox-eth0");
        let config = base64::engine::general_purpose::STANDARD.encode(self.conf());
        let text =
            json!({"kind": "cniCacheV1", "containerId": "sandbox", "config": config, "ifName": "eth0"});
        fs::create_dir_all(RESULTS).unwrap();
        fs::write(&record, text.to_string()).unwrap();
        record
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The mounts are nobody else's, and end with the thread anyway; the folder cannot be removed before.
        let _ = mount::unmount_below(&self.at("netns"));
    }
}

fn split(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default(), body.to_owned())
}

/// A proxy that takes everything over.
pub(crate) struct Proxy(JoinHandle<()>);

impl Proxy {
    pub(crate) fn connect(lab: &Lab) -> Self {
        /// `ZdsHello` of version 1.
        const HELLO: [u8; 2] = [0x08, 1];
        /// `WorkloadResponse` with an `Ack` without an error.
        const TAKEN: [u8; 2] = [0x0a, 0];
        let connection = Connection::connect(&lab.at("run/ztunnel.sock")).unwrap();
        Self(tokio::spawn(async move {
            connection.send(&HELLO, None).await.unwrap();
            while let Ok(Some(_)) = connection.recv(1024).await {
                if connection.send(&TAKEN, None).await.is_err() {
                    return;
                }
            }
        }))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Everything of a network namespace that capture could change.
pub(crate) fn state(netns: &NetNs) -> String {
    let commands =
        "nft list ruleset; ip addr; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all";
    netns.run(|| shell(commands)).unwrap()
}
