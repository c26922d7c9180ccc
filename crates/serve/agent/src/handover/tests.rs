//! A proxy that speaks the raw protocol over the socket.

use super::*;
use ambit_linux::seqpacket::Packet;
use ambit_proto::zds::workload_request::Payload;
use ambit_proto::zds::{Ack, Version, WorkloadRequest, WorkloadResponse, ZdsHello, workload_response};
use prost::Message as _;
use std::path::PathBuf;

/// Longest wait for anything in these tests.
const LIMIT: Duration = Duration::from_secs(10);

struct Agent {
    socket: PathBuf,
    handover: HandOver,
    refused: mpsc::Receiver<String>,
    gate: Gate,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<Result<(), Error>>,
    registry: prometheus_client::registry::Registry,
    _directory: tempfile::TempDir,
}

impl Agent {
    fn start() -> Self {
        Self::start_for(ambit_linux::process::ROOT)
    }

    /// An agent that takes connections of one user only.
    fn start_for(admitted: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("ztunnel.sock");
        let listener = Listener::bind(&socket).unwrap();
        let (refused_sender, refused) = mpsc::channel(8);
        let (metrics, registry) = Metrics::new();
        let (handover, mut owner) = new(refused_sender, metrics);
        owner.admitted = admitted;
        let (gate, shutdown) = (Gate::default(), Shutdown::new());
        let task = tokio::spawn(owner.run(listener, handover.clone(), gate.clone(), shutdown.clone()));
        Self { socket, handover, refused, gate, shutdown, task, registry, _directory: directory }
    }

    fn started() -> Self {
        let agent = Self::start();
        agent.gate.open();
        agent
    }

    /// An addition in the background.
    fn add(&self, uid: &'static str, pod: &Handed) -> tokio::task::JoinHandle<Result<(), Error>> {
        let (handover, pod) = (self.handover.clone(), pod.clone());
        tokio::spawn(async move { handover.add(uid, pod).await })
    }

    async fn until_proxies(&self, count: usize) {
        let wanted = format!("ztunnel_connected {count}\n");
        let reached = async {
            while !crate::metrics::text(&self.registry).contains(&wanted) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(LIMIT, reached).await.expect("the number of proxies is reached");
    }
}

struct Proxy(Connection);

impl Proxy {
    /// Connects, says hello, and acknowledges a snapshot: what it named.
    async fn connect(agent: &Agent) -> (Self, Vec<Payload>) {
        let proxy = Self(Connection::connect(&agent.socket).unwrap());
        proxy.send(&ZdsHello { version: Version::V1.into() }).await;
        let mut snapshot = Vec::new();
        loop {
            let (payload, _) = proxy.next().await;
            proxy.ack("").await;
            if matches!(payload, Payload::SnapshotSent(_)) {
                return (proxy, snapshot);
            }
            snapshot.push(payload);
        }
    }

    async fn send(&self, message: &impl prost::Message) {
        self.0.send(&message.encode_to_vec(), None).await.unwrap();
    }

    async fn ack(&self, error: &str) {
        let payload = workload_response::Payload::Ack(Ack { error: error.into() });
        self.send(&WorkloadResponse { payload: Some(payload) }).await;
    }

    async fn packet(&self) -> Option<Packet> {
        tokio::time::timeout(LIMIT, self.0.recv(1024)).await.expect("something comes").unwrap()
    }

    async fn next(&self) -> (Payload, Vec<NetNs>) {
        let packet = self.packet().await.expect("the agent has not closed");
        let namespaces = packet.descriptors.into_iter().map(|fd| NetNs::from_fd(fd).unwrap()).collect();
        (WorkloadRequest::decode(packet.bytes.as_slice()).unwrap().payload.unwrap(), namespaces)
    }
}

fn pod() -> Handed {
    Handed {
        name: "web".into(),
        namespace: "shop".into(),
        service_account: "clerk".into(),
        netns: Arc::new(NetNs::create_private().unwrap()),
    }
}

fn names(snapshot: &[Payload]) -> Vec<String> {
    let name = |payload: &Payload| match payload {
        Payload::Add(add) => format!("add {}", add.uid),
        Payload::Keep(keep) => format!("keep {}", keep.uid),
        Payload::Del(delete) => format!("delete {}", delete.uid),
        Payload::SnapshotSent(_) => "snapshot sent".to_owned(),
    };
    snapshot.iter().map(name).collect()
}

#[tokio::test]
async fn an_addition_carries_the_namespace_and_waits_for_the_acknowledgement() {
    let agent = Agent::started();
    let (proxy, snapshot) = Proxy::connect(&agent).await;
    assert!(snapshot.is_empty());
    let pod = pod();
    let adding = agent.add("u1", &pod);
    let (payload, namespaces) = proxy.next().await;
    let Payload::Add(add) = payload else { panic!("{payload:?}") };
    let info = add.workload_info.unwrap();
    assert_eq!(
        (add.uid.as_str(), info.name.as_str(), info.namespace.as_str(), info.service_account.as_str()),
        ("u1", "web", "shop", "clerk")
    );
    assert_eq!(namespaces.iter().map(NetNs::id).collect::<Vec<_>>(), [pod.netns.id()]);
    assert!(!adding.is_finished(), "it must wait for the acknowledgement");
    proxy.ack("").await;
    adding.await.unwrap().unwrap();
    // What the proxy has is not sent again.
    agent.handover.add("u1", pod).await.unwrap();
    agent.shutdown.cancel();
    assert!(proxy.packet().await.is_none(), "the agent closes at its end");
    agent.task.await.unwrap().unwrap();
    assert!(!agent.socket.exists());
}

#[tokio::test]
async fn the_snapshot_names_what_is_captured_and_comes_after_the_gate_is_open() {
    let agent = Agent::start();
    let early = Connection::connect(&agent.socket).unwrap();
    early.send(&ZdsHello { version: 1 }.encode_to_vec(), None).await.unwrap();
    agent.handover.restore("u1", Some(pod())).await.unwrap();
    agent.handover.restore("u2", None).await.unwrap();
    agent.gate.open();
    let early = Proxy(early);
    let (first, namespaces) = early.next().await;
    assert_eq!((names(&[first]), namespaces.len()), (vec!["add u1".to_owned()], 1));
    early.ack("").await;
    let (second, namespaces) = early.next().await;
    assert_eq!((names(&[second]), namespaces.len()), (vec!["keep u2".to_owned()], 0));
    early.ack("").await;
    assert_eq!(names(&[early.next().await.0]), ["snapshot sent"]);
}

#[tokio::test]
async fn without_a_proxy_an_addition_fails_and_the_next_proxy_gets_it() {
    let agent = Agent::started();
    let pod = pod();
    let error = agent.handover.add("u1", pod.clone()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod shop/web was not handed over to the node proxy: no proxy is connected"
    );
    let (_proxy, snapshot) = Proxy::connect(&agent).await;
    assert_eq!(names(&snapshot), ["add u1"]);
    agent.handover.add("u1", pod).await.unwrap();
}

#[tokio::test]
async fn a_refusal_is_reported_and_may_be_tried_again() {
    let mut agent = Agent::started();
    let (proxy, _) = Proxy::connect(&agent).await;
    let pod = pod();
    let adding = agent.add("u1", &pod);
    proxy.next().await;
    proxy.ack("no room").await;
    assert!(adding.await.unwrap().unwrap_err().to_string().ends_with("no room"));
    assert!(agent.refused.try_recv().is_err(), "whoever waits learns of it directly");
    let adding = agent.add("u1", &pod);
    proxy.next().await;
    proxy.ack("").await;
    adding.await.unwrap().unwrap();
    // A refusal in a snapshot, for which nobody waits.
    let second = Proxy(Connection::connect(&agent.socket).unwrap());
    second.send(&ZdsHello { version: 1 }).await;
    second.next().await;
    second.ack("no room here").await;
    let refused = tokio::time::timeout(LIMIT, agent.refused.recv()).await.unwrap();
    assert_eq!(refused.as_deref(), Some("u1"));
}

#[tokio::test]
async fn the_newest_proxy_gets_additions_and_all_get_removals() {
    let agent = Agent::started();
    let (old, _) = Proxy::connect(&agent).await;
    let (new, _) = Proxy::connect(&agent).await;
    let adding = agent.add("u1", &pod());
    assert_eq!(names(&[new.next().await.0]), ["add u1"]);
    new.ack("").await;
    adding.await.unwrap().unwrap();
    let removing = tokio::spawn({
        let handover = agent.handover.clone();
        async move { handover.remove("u1").await }
    });
    for proxy in [&old, &new] {
        assert_eq!(names(&[proxy.next().await.0]), ["delete u1"]);
        proxy.ack("").await;
    }
    removing.await.unwrap().unwrap();
    // What the newest alone had goes to the one before when it is gone.
    let adding = agent.add("u2", &pod());
    new.next().await;
    new.ack("").await;
    adding.await.unwrap().unwrap();
    drop(new);
    assert_eq!(names(&[old.next().await.0]), ["add u2"]);
    old.ack("").await;
}

#[tokio::test]
async fn a_proxy_may_be_lost_at_any_point_and_come_back() {
    let agent = Agent::started();
    // Before its hello, after it, in the middle of the snapshot, and while an addition waits.
    drop(Connection::connect(&agent.socket).unwrap());
    agent.handover.restore("u1", Some(pod())).await.unwrap();
    let proxy = Proxy(Connection::connect(&agent.socket).unwrap());
    proxy.send(&ZdsHello { version: 1 }).await;
    drop(proxy);
    let proxy = Proxy(Connection::connect(&agent.socket).unwrap());
    proxy.send(&ZdsHello { version: 1 }).await;
    proxy.next().await;
    drop(proxy);
    let (proxy, snapshot) = Proxy::connect(&agent).await;
    assert_eq!(names(&snapshot), ["add u1"]);
    agent.until_proxies(1).await;
    let pod = pod();
    let adding = agent.add("u2", &pod);
    proxy.next().await;
    drop(proxy);
    assert!(adding.await.unwrap().unwrap_err().to_string().contains("was lost"));
    agent.until_proxies(0).await;
    let (_proxy, snapshot) = Proxy::connect(&agent).await;
    assert_eq!(names(&snapshot), ["add u1", "add u2"]);
    agent.handover.add("u2", pod).await.unwrap();
}

/// The agent closes on a proxy that begins with these packets.
async fn check_closed(packets: &[&[u8]]) {
    let agent = Agent::started();
    let proxy = Proxy(Connection::connect(&agent.socket).unwrap());
    for packet in packets {
        // It may be closed before everything is sent.
        let _ = proxy.0.send(packet, None).await;
    }
    while let Ok(Ok(Some(_))) = tokio::time::timeout(LIMIT, proxy.0.recv(1024)).await {}
    agent.until_proxies(0).await;
    Proxy::connect(&agent).await;
}

#[tokio::test]
async fn proxies_that_do_not_keep_to_the_protocol_are_dropped() {
    const HELLO: &[u8] = &[8, 1];
    const ACK: &[u8] = &[10, 0];
    check_closed(&[b"nonsense"]).await;
    check_closed(&[&[8, 7]]).await;
    check_closed(&[&[0; 2000]]).await;
    check_closed(&[HELLO, b"\xff"]).await;
    check_closed(&[HELLO, HELLO]).await;
    check_closed(&[HELLO, ACK, ACK]).await;
}

#[tokio::test]
async fn no_descriptor_is_kept_of_a_removed_pod() {
    let agent = Agent::started();
    let (proxy, _) = Proxy::connect(&agent).await;
    let pod = pod();
    let weak = Arc::downgrade(&pod.netns);
    let adding = agent.add("u1", &pod);
    drop(pod);
    drop(proxy.next().await);
    proxy.ack("").await;
    adding.await.unwrap().unwrap();
    let (removed, ()) = tokio::join!(agent.handover.remove("u1"), async {
        proxy.next().await;
        proxy.ack("").await;
    });
    removed.unwrap();
    assert!(weak.upgrade().is_none(), "the namespace is still held");
}

#[tokio::test]
async fn another_user_is_told_nothing() {
    let agent = Agent::start_for(1);
    agent.gate.open();
    agent.handover.restore("u1", Some(pod())).await.unwrap();
    let stranger = Connection::connect(&agent.socket).unwrap();
    // The agent may have closed already, without reading.
    let _ = stranger.send(&ZdsHello { version: Version::V1.into() }.encode_to_vec(), None).await;
    let answer = tokio::time::timeout(LIMIT, stranger.recv(1024)).await.expect("the agent closes");
    assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
}
