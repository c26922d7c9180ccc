//! How connections end, and how a slow reader holds its writer.

use crate::world::{PATIENCE, Pod, World, on_node, until};
use ambit_runtime::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A connection between two pods, both ends.
async fn pair(from: &Pod, to: &Pod) -> (TcpStream, TcpStream) {
    let listener = to.listen(8080).await;
    let (client, accepted) = tokio::join!(from.connect(to.at(8080)), listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

async fn ends_are_relayed(mut client: TcpStream, mut server: TcpStream) {
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, server.read_to_string(&mut text)).await.unwrap().unwrap();
    assert_eq!(text, "question");
    // The other direction is still open.
    server.write_all(b"answer").await.unwrap();
    server.shutdown().await.unwrap();
    text.clear();
    tokio::time::timeout(PATIENCE, client.read_to_string(&mut text)).await.unwrap().unwrap();
    assert_eq!(text, "answer");
}

async fn resets_are_relayed(mut client: TcpStream, server: TcpStream) {
    ambit_linux::socket::reset_on_close(&server).unwrap();
    drop(server);
    let ended = tokio::time::timeout(PATIENCE, client.read_u8()).await.unwrap();
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn half_closes_and_resets_are_relayed() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let plain = Pod::new("c", "outside", 13);
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        for (from, to) in [(&a, &b), (&plain, &b), (&a, &plain)] {
            let (client, server) = pair(from, to).await;
            ends_are_relayed(client, server).await;
            let (client, server) = pair(from, to).await;
            resets_are_relayed(client, server).await;
            let (client, server) = pair(from, to).await;
            resets_are_relayed(server, client).await;
        }
        world.stop().await;
    });
}

/// What the kernel may buffer on the four sockets of the path, at its default limits of 4 and 6 MiB, and our windows.
const UNDER_WAY_BYTES_MAX: usize = 2 * (4 + 6) * (1 << 20) + 5 * (1 << 20);
const SENT_BYTES: usize = 2 * UNDER_WAY_BYTES_MAX;
/// The writer counts as stalled when it has not got a byte away for so long.
const STALLED: Duration = Duration::from_millis(500);

#[test]
fn inv_07_a_slow_reader_stalls_its_writer() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        // Both directions, one after the other: each side's proxy reads from a socket, and from a tunnel.
        let (client, server) = pair(&a, &b).await;
        stalls(client, server).await;
        let (client, server) = pair(&a, &b).await;
        stalls(server, client).await;
        world.stop().await;
    });
}

async fn stalls(mut writer: TcpStream, mut reader: TcpStream) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    let writing = tokio::spawn(async move {
        let chunk = vec![7; 64 * 1024];
        let mut left = SENT_BYTES;
        while left > 0 {
            let length = writer.write(&chunk[..left.min(chunk.len())]).await.unwrap();
            left -= length;
            counter.fetch_add(length, Ordering::Relaxed);
        }
        writer.shutdown().await.unwrap();
    });
    let (mut last, mut since) = (0, Clock.now());
    let stalled = until("the writer stalls", || {
        let now = sent.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Clock.now());
        }
        let stalled = now > 0 && Clock.now() - since > STALLED;
        async move { stalled.then_some(now) }
    })
    .await;
    assert!(stalled < UNDER_WAY_BYTES_MAX, "{stalled} bytes are under way");
    let (mut received, mut buffer) = (0, vec![0; 256 * 1024]);
    loop {
        match tokio::time::timeout(PATIENCE, reader.read(&mut buffer)).await.expect("it must go on").unwrap()
        {
            0 => break,
            length => received += length,
        }
    }
    assert_eq!(received, SENT_BYTES);
    writing.await.unwrap();
}
