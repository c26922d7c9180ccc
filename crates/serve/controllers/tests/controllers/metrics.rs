//! The numbers of the controllers' queues.

use crate::cluster::{Cluster, eventually};
use ambit_controllers::Settings;
use ambit_runtime::{Readiness, Shutdown};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn read_metrics(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test]
async fn the_queues_show_what_they_did_and_a_taken_address_is_an_error() {
    let cluster = Cluster::bare().await;
    // Nobody else asks for the port in the moment between.
    let probe = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = probe.local_addr().expect("it has one");
    let settings = Settings { metrics: Some(address), ..Settings::default() };
    let run = |stop: Shutdown| {
        ambit_controllers::run(settings.clone(), cluster.client.clone(), Readiness::default(), stop)
    };
    let error = run(Shutdown::new()).await.expect_err("the address is taken");
    assert_eq!(error.to_string(), format!("cannot serve metrics on {address}"));
    drop(probe);
    let stop = Shutdown::new();
    let task = tokio::spawn(run(stop.clone()));
    // Each of the server's own namespaces is handled at least once.
    let text = eventually("the namespaces are counted", async || {
        let text = read_metrics(address).await?;
        let handled = |line: &str| {
            let count =
                line.strip_prefix("workqueue_work_duration_seconds_count{name=\"namespace defaults\"} ");
            count.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count >= 4)
        };
        text.lines().any(handled).then_some(text)
    })
    .await;
    for metric in ["workqueue_adds_total{", "workqueue_depth{", "workqueue_queue_duration_seconds_count{"] {
        assert!(text.contains(&format!("{metric}name=\"namespace defaults\"")), "{metric}: {text}");
    }
    // The default account of each.
    let path = "/api/v1/serviceaccounts";
    let informer = format!("informer_objects{{path=\"{path}\",selector=\"metadata.name=default\"}} ");
    assert!(text.contains(&informer), "{text}");
    stop.cancel();
    task.await.expect("no panic").expect("the controllers end");
    cluster.stop().await;
}
