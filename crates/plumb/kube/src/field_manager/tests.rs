//! Which requests are sent, and what their answers mean. What the server does with them is tested against the real one.

use super::*;
use crate::informer::{Informer, Writer};
use crate::leader::Term;
use ambit_api::core::v1::ConfigMap;
use ambit_api::meta::OwnerReference;
use ambit_runtime::{Clock, Shutdown};
use http::{Request, Response};
use kube::client::Body;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Answers by method and object name: code and body.
type Answers = BTreeMap<&'static str, (u16, Value)>;

/// A server that answers by a script and notes what it is asked.
#[derive(Clone, Default)]
struct Server {
    answers: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<String>>>,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn new(answers: impl IntoIterator<Item = (&'static str, u16, Value)>) -> Self {
        let server = Self::default();
        for (request, code, body) in answers {
            server.answer(request, code, body);
        }
        server
    }

    fn answer(&self, request: &'static str, code: u16, body: Value) {
        self.answers.lock().unwrap().insert(request, (code, body));
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.serve(request).await }
        });
        Client::new(service, "default")
    }

    async fn serve(&self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let name = request.uri().path().split('/').skip(6).collect::<Vec<_>>().join("/");
        let line = format!("{} {name}", request.method());
        let forced = request.uri().query().is_some_and(|query| query.contains("force=true"));
        self.asked.lock().unwrap().push(if forced { format!("{line} forced") } else { line.clone() });
        let body = request.into_body().collect_bytes().await?;
        if !body.is_empty() {
            self.bodies.lock().unwrap().push(serde_json::from_slice(&body)?);
        }
        let missing =
            (404, json!({"status": "Failure", "reason": "NotFound", "code": 404, "message": "gone"}));
        let (code, body) = self.answers.lock().unwrap().get(line.as_str()).cloned().unwrap_or(missing);
        Ok(Response::builder().status(code).body(Body::from(body.to_string().into_bytes()))?)
    }

    /// What was asked since the last look.
    #[track_caller]
    fn check(&self, expected: &[&str]) {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        assert_eq!(asked, expected);
    }

    fn last_body(&self) -> Value {
        self.bodies.lock().unwrap().last().cloned().unwrap_or_default()
    }

    fn maps(&self) -> Applier<ConfigMap> {
        FieldManager::new(self.client(), "m").applier()
    }
}

/// The ConfigMap `a` as the server has it, at a version, with this in `data.k`; with what the manager owns, if told.
fn held(version: &str, value: &str, owned: Option<Value>) -> Value {
    let managers = owned.map(|fields| json!([{"manager": "m", "operation": "Apply", "fieldsV1": fields}]));
    json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": version,
        "managedFields": managers}, "data": {"k": value}})
}

fn owns_k() -> Value {
    json!({"f:data": {"f:k": {}}})
}

fn seen(version: &str, value: &str) -> ConfigMap {
    serde_json::from_value(held(version, value, None)).unwrap()
}

fn wanted(value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "n"}, "data": {"k": value}}))
        .unwrap()
}

use OnConflict::{Force, Refuse};
use Written::{Changed, Unchanged};

#[tokio::test]
async fn a_new_object_is_made_once() {
    let server = Server::new([("PATCH a", 201, held("1", "x", Some(owns_k())))]);
    let maps = server.maps();
    assert_eq!(maps.apply(&wanted("x"), None, Refuse).await.unwrap(), Changed);
    server.check(&["GET a", "PATCH a"]);
    let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"},
        "data": {"k": "x"}});
    assert_eq!(server.last_body(), expected);
    assert_eq!(maps.apply(&wanted("x"), Some(&seen("1", "x")), Refuse).await.unwrap(), Unchanged);
    server.check(&[]);
    // The view shows nothing yet: the server is asked, so that one that somebody deleted comes back.
    server.answer("GET a", 200, held("1", "x", Some(owns_k())));
    assert_eq!(maps.apply(&wanted("x"), None, Refuse).await.unwrap(), Unchanged);
    server.check(&["GET a"]);
}

#[tokio::test]
async fn a_restarted_process_reads_and_does_not_write() {
    let server = Server::new([("GET a", 200, held("5", "x", Some(owns_k())))]);
    let maps = server.maps();
    assert_eq!(maps.apply(&wanted("x"), Some(&seen("5", "x")), Refuse).await.unwrap(), Unchanged);
    server.check(&["GET a"]);
    assert_eq!(maps.apply(&wanted("x"), Some(&seen("5", "x")), Refuse).await.unwrap(), Unchanged);
    // Others changed something else: what is owned is known by now.
    assert_eq!(maps.apply(&wanted("x"), Some(&seen("6", "x")), Refuse).await.unwrap(), Unchanged);
    server.check(&[]);
    // An object that was read with its managers says it itself.
    let told: ConfigMap = serde_json::from_value(held("7", "x", Some(owns_k()))).unwrap();
    assert_eq!(server.maps().apply(&wanted("x"), Some(&told), Refuse).await.unwrap(), Unchanged);
    server.check(&[]);
}

#[tokio::test]
async fn what_differs_is_written_and_what_is_not_wanted_any_more_too() {
    let more = json!({"f:data": {"f:k": {}, "f:old": {}}});
    for (owned, value) in [(owns_k(), "edited"), (more, "x"), (json!({}), "x")] {
        let server = Server::new([
            ("GET a", 200, held("5", value, Some(owned))),
            ("PATCH a", 200, held("6", "x", Some(owns_k()))),
        ]);
        let maps = server.maps();
        assert_eq!(maps.apply(&wanted("x"), Some(&seen("5", value)), Refuse).await.unwrap(), Changed);
        server.check(&["GET a", "PATCH a"]);
        assert_eq!(server.last_body()["metadata"]["uid"], "u", "it writes to no other object of the name");
        // The view lags behind.
        assert_eq!(maps.apply(&wanted("x"), Some(&seen("5", value)), Refuse).await.unwrap(), Unchanged);
        server.check(&[]);
        // Something else is wanted: that is written whatever the view shows.
        assert_eq!(maps.apply(&wanted("y"), Some(&seen("5", value)), Force).await.unwrap(), Changed);
        server.check(&["PATCH a forced"]);
    }
}

#[tokio::test]
async fn statuses_are_written_as_such() {
    let owned = json!([{"manager": "m", "operation": "Apply", "subresource": "status",
        "fieldsV1": {"f:status": {"f:phase": {}}}}]);
    let pod = |version: &str, phase: &str| {
        json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": version,
            "managedFields": owned}, "status": {"phase": phase}})
    };
    let server = Server::new([("PATCH a/status", 200, pod("2", "Running"))]);
    let pods: Applier<ambit_api::core::v1::Pod> = FieldManager::new(server.client(), "m").applier();
    let live = serde_json::from_value(pod("1", "Pending")).unwrap();
    let status = json!({"phase": "Running"});
    assert_eq!(pods.apply_status(&live, &status, Refuse).await.unwrap(), Changed);
    server.check(&["PATCH a/status"]);
    let expected = json!({"apiVersion": "v1", "kind": "Pod", "status": status,
        "metadata": {"name": "a", "namespace": "n", "uid": "u"}});
    assert_eq!(server.last_body(), expected);
    let live = serde_json::from_value(pod("3", "Running")).unwrap();
    assert_eq!(pods.apply_status(&live, &status, Refuse).await.unwrap(), Unchanged);
    server.check(&[]);
}

/// How an apply fails when the server answers so.
async fn failure(answer: (u16, Value)) -> WriteError {
    let server =
        Server::new([("GET a", 200, held("5", "edited", Some(owns_k()))), ("PATCH a", answer.0, answer.1)]);
    server.maps().apply(&wanted("x"), Some(&seen("5", "edited")), Refuse).await.unwrap_err()
}

fn refusal(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"status": "Failure", "reason": reason, "code": code, "message": "no"}))
}

#[tokio::test]
async fn refusals_are_told_apart() {
    let (code, mut conflict) = refusal(409, "Conflict");
    conflict["details"] = json!({"causes": [
        {"reason": "FieldManagerConflict", "message": "conflict with \"kubectl\" using v1", "field": ".data.k"},
        {"reason": "FieldManagerConflict", "message": "conflict with \"other\" with subresource \"scale\" using v1", "field": ".data.l"},
    ]});
    let error = failure((code, conflict)).await;
    let expected =
        "cannot apply ConfigMap n/a: .data.k is owned by \"kubectl\", .data.l is owned by \"other\"";
    assert_eq!(error.to_string(), expected);
    let error = failure(refusal(409, "Conflict")).await;
    assert!(matches!(error, WriteError::Stale { source: Some(_), .. }), "{error}");
    let error = failure(refusal(404, "NotFound")).await;
    assert_eq!(error.to_string(), "cannot apply ConfigMap n/a: it is not there");
    let error = failure(refusal(403, "Forbidden")).await;
    assert_eq!(error.to_string(), "cannot apply ConfigMap n/a");
    assert!(error.source().unwrap().to_string().contains("Forbidden"));
}

#[tokio::test]
async fn another_object_of_the_name_is_left_alone() {
    let mut other = held("9", "edited", None);
    other["metadata"]["uid"] = "v".into();
    let server = Server::new([("GET a", 200, other)]);
    let error = server.maps().apply(&wanted("x"), Some(&seen("5", "edited")), Force).await.unwrap_err();
    assert!(matches!(error, WriteError::Stale { source: None, .. }), "{error}");
    server.check(&["GET a"]);
    let unnamed = ConfigMap::default();
    let error = server.maps().apply(&unnamed, None, Force).await.unwrap_err();
    assert!(error.to_string().ends_with("it has no name"), "{error}");
    server.check(&[]);
}

#[tokio::test]
async fn nothing_is_written_after_a_lost_lease() {
    let server = Server::default();
    let term = Term::new("l", Clock.now(), &Shutdown::new());
    let maps: Applier<ConfigMap> = FieldManager::new(term.client(server.client()), "m").applier();
    let error = maps.apply(&wanted("x"), None, Refuse).await.unwrap_err();
    assert!(matches!(error, WriteError::LeaseLost { .. }), "{error}");
    server.check(&["GET a"]);
}

#[tokio::test]
async fn deletions_are_of_what_was_seen() {
    let server = Server::new([("DELETE a", 200, held("5", "x", None))]);
    let maps = server.maps();
    assert_eq!(maps.delete(&seen("5", "x")).await.unwrap(), Changed);
    server.check(&["DELETE a"]);
    assert_eq!(server.last_body()["preconditions"], json!({"uid": "u", "resourceVersion": "5"}));
    server.answer("DELETE a", 404, refusal(404, "NotFound").1);
    assert_eq!(maps.delete(&seen("5", "x")).await.unwrap(), Unchanged);
    server.answer("DELETE a", 409, refusal(409, "Conflict").1);
    assert!(matches!(maps.delete(&seen("5", "x")).await.unwrap_err(), WriteError::Stale { .. }));
}

/// An object of a set or not, as the server has it.
fn member(name: &str, label: &str, owner: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1",
        "labels": {"set": label}, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "o", "uid": owner}],
        "managedFields": [{"manager": "m", "operation": "Apply", "fieldsV1": {"f:metadata": {
            "f:labels": {"f:set": {}},
            "f:ownerReferences": {format!("k:{{\"uid\":\"{owner}\"}}"): {}}}}}]}}))
    .unwrap()
}

fn set() -> ObjectSet {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: "o".into(),
        uid: "o".into(),
        ..OwnerReference::default()
    };
    ObjectSet::labelled("set", "s").in_namespace("n").owned_by(owner)
}

/// A view with these objects, their managers included.
fn view(objects: &[ConfigMap]) -> Informer<ConfigMap> {
    let view = Informer::new("/maps".to_owned());
    for object in objects {
        Writer::of(&view).show(Arc::new(object.clone()));
    }
    view
}

fn named(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map
}

#[tokio::test]
async fn a_set_is_made_to_be_as_wanted() {
    let made = serde_json::to_value(member("new", "s", "o")).unwrap();
    let server = Server::new([("PATCH new", 201, made), ("DELETE old", 200, json!({}))]);
    let maps = server.maps();
    let others = [member("label", "t", "o"), member("owner", "s", "p")];
    let mut going = member("going", "s", "o");
    going.metadata.deletion_timestamp = Some(ambit_api::meta::Time(jiff::Timestamp::UNIX_EPOCH));
    let ours = [member("same", "s", "o"), member("old", "s", "o"), going];
    let view = view(&[&others[..], &ours[..]].concat());
    let kept = maps.keep(&set(), vec![named("same"), named("new")], &view, Refuse).await.unwrap();
    assert_eq!(kept, Kept { changed: 1, unchanged: 1, deleted: 1 });
    server.check(&["GET new", "PATCH new", "DELETE old"]);
    let wanted = &server.bodies.lock().unwrap()[0]["metadata"];
    assert_eq!((&wanted["labels"], &wanted["namespace"]), (&json!({"set": "s"}), &json!("n")));
    assert_eq!(wanted["ownerReferences"][0]["uid"], "o");
}

#[tokio::test]
async fn a_set_loses_nothing_while_something_is_missing_and_takes_nothing_of_others() {
    let server =
        Server::new([("PATCH new", 500, refusal(500, "InternalError").1), ("DELETE old", 200, json!({}))]);
    let maps = server.maps();
    let view = view(&[member("old", "s", "o"), member("theirs", "t", "o")]);
    maps.keep(&set(), vec![named("new")], &view, Refuse).await.unwrap_err();
    server.check(&["GET new", "PATCH new"]);
    let error = maps.keep(&set(), vec![named("theirs")], &view, Refuse).await.unwrap_err();
    let expected = "cannot apply ConfigMap n/theirs: an object of that name exists and is not of the set set=s of Node o";
    assert_eq!(error.to_string(), expected);
    server.check(&[]);
    // One that the view does not show yet.
    server.answer("GET new", 200, serde_json::to_value(member("new", "t", "o")).unwrap());
    let error = maps.keep(&set(), vec![named("new")], &view, Force).await.unwrap_err();
    assert!(matches!(error, WriteError::Taken { .. }), "{error}");
    server.check(&["GET new"]);
    let error = maps.keep(&set(), vec![named("a"), named("a")], &view, Refuse).await.unwrap_err();
    assert!(error.to_string().ends_with("it is wanted twice"), "{error}");
    server.check(&[]);
}

#[tokio::test]
async fn requests_at_once_are_bounded_and_counted() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (current, peak) = (now.clone(), most.clone());
    let service = tower::service_fn(move |_: Request<Body>| {
        let (current, peak) = (current.clone(), peak.clone());
        async move {
            peak.fetch_max(current.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Lets the others come.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            current.fetch_sub(1, Ordering::SeqCst);
            let body = Body::from(held("1", "x", Some(owns_k())).to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::new(body))
        }
    });
    let metrics = WriteMetrics::default();
    let manager = FieldManager::new(Client::new(service, "default"), "m").metrics(&metrics).at_once(2);
    let maps: Applier<ConfigMap> = manager.applier();
    let wants: Vec<ConfigMap> = ["x", "y", "x", "y", "x"].map(wanted).into();
    let writes = wants.iter().map(|wanted| maps.apply(wanted, None, Refuse));
    for outcome in futures::future::join_all(writes).await {
        outcome.unwrap();
    }
    assert_eq!((most.load(Ordering::SeqCst), now.load(Ordering::SeqCst)), (2, 0));
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "ambit_field_manager_requests_total{manager=\"m\",verb=\"read\",outcome=\"done\"} 5",
        "ambit_field_manager_requests_total{manager=\"m\",verb=\"apply\",outcome=\"done\"} 2",
        "ambit_field_manager_unchanged_total{manager=\"m\",verb=\"apply\"} 3",
        "ambit_field_manager_request_duration_seconds_count{manager=\"m\",verb=\"read\"} 5",
        "ambit_field_manager_requests_in_flight{manager=\"m\",verb=\"read\"} 0",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
}
