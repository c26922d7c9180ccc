//! Sets in real network namespaces.

use super::*;

fn listed(host: &NetNs) -> String {
    let command = || {
        let output = std::process::Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    host.run(command).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn the_set_follows_the_pods_and_a_recycled_address_stays_with_its_new_pod() {
    let host = NetNs::create_private().unwrap();
    let probes = PodSet::install_probes(&host, 0, Families::Dual).unwrap();
    probes.set("a", &[ip("10.0.0.5"), ip("fd00::5")]).await.unwrap();
    assert!(listed(&host).contains("elements = { 10.0.0.5 comment \"a\" }"), "{}", listed(&host));
    assert!(listed(&host).contains("fd00::5 comment \"a\""));
    probes.set("a", &[ip("10.0.0.6")]).await.unwrap();
    assert!(listed(&host).contains("elements = { 10.0.0.6 comment \"a\" }"), "{}", listed(&host));
    // Pod b gets the address before pod a is known to be gone.
    probes.set("b", &[ip("10.0.0.6")]).await.unwrap();
    probes.set("a", &[]).await.unwrap();
    assert!(listed(&host).contains("elements = { 10.0.0.6 comment \"b\" }"), "{}", listed(&host));
    probes.set("b", &[]).await.unwrap();
    probes.set("unknown", &[]).await.unwrap();
    assert!(!listed(&host).contains("elements"));
    probes.set("b", &[ip("10.0.0.6")]).await.unwrap();
    probes.uninstall().await.unwrap();
    probes.set("b", &[]).await.unwrap();
    assert_eq!(listed(&host), "");
}

#[tokio::test]
async fn changes_at_the_same_time_are_done_together_and_only_those_fail_that_must() {
    let host = NetNs::create_private().unwrap();
    let probes = PodSet::install_probes(&host, 0, Families::Dual).unwrap();
    let addresses: Vec<IpAddr> = (0..200_u8).map(|n| IpAddr::from([10, 0, 0, n])).collect();
    let all = |set: fn(usize) -> bool| {
        let changes = addresses.iter().enumerate().map(|(n, address)| {
            let (probes, uid) = (probes.clone(), format!("pod-{n}"));
            let wanted: Vec<IpAddr> = set(n).then_some(*address).into_iter().collect();
            async move { probes.set(&uid, &wanted).await.is_ok() }
        });
        futures::future::join_all(changes)
    };
    assert!(all(|_| true).await.into_iter().all(|done| done));
    assert_eq!(listed(&host).matches(" comment \"pod-").count(), 200);
    assert!(all(|n| n % 2 == 0).await.into_iter().all(|done| done));
    assert_eq!(listed(&host).matches(" comment \"pod-").count(), 100);
    // Somebody else has taken one away: its removal fails, and no other.
    let element = "delete element inet istio-ambient-nat istio-inpod-probes-v4 { 10.0.0.8 }";
    host.run(|| std::process::Command::new("nft").arg(element).status().unwrap()).unwrap();
    let done = all(|_| false).await;
    let failed: Vec<usize> = done.iter().enumerate().filter(|(_, done)| !**done).map(|(n, _)| n).collect();
    assert_eq!(failed, [8]);
    assert_eq!(listed(&host).matches(" comment \"pod-").count(), 0);
}

#[tokio::test]
async fn addresses_of_families_that_are_not_captured_are_left_out() {
    let host = NetNs::create_private().unwrap();
    let probes = PodSet::install_probes(&host, 0, Families::V4).unwrap();
    probes.set("a", &[ip("fd00::5"), ip("10.0.0.5")]).await.unwrap();
    assert!(listed(&host).contains("elements = { 10.0.0.5 comment \"a\" }"), "{}", listed(&host));
}

#[tokio::test]
async fn a_quarantine_set_up_anew_holds_exactly_the_pods_that_are_to_be_kept_off() {
    let host = NetNs::create_private().unwrap();
    let first =
        [("a".to_owned(), vec![ip("10.0.0.5")]), ("b".to_owned(), vec![ip("10.0.0.6"), ip("fd00::6")])];
    let quarantine = PodSet::install_quarantine(&host, Families::Dual, first).unwrap();
    quarantine.set("a", &[]).await.unwrap();
    assert_eq!(listed(&host).matches("10.0.0.6 comment \"b\"").count(), 2, "{}", listed(&host));
    assert!(!listed(&host).contains("10.0.0.5"));
    drop(quarantine);
    let next = [("c".to_owned(), vec![ip("10.0.0.7")])];
    let quarantine = PodSet::install_quarantine(&host, Families::Dual, next).unwrap();
    assert!(!listed(&host).contains("10.0.0.6"), "{}", listed(&host));
    assert_eq!(listed(&host).matches("10.0.0.7 comment \"c\"").count(), 2, "{}", listed(&host));
    quarantine.uninstall().await.unwrap();
    assert_eq!(listed(&host), "");
    PodSet::remove_quarantine(&host).unwrap();
}

/// Whether a connection is made; a refused one counts, since the packets arrived.
fn reaches(from: &NetNs, to: (IpAddr, u16)) -> bool {
    let short = std::time::Duration::from_millis(300);
    let tried = from.run(|| std::net::TcpStream::connect_timeout(&to.into(), short)).unwrap();
    match tried {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_in_quarantine_reaches_nobody_and_nobody_reaches_it() {
    let mut node = crate::fixture::Node::new();
    let (kept, other) = (node.add_pod(), node.add_pod());
    node.netns.run(|| crate::fixture::shell("echo 1 > /proc/sys/net/ipv4/ip_forward")).unwrap();
    let ways = [
        ("to another pod", &kept.netns, other.address),
        ("from another pod", &other.netns, kept.address),
        ("to the node", &kept.netns, kept.gateway),
        ("from the node", &node.netns, kept.address),
    ];
    let check = |expected: bool| {
        for (way, from, to) in &ways {
            assert_eq!(reaches(from, (*to, 9)), expected, "{way}");
        }
        assert!(reaches(&other.netns, (other.gateway, 9)), "others are not touched");
    };
    check(true);
    let pods = [("kept".to_owned(), vec![kept.address])];
    let quarantine = PodSet::install_quarantine(&node.netns, Families::Dual, pods).unwrap();
    check(false);
    quarantine.set("kept", &[]).await.unwrap();
    check(true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_one_bridge_are_kept_apart_too() {
    let node = NetNs::create_private().unwrap();
    let pods = [2, 3].map(|last| (NetNs::create_private().unwrap(), IpAddr::from([10, 8, 0, last])));
    node.run(|| crate::fixture::shell("ip link add br0 type bridge && ip link set br0 up")).unwrap();
    for (index, (pod, address)) in pods.iter().enumerate() {
        use std::os::fd::{AsFd, AsRawFd};
        let there = format!("/proc/{}/fd/{}", std::process::id(), pod.as_fd().as_raw_fd());
        node.run(|| {
            crate::fixture::shell(&format!(
                "ip link add v{index} type veth peer name eth0 netns {there}
                 ip link set v{index} master br0 up"
            ))
        })
        .unwrap();
        pod.run(|| crate::fixture::shell(&format!("ip addr add {address}/24 dev eth0; ip link set eth0 up")))
            .unwrap();
    }
    let [(first, a), (second, b)] = &pods;
    assert!(reaches(first, (*b, 9)) && reaches(second, (*a, 9)));
    let kept = [("a".to_owned(), vec![*a])];
    let quarantine = PodSet::install_quarantine(&node, Families::V4, kept).unwrap();
    assert!(!reaches(first, (*b, 9)) && !reaches(second, (*a, 9)));
    quarantine.set("a", &[]).await.unwrap();
    assert!(reaches(first, (*b, 9)) && reaches(second, (*a, 9)));
}
