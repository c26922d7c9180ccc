//! Faults of the transport and of the server, scripted: what a healthy server does is tested against the real one.

mod shown;
mod streamed;

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
    /// The first page of a list.
    Page(Value),
    /// A watch with these lines that then ends.
    Ended(Vec<Value>),
    /// A watch with these lines that then breaks in the middle of a line.
    Broken(Vec<Value>),
    /// A watch with these lines that stays open.
    Open(Vec<Value>),
    /// A watch that stays open, with the lines that a test sends.
    Pushed(mpsc::UnboundedReceiver<Vec<Value>>),
    /// A refusal.
    Status(u16),
    /// A refusal that says in how many seconds to come back.
    Busy(u16, u32),
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
    let retry_after = if let Answer::Busy(_, seconds) = answer { Some(seconds) } else { None };
    let (code, body): (u16, Frames) = match answer {
        Answer::List(revision, items) => {
            let list = json!({"metadata": {"resourceVersion": revision.to_string()}, "items": items});
            (200, once(list.to_string()))
        }
        Answer::Page(items) => {
            let list = json!({"metadata": {"resourceVersion": "5", "continue": "more"}, "items": items});
            (200, once(list.to_string()))
        }
        Answer::Ended(events) => (200, once(lines(events))),
        Answer::Broken(events) => {
            let cut = futures::stream::once(async { Err(std::io::Error::other("connection reset")) });
            (200, once(lines(events) + "{\"type\":\"AD").chain(cut).boxed())
        }
        Answer::Pushed(pushed) => {
            let chunks = futures::stream::unfold(pushed, move |mut pushed| async move {
                let frame = Frame::data(Bytes::from(lines(pushed.recv().await?)));
                Some((Ok(frame), pushed))
            });
            (200, chunks.boxed())
        }
        Answer::Open(events) => (200, once(lines(events)).chain(futures::stream::pending()).boxed()),
        Answer::Status(code) | Answer::Busy(code, _) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "scripted", "reason": "Scripted", "code": code});
            (code, once(status.to_string()))
        }
    };
    let mut response = Response::builder().status(code).header("content-type", "application/json");
    if let Some(seconds) = retry_after {
        response = response.header("retry-after", seconds);
    }
    response.body(StreamBody::new(body)).expect("a response")
}

/// The bookmark at the end of a streamed state.
fn end(revision: u32) -> Value {
    json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "resourceVersion": revision.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}}}})
}

fn added(name: &str, revision: u32) -> Value {
    event("ADDED", &object(name, revision))
}

/// A client of a server that answers what `answer` says, and nothing when it says nothing. Requests are shown as
/// `stream`, `list`, `more` (the next page), `probe` (one object at most) and `watch REVISION`.
fn client(answer: impl FnMut(&str) -> Option<Answer> + Send + 'static) -> kube::Client {
    let answer = Arc::new(Mutex::new(answer));
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name));
        let shown = match (parameter("watch="), parameter("continue="), parameter("limit=")) {
            (Some(_), ..) if parameter("sendInitialEvents=").is_some() => {
                assert_eq!(parameter("resourceVersionMatch="), Some("NotOlderThan"));
                "stream".to_owned()
            }
            (Some(_), ..) => format!("watch {}", parameter("resourceVersion=").unwrap_or_default()),
            (_, Some(_), _) => "more".to_owned(),
            (.., Some("1")) => "probe".to_owned(),
            _ => "list".to_owned(),
        };
        let answer = (answer.lock().expect("no script panics"))(&shown);
        async move {
            match answer {
                Some(answer) => Ok::<_, Infallible>(respond(answer)),
                None => futures::future::pending().await,
            }
        }
    });
    kube::Client::new(service, "default")
}

/// [`check_streaming`] on a server that does not stream; that it is asked to once is not shown.
async fn check(mut script: Vec<Answer>, changes: &[&str], requests: &[&str]) {
    script.insert(0, Answer::Status(422));
    check_streaming(script, changes, &[&["stream"], requests].concat()).await;
}

/// Runs an informer against the script until it has reported `expected` and asked for everything in the script.
async fn check_streaming(script: Vec<Answer>, expected_changes: &[&str], expected_requests: &[&str]) {
    let mut script = VecDeque::from(script);
    let (asked, mut requests) = mpsc::unbounded_channel();
    let informers = Informers::new(client(move |shown| {
        let _ = asked.send(shown.to_owned());
        script.pop_front()
    }));
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
        Answer::List(7, json!([])),
        Answer::Open(vec![event("MODIFIED", &object("b", 8))]),
    ];
    check(script, &["+n/a", "+n/b", "-n/a", "~n/b"], &["list", "watch 5", "probe", "watch 7"]).await;
}

#[tokio::test]
async fn a_watch_that_breaks_is_resumed_after_the_last_whole_event() {
    let script = vec![
        Answer::List(5, json!([])),
        Answer::Broken(vec![event("ADDED", &object("a", 6))]),
        Answer::List(6, json!([])),
        Answer::Open(vec![event("ADDED", &object("b", 7))]),
    ];
    check(script, &["+n/a", "+n/b"], &["list", "watch 5", "probe", "watch 6"]).await;
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
        Answer::List(7, json!([])),
        Answer::Status(410),
        Answer::List(9, json!([replaced, unreadable])),
        Answer::Open(vec![event("DELETED", &unreadable)]),
    ];
    let requests = ["list", "watch 5", "probe", "watch 7", "list", "watch 9"];
    check(script, &["+n/a", "+n/b", "-n/a", "+n/a", "-n/b"], &requests).await;
}

#[tokio::test]
async fn asking_twice_shares_and_stopping_early_says_what_was_missing() {
    let informers = Informers::new(client(|_| None));
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
    let informers = Informers::new(client(|_| Some(Answer::Status(500))));
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
    assert!(waiting_for.starts_with("/api/v1/configmaps (the server refused: "), "{waiting_for}");
    informers.join().await.expect("no panic");
}

#[tokio::test]
async fn a_restored_server_is_listed_anew_even_if_it_lets_us_watch_from_its_future() {
    let lost = [Answer::Broken(vec![]), Answer::Ended(vec![event("ADDED", &object("c", 901))])];
    for (lost, seen) in lost.into_iter().zip([vec![], vec!["+n/c"]]) {
        let script = vec![
            Answer::List(900, json!([object("a", 1), object("b", 800)])),
            lost,
            Answer::List(500, json!([object("a", 1)])),
            Answer::List(501, json!([object("a", 1)])),
            Answer::Open(vec![event("ADDED", &object("d", 502))]),
        ];
        let gone = if seen.is_empty() { vec!["-n/b"] } else { vec!["-n/b", "-n/c"] };
        let changes = [vec!["+n/a", "+n/b"], seen, gone, vec!["+n/d"]].concat();
        check(script, &changes, &["list", "watch 900", "probe", "list", "watch 501"]).await;
    }
}

#[tokio::test]
async fn an_object_that_differs_under_the_same_revision_is_told() {
    let with = |value: &str| {
        let mut object = object("a", 5);
        object["data"] = json!({"k": value});
        object
    };
    let typed = |mut object: Value| {
        (object["apiVersion"], object["kind"]) = ("v1".into(), "ConfigMap".into());
        object
    };
    let script = vec![
        Answer::List(5, json!([with("before")])),
        Answer::Status(410),
        Answer::List(5, json!([typed(with("before"))])),
        Answer::Status(410),
        Answer::List(5, json!([with("after")])),
        Answer::Open(vec![event("ADDED", &object("z", 6))]),
    ];
    let requests = ["list", "watch 5", "list", "watch 5", "list", "watch 5"];
    check(script, &["+n/a", "~n/a", "+n/z"], &requests).await;
}

#[tokio::test]
async fn a_list_that_expires_between_its_pages_is_asked_for_whole() {
    let script = vec![
        Answer::Page(json!([object("a", 1)])),
        Answer::Status(410),
        Answer::List(9, json!([object("b", 8)])),
        Answer::Open(vec![]),
    ];
    check(script, &["+n/b"], &["list", "more", "list", "watch 9"]).await;
}

/// Requests within a second to a server that lists well and answers each watch by `watch`.
async fn requests_in_a_second(watch: fn() -> Answer) -> usize {
    let count = Arc::new(Mutex::new(0));
    let counted = count.clone();
    let informers = Informers::new(client(move |shown| {
        *counted.lock().expect("nothing panics") += 1;
        Some(match shown {
            "stream" => Answer::Status(422),
            "list" | "probe" => Answer::List(5, json!([object("a", 1)])),
            _ => watch(),
        })
    }));
    informers.informer::<ConfigMap>(Query::all());
    let stop = Shutdown::new();
    let synced = tokio::time::timeout(PATIENCE, informers.run_and_wait(&stop)).await;
    synced.expect("it syncs in time").expect("it syncs");
    // A span to count in, not a wait for anything: a slow machine only counts less.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.cancel();
    informers.join().await.expect("no panic");
    *count.lock().expect("nothing panics")
}

#[tokio::test]
async fn a_server_that_lists_but_never_lets_us_watch_is_not_asked_without_a_pause() {
    let watches: [(fn() -> Answer, usize); 9] = [
        // Delays of 50, 100, 200 and 400 ms, with a list, a watch and a probe each at most.
        (|| Answer::Status(410), 16),
        (|| Answer::Status(404), 16),
        (|| Answer::Status(403), 16),
        (|| Answer::Status(401), 16),
        (|| Answer::Status(500), 16),
        (|| Answer::Ended(vec![]), 16),
        (|| Answer::Ended(vec![event("ADDED", &object("a", 5))]), 16),
        // These two say when to come back: after the attempt to stream, the list and the watch there is silence.
        (|| Answer::Busy(429, 60), 3),
        (|| Answer::Busy(503, 60), 3),
    ];
    let counts = watches.map(|(watch, most)| async move { (requests_in_a_second(watch).await, most) });
    for (number, (count, most)) in futures::future::join_all(counts).await.into_iter().enumerate() {
        assert!(count <= most, "case {number}: {count} requests, not {most} at most");
        assert!(count >= 2, "case {number}: {count} requests");
    }
}
