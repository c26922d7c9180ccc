//! Requests between captured pods.

use crate::log;
use crate::world::{Pod, Wire, World, on_node, until};
use ambit_proto::workload;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const MARKER: &[u8] = b"payload-marker-7f3a";

/// Answers each connection with what it sent, after the peer's address; ends with the test.
pub(crate) async fn echo(listener: TcpListener) {
    loop {
        let (mut stream, peer) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            let _ = stream.write_all(format!("{}\n", peer.ip()).as_bytes()).await;
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// Sends the marker and reads the whole answer: the peer address that the server saw, and the marker.
pub(crate) async fn ask(from: &Pod, to: SocketAddr) -> std::io::Result<String> {
    let mut stream = from.connect(to).await?;
    stream.write_all(MARKER).await?;
    stream.shutdown().await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    if text.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text)
}

fn answer(from: &Pod) -> String {
    format!("{}\n{}", from.ip, String::from_utf8_lossy(MARKER))
}

#[test]
fn a_request_between_captured_pods_is_encrypted_identified_and_keeps_its_source() {
    log::record();
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client-traffic", 11), Pod::captured("b", "server-traffic", 12));
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        let wire = Wire::tap(&b);
        tokio::spawn(echo(b.listen(8080).await));
        assert_eq!(ask(&a, b.at(8080)).await.unwrap(), answer(&a));
        assert!(wire.has_port(15008), "the tunnel must be seen on the bridge");
        assert!(!wire.contains(MARKER), "the payload must not be seen on the bridge");
        let lines = until("both sides have logged", || async {
            let lines = log::access("src.identity", &a.identity());
            (lines.len() >= 2).then_some(lines)
        })
        .await;
        let inbound = lines.iter().find(|line| line["direction"] == "inbound").unwrap();
        assert_eq!(inbound["dst.identity"], b.identity());
        assert_eq!(inbound["message"], "connection complete");
        assert_eq!(inbound["bytes_recv"], MARKER.len());
        assert_eq!(inbound["dst.addr"], b.at(8080).to_string());
        let outbound = lines.iter().find(|line| line["direction"] == "outbound").unwrap();
        assert_eq!(outbound["bytes_sent"], MARKER.len());
        assert_eq!(outbound["dst.hbone_addr"], b.at(15008).to_string());
        let (status, metrics) = world.get(15020, "/metrics").await;
        assert_eq!(status, 200);
        assert!(metrics.contains(&format!("source_principal=\"{}\"", a.identity())), "{metrics}");
        assert!(metrics.contains("istio_tcp_connections_opened_total{reporter=\"destination\""), "{metrics}");
        assert_eq!(world.get(15021, "/healthz/ready").await, (200, "ready\n".into()));
        let node = world.control.seen.lock().unwrap().node.clone().unwrap();
        assert_eq!(node.id, "ztunnel~1.1.1.1~ztunnel-node-1.istio-system~istio-system.svc.cluster.local");
        world.stop().await;
    });
}

#[test]
fn services_and_uncaptured_peers_are_reached() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let plain = Pod::new("c", "outside", 13);
        let world = World::start(|_| {}).await;
        world.control.put_service(workload::Service {
            name: "web".into(),
            namespace: "shop".into(),
            hostname: "web.shop.svc.cluster.local".into(),
            addresses: vec![workload::NetworkAddress {
                address: vec![10, 96, 0, 7].into(),
                ..Default::default()
            }],
            ports: vec![workload::Port { service_port: 80, target_port: 8080, app_protocol: 0 }],
            ..Default::default()
        });
        world.serve(&[&a, &b]).await;
        let mut endpoint = b.workload();
        let ports = workload::PortList {
            ports: vec![workload::Port { service_port: 80, target_port: 8080, app_protocol: 0 }],
        };
        endpoint.services = [("shop/web.shop.svc.cluster.local".to_owned(), ports)].into();
        world.control.put_workload(endpoint);
        tokio::spawn(echo(b.listen(8080).await));
        tokio::spawn(echo(plain.listen(8080).await));
        let vip: SocketAddr = "10.96.0.7:80".parse().unwrap();
        let text = until("the service is reached", || async { ask(&a, vip).await.ok() }).await;
        assert_eq!(text, answer(&a));
        // A pod that is its own endpoint reaches itself.
        assert_eq!(ask(&b, vip).await.unwrap(), answer(&b));
        // A port that the service does not have is refused, not passed through.
        assert!(ask(&a, "10.96.0.7:81".parse().unwrap()).await.is_err());
        // Plain text out of the mesh and into it, with the source kept.
        let wire = Wire::tap(&plain);
        assert_eq!(ask(&a, plain.at(8080)).await.unwrap(), answer(&a));
        assert_eq!(ask(&plain, b.at(8080)).await.unwrap(), answer(&plain));
        until("plain text is seen", || async { wire.contains(MARKER).then_some(()) }).await;
        world.stop().await;
    });
}

#[test]
fn one_tunnel_connection_serves_many_and_is_released_when_unused() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let world = World::start(|settings| settings.pool_idle = Duration::from_millis(100)).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let mut open = vec![];
        for _ in 0..8 {
            let mut stream = a.connect(b.at(8080)).await.unwrap();
            assert!(stream.read_u8().await.is_ok());
            open.push(stream);
        }
        let tunnels = || async {
            let dump: serde_json::Value =
                serde_json::from_str(&world.get(15000, "/config_dump").await.1).unwrap();
            dump["workloadState"][a.uid()]["connections"]["tunnels"].as_u64().unwrap()
        };
        assert_eq!(tunnels().await, 1);
        drop(open);
        until("the unused tunnel is released", || async { (tunnels().await == 0).then_some(()) }).await;
        world.stop().await;
    });
}

#[test]
fn certificates_are_renewed_while_connections_go_on() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let control = crate::control::Control::new();
        // So short that half of it has passed at once: renewed as fast as the proxy does it.
        *control.lifetime.lock().unwrap() = Duration::from_secs(30);
        let world = World::start_with(control, |_| {}).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let mut open = a.connect(b.at(8080)).await.unwrap();
        until("certificates are renewed", || async {
            let seen = world.control.seen.lock().unwrap();
            let of = |pod: &Pod| seen.certificates.iter().filter(|one| **one == pod.identity()).count();
            (of(&a) >= 3 && of(&b) >= 3).then_some(())
        })
        .await;
        assert_eq!(ask(&a, b.at(8080)).await.unwrap(), answer(&a));
        let mut text = vec![0; answer(&a).len()];
        open.write_all(MARKER).await.unwrap();
        open.read_exact(&mut text).await.unwrap();
        assert_eq!(text, answer(&a).as_bytes());
        world.stop().await;
    });
}

#[test]
fn open_connections_may_end_when_the_proxy_ends() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        // Longer than the test: only the connections' own end lets the proxy end in time.
        let world = World::start(|settings| settings.drain = Duration::from_secs(3600)).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let mut open = a.connect(b.at(8080)).await.unwrap();
        while open.read_u8().await.unwrap() != b'\n' {}
        world.shutdown.cancel();
        until("new connections are refused", || async { ask(&a, b.at(8080)).await.err() }).await;
        open.write_all(b"x").await.unwrap();
        assert_eq!(open.read_u8().await.unwrap(), b'x');
        drop(open);
        world.stop().await;
    });
}

#[test]
fn connections_that_do_not_end_are_closed_at_the_deadline() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let world = World::start(|settings| settings.drain = Duration::from_millis(200)).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let mut open = a.connect(b.at(8080)).await.unwrap();
        while open.read_u8().await.unwrap() != b'\n' {}
        world.stop().await;
        assert!(open.read_u8().await.is_err());
    });
}
