//! Real packets between namespaces that the tests make: a node with a bridge, and pods on it.

use super::*;
use ambit_linux::netns::NetNs;
use ambit_rules::Transport;
use ambit_rules::service::ServicePort;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

/// Time for one exchange of packets before it counts as lost.
const WAIT: Duration = Duration::from_secs(5);

fn settings() -> Settings {
    Settings {
        node_name: "node-1".into(),
        node_addresses: vec![Ipv4Addr::new(10, 244, 0, 1).into()],
        service_networks: vec!["10.96.0.0/16".parse().unwrap()],
        pod_networks: vec!["10.244.0.0/24".parse().unwrap()],
        bridge: "br0".into(),
        own_addresses: vec![Ipv4Addr::new(10, 96, 0, 10).into()],
    }
}

fn run(program: &str, arguments: &str) -> String {
    let output = std::process::Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a bridge with the gateway's address, and runs `body` as the node.
fn on_node(body: impl AsyncFnOnce() + Send) {
    NetNs::create_private()
        .unwrap()
        .run(|| {
            // A host that does not forward and does not show bridged frames to rules: both are ours to change.
            std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0").unwrap();
            run("ip", "link add br0 up type bridge");
            run("ip", "address add 10.244.0.1/24 dev br0");
            run("ip", "address add fd01::1/64 dev br0 nodad");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(body());
        })
        .unwrap();
}

/// Attaches a pod with the address `10.244.0.<number>` as the bridge plugin does.
fn pod(number: u8) -> NetNs {
    let pod = NetNs::create_private().unwrap();
    let target = format!("/proc/{}/fd/{}", std::process::id(), pod.as_fd().as_raw_fd());
    run("ip", &format!("link add veth{number} type veth peer name eth0 netns {target}"));
    run("ip", &format!("link set veth{number} up master br0"));
    run("bridge", &format!("link set dev veth{number} hairpin on"));
    pod.run(|| {
        run("ip", &format!("address add 10.244.0.{number}/24 dev eth0"));
        run("ip", "link set eth0 up");
        run("ip", &format!("address add fd01::{number}/64 dev eth0 nodad"));
        run("ip", "route add default via 10.244.0.1");
        run("ip", "-6 route add default via fd01::1");
    })
    .unwrap();
    pod
}

fn service(address: [u8; 4], transport: Transport, port: u16, endpoints: &[&str]) -> ServicePort {
    ServicePort {
        address: address.map(u8::from).into(),
        transport,
        port,
        endpoints: endpoints.iter().map(|e| e.parse().unwrap()).collect(),
        name: "shop/web:http".into(),
    }
}

/// Serves some connections in `pod`: answers with the client's address as the server sees it. One listener serves them
/// all, since a second one could find the port still held by a process that another test is just starting.
fn serve(pod: &NetNs, port: u16, connections: usize) -> std::thread::JoinHandle<()> {
    let listener = pod.run(|| TcpListener::bind(("::", port)).unwrap()).unwrap();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (mut stream, client) = listener.accept().unwrap();
            stream.write_all(client.ip().to_canonical().to_string().as_bytes()).unwrap();
        }
    })
}

/// Connects from the current namespace and reads the whole answer.
fn ask(target: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&target.parse().unwrap(), WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[track_caller]
fn check_refused(answer: std::io::Result<String>) {
    assert_eq!(answer.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_service_is_reached_from_pods_and_the_host_with_the_source_address_kept() {
    on_node(async || {
        let (client, server) = (pod(2), pod(3));
        let host = Host::prepare(&settings()).await.unwrap();
        let ports = [service([10, 96, 0, 20], Transport::Tcp, 80, &["10.244.0.3:8080"])];
        host.apply(ServiceRules::new(surroundings(&settings()), ports).replace()).await.unwrap();
        let service = "10.96.0.20:80";

        let served = serve(&server, 8080, 3);
        assert_eq!(client.run(|| ask(service)).unwrap().unwrap(), "10.244.0.2", "pod to pod on one bridge");
        assert_eq!(ask(service).unwrap(), "10.244.0.1", "the host has no route but ours");
        assert_eq!(server.run(|| ask(service)).unwrap().unwrap(), "10.244.0.1", "a pod to itself");
        served.join().unwrap();
        host.restore().await.unwrap();
    });
}

#[test]
fn a_service_may_lead_to_the_node_itself() {
    // As `kubernetes` does: its endpoint is the API server on the host.
    on_node(async || {
        let client = pod(2);
        let host = Host::prepare(&settings()).await.unwrap();
        let ports = [service([10, 96, 0, 1], Transport::Tcp, 443, &["10.244.0.1:6443"])];
        host.apply(ServiceRules::new(surroundings(&settings()), ports).replace()).await.unwrap();
        let served = serve(&NetNs::current().unwrap(), 6443, 2);
        assert_eq!(client.run(|| ask("10.96.0.1:443")).unwrap().unwrap(), "10.244.0.2");
        assert_eq!(ask("10.96.0.1:443").unwrap(), "10.244.0.1");
        served.join().unwrap();
        host.restore().await.unwrap();
    });
}

#[test]
fn watching_the_bridge_disturbs_no_connection() {
    // The kernel then hands rewritten frames to the host as well, which routes them a second time: TCP does not mind.
    on_node(async || {
        let (client, server) = (pod(2), pod(3));
        let host = Host::prepare(&settings()).await.unwrap();
        let ports = [service([10, 96, 0, 20], Transport::Tcp, 80, &["10.244.0.3:8080"])];
        host.apply(ServiceRules::new(surroundings(&settings()), ports).replace()).await.unwrap();
        let _watching = ambit_linux::packet::PacketSocket::open("br0").unwrap();
        let served = serve(&server, 8080, 20);
        for _ in 0..20 {
            assert_eq!(client.run(|| ask("10.96.0.20:80")).unwrap().unwrap(), "10.244.0.2");
        }
        served.join().unwrap();
        host.restore().await.unwrap();
    });
}

#[test]
fn both_families_are_routed() {
    on_node(async || {
        let (client, server) = (pod(2), pod(3));
        let mut settings = settings();
        settings.node_addresses.push("fd01::1".parse().unwrap());
        settings.service_networks.push("fd96::/112".parse().unwrap());
        settings.pod_networks.push("fd01::/64".parse().unwrap());
        let host = Host::prepare(&settings).await.unwrap();
        let mut port = service([10, 96, 0, 20], Transport::Tcp, 80, &["[fd01::3]:8080"]);
        port.address = "fd96::20".parse().unwrap();
        host.apply(ServiceRules::new(surroundings(&settings), [port]).replace()).await.unwrap();
        let service = "[fd96::20]:80";
        let served = serve(&server, 8080, 3);
        for (from, source) in [(Some(&client), "fd01::2"), (None, "fd01::1"), (Some(&server), "fd01::1")] {
            let answer = from.map_or_else(|| ask(service), |pod| pod.run(|| ask(service)).unwrap());
            assert_eq!(answer.unwrap(), source);
        }
        served.join().unwrap();
        check_refused(client.run(|| ask("[fd96::20]:81")).unwrap());
        check_refused(ask("[fd96::21]:80"));
        host.restore().await.unwrap();
    });
}

#[test]
fn without_bridged_frames_in_the_rules_the_answer_is_lost() {
    // The proof that the kernel setting is needed: the test above fails without it.
    on_node(async || {
        let (client, server) = (pod(2), pod(3));
        let host = Host::prepare(&settings()).await.unwrap();
        std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0").unwrap();
        let ports = [service([10, 96, 0, 20], Transport::Tcp, 80, &["10.244.0.3:8080"])];
        host.apply(ServiceRules::new(surroundings(&settings()), ports).replace()).await.unwrap();
        let _listener = server.run(|| TcpListener::bind("0.0.0.0:8080").unwrap()).unwrap();
        let target: SocketAddr = "10.96.0.20:80".parse().unwrap();
        let short = Duration::from_millis(300);
        let error = client.run(|| TcpStream::connect_timeout(&target, short)).unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        host.restore().await.unwrap();
    });
}

#[test]
fn what_has_no_endpoint_is_refused_at_once() {
    on_node(async || {
        let client = pod(2);
        let host = Host::prepare(&settings()).await.unwrap();
        let ports = [service([10, 96, 0, 20], Transport::Tcp, 80, &[])];
        host.apply(ServiceRules::new(surroundings(&settings()), ports).replace()).await.unwrap();
        for target in ["10.96.0.20:80", "10.96.0.20:81", "10.96.7.7:80"] {
            check_refused(client.run(|| ask(target)).unwrap());
            check_refused(ask(target));
        }
        host.restore().await.unwrap();
    });
}

#[test]
fn datagrams_are_routed_and_the_dns_address_is_the_nodes_own() {
    on_node(async || {
        let (client, server) = (pod(2), pod(3));
        let host = Host::prepare(&settings()).await.unwrap();
        let ports = [
            service([10, 96, 0, 20], Transport::Udp, 53, &["10.244.0.3:5353"]),
            service([10, 96, 0, 10], Transport::Udp, 53, &["10.244.0.3:5353"]),
        ];
        host.apply(ServiceRules::new(surroundings(&settings()), ports).replace()).await.unwrap();
        let in_pod = server.run(|| UdpSocket::bind("0.0.0.0:5353").unwrap()).unwrap();
        let on_node = UdpSocket::bind("10.96.0.10:53").unwrap();
        let asking = client.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        for (socket, target) in [(&in_pod, "10.96.0.20:53"), (&on_node, "10.96.0.10:53")] {
            socket.set_read_timeout(Some(WAIT)).unwrap();
            asking.set_read_timeout(Some(WAIT)).unwrap();
            asking.send_to(b"who", target).unwrap();
            let mut buffer = [0; 8];
            let (_, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(from.ip().to_string(), "10.244.0.2");
            socket.send_to(b"me", from).unwrap();
            let (_, answered) = asking.recv_from(&mut buffer).unwrap();
            assert_eq!(answered.to_string(), target, "the client sees the address that it asked");
        }
        host.restore().await.unwrap();
    });
}

#[test]
fn changes_are_applied_in_place_and_all_endpoints_are_used() {
    on_node(async || {
        let (client, first, second) = (pod(2), pod(3), pod(4));
        let host = Host::prepare(&settings()).await.unwrap();
        let rules = |endpoints: &[&str]| {
            let ports = [service([10, 96, 0, 20], Transport::Tcp, 80, endpoints)];
            ServiceRules::new(surroundings(&settings()), ports)
        };
        let (none, both) = (rules(&[]), rules(&["10.244.0.3:80", "10.244.0.4:80"]));
        let one = rules(&["10.244.0.4:80"]);
        host.apply(none.replace()).await.unwrap();
        host.apply(both.update(&none).unwrap()).await.unwrap();
        let listen = |pod: &NetNs| pod.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
        let listeners = [listen(&first), listen(&second)];
        listeners.iter().for_each(|l| l.set_nonblocking(true).unwrap());
        let target = "10.96.0.20:80".parse().unwrap();
        let connect = || client.run(|| TcpStream::connect_timeout(&target, WAIT)).unwrap().unwrap();
        let accepted = |l: &TcpListener| std::iter::from_fn(|| l.accept().ok()).count();
        // 64 draws of one of two miss one of them once in 2^63 runs.
        drop((0..64).map(|_| connect()).collect::<Vec<_>>());
        let counts = listeners.each_ref().map(accepted);
        assert!(counts[0] > 0 && counts[1] > 0 && counts[0] + counts[1] == 64, "{counts:?}");

        host.apply(one.update(&both).unwrap()).await.unwrap();
        drop((0..8).map(|_| connect()).collect::<Vec<_>>());
        assert_eq!(listeners.each_ref().map(accepted), [0, 8]);
        let listing = run("nft", "list table inet ambit-services");
        let chains: Vec<&str> = listing.lines().filter(|l| l.contains("chain pick")).map(str::trim).collect();
        assert_eq!(chains, ["chain pick4-1 {"]);
        host.apply(none.update(&one).unwrap()).await.unwrap();
        check_refused(client.run(|| ask("10.96.0.20:80")).unwrap());
        host.restore().await.unwrap();
    });
}

#[test]
fn pods_reach_the_outside_with_the_hosts_address() {
    on_node(async || {
        let client = pod(2);
        let outside = NetNs::create_private().unwrap();
        let target = format!("/proc/{}/fd/{}", std::process::id(), outside.as_fd().as_raw_fd());
        run("ip", &format!("link add up0 type veth peer name eth0 netns {target}"));
        run("ip", "address add 192.0.2.1/24 dev up0");
        run("ip", "link set up0 up");
        outside
            .run(|| {
                run("ip", "address add 192.0.2.2/24 dev eth0");
                run("ip", "link set eth0 up");
            })
            .unwrap();
        let host = Host::prepare(&settings()).await.unwrap();
        host.apply(ServiceRules::new(surroundings(&settings()), []).replace()).await.unwrap();
        let served = serve(&outside, 80, 1);
        assert_eq!(client.run(|| ask("192.0.2.2:80")).unwrap().unwrap(), "192.0.2.1");
        served.join().unwrap();
        host.restore().await.unwrap();
    });
}

#[test]
fn the_host_is_left_as_it_was() {
    on_node(async || {
        let state = || {
            let network =
                ["link", "address", "route show table all", "-6 route show table all"].map(|a| run("ip", a));
            let switches = ["ipv4/ip_forward", "bridge/bridge-nf-call-iptables"]
                .map(|s| std::fs::read_to_string(format!("/proc/sys/net/{s}")).unwrap());
            (network, switches, run("nft", "list ruleset"))
        };
        let before = state();
        let host = Host::prepare(&settings()).await.unwrap();
        let ports = [service([10, 96, 0, 20], Transport::Tcp, 80, &["10.244.0.3:8080"])];
        host.apply(ServiceRules::new(surroundings(&settings()), ports).replace()).await.unwrap();
        let during = state();
        assert_eq!(during.1, ["1\n", "1\n"]);
        assert_ne!((&during.0, &during.2), (&before.0, &before.2));
        host.restore().await.unwrap();
        assert_eq!(state(), before);
    });
}

#[test]
fn a_failed_start_changes_nothing() {
    on_node(async || {
        let foreign = Settings { node_addresses: vec![Ipv4Addr::new(192, 0, 2, 77).into()], ..settings() };
        let before = run("ip", "address");
        let error = Host::prepare(&foreign).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot route services");
        assert_eq!(run("ip", "address"), before);
        assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap(), "0\n");
    });
}
