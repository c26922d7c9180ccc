//! Real packets in real network namespaces.

use super::*;
use crate::fixture::{LIMIT, Node, PodNet, accept, connect, exchange, listen, shell, state};
use ambit_linux::socket::{original_destination, outgoing, spoof_source};
use ambit_names::mark;
use ambit_rules::host::{plan_probe_addresses, plan_probe_rules};
use ambit_rules::pod::{Dns, Excluded, Inbound};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};

const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fn captured(capture: &Capture) -> (Node, PodNet) {
    let mut node = Node::new();
    let pod = node.add_pod();
    put_in_place("shop/web", &pod.netns, &[pod.address], capture).unwrap();
    (node, pod)
}

#[test]
fn connections_are_redirected_with_their_destination_readable() {
    let (node, pod) = captured(&Capture::default());
    let proxies = [15001, 15006, 15008].map(|port| listen(&pod.netns, (ANY, port)));
    let [outbound, inbound, hbone] = &proxies;
    // Out of the pod, to wherever.
    let client = connect(&pod.netns, (pod.gateway, 80));
    let (server, peer) = accept(outbound);
    assert_eq!(original_destination(&server), Some((pod.gateway, 80).into()));
    assert_eq!(peer, client.local_addr().unwrap());
    exchange(&client, &server);
    // Into the pod, in plain text.
    let client = connect(&node.netns, (pod.address, 8080));
    let (server, peer) = accept(inbound);
    assert_eq!(original_destination(&server), Some((pod.address, 8080).into()));
    assert_eq!(peer, client.local_addr().unwrap());
    exchange(&client, &server);
    // Into the pod, through the tunnel port.
    let client = connect(&node.netns, (pod.address, 15008));
    exchange(&client, &accept(hbone).0);
}

#[test]
fn ipv6_is_redirected_too() {
    let (node, pod) = captured(&Capture::default());
    let any = Ipv6Addr::UNSPECIFIED;
    let (outbound, inbound) = (listen(&pod.netns, (any, 15001)), listen(&pod.netns, (any, 15006)));
    let (gateway, address): (SocketAddr, SocketAddr) =
        ("[fd09:1::1]:80".parse().unwrap(), "[fd09:1::2]:8080".parse().unwrap());
    let _client = connect(&pod.netns, gateway);
    assert_eq!(original_destination(&accept(&outbound).0), Some(gateway));
    let _client = connect(&node.netns, address);
    assert_eq!(original_destination(&accept(&inbound).0), Some(address));
}

#[test]
fn the_proxy_s_own_connections_pass_and_keep_the_caller_s_address() {
    let (node, pod) = captured(&Capture::default());
    let upstream = listen(&node.netns, (ANY, 80));
    let marked = |to: SocketAddr, source: Option<IpAddr>| {
        let connected = pod.netns.run(|| {
            let socket = outgoing(to, mark::PROXY, None)?;
            source.map_or(Ok(()), |source| spoof_source(&socket, source))?;
            socket.set_nonblocking(false)?;
            // A marked socket is connected as the proxy does it: after its options are set.
            let socket = socket2::Socket::from(socket);
            socket.connect_timeout(&to.into(), LIMIT)?;
            Ok::<TcpStream, std::io::Error>(socket.into())
        });
        connected.unwrap().unwrap()
    };
    let client = marked((pod.gateway, 80).into(), None);
    exchange(&client, &accept(&upstream).0);
    // The connection to the application carries the caller's address, and the answers find the way back.
    let application = listen(&pod.netns, (ANY, 8080));
    let client = marked((pod.address, 8080).into(), Some(pod.gateway));
    let (server, peer) = accept(&application);
    assert_eq!(peer.ip(), pod.gateway);
    exchange(&client, &server);
}

#[test]
fn the_application_reaches_itself_directly() {
    let (_node, pod) = captured(&Capture::default());
    let application = listen(&pod.netns, (ANY, 8080));
    for address in [pod.address, Ipv4Addr::LOCALHOST.into()] {
        let client = connect(&pod.netns, (address, 8080));
        exchange(&client, &accept(&application).0);
    }
}

#[test]
fn the_node_s_probes_reach_the_application_and_nobody_else_does() {
    let (node, pod) = captured(&Capture::default());
    let (application, inbound) = (listen(&pod.netns, (ANY, 8080)), listen(&pod.netns, (ANY, 15006)));
    let uid = nix_uid();
    let host = |prober| {
        let mut batch = plan_probe_rules(prober, Families::Dual);
        batch.commands.extend(plan_probe_addresses(&[pod.address], "uid").commands);
        node.netns.run(|| nft::apply(&batch)).unwrap().unwrap();
    };
    // A node's catch-all translation, of before ours, at the usual priority.
    let foreign = "table ip foreign { chain post { type nat hook postrouting priority 100; masquerade; }; }";
    node.netns.run(|| shell(&format!("nft '{foreign}'"))).unwrap();
    host(uid);
    let client = connect(&node.netns, (pod.address, 8080));
    let (server, peer) = accept(&application);
    assert_eq!(peer.ip(), IpAddr::from(ambit_names::mesh::PROBE_ADDRESS_V4));
    exchange(&client, &server);
    // Another user's connection is not a probe.
    host(uid + 1);
    let _client = connect(&node.netns, (pod.address, 8080));
    assert_eq!(original_destination(&accept(&inbound).0), Some((pod.address, 8080).into()));
}

fn nix_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap())
}

fn dns_answers(dns: Dns) -> (bool, bool) {
    let (node, pod) = captured(&Capture { dns, ..Capture::default() });
    let bind = |netns: &NetNs, at: (Ipv4Addr, u16)| netns.run(|| UdpSocket::bind(at)).unwrap().unwrap();
    // Redirected queries arrive on the loopback address, and must be answered from it.
    let (proxy, resolver) = (bind(&pod.netns, (Ipv4Addr::LOCALHOST, 15053)), bind(&node.netns, (ANY, 53)));
    let client = bind(&pod.netns, (ANY, 0));
    client.send_to(b"query", (pod.gateway, 53)).unwrap();
    let answered = |server: &UdpSocket| {
        server.set_nonblocking(true).unwrap();
        let mut buffer = [0; 16];
        server.recv_from(&mut buffer).is_ok_and(|(length, from)| {
            server.send_to(b"answer", from).unwrap();
            &buffer[..length] == b"query"
        })
    };
    // Delivery on these links is synchronous.
    let seen = (answered(&proxy), answered(&resolver));
    let mut buffer = [0; 16];
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let (_, from) = client.recv_from(&mut buffer).unwrap();
    assert_eq!(from, (pod.gateway, 53).into(), "the answer comes from where the query went");
    seen
}

#[test]
fn dns_goes_to_the_proxy_or_not() {
    assert_eq!(dns_answers(Dns::Captured), (true, false));
    assert_eq!(dns_answers(Dns::Untouched), (false, true));
}

#[test]
fn bypassed_inbound_connections_reach_the_application() {
    let (node, pod) = captured(&Capture { inbound: Inbound::Bypassed, ..Capture::default() });
    let application = listen(&pod.netns, (ANY, 8080));
    let client = connect(&node.netns, (pod.address, 8080));
    exchange(&client, &accept(&application).0);
}

#[test]
fn what_is_excluded_passes_by_the_proxy_and_nothing_else_does() {
    let excluded =
        |outbound_ports, outbound_nets| Excluded { inbound_ports: vec![9090], outbound_ports, outbound_nets };
    let (node, pod) = captured(&Capture { excluded: excluded(vec![5432], vec![]), ..Capture::default() });
    let at = |netns: &NetNs, port| listen(netns, (ANY, port));
    let (application, inbound) = (at(&pod.netns, 9090), at(&pod.netns, 15006));
    let (proxy, database, other) = (at(&pod.netns, 15001), at(&node.netns, 5432), at(&node.netns, 5433));
    let client = connect(&node.netns, (pod.address, 9090));
    exchange(&client, &accept(&application).0);
    let _client = connect(&node.netns, (pod.address, 9091));
    assert_eq!(original_destination(&accept(&inbound).0), Some((pod.address, 9091).into()));
    let client = connect(&pod.netns, (pod.gateway, 5432));
    exchange(&client, &accept(&database).0);
    let _client = connect(&pod.netns, (pod.gateway, 5433));
    assert_eq!(original_destination(&accept(&proxy).0), Some((pod.gateway, 5433).into()));
    // Whole networks.
    let capture = Capture { excluded: excluded(vec![], vec![pod.gateway.into()]), ..Capture::default() };
    put_in_place("shop/web", &pod.netns, &[pod.address], &capture).unwrap();
    let client = connect(&pod.netns, (pod.gateway, 5433));
    exchange(&client, &accept(&other).0);
}

#[test]
fn inv_06_release_leaves_the_namespace_as_it_was_and_traffic_flows() {
    let mut node = Node::new();
    let pod = node.add_pod();
    let foreign = "nft add table inet foreign
        nft add set inet foreign known '{ type ipv4_addr; elements = { 192.0.2.1 }; }'
        nft add chain inet foreign output '{ type filter hook output priority 0; }'
        nft add rule inet foreign output ip daddr @known drop
        ip rule add fwmark 0x7 lookup 107 priority 32000
        ip route add blackhole 198.51.100.0/24 table 107";
    pod.netns.run(|| crate::fixture::shell(foreign)).unwrap();
    let before = state(&pod.netns);
    for theirs in ["table inet foreign", "192.0.2.1", "lookup 107", "198.51.100.0/24"] {
        assert!(before.contains(theirs), "{theirs} is compared: {before}");
    }
    remove("shop/web", &pod.netns).expect("nothing is there to remove");
    assert_eq!(state(&pod.netns), before);
    for capture in [Capture::default(), Capture { families: Families::V4, ..Capture::default() }] {
        put_in_place("shop/web", &pod.netns, &[pod.address], &capture).unwrap();
        put_in_place("shop/web", &pod.netns, &[pod.address], &capture)
            .expect("a second time changes nothing");
        assert_ne!(state(&pod.netns), before);
        remove("shop/web", &pod.netns).unwrap();
        assert_eq!(state(&pod.netns), before);
    }
    let upstream = listen(&node.netns, (ANY, 80));
    let client = connect(&pod.netns, (pod.gateway, 80));
    exchange(&client, &accept(&upstream).0);
}

#[test]
fn what_others_left_in_our_tables_is_replaced() {
    let mut node = Node::new();
    let pod = node.add_pod();
    let before = state(&pod.netns);
    let foreign = "nft add table inet istio-ambient-nat
        nft add chain inet istio-ambient-nat istio-output
        nft add rule inet istio-ambient-nat istio-output tcp dport 1 drop
        ip rule add fwmark 0x111/0xfff lookup 100 priority 32764
        ip route add local 0.0.0.0/0 dev lo table 100";
    pod.netns.run(|| crate::fixture::shell(foreign)).unwrap();
    put_in_place("shop/web", &pod.netns, &[pod.address], &Capture::default()).unwrap();
    assert!(!state(&pod.netns).contains("tcp dport 1 drop"));
    remove("shop/web", &pod.netns).unwrap();
    assert_eq!(state(&pod.netns), before);
}

#[test]
fn a_namespace_without_the_pod_s_address_is_left_untouched() {
    let mut node = Node::new();
    let (pod, other) = (node.add_pod(), node.add_pod());
    let before = state(&other.netns);
    let error = put_in_place("shop/web", &other.netns, &[pod.address], &Capture::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the network namespace found for pod shop/web holds none of its addresses [10.9.1.2]"
    );
    assert_eq!(state(&other.netns), before);
}

#[test]
fn looking_at_a_namespace_twice_finds_the_same_and_creates_nothing() {
    let mut node = Node::new();
    let pod = node.add_pod();
    let before = state(&pod.netns);
    let looked = || {
        let error = verify("shop/web", &pod.netns, &Capture::default()).unwrap_err();
        crate::error::with_causes(&error)
    };
    let first = looked();
    assert_eq!(looked(), first);
    assert_eq!(state(&pod.netns), before);
    put_in_place("shop/web", &pod.netns, &[pod.address], &Capture::default()).unwrap();
    let before = state(&pod.netns);
    for _ in 0..2 {
        verify("shop/web", &pod.netns, &Capture::default()).unwrap();
    }
    assert_eq!(state(&pod.netns), before);
}

/// Who holds the lock of the iptables programs for ever delays nobody: they are not used.
#[test]
fn the_lock_of_iptables_delays_no_capture() {
    // In a mount namespace of its own, the lock is where the programs look for it.
    let script = format!(
        "mount -t tmpfs none /run && exec flock -x /run/xtables.lock {} --exact {CHILD}",
        std::env::current_exe().unwrap().display()
    );
    let ran = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .env(LOCKED, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

/// Set in the child that runs while the lock is held.
const LOCKED: &str = "AMBIT_TEST_IPTABLES_LOCKED";
const CHILD: &str = "capture::tests::child_whose_iptables_lock_is_held";

/// Not a test of its own: see above.
#[test]
fn child_whose_iptables_lock_is_held() {
    if std::env::var(LOCKED).is_err() {
        return;
    }
    let taken =
        std::process::Command::new("flock").args(["-n", "/run/xtables.lock", "true"]).status().unwrap();
    assert!(!taken.success(), "the lock is free");
    let (_node, pod) = captured(&Capture::default());
    verify("shop/web", &pod.netns, &Capture::default()).unwrap();
}
