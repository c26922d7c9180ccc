use super::*;
use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Window of the tunnel's streams here, in bytes; less than that of the whole connection.
const WINDOW: u32 = 32 * 1024;
/// A writer that gets no room for so long counts as stalled.
const STALLED: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, accepted) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (near.unwrap(), accepted.unwrap().0)
}

type Stream = (RecvStream, SendStream<Bytes>);

/// Both ends of one CONNECT stream; its connection is driven until the test ends.
async fn tunnel() -> (Stream, Stream) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let mut client = h2::client::Builder::new();
    client.initial_window_size(WINDOW).max_send_buffer_size(crate::tunnel::SEND_BUFFER_BYTES);
    let mut server = h2::server::Builder::new();
    server.initial_window_size(WINDOW).max_send_buffer_size(crate::tunnel::SEND_BUFFER_BYTES);
    let (client, server) =
        tokio::join!(client.handshake::<_, Bytes>(near), server.handshake::<_, Bytes>(far));
    let ((send, connection), mut server) = (client.unwrap(), server.unwrap());
    tokio::spawn(connection);
    let ask = async {
        let mut request = http::Request::new(());
        *request.method_mut() = http::Method::CONNECT;
        *request.uri_mut() = "10.0.0.1:80".parse().unwrap();
        let (response, send) = send.ready().await.unwrap().send_request(request, false).unwrap();
        (response.await.unwrap().into_body(), send)
    };
    let serve = async {
        let (request, mut respond) = server.accept().await.unwrap().unwrap();
        let send = respond.send_response(http::Response::new(()), false).unwrap();
        tokio::spawn(async move { while server.accept().await.is_some() {} });
        (request.into_body(), send)
    };
    tokio::join!(ask, serve)
}

/// Polls until `probe` holds.
async fn until(what: &str, probe: impl Fn() -> bool) {
    let end = ambit_runtime::Clock.now() + PATIENCE;
    while !probe() {
        assert!(ambit_runtime::Clock.now() < end, "in vain: {what}");
        tokio::task::yield_now().await;
    }
}

/// A relay between a socket and a tunnel, as the source's proxy has it, with the far ends of both.
async fn relaying() -> (TcpStream, Stream, Arc<Moved>, tokio::task::JoinHandle<Result<(), RelayError>>) {
    let (app, accepted) = sockets().await;
    let ((receive, send), far) = tunnel().await;
    let moved = Arc::new(Moved::default());
    let counter = moved.clone();
    let task = tokio::spawn(async move {
        let (mut client, mut server) = (End::tcp("client", accepted), End::stream(receive, send));
        relay(&mut client, &mut server, &counter).await
    });
    (app, far, moved, task)
}

#[tokio::test]
async fn inv_07_no_more_is_read_than_the_tunnel_has_room_for() {
    let (mut app, (mut far, _keep), moved, _task) = relaying().await;
    let up = || moved.up.load(Ordering::Relaxed);
    tokio::spawn(async move { while app.write_all(&[7; 16 * 1024]).await.is_ok() {} });
    until("the window is full", || up() == u64::from(WINDOW)).await;
    // All of it arrives, and is read; but the window is not given back.
    let mut arrived = 0;
    while arrived < WINDOW as usize {
        arrived += far.data().await.unwrap().unwrap().len();
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(up(), u64::from(WINDOW), "nothing is taken from the writer without room");
    far.flow_control().release_capacity(arrived).unwrap();
    until("it goes on", || up() == 2 * u64::from(WINDOW)).await;
}

#[tokio::test]
async fn inv_07_the_window_is_given_back_only_for_what_was_written_on() {
    let (app, (_far, mut send), moved, _task) = relaying().await;
    let mut sent = 0_u64;
    loop {
        send.reserve_capacity(16 * 1024);
        let room = match send.capacity() {
            0 => match tokio::time::timeout(STALLED, poll_fn(|cx| send.poll_capacity(cx))).await {
                Ok(room) => room.unwrap().unwrap(),
                // The app reads nothing: the kernel's buffers are full, and so is the window.
                Err(_) => break,
            },
            room => room,
        };
        let length = room.min(16 * 1024);
        send.send_data(Bytes::from(vec![7; length]), false).unwrap();
        sent += length as u64;
        let down = moved.down.load(Ordering::Relaxed);
        assert!(sent - down <= u64::from(WINDOW) + CHUNK_BYTES as u64, "{sent} sent, {down} written on");
    }
    assert!(moved.down.load(Ordering::Relaxed) > 0);
    drop(app);
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let (mut app, (mut far, mut send), _moved, task) = relaying().await;
    app.write_all(b"question").await.unwrap();
    app.shutdown().await.unwrap();
    let mut text = BytesMut::new();
    while let Some(chunk) = far.data().await {
        text.extend_from_slice(&chunk.unwrap());
    }
    assert_eq!(text, "question");
    send.send_data("answer".into(), true).unwrap();
    let mut answer = String::new();
    app.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "answer");
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reset_of_the_stream_ends_an_idle_relay() {
    let (_app, (_far, mut send), _moved, task) = relaying().await;
    send.send_reset(Reason::CANCEL);
    let ended = tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    assert!(matches!(ended, Err(RelayError::Stream(_) | RelayError::Closed)), "{ended:?}");
}

#[tokio::test]
async fn a_broken_socket_ends_the_relay() {
    let (app, _far, _moved, task) = relaying().await;
    ambit_linux::socket::reset_on_close(&app).unwrap();
    drop(app);
    let ended = tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    assert!(matches!(ended, Err(RelayError::Socket { end: "client", .. })), "{ended:?}");
}
