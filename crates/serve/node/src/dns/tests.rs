use super::forward::write_framed;
use super::zone::tests::zone;
use super::*;
use hickory_proto::op::{Message, MessageType, OpCode, Query as Question, ResponseCode};
use hickory_proto::rr::RecordType;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// A name server on loopback, stopped when dropped.
struct Running {
    udp: SocketAddr,
    tcp: SocketAddr,
    stop: Shutdown,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn start(zone: Zone, upstreams: &[SocketAddr]) -> Running {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (udp, tcp) = (listen_udp(any).unwrap(), listen_tcp(any).unwrap());
    let running =
        Running { udp: udp.local_addr().unwrap(), tcp: tcp.local_addr().unwrap(), stop: Shutdown::new() };
    let responder = Responder::new(Arc::new(ArcSwap::from_pointee(zone)), Forwarder::new(upstreams));
    tokio::spawn(server::serve_udp(udp, responder.clone(), running.stop.clone()));
    tokio::spawn(server::serve_tcp(tcp, responder, running.stop.clone()));
    running
}

/// A zone for the upstream server: `web.shop.svc.example.org` and the apex.
fn outside() -> Zone {
    let service = serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "shop", "name": "web"}, "spec": {"clusterIP": "192.0.2.1"}}))
    .unwrap();
    let domain = Name::from_ascii("example.org.").unwrap();
    let server = vec!["192.0.2.53".parse().unwrap()];
    Zone::build(Origin { domain, server, networks: vec![] }, [&service], [])
}

fn question(name: &str) -> Message {
    let mut message = Message::new(99, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Question::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message
}

async fn ask_udp(server: SocketAddr, name: &str) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&question(name).to_vec().unwrap(), server).await.unwrap();
    let mut buffer = [0; 1500];
    let length = socket.recv(&mut buffer).await.unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

async fn ask_tcp(stream: &mut TcpStream, name: &str) -> Message {
    write_framed(stream, &question(name).to_vec().unwrap()).await.unwrap();
    let mut buffer = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut buffer).await.unwrap();
    Message::from_vec(&buffer).unwrap()
}

#[track_caller]
fn check(message: &Message, code: ResponseCode, answers: &[&str]) {
    let found: Vec<String> = message.answers.iter().map(|r| format!("{} {}", r.name, r.data)).collect();
    assert_eq!((message.metadata.id, message.metadata.response_code), (99, code));
    assert_eq!(found, answers);
}

#[tokio::test]
async fn both_transports_answer_names_of_the_cluster_and_pass_on_the_others() {
    let upstream = start(outside(), &[]);
    // The upstream server has one address for both transports in real life; here each gets its own.
    let by_udp = start(zone(), &[upstream.udp]);
    let by_tcp = start(zone(), &[upstream.tcp]);
    let mut stream = TcpStream::connect(by_tcp.tcp).await.unwrap();
    let (own, other) = ("web.shop.svc.cluster.local.", "web.shop.svc.example.org.");
    for (own, other) in [
        (ask_udp(by_udp.udp, own).await, ask_udp(by_udp.udp, other).await),
        (ask_tcp(&mut stream, own).await, ask_tcp(&mut stream, other).await),
    ] {
        check(&own, ResponseCode::NoError, &["web.shop.svc.cluster.local. 10.96.0.20"]);
        check(&other, ResponseCode::NoError, &["web.shop.svc.example.org. 192.0.2.1"]);
    }
}

#[tokio::test]
async fn an_alias_outside_is_answered_with_its_addresses() {
    let upstream = start(outside(), &[]);
    let mut alias = serde_json::from_value::<Service>(serde_json::json!({
        "metadata": {"namespace": "shop", "name": "out"},
        "spec": {"type": "ExternalName", "externalName": "web.shop.svc.example.org"}}))
    .unwrap();
    let inside = |service: &Service| Zone::build(zone().origin, [service], []);
    let server = start(inside(&alias), &[upstream.udp]);
    let name = "out.shop.svc.cluster.local.";
    let (first, second) =
        ("out.shop.svc.cluster.local. web.shop.svc.example.org.", "web.shop.svc.example.org. 192.0.2.1");
    check(&ask_udp(server.udp, name).await, ResponseCode::NoError, &[first, second]);
    alias.spec.as_mut().unwrap().external_name = Some("none.shop.svc.example.org".into());
    let server = start(inside(&alias), &[upstream.udp]);
    let first = "out.shop.svc.cluster.local. none.shop.svc.example.org.";
    check(&ask_udp(server.udp, name).await, ResponseCode::NXDomain, &[first]);
}

#[tokio::test]
async fn without_upstream_other_names_are_refused_and_without_its_answer_they_fail() {
    check(&ask_udp(start(zone(), &[]).udp, "example.org.").await, ResponseCode::Refused, &[]);
    // Nothing listens there any more: the kernel answers for it.
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = start(zone(), &[gone]);
    check(&ask_udp(server.udp, "example.org.").await, ResponseCode::ServFail, &[]);
}

#[tokio::test]
async fn the_next_upstream_is_asked_when_one_fails() {
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let upstream = start(outside(), &[]);
    let server = start(zone(), &[gone, upstream.udp]);
    let answer = ask_udp(server.udp, "web.shop.svc.example.org.").await;
    check(&answer, ResponseCode::NoError, &["web.shop.svc.example.org. 192.0.2.1"]);
}

#[tokio::test]
async fn noise_on_a_connection_ends_it_and_not_the_server() {
    let server = start(zone(), &[]);
    let mut noise = TcpStream::connect(server.tcp).await.unwrap();
    write_framed(&mut noise, b"noise").await.unwrap();
    assert_eq!(noise.read(&mut [0; 8]).await.unwrap(), 0);
    let mut stream = TcpStream::connect(server.tcp).await.unwrap();
    let answer = ask_tcp(&mut stream, "single.shop.svc.cluster.local.").await;
    check(&answer, ResponseCode::NoError, &["single.shop.svc.cluster.local. 10.96.0.21"]);
}

#[tokio::test]
async fn a_port_in_use_says_which() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = listen_tcp(address).unwrap_err();
    let expected = format!(
        "cluster DNS cannot listen on {address} (tcp): stop what uses that port, or set another address"
    );
    assert_eq!(error.to_string(), expected);
}
