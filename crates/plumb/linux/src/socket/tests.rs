use super::*;
use std::io::Read as _;

const MARK: u32 = ambit_names::mark::PROXY;
const KEEPALIVE: Keepalive =
    Keepalive { time: Duration::from_secs(180), interval: Duration::from_secs(30), retries: 9 };

fn namespace() -> Arc<NetNs> {
    Arc::new(NetNs::create_private().expect("tests of this room run as root"))
}

#[tokio::test]
async fn sockets_live_in_the_namespace_they_were_made_in() {
    let thread = SocketThread::start().unwrap();
    let (a, b) = (namespace(), namespace());
    let on = |ns: Arc<NetNs>| {
        let thread = thread.clone();
        async move {
            thread
                .run(&ns, || listen("127.0.0.1:15001".parse().unwrap(), MARK, Transparency::BestEffort))
                .await
        }
    };
    let (first, second) = (on(a.clone()).await.unwrap(), on(b).await.unwrap());
    assert!(first.transparent && second.transparent);
    // A second process of the same user may listen beside the first.
    on(a.clone()).await.unwrap();
    let outside = std::net::TcpStream::connect("127.0.0.1:15001");
    assert!(outside.is_err(), "the socket must not be visible outside");
    a.run(|| std::net::TcpStream::connect("127.0.0.1:15001")).unwrap().unwrap();
}

#[tokio::test]
async fn a_failing_maker_reports_its_error_and_the_thread_goes_on() {
    let thread = SocketThread::start().unwrap();
    let ns = namespace();
    let foreign: SocketAddr = "192.0.2.1:80".parse().unwrap();
    let refused = thread.run(&ns, move || listen(foreign, MARK, Transparency::Off)).await;
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    let marked = thread
        .run(&ns, move || {
            let socket = outgoing(foreign, MARK, Some(KEEPALIVE))?;
            let options = SockRef::from(&socket);
            Ok((options.mark()?, options.tcp_nodelay()?, options.tcp_keepalive_time()?))
        })
        .await;
    assert_eq!(marked.unwrap(), (MARK, true, KEEPALIVE.time));
}

#[test]
fn a_foreign_source_address_can_be_taken() {
    let addresses = ["192.0.2.7", "2001:db8::7"];
    namespace()
        .run(|| {
            for source in addresses {
                let source: IpAddr = source.parse().unwrap();
                let socket = outgoing(SocketAddr::new(source, 80), MARK, None).unwrap();
                spoof_source(&socket, source).unwrap();
                assert_eq!(socket.local_addr().unwrap().ip(), source);
            }
        })
        .unwrap();
}

#[test]
fn an_unredirected_connection_has_no_original_destination_and_can_be_reset() {
    namespace()
        .run(|| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            prepare_accepted(&server, Some(KEEPALIVE)).unwrap();
            assert_eq!(original_destination(&server), None);
            reset_on_close(&server).unwrap();
            drop(server);
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        })
        .unwrap();
}

#[test]
fn addresses_are_made_canonical() {
    let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().unwrap();
    assert_eq!(canonical(mapped), "10.0.0.1:80".parse().unwrap());
    assert_eq!(wildcard(1, true), "[::]:1".parse().unwrap());
    assert_eq!(wildcard(1, false), "0.0.0.0:1".parse().unwrap());
}
