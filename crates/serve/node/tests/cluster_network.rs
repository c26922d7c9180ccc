//! Cluster DNS and service routing together, on a real API server, with packets from a pod's namespace.
#![expect(clippy::unwrap_used, reason = "every function here is part of a test")]

use ambit_api::core::v1::{Namespace, Service};
use ambit_api::discovery::v1::EndpointSlice;
use ambit_apiserver::{ApiServer, Storage};
use ambit_kube::Informers;
use ambit_linux::netns::NetNs;
use ambit_linux::nft;
use ambit_node::{dns, services};
use ambit_runtime::{Readiness, Shutdown};
use ambit_trust::pki::ClusterPki;
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Time for one exchange of packets before it counts as lost.
const WAIT: Duration = Duration::from_secs(5);
/// Time for a change of the cluster to arrive, and pause between looks.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
const DNS: SocketAddr = SocketAddr::new(IpAddr::V4(ambit_names::cluster::DNS_ADDRESS), 53);

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A pod on the bridge of the current namespace.
fn pod(number: u8) -> Arc<NetNs> {
    let pod = NetNs::create_private().unwrap();
    let target = format!("/proc/{}/fd/{}", std::process::id(), pod.as_fd().as_raw_fd());
    ip(&format!("link add veth{number} type veth peer name eth0 netns {target}"));
    ip(&format!("link set veth{number} up master br0"));
    pod.run(|| {
        ip(&format!("address add 10.244.0.{number}/24 dev eth0"));
        ip("link set eth0 up");
        ip("route add default via 10.244.0.1");
    })
    .unwrap();
    Arc::new(pod)
}

/// Addresses of a name, asked from the current namespace; none without an answer.
fn resolve(name: &str) -> Option<Vec<IpAddr>> {
    let mut query = Message::new(3, MessageType::Query, OpCode::Query);
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket.send_to(&query.to_vec().unwrap(), DNS).ok()?;
    let mut buffer = [0; 1500];
    let (length, server) = socket.recv_from(&mut buffer).ok()?;
    assert_eq!(server, DNS);
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    Some(answer.answers.iter().filter_map(|record| record.data.ip_addr()).collect())
}

/// The answer of an address, asked from the current namespace.
fn ask(address: IpAddr, port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&(address, port).into(), WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}

/// Looks from inside a pod until `look` sees something.
async fn eventually<T: Send + 'static>(
    what: &str,
    pod: &Arc<NetNs>,
    look: impl Fn() -> Option<T> + Clone + Send + 'static,
) -> T {
    let search = async {
        loop {
            let (pod, look) = (Arc::clone(pod), look.clone());
            let seen = tokio::task::spawn_blocking(move || pod.run(look).unwrap()).await.unwrap();
            match seen {
                Some(seen) => return seen,
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, search).await.unwrap_or_else(|_| panic!("did not happen: {what}"))
}

/// Answers every connection with the client's address.
fn serve(pod: &NetNs) {
    let listener = pod.run(|| TcpListener::bind("0.0.0.0:8080").unwrap()).unwrap();
    // Ends with the process: nothing can be waited for on a listener that nobody connects to any more.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let client = stream.peer_addr().unwrap().ip().to_string();
            stream.write_all(client.as_bytes()).unwrap();
        }
    });
}

fn settings() -> (dns::Settings, services::Settings) {
    let [pods, services] = ["10.244.0.0/24", "10.96.0.0/16"].map(|net| net.parse().unwrap());
    let dns = dns::Settings {
        cluster_domain: "cluster.local".into(),
        listen: vec![DNS],
        networks: vec![pods, services],
        upstreams: vec![],
    };
    let services = services::Settings {
        node_name: "node-1".into(),
        node_addresses: vec![Ipv4Addr::new(10, 244, 0, 1).into()],
        service_networks: vec![services],
        pod_networks: vec![pods],
        bridge: "br0".into(),
        own_addresses: vec![DNS.ip()],
    };
    (dns, services)
}

async fn api_server() -> ApiServer {
    let dir = tempfile::tempdir().unwrap();
    let settings = ambit_apiserver::Settings {
        storage: Storage::Memory,
        listen: None,
        advertise: None,
        pki: ClusterPki::load_or_create(dir.path(), &[]).unwrap(),
        service_cidr: "10.96.0.0/16".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
    };
    ApiServer::open(settings).await.unwrap()
}

fn slice() -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.244.0.3"], "conditions": {"ready": true}}]}))
    .unwrap()
}

async fn names_and_services_follow_the_cluster() {
    let (client_pod, server_pod) = (pod(2), pod(3));
    serve(&server_pod);
    let server = api_server().await;
    let client = server.client("admin", &["system:masters"]);
    let stop = Shutdown::new();
    let mut tasks = tokio::task::JoinSet::new();
    let until = stop.clone();
    tasks.spawn(async move { server.run(Readiness::default(), until).await.unwrap() });
    let informers = Informers::new(client.clone());
    let (dns_settings, service_settings) = settings();
    let names = dns::Dns::new(dns_settings, &informers).unwrap();
    let routing = services::Services::new(service_settings, &informers);
    informers.run_and_wait(&stop).await.unwrap();
    let (for_names, for_routing) = (stop.clone(), stop.clone());
    let to_write = client.clone();
    tasks.spawn(
        async move { names.run(to_write, Readiness::default().block("names"), for_names).await.unwrap() },
    );
    tasks
        .spawn(async move { routing.run(Readiness::default().block("routing"), for_routing).await.unwrap() });

    let dns_name = "kube-dns.kube-system.svc.cluster.local.";
    let found =
        eventually("kube-dns resolves", &client_pod, move || resolve(dns_name).filter(|a| !a.is_empty()));
    assert_eq!(found.await, [DNS.ip()]);

    let namespaces: Api<Namespace> = Api::all(client.clone());
    let shop = serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
    namespaces.create(&PostParams::default(), &shop).await.unwrap();
    let services: Api<Service> = Api::namespaced(client.clone(), "shop");
    let web = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}});
    services.create(&PostParams::default(), &serde_json::from_value(web).unwrap()).await.unwrap();
    let name = "web.shop.svc.cluster.local.";
    let found =
        eventually("the service resolves", &client_pod, move || resolve(name).filter(|a| !a.is_empty()));
    let [address] = found.await[..] else { panic!("not one address") };

    let refused =
        move || ask(address, 80).err().filter(|e| e.kind() == std::io::ErrorKind::ConnectionRefused);
    eventually("a service without endpoints is refused", &client_pod, refused).await;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "shop");
    slices.create(&PostParams::default(), &slice()).await.unwrap();
    let answer = eventually("the endpoint answers", &client_pod, move || ask(address, 80).ok()).await;
    assert_eq!(answer, "10.244.0.2");
    slices.delete("web-1", &DeleteParams::default()).await.unwrap();
    eventually("the service is refused again", &client_pod, refused).await;
    services.delete("web", &DeleteParams::default()).await.unwrap();
    eventually("the name is gone", &client_pod, move || resolve(name).filter(Vec::is_empty)).await;

    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    informers.join().await.unwrap();
}

#[test]
fn the_cluster_network_lives_and_leaves_nothing() {
    NetNs::create_private()
        .unwrap()
        .run(|| {
            ip("link add br0 up type bridge");
            ip("address add 10.244.0.1/24 dev br0");
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(names_and_services_follow_the_cluster());
            assert_eq!(nft::tables().unwrap(), [""; 0]);
            let links = Command::new("ip").args(["-brief", "link"]).output().unwrap();
            assert!(!String::from_utf8_lossy(&links.stdout).contains(services::LINK));
        })
        .unwrap();
}

async fn the_service_of_an_earlier_start_is_kept() {
    let server = api_server().await;
    let client = server.client("admin", &["system:masters"]);
    let stop = Shutdown::new();
    let until = stop.clone();
    let serving = tokio::spawn(async move { server.run(Readiness::default(), until).await });
    let here = Arc::new(NetNs::current().unwrap());
    let start = async |address: [u8; 4], shutdown: &Shutdown| {
        let informers = Informers::new(client.clone());
        let mut settings = settings().0;
        settings.listen = vec![(address, 53).into()];
        let names = dns::Dns::new(settings, &informers).unwrap();
        informers.run_and_wait(shutdown).await.unwrap();
        let outcome = names.run(client.clone(), Readiness::default().block("names"), shutdown.clone()).await;
        shutdown.cancel();
        informers.join().await.unwrap();
        outcome
    };
    let services: Api<Service> = Api::namespaced(client.clone(), "kube-system");
    let mut uids = Vec::new();
    for _ in 0..2 {
        let once = stop.child_token();
        let name = "kube-dns.kube-system.svc.cluster.local.";
        let answers = eventually("kube-dns resolves", &here, move || resolve(name).filter(|a| !a.is_empty()));
        let (outcome, found) = tokio::join!(start([10, 96, 0, 10], &once), async {
            let found = answers.await;
            once.cancel();
            found
        });
        outcome.unwrap();
        assert_eq!(found, [DNS.ip()]);
        uids.push(services.get("kube-dns").await.unwrap().metadata.uid.unwrap());
    }
    assert_eq!(uids[0], uids[1]);
    let error = start([10, 96, 0, 11], &stop.child_token()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the Service kube-system/kube-dns has the address 10.96.0.10, not 10.96.0.11: \
         set that as the DNS address, or delete the Service"
    );
    stop.cancel();
    serving.await.unwrap().unwrap();
}

#[test]
fn a_second_start_finds_what_the_first_one_made() {
    NetNs::create_private()
        .unwrap()
        .run(|| {
            ip("address add 10.96.0.10/32 dev lo");
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(the_service_of_an_earlier_start_is_kept());
        })
        .unwrap();
}
