//! Network namespaces that stand for a node and a pod, joined by a link. Tests only.

use ambit_linux::netns::NetNs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a packet that must come.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// Runs a program and returns what it printed.
#[track_caller]
pub(crate) fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A node with pods on links of their own, none of it visible to the machine.
pub(crate) struct Node {
    pub(crate) netns: Arc<NetNs>,
    pods: u8,
}

/// A pod of a [`Node`].
pub(crate) struct PodNet {
    pub(crate) netns: Arc<NetNs>,
    /// Its address.
    pub(crate) address: IpAddr,
    /// The node's end of its link, and its gateway.
    pub(crate) gateway: IpAddr,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self { netns: Arc::new(NetNs::create_private().unwrap()), pods: 0 }
    }

    pub(crate) fn add_pod(&mut self) -> PodNet {
        self.pods += 1;
        let (subnet, pod) = (self.pods, Arc::new(NetNs::create_private().unwrap()));
        let there = format!("/proc/{}/fd/{}", std::process::id(), pod.as_fd().as_raw_fd());
        self.netns
            .run(|| {
                shell(&format!(
                    "ip link add v{subnet} type veth peer name eth0 netns {there}
                     ip addr add 10.9.{subnet}.1/24 dev v{subnet}
                     ip -6 addr add fd09:{subnet}::1/64 dev v{subnet} nodad
                     ip link set v{subnet} addrgenmode none up"
                ))
            })
            .unwrap();
        pod.run(|| {
            shell(&format!(
                "ip addr add 10.9.{subnet}.2/24 dev eth0
                 ip -6 addr add fd09:{subnet}::2/64 dev eth0 nodad
                 ip link set eth0 addrgenmode none up
                 ip route add default via 10.9.{subnet}.1
                 timeout 10 sh -c 'until ip -6 route show table local | grep -q multicast; do sleep 0.01; done'
                 timeout 10 sh -c 'while ip -6 route show table all | grep -q linkdown; do sleep 0.01; done'"
            ))
        })
        .unwrap();
        let at = |last| IpAddr::from([10, 9, subnet, last]);
        PodNet { netns: pod, address: at(2), gateway: at(1) }
    }
}

/// Everything of the network namespace that capture could change.
pub(crate) fn state(netns: &NetNs) -> String {
    netns
        .run(|| {
            shell(
                "nft list ruleset; ip addr; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all",
            )
        })
        .unwrap()
}

/// Listens in a namespace.
pub(crate) fn listen(netns: &NetNs, address: impl Into<SocketAddr>) -> TcpListener {
    let address = address.into();
    netns.run(|| TcpListener::bind(address)).unwrap().unwrap()
}

/// Connects from a namespace.
pub(crate) fn connect(netns: &NetNs, to: impl Into<SocketAddr>) -> TcpStream {
    let to = to.into();
    netns.run(|| TcpStream::connect_timeout(&to, LIMIT)).unwrap().unwrap_or_else(|e| panic!("{to}: {e}"))
}

/// The connection that comes next; panics when none does.
#[track_caller]
pub(crate) fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    listener.set_nonblocking(true).unwrap();
    let mut waited = Duration::ZERO;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                return (stream, peer);
            }
            Err(_) if waited < LIMIT => {
                waited += Duration::from_millis(2);
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) => panic!("no connection at {:?}: {e}", listener.local_addr()),
        }
    }
}

/// Sends a few bytes there and back.
#[track_caller]
pub(crate) fn exchange(mut a: &TcpStream, mut b: &TcpStream) {
    for (mut from, mut to) in [(a, b), (b, a)] {
        to.set_read_timeout(Some(LIMIT)).unwrap();
        from.write_all(b"ping").unwrap();
        let mut got = [0; 4];
        to.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ping");
    }
    a.flush().unwrap();
    b.flush().unwrap();
}
