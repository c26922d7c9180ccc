//! Peers that are not ours at the tunnel port.

use crate::control::Control;
use crate::traffic::{ask, echo};
use crate::world::{PATIENCE, Pod, World, deny, exact, on_node};
use ambit_proto::security::Match;
use ambit_runtime::Clock;
use ambit_trust::authority::CertificateRequest;
use ambit_trust::certificate::WorkloadCertificate;
use ambit_trust::{csr, tls};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, Uri};
use rand::{Rng as _, SeedableRng as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

fn certificate(control: &Control, identity: &str) -> WorkloadCertificate {
    let wanted = identity.parse().unwrap();
    let made = csr::request(&wanted).unwrap();
    let parsed = CertificateRequest::parse(&made.pem).unwrap();
    let leaf = control.authority.sign(&parsed, identity, Duration::from_secs(3600), Clock.wall()).unwrap();
    WorkloadCertificate::read(&wanted, &made, &[leaf, control.authority.root_pem().to_owned()]).unwrap()
}

/// A tunnel connection as a foreign proxy makes it.
async fn tunnel(world: &World, from: &Pod, to: &Pod, identity: &str) -> std::io::Result<SendRequest<Bytes>> {
    let held = certificate(&world.control, identity);
    let config = tls::client_config(&held, vec![to.identity().parse().unwrap()]).unwrap();
    let tcp = from.connect(to.at(15008)).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(tls::no_server_name(), tcp).await?;
    let (send, connection) = h2::client::handshake(stream).await.map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    send.ready().await.map_err(std::io::Error::other)
}

async fn status(send: &SendRequest<Bytes>, method: Method, uri: &str) -> u16 {
    let request = Request::builder().method(method).uri(uri.parse::<Uri>().unwrap()).body(()).unwrap();
    let (response, _keep) = send.clone().ready().await.unwrap().send_request(request, false).unwrap();
    tokio::time::timeout(PATIENCE, response).await.unwrap().unwrap().status().as_u16()
}

/// Whether the proxy took no request of the connection.
async fn refused(made: std::io::Result<SendRequest<Bytes>>) -> bool {
    let Ok(mut send) = made else { return true };
    let request = Request::builder().method(Method::CONNECT).uri("10.9.0.12:8080").body(()).unwrap();
    let Ok((response, _keep)) = send.send_request(request, false) else { return true };
    tokio::time::timeout(PATIENCE, response).await.expect("it must end").is_err()
}

#[test]
fn tunnel_requests_are_checked() {
    on_node(|| async {
        let b = Pod::captured("b", "server", 12);
        let foreign = Pod::new("c", "foreign", 13);
        let world = World::start(|_| {}).await;
        world.serve(&[&b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let good = "spiffe://cluster.local/ns/elsewhere/sa/foreign";
        let send = tunnel(&world, &foreign, &b, good).await.unwrap();
        let connect = |uri: &'static str| status(&send, Method::CONNECT, uri);
        assert_eq!(connect("10.9.0.12:8080").await, 200);
        assert_eq!(status(&send, Method::GET, "http://10.9.0.12:8080/").await, 400);
        assert_eq!(connect("10.9.0.13:8080").await, 400, "another pod's address");
        assert_eq!(connect("10.9.0.12:15008").await, 503, "the proxy itself");
        assert_eq!(connect("10.9.0.12:9").await, 503, "nothing listens");
        assert_eq!(connect("unknown.example:80").await, 503);
        let match_foreign = Match { namespaces: vec![exact("elsewhere")], ..Default::default() };
        world.control.put_policy(deny("no-foreign", match_foreign));
        world.policies(&["shop/no-foreign"]).await;
        assert_eq!(connect("10.9.0.12:8080").await, 401);
        world.stop().await;
    });
}

#[test]
fn inv_08_no_bytes_at_the_pod_s_ports_end_the_proxy() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let foreign = Pod::new("c", "foreign", 13);
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let mut rng = rand::rngs::StdRng::seed_from_u64(15008);
        for _ in 0..50 {
            // Before TLS.
            let mut bytes = vec![0; rng.random_range(1..2000)];
            rng.fill(bytes.as_mut_slice());
            let mut tcp = foreign.connect(b.at(15008)).await.unwrap();
            let _ = tcp.write_all(&bytes).await;
            let _ = tcp.shutdown().await;
            let _ = tokio::time::timeout(PATIENCE, tcp.read_to_end(&mut vec![])).await.unwrap();
            // Inside TLS, after a good preface.
            let held = certificate(&world.control, "spiffe://cluster.local/ns/elsewhere/sa/foreign");
            let config = tls::client_config(&held, vec![b.identity().parse().unwrap()]).unwrap();
            let tcp = foreign.connect(b.at(15008)).await.unwrap();
            let mut stream =
                TlsConnector::from(Arc::new(config)).connect(tls::no_server_name(), tcp).await.unwrap();
            let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut vec![])).await.unwrap();
        }
        // A peer of another trust domain: its side of the handshake ends first, so it learns of it by its request.
        let stranger = tunnel(&world, &foreign, &b, "spiffe://elsewhere/ns/shop/sa/client").await;
        assert!(refused(stranger).await, "another trust domain is refused");
        assert!(ask(&a, b.at(8080)).await.is_ok(), "the proxy serves on");
        world.stop().await;
    });
}
