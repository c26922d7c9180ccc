use super::*;
use ambit_linux::netns::NetNs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Two namespaces on a bridge of a third one; `body` runs on the bridge's side.
fn with_bridge(body: impl FnOnce(&NetNs, &NetNs) + Send) {
    let attach = |number: u8| {
        let end = NetNs::create_private().unwrap();
        let target = format!("/proc/{}/fd/{}", std::process::id(), end.as_fd().as_raw_fd());
        ip(&format!("link add veth{number} type veth peer name eth0 netns {target}"));
        ip(&format!("link set veth{number} up master br0"));
        end.run(|| {
            ip(&format!("address add 192.0.2.{number}/24 dev eth0"));
            ip("link set eth0 up");
        })
        .unwrap();
        end
    };
    NetNs::create_private()
        .unwrap()
        .run(|| {
            ip("link add br0 up type bridge");
            body(&attach(1), &attach(2));
        })
        .unwrap();
}

/// Sends pieces over a connection from one end to a port of the other, one segment each.
fn send(from: &NetNs, to: &NetNs, port: u16, pieces: &[&[u8]]) {
    let listener = to.run(|| TcpListener::bind(("0.0.0.0", port)).unwrap()).unwrap();
    let mut stream = from.run(|| TcpStream::connect(("192.0.2.2", port)).unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    for piece in pieces {
        stream.write_all(piece).unwrap();
    }
    drop(stream);
    std::io::copy(&mut accepted, &mut std::io::sink()).unwrap();
}

#[test]
fn plain_text_and_tls_between_two_ports_of_a_bridge_are_seen() {
    with_bridge(|client, server| {
        let capture = Capture::start("br0", b"a secret marker", 15008).unwrap();
        send(client, server, 8080, &[b"this is a sec", b"ret marker, in two pieces"]);
        send(client, server, 15008, &[&[22, 3, 1, 0, 2, 0, 0]]);
        let seen = capture.stop().unwrap();
        assert_eq!((seen.marker_in_plain, seen.tls_records), (1, 1));
        assert!(seen.packets >= 8 && seen.bytes > 60, "{seen:?}");
    });
}

#[test]
fn what_is_not_there_is_not_seen() {
    with_bridge(|client, server| {
        let capture = Capture::start("br0", b"a secret marker", 15008).unwrap();
        send(client, server, 8080, &[b"nothing to see"]);
        let seen = capture.stop().unwrap();
        assert_eq!((seen.marker_in_plain, seen.tls_records), (0, 0));
        assert!(seen.packets > 0);
    });
}

#[test]
fn bad_input_is_named() {
    let error = Capture::start("lo", b"", 15008).unwrap_err();
    assert_eq!(error.to_string(), "an empty marker is in every packet: name some bytes to look for");
    let error = Capture::start("nowhere0", b"x", 15008).unwrap_err();
    assert_eq!(error.to_string(), "cannot capture on the link nowhere0");
}
