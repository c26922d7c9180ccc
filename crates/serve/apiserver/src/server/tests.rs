use super::*;
use futures::StreamExt as _;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn server() -> (Service, Shutdown) {
    let settings = Settings {
        storage: Storage::Memory,
        listen: None,
        advertise: None,
        pki: ClusterPki::in_memory(&[]).unwrap(),
        service_cidr: "10.96.0.0/16".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
    };
    let service = ApiServer::open(settings).await.unwrap().service;
    let stopping = service.stopping.clone();
    (service, stopping)
}

async fn send(
    service: &Service,
    method: &str,
    path: &str,
    body: &Value,
) -> http::Response<crate::answer::Body> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(http_body_util::Full::new(bytes::Bytes::from(text))).unwrap();
    service.serve(Peer::InProcess(User::new("admin", ["system:masters"])), request).await
}

async fn value(response: http::Response<crate::answer::Body>) -> Value {
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

async fn create(service: &Service, name: &str) -> u64 {
    let made = send(service, "POST", MAPS, &json!({"metadata": {"name": name, "labels": {"l": "m"}}})).await;
    assert_eq!(made.status(), StatusCode::CREATED);
    value(made).await["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// The (type, name or code) of the events of a body, until it ends.
async fn events(response: http::Response<crate::answer::Body>) -> Vec<(String, String)> {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let event = |event: serde_json::Result<Value>| {
        let event = event.unwrap();
        let object = &event["object"];
        let what = object["metadata"]["name"].as_str().map_or(object["code"].to_string(), str::to_owned);
        (event["type"].as_str().unwrap().to_owned(), what)
    };
    serde_json::Deserializer::from_slice(&bytes).into_iter().map(event).collect()
}

#[tokio::test]
async fn history_that_is_forgotten_is_answered_with_410() {
    let (service, _) = server().await;
    let first = create(&service, "a").await;
    let page = value(send(&service, "GET", &format!("{MAPS}?limit=1"), &Value::Null).await).await;
    assert_eq!(page["metadata"].get("continue"), None, "one object fits in one page");
    create(&service, "b").await;
    let page = value(send(&service, "GET", &format!("{MAPS}?limit=1"), &Value::Null).await).await;
    let token = page["metadata"]["continue"].as_str().unwrap();
    let last = create(&service, "c").await;
    service.cluster.db.compact(last);
    let expired =
        value(send(&service, "GET", &format!("{MAPS}?limit=1&continue={token}"), &Value::Null).await).await;
    assert_eq!((expired["code"].as_u64(), &expired["reason"]), (Some(410), &json!("Expired")));
    let exact = format!("{MAPS}?resourceVersion={first}&resourceVersionMatch=Exact");
    assert_eq!(send(&service, "GET", &exact, &Value::Null).await.status(), StatusCode::GONE);
    let old = send(&service, "GET", &format!("{MAPS}?watch=1&resourceVersion={first}"), &Value::Null).await;
    assert_eq!(events(old).await, [("ERROR".to_owned(), "410".to_owned())]);
    let new = send(
        &service,
        "GET",
        &format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={last}"),
        &Value::Null,
    )
    .await;
    assert_eq!(events(new).await, []);
}

/// INV-07, for watches: a client that does not read costs no memory and is told at the end; others are not held up.
#[tokio::test]
async fn inv_07_a_watcher_that_does_not_read_is_ended_and_holds_up_nobody() {
    let (service, _) = server().await;
    let start = create(&service, "first").await;
    let watch = format!("{MAPS}?watch=1&timeoutSeconds=30&resourceVersion={start}");
    let (slow, quick) = (
        send(&service, "GET", &watch, &Value::Null).await,
        send(&service, "GET", &watch, &Value::Null).await,
    );
    let mut quick = quick.into_body().into_data_stream();
    for i in 0..5 {
        let revision = create(&service, &format!("m{i}")).await;
        let chunk = quick.next().await.unwrap().unwrap();
        assert!(String::from_utf8_lossy(&chunk).contains(&format!("\"m{i}\"")));
        service.cluster.db.compact(revision);
    }
    assert_eq!(events(slow).await, [("ERROR".to_owned(), "410".to_owned())]);
}

#[tokio::test]
async fn watches_end_when_the_server_stops() {
    let (service, stopping) = server().await;
    let start = create(&service, "a").await;
    let watch = send(&service, "GET", &format!("{MAPS}?watch=1&resourceVersion={start}"), &Value::Null).await;
    stopping.cancel();
    assert_eq!(events(watch).await, []);
}

#[tokio::test]
async fn all_watchers_of_a_write_share_its_encoding() {
    let (service, _) = server().await;
    let start = create(&service, "a").await;
    let watch = format!("{MAPS}?watch=1&labelSelector=l%3Dm&resourceVersion={start}");
    let mut bodies = Vec::new();
    for _ in 0..2 {
        bodies.push(send(&service, "GET", &watch, &Value::Null).await.into_body().into_data_stream());
    }
    create(&service, "b").await;
    for body in &mut bodies {
        assert!(body.next().await.unwrap().unwrap().starts_with(b"{\"type\":\"ADDED\""));
    }
    let (events, _) = service.cluster.db.events("configmaps", start, 10).unwrap();
    let made_anew = std::cell::Cell::new(false);
    let line = events[0].cache.line(0, || {
        made_anew.set(true);
        bytes::Bytes::new()
    });
    assert!(!made_anew.get() && line.starts_with(b"{\"type\":\"ADDED\""));
}

#[tokio::test]
async fn old_events_go_and_young_ones_stay() {
    let (service, _) = server().await;
    for (name, last) in [("old", "2020-01-01T00:00:00Z"), ("young", "2999-01-01T00:00:00Z")] {
        let event = json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default"}, "lastTimestamp": last});
        let made = send(&service, "POST", "/api/v1/namespaces/default/events", &event).await;
        assert_eq!(made.status(), StatusCode::CREATED);
    }
    crate::delete::expire_events(&service.cluster, EVENT_AGE).await;
    let left = value(send(&service, "GET", "/api/v1/events", &Value::Null).await).await;
    let names: Vec<_> =
        left["items"].as_array().unwrap().iter().map(|e| e["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["young"]);
}
