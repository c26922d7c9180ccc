//! Events against the real server.

use crate::cluster::Cluster;
use ambit_api::core::v1::{Event, ObjectReference};
use ambit_kube::{EventRecorder, EventType};
use ambit_runtime::Shutdown;
use kube::api::ListParams;

#[tokio::test]
async fn repeated_events_count_in_one_object_and_what_waits_is_written_at_the_end() {
    let cluster = Cluster::bare().await;
    let recorder = EventRecorder::new(cluster.client.clone(), "tester", None);
    let about = |name: &str| ObjectReference {
        kind: Some("ConfigMap".to_owned()),
        namespace: Some("default".to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    };
    for _ in 0..40 {
        recorder.record(&about("a"), EventType::Warning, "Tested", "again");
    }
    recorder.record(&about("b"), EventType::Normal, "Tested", "once");
    // Stopped before it runs: everything that waits is flushed.
    let stop = Shutdown::new();
    stop.cancel();
    recorder.run(&stop).await;
    let events = cluster.api::<Event>("default");
    let mut seen: Vec<(String, i32)> = events
        .list(&ListParams::default())
        .await
        .expect("a list")
        .items
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some("Tested"))
        .map(|event| (event.involved_object.name.unwrap_or_default(), event.count.unwrap_or_default()))
        .collect();
    seen.sort();
    assert_eq!(seen, [("a".to_owned(), 25), ("b".to_owned(), 1)]);
    cluster.stop().await;
}
