//! Faults of the transport and of the server, scripted: what a healthy server does is tested against the real one.

use crate::{Change, InformerError, Informers, ObjectKey, Query};
use ambit_api::core::v1::ConfigMap;
use ambit_runtime::Shutdown;
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// Long enough for any machine; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the server answers one request.
enum Answer {
    /// A list at this revision.
    List(u32, Value),
    /// A watch with these lines that then ends.
    Ended(Vec<Value>),
    /// A watch with these lines that then breaks in the middle of a line.
    Broken(Vec<Value>),
    /// A watch with these lines that stays open.
    Open(Vec<Value>),
    /// A refusal.
    Status(u16),
}

fn object(name: &str, revision: u32) -> Value {
    json!({"metadata": {"namespace": "n", "name": name, "uid": name, "resourceVersion": revision.to_string()}})
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

type Frames = futures::stream::BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>;

fn respond(answer: Answer) -> Response<StreamBody<Frames>> {
    let lines = |lines: Vec<Value>| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let once = |text: String| {
        let frame = Ok(Frame::data(Bytes::from(text)));
        futures::stream::once(async { frame }).boxed()
    };
    let (code, body): (u16, Frames) = match answer {
        Answer::List(revision, items) => {
            let list = json!({"metadata": {"resourceVersion": revision.to_string()}, "items": items});
            (200, once(list.to_string()))
        }
        Answer::Ended(events) => (200, once(lines(events))),
        Answer::Broken(events) => {
            let cut = futures::stream::once(async { Err(std::io::Error::other("connection reset")) });
            (200, once(lines(events) + "{\"type\":\"AD").chain(cut).boxed())
        }
        Answer::Open(events) => (200, once(lines(events)).chain(futures::stream::pending()).boxed()),
        Answer::Status(code) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "scripted", "reason": "Scripted", "code": code});
            (code, once(status.to_string()))
        }
    };
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(StreamBody::new(body)).expect("a response")
}

/// Runs an informer against the script until it has reported `expected` and asked for everything in the script.
/// Requests are shown as `list` and `watch REVISION`.
async fn check(script: Vec<Answer>, expected_changes: &[&str], expected_requests: &[&str]) {
    let script = Arc::new(Mutex::new(VecDeque::from(script)));
    let (asked, mut requests) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let parameter =
            |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)).map(str::to_owned);
        let shown = match parameter("resourceVersion=") {
            Some(revision) => format!("watch {revision}"),
            None => "list".to_owned(),
        };
        let answer = script.lock().unwrap().pop_front();
        let asked = asked.clone();
        async move {
            let _ = asked.send(shown);
            match answer {
                Some(answer) => Ok::<_, Infallible>(respond(answer)),
                None => futures::future::pending().await,
            }
        }
    });
    let informers = Informers::new(kube::Client::new(service, "default"));
    let informer = informers.informer::<ConfigMap>(Query::all());
    let (reported, mut changes) = mpsc::unbounded_channel();
    informer.on_change(move |change: &Change<ConfigMap>| {
        let sign = match (&change.old, &change.new) {
            (None, _) => '+',
            (_, None) => '-',
            _ => '~',
        };
        let _ = reported.send(format!("{sign}{}", ObjectKey::of(change.latest().as_ref())));
    });
    let stop = Shutdown::new();
    let seen = async {
        informers.run_and_wait(&stop).await.expect("it syncs");
        let (mut seen_changes, mut seen_requests) = (Vec::new(), Vec::new());
        while seen_changes.len() < expected_changes.len() {
            seen_changes.push(changes.recv().await.expect("the informer lives"));
        }
        while seen_requests.len() < expected_requests.len() {
            seen_requests.push(requests.recv().await.expect("the informer lives"));
        }
        (seen_changes, seen_requests)
    };
    let (seen_changes, seen_requests) =
        tokio::time::timeout(PATIENCE, seen).await.expect("everything in time");
    assert_eq!(seen_changes, expected_changes);
    assert_eq!(seen_requests, expected_requests);
    stop.cancel();
    informers.join().await.expect("no panic");
    assert!(changes.try_recv().is_err(), "nothing else was reported");
}

#[tokio::test]
async fn a_watch_that_ends_is_resumed_where_it_was() {
    let script = vec![
        Answer::List(5, json!([object("a", 1)])),
        Answer::Ended(vec![event("ADDED", &object("b", 6)), event("DELETED", &object("a", 7))]),
        Answer::Open(vec![event("MODIFIED", &object("b", 8))]),
    ];
    check(script, &["+n/a", "+n/b", "-n/a", "~n/b"], &["list", "watch 5", "watch 7"]).await;
}

#[tokio::test]
async fn a_watch_that_breaks_is_resumed_after_the_last_whole_event() {
    let script = vec![
        Answer::List(5, json!([])),
        Answer::Broken(vec![event("ADDED", &object("a", 6))]),
        Answer::Open(vec![event("ADDED", &object("b", 7))]),
    ];
    check(script, &["+n/a", "+n/b"], &["list", "watch 5", "watch 6"]).await;
}

#[tokio::test]
async fn an_expired_revision_is_answered_by_a_list_that_reports_every_difference() {
    let gone = json!({"kind": "Status", "code": 410, "message": "too old", "reason": "Expired"});
    let script = vec![
        Answer::List(5, json!([object("a", 1), object("b", 2), object("c", 3)])),
        Answer::Open(vec![event("ERROR", &gone)]),
        Answer::List(90, json!([object("b", 2), object("c", 80), object("d", 81)])),
        Answer::Open(vec![]),
    ];
    let changes = ["+n/a", "+n/b", "+n/c", "-n/a", "~n/c", "+n/d"];
    check(script, &changes, &["list", "watch 5", "list", "watch 90"]).await;
}

#[tokio::test]
async fn an_expired_revision_may_also_refuse_the_request() {
    let script = vec![
        Answer::List(5, json!([object("a", 1)])),
        Answer::Status(410),
        Answer::List(90, json!([])),
        Answer::Open(vec![]),
    ];
    check(script, &["+n/a", "-n/a"], &["list", "watch 5", "list", "watch 90"]).await;
}

#[tokio::test]
async fn a_server_that_lost_its_store_is_listed_anew() {
    let script = vec![
        Answer::List(5, json!([object("a", 1)])),
        Answer::Status(504),
        Answer::Status(504),
        Answer::Status(504),
        Answer::List(2, json!([object("z", 1)])),
        Answer::Open(vec![]),
    ];
    let requests = ["list", "watch 5", "watch 5", "watch 5", "list", "watch 2"];
    check(script, &["+n/a", "-n/a", "+n/z"], &requests).await;
}

#[tokio::test]
async fn a_kind_that_does_not_exist_is_empty_until_it_does() {
    let script = vec![
        Answer::Status(404),
        Answer::List(5, json!([object("a", 1)])),
        Answer::Status(404),
        Answer::Status(404),
        Answer::List(9, json!([])),
        Answer::Open(vec![]),
    ];
    let requests = ["list", "list", "watch 5", "list", "list", "watch 9"];
    check(script, &["+n/a", "-n/a"], &requests).await;
}

#[tokio::test]
async fn a_replaced_object_is_two_changes_and_an_unreadable_one_stays() {
    let mut replaced = object("a", 6);
    replaced["metadata"]["uid"] = json!("another");
    let mut unreadable = object("b", 7);
    unreadable["data"] = json!("not a map");
    let script = vec![
        Answer::List(5, json!([object("a", 1), object("b", 2)])),
        Answer::Ended(vec![event("MODIFIED", &replaced), event("MODIFIED", &unreadable)]),
        Answer::Status(410),
        Answer::List(9, json!([replaced, unreadable])),
        Answer::Open(vec![event("DELETED", &unreadable)]),
    ];
    let requests = ["list", "watch 5", "watch 7", "list", "watch 9"];
    check(script, &["+n/a", "+n/b", "-n/a", "+n/a", "-n/b"], &requests).await;
}

#[tokio::test]
async fn asking_twice_shares_and_stopping_early_says_what_was_missing() {
    let service = tower::service_fn(|_: Request<kube::client::Body>| {
        futures::future::pending::<Result<Response<StreamBody<Frames>>, Infallible>>()
    });
    let informers = Informers::new(kube::Client::new(service, "default"));
    let first = informers.informer::<ConfigMap>(Query::all().namespace("n"));
    let stop = Shutdown::new();
    stop.cancel();
    let InformerError::Stopped { waiting_for } =
        informers.run_and_wait(&stop).await.expect_err("it was stopped")
    else {
        panic!("it did not panic")
    };
    assert_eq!(waiting_for, "/api/v1/namespaces/n/configmaps");
    let second = informers.informer::<ConfigMap>(Query::all().namespace("n"));
    assert!(first.is_same(&second));
    assert!(!first.is_same(&informers.informer::<ConfigMap>(Query::all())));
    informers.join().await.expect("no panic");
}

#[tokio::test]
async fn what_is_missing_says_why() {
    let service = tower::service_fn(|_: Request<kube::client::Body>| async {
        Ok::<_, Infallible>(respond(Answer::Status(500)))
    });
    let informers = Informers::new(kube::Client::new(service, "default"));
    informers.informer::<ConfigMap>(Query::all());
    assert_eq!(informers.missing().len(), 1);
    let stop = Shutdown::new();
    let look = async {
        while informers.missing()[0].trouble().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
    };
    let both = async { tokio::join!(informers.run_and_wait(&stop), look) };
    let (outcome, ()) = tokio::time::timeout(PATIENCE, both).await.expect("the trouble shows");
    let InformerError::Stopped { waiting_for } = outcome.expect_err("it stopped early") else {
        panic!("it stopped")
    };
    assert!(waiting_for.starts_with("/api/v1/configmaps (request failed: "), "{waiting_for}");
    informers.join().await.expect("no panic");
}
