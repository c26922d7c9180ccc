//! A node in a namespace of its own: a bridge, pods on it, a control plane, a node agent, and the proxy under test.

use crate::control::{Control, TOKEN};
use ambit_linux::netns::NetNs;
use ambit_linux::packet::PacketSocket;
use ambit_linux::seqpacket::{Connection, Listener};
use ambit_linux::{nft, route};
use ambit_names::{mesh, type_url};
use ambit_proto::zds::{
    AddWorkload, DelWorkload, KeepWorkload, SnapshotSent, WorkloadInfo, WorkloadRequest, WorkloadResponse,
    ZdsHello, workload_request::Payload, workload_response,
};
use ambit_proto::{security, workload};
use ambit_proxy::{Endpoint, Error, Settings};
use ambit_rules::pod::{Capture, Dns, Excluded, Families, Inbound, plan_capture, plan_routes};
use ambit_runtime::{Clock, Readiness, Shutdown};
use prost::Message as _;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Long enough for anything that will happen at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test inside a fresh namespace that stands for the node.
pub(crate) fn on_node<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    let node = NetNs::create_private().expect("kernel tests run as root");
    node.run(|| {
        run("ip link add br0 type bridge");
        run("ip addr add 10.9.0.1/24 dev br0");
        run("ip link set br0 up");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), test()).await })
    })
    .unwrap()
    .expect("the test must end");
}

fn run(line: &str) {
    let mut words = line.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{line}");
}

/// Polls until `probe` gives something.
#[track_caller]
pub(crate) fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut probe: impl FnMut() -> F,
) -> impl Future<Output = T> {
    let what = what.to_owned();
    async move {
        let end = Clock.now() + PATIENCE;
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            assert!(Clock.now() < end, "in vain: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A pod: a namespace on the bridge, with an address.
pub(crate) struct Pod {
    pub(crate) name: &'static str,
    pub(crate) account: &'static str,
    pub(crate) ip: IpAddr,
    pub(crate) ns: Arc<NetNs>,
}

impl Pod {
    pub(crate) fn new(name: &'static str, account: &'static str, last: u8) -> Self {
        let ns = NetNs::create_private().unwrap();
        let ip = IpAddr::from([10, 9, 0, last]);
        let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
        run(&format!("ip link add v{name} type veth peer name p{name}"));
        run(&format!("ip link set v{name} master br0 up"));
        run(&format!("ip link set p{name} netns {path} name eth0"));
        ns.run(|| {
            run(&format!("ip addr add {ip}/24 dev eth0"));
            run("ip link set eth0 up");
            run("ip route add default via 10.9.0.1");
        })
        .unwrap();
        Self { name, account, ip, ns: Arc::new(ns) }
    }

    /// The same with the rules of a captured pod.
    pub(crate) fn captured(name: &'static str, account: &'static str, last: u8) -> Self {
        let pod = Self::new(name, account, last);
        let capture = Capture {
            inbound: Inbound::Captured,
            dns: Dns::Untouched,
            families: Families::V4,
            reroute_interfaces: vec![],
            excluded: Excluded::default(),
        };
        pod.ns
            .run(|| {
                nft::apply(&plan_capture(&capture)).unwrap();
                plan_routes(Families::V4).iter().for_each(|wanted| route::add_marked(wanted).unwrap());
            })
            .unwrap();
        pod
    }

    pub(crate) fn uid(&self) -> String {
        format!("Kubernetes//Pod/shop/{}", self.name)
    }

    pub(crate) fn identity(&self) -> String {
        format!("spiffe://{}/ns/shop/sa/{}", mesh::TRUST_DOMAIN, self.account)
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// The pod as the control plane describes it.
    pub(crate) fn workload(&self) -> workload::Workload {
        let IpAddr::V4(ip) = self.ip else { unreachable!() };
        workload::Workload {
            uid: self.uid(),
            name: self.name.into(),
            namespace: "shop".into(),
            addresses: vec![ip.octets().to_vec().into()],
            tunnel_protocol: workload::TunnelProtocol::Hbone.into(),
            service_account: self.account.into(),
            node: "node-1".into(),
            workload_name: self.account.into(),
            canonical_name: self.account.into(),
            ..Default::default()
        }
    }

    pub(crate) async fn listen(&self, port: u16) -> TcpListener {
        let listener = self
            .ns
            .run(|| {
                let listener = std::net::TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port)))?;
                listener.set_nonblocking(true)?;
                Ok::<_, std::io::Error>(listener)
            })
            .unwrap()
            .unwrap();
        TcpListener::from_std(listener).unwrap()
    }

    pub(crate) async fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let ns = self.ns.clone();
        let connect = move || {
            ns.run(|| {
                let stream = std::net::TcpStream::connect_timeout(&to, PATIENCE)?;
                stream.set_nonblocking(true)?;
                Ok::<_, std::io::Error>(stream)
            })
            .unwrap()
        };
        TcpStream::from_std(tokio::task::spawn_blocking(connect).await.unwrap()?)
    }
}

/// The test's node agent.
pub(crate) struct Agent {
    listener: Listener,
    connection: Option<Connection>,
}

impl Agent {
    /// Waits for the proxy, and its hello.
    pub(crate) async fn accept(&mut self) {
        let connection = tokio::time::timeout(PATIENCE, self.listener.accept()).await.unwrap().unwrap();
        let hello = tokio::time::timeout(PATIENCE, connection.recv(1024)).await.unwrap().unwrap().unwrap();
        assert_eq!(ZdsHello::decode(hello.bytes.as_slice()).unwrap().version, 1);
        self.connection = Some(connection);
    }

    pub(crate) fn hang_up(&mut self) {
        self.connection = None;
    }

    fn connection(&self) -> &Connection {
        self.connection.as_ref().unwrap()
    }

    /// Sends bytes as they are, and waits for the answer: its error, or none if the proxy hung up.
    pub(crate) async fn send_raw(&self, bytes: &[u8], ns: Option<&NetNs>) -> Option<String> {
        self.connection().send(bytes, ns.map(|ns| ns.as_fd())).await.ok()?;
        self.answer().await
    }

    async fn answer(&self) -> Option<String> {
        let packet = tokio::time::timeout(PATIENCE, self.connection().recv(1024)).await.unwrap().ok()??;
        let response = WorkloadResponse::decode(packet.bytes.as_slice()).unwrap();
        match response.payload.unwrap() {
            workload_response::Payload::Ack(ack) => Some(ack.error),
        }
    }

    async fn request(&self, payload: Payload, ns: Option<&NetNs>) -> Option<String> {
        self.send_raw(&WorkloadRequest { payload: Some(payload) }.encode_to_vec(), ns).await
    }

    pub(crate) async fn add(&self, pod: &Pod) -> Option<String> {
        let info = WorkloadInfo {
            name: pod.name.into(),
            namespace: "shop".into(),
            service_account: pod.account.into(),
        };
        let add = AddWorkload { uid: pod.uid(), workload_info: Some(info) };
        self.request(Payload::Add(add), Some(&pod.ns)).await
    }

    pub(crate) async fn keep(&self, pod: &Pod) -> Option<String> {
        self.request(Payload::Keep(KeepWorkload { uid: pod.uid() }), None).await
    }

    pub(crate) async fn delete(&self, pod: &Pod) -> Option<String> {
        self.request(Payload::Del(DelWorkload { uid: pod.uid() }), None).await
    }

    pub(crate) async fn snapshot_sent(&self) -> Option<String> {
        self.request(Payload::SnapshotSent(SnapshotSent {}), None).await
    }
}

/// Everything but the pods.
pub(crate) struct World {
    pub(crate) control: Arc<Control>,
    pub(crate) agent: Agent,
    pub(crate) readiness: Readiness,
    pub(crate) shutdown: Shutdown,
    pub(crate) proxy: Option<JoinHandle<Result<(), Error>>>,
    control_task: JoinHandle<()>,
    dir: tempfile::TempDir,
}

impl World {
    /// Starts control plane, agent and proxy; the agent has the proxy's hello.
    pub(crate) async fn start(change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_with(Control::new(), change).await
    }

    pub(crate) async fn start_with(control: Arc<Control>, change: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("root.pem"), control.authority.root_pem()).unwrap();
        std::fs::write(at("token"), format!("{TOKEN}\n")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:15012").await.unwrap();
        let control_task = tokio::spawn(control.clone().serve(listener));
        let agent = Listener::bind(&at("handover.sock")).unwrap();
        let endpoint = Endpoint {
            address: "https://127.0.0.1:15012".into(),
            root_pem: at("root.pem"),
            alternative_name: None,
        };
        let mut settings = Settings {
            control_plane: endpoint.clone(),
            ca: endpoint,
            token: at("token"),
            node_name: "node-1".into(),
            pod_name: "ztunnel-node-1".into(),
            pod_namespace: "istio-system".into(),
            service_account: "ztunnel".into(),
            handover_socket: at("handover.sock"),
            drain: Duration::from_secs(2),
            ..Settings::default()
        };
        change(&mut settings);
        let (readiness, shutdown) = (Readiness::default(), Shutdown::new());
        let proxy = tokio::spawn(ambit_proxy::run(settings, readiness.clone(), shutdown.clone()));
        let mut agent = Agent { listener: agent, connection: None };
        agent.accept().await;
        Self { control, agent, readiness, shutdown, proxy: Some(proxy), control_task, dir }
    }

    /// Hands over the pods, all of them at once, and waits until the proxy is ready.
    pub(crate) async fn serve(&self, pods: &[&Pod]) {
        for pod in pods {
            self.control.put_workload(pod.workload());
            assert_eq!(self.agent.add(pod).await.as_deref(), Some(""));
        }
        assert_eq!(self.agent.snapshot_sent().await.as_deref(), Some(""));
        self.ready().await;
        // Discovery may have answered before the workloads were there: a connection would be refused as unknown.
        let uids: Vec<String> = pods.iter().map(|pod| pod.uid()).collect();
        until("the workloads have arrived", || async {
            let dump: serde_json::Value =
                serde_json::from_str(&self.get(15000, "/config_dump").await.1).ok()?;
            let known = dump["workloads"].as_array()?;
            uids.iter().all(|uid| known.iter().any(|w| w["uid"] == uid.as_str())).then_some(())
        })
        .await;
    }

    pub(crate) async fn ready(&self) {
        until("the proxy is ready", || async { self.readiness.waiting_for().is_empty().then_some(()) }).await;
    }

    /// Waits until the proxy knows exactly these policies.
    pub(crate) async fn policies(&self, wanted: &[&str]) {
        until("the policies have arrived", || async {
            let dump: serde_json::Value =
                serde_json::from_str(&self.get(15000, "/config_dump").await.1).ok()?;
            let names: Vec<_> =
                dump["policies"].as_array()?.iter().filter_map(|p| p["name"].as_str()).collect();
            (names == wanted).then_some(())
        })
        .await;
    }

    pub(crate) fn remove_policy(&self, name: &str) {
        self.control.remove(type_url::AUTHORIZATION, name);
    }

    /// Status and body of a request to one of the proxy's own ports.
    pub(crate) async fn get(&self, port: u16, path: &str) -> (u16, String) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Stops everything; the proxy must end well.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.proxy.take().unwrap()).await;
        ended.expect("the proxy must end").unwrap().unwrap();
        self.control_task.abort();
        drop(self.dir);
    }
}

/// A policy of namespace `shop` that refuses what `matching` describes.
pub(crate) fn deny(name: &str, matching: security::Match) -> security::Authorization {
    policy(name, security::Action::Deny, matching)
}

pub(crate) fn policy(
    name: &str,
    action: security::Action,
    matching: security::Match,
) -> security::Authorization {
    security::Authorization {
        name: name.into(),
        namespace: "shop".into(),
        scope: security::Scope::Namespace.into(),
        action: action.into(),
        rules: vec![security::Rule { clauses: vec![security::Clause { matches: vec![matching] }] }],
        ..Default::default()
    }
}

pub(crate) fn exact(text: &str) -> security::StringMatch {
    security::StringMatch { match_type: Some(security::string_match::MatchType::Exact(text.into())) }
}

/// What strict mutual TLS becomes on the wire.
pub(crate) fn strict() -> security::Authorization {
    let presence =
        security::StringMatch { match_type: Some(security::string_match::MatchType::Presence(())) };
    deny("strict", security::Match { not_principals: vec![presence], ..Default::default() })
}

/// Everything that crosses the bridge port of a pod.
pub(crate) struct Wire {
    bytes: Arc<Mutex<Vec<u8>>>,
    stop: Shutdown,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Wire {
    pub(crate) fn tap(pod: &Pod) -> Self {
        let socket = PacketSocket::open(&format!("v{}", pod.name)).unwrap();
        let (bytes, stop) = (Arc::new(Mutex::new(vec![])), Shutdown::new());
        let (sink, told) = (bytes.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            while !told.is_cancelled() {
                if let Ok(Some(length)) = socket.receive(&mut buffer, Duration::from_millis(20)) {
                    sink.lock().unwrap().extend_from_slice(&buffer[..length]);
                }
            }
        });
        Self { bytes, stop, thread: Some(thread) }
    }

    pub(crate) fn contains(&self, needle: &[u8]) -> bool {
        self.bytes.lock().unwrap().windows(needle.len()).any(|window| window == needle)
    }

    /// Whether a TCP packet from or to the port was seen.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.contains(&port.to_be_bytes())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
