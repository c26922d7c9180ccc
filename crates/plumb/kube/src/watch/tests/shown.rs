//! What an informer shows besides its objects.

use super::{Answer, PATIENCE, added, client, end, event, object, respond};
use crate::{InformerMetrics, Informers, Query};
use ambit_api::core::v1::ConfigMap;
use ambit_runtime::Shutdown;
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use kube::api::DynamicObject;
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

#[tokio::test]
async fn an_object_that_cannot_be_read_is_named_until_it_can_be_or_has_gone() {
    let bad = |name: &str, revision| {
        let mut object = object(name, revision);
        object["data"] = json!("not a map");
        event("MODIFIED", &object)
    };
    let (push, lines) = mpsc::unbounded_channel::<Vec<Value>>();
    let lines = Mutex::new(Some(lines));
    let informers = Informers::new(client(move |shown| {
        assert_eq!(shown, "stream");
        Some(Answer::Pushed(lines.lock().expect("nothing panics").take().expect("it is asked once")))
    }));
    let view = informers.informer::<ConfigMap>(Query::all());
    let stop = Shutdown::new();
    push.send(vec![added("a", 1), bad("b", 2), bad("c", 2), end(5)]).expect("it is read");
    let synced = tokio::time::timeout(PATIENCE, informers.run_and_wait(&stop)).await;
    synced.expect("it syncs in time").expect("it syncs");
    let named = || view.synced().unreadable().into_iter().map(|(key, _)| key.name).collect::<Vec<_>>();
    assert_eq!((named(), view.count()), (vec!["b".to_owned(), "c".to_owned()], 1));
    let cause = &view.synced().unreadable()[0].1;
    assert!(cause.contains("invalid type"), "{cause}");
    push.send(vec![bad("a", 6), added("b", 7), event("DELETED", &object("c", 8))]).expect("it is read");
    let settled = async {
        while named() != ["a"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("only a is unreadable");
    // Its last good version stays.
    let revision =
        |name: &str| view.get(Some("n"), name).and_then(|map| map.metadata.resource_version.clone());
    assert_eq!((revision("a").as_deref(), revision("b").as_deref()), (Some("1"), Some("7")));
    stop.cancel();
    informers.join().await.expect("no panic");
}

/// A server that knows a kind once its definition is there, and lets only some read definitions.
fn server_of_gadgets(
    may_read: bool,
    is_defined: watch::Receiver<bool>,
    looks: Arc<AtomicUsize>,
) -> kube::Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let of_definitions = request.uri().path().ends_with("/customresourcedefinitions");
        let mut is_defined = is_defined.clone();
        let answer = if of_definitions && may_read {
            let definition = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": "gadgets.test", "uid": "x", "resourceVersion": "7"}});
            let later = async move {
                is_defined.wait_for(|is_defined| *is_defined).await.expect("the test lives");
                let line = event("ADDED", &definition);
                Ok(Frame::data(Bytes::from(format!("{line}\n"))))
            };
            let state = Frame::data(Bytes::from(format!("{}\n", end(5))));
            let lines = futures::stream::iter([Ok(state)]).chain(futures::stream::once(later));
            Response::new(StreamBody::new(lines.chain(futures::stream::pending()).boxed()))
        } else if of_definitions {
            respond(Answer::Status(403))
        } else {
            looks.fetch_add(1, Ordering::SeqCst);
            let state = || Answer::Open(vec![added("g", 8), end(9)]);
            respond(if *is_defined.borrow() { state() } else { Answer::Status(404) })
        };
        async move { Ok::<_, Infallible>(answer) }
    });
    kube::Client::new(service, "default")
}

#[tokio::test]
async fn a_kind_is_looked_for_when_its_definition_comes_or_now_and_then_where_that_is_not_told() {
    for may_read in [true, false] {
        let (define, is_defined) = watch::channel(false);
        let looks = Arc::new(AtomicUsize::new(0));
        let informers = Informers::new(server_of_gadgets(may_read, is_defined, looks.clone()));
        let kind =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("test", "v1", "Gadget"), "gadgets");
        let gadgets = informers.informer_of::<DynamicObject>(kind, Query::all());
        let stop = Shutdown::new();
        let eventually = async |condition: &dyn Fn() -> bool| {
            let met = async {
                while !condition() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, met).await.expect("it comes in time");
        };
        informers.run_and_wait(&stop).await.expect("an absent kind counts as synced");
        assert!(gadgets.synced().is_absent());
        // Until it is known whether definitions are told, it is looked for.
        eventually(&|| looks.load(Ordering::SeqCst) >= 2).await;
        define.send_replace(true);
        eventually(&|| gadgets.get(Some("n"), "g").is_some()).await;
        assert!(!gadgets.synced().is_absent());
        stop.cancel();
        informers.join().await.expect("no panic");
    }
}

#[tokio::test]
async fn metrics_tell_of_each_informer_and_name_what_cannot_be_read() {
    let mut unreadable = object("b", 2);
    unreadable["data"] = json!("not a map");
    let mut script = vec![Answer::Open(vec![added("a", 1), event("ADDED", &unreadable), end(5)])].into_iter();
    let metrics = InformerMetrics::default();
    let informers = Informers::new(client(move |_| script.next())).measured_by(&metrics);
    informers.informer::<ConfigMap>(Query::all().labels("x=y").fields("metadata.name!=z"));
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let text = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("it encodes");
        text
    };
    let of = r#"{path="/api/v1/configmaps",selector="x=y;metadata.name!=z"}"#;
    assert!(text().contains(&format!("informer_not_synced{of} 1\n")), "{}", text());
    let stop = Shutdown::new();
    informers.run_and_wait(&stop).await.expect("it syncs");
    for (name, value) in [("objects", 1), ("not_synced", 0), ("in_trouble", 0), ("unreadable", 1)] {
        assert!(text().contains(&format!("informer_{name}{of} {value}\n")), "{}", text());
    }
    let named = r#"informer_unreadable_object{path="/api/v1/configmaps",object="n/b"} 1"#;
    assert!(text().contains(named), "{}", text());
    stop.cancel();
    informers.join().await.expect("no panic");
    drop(informers);
    assert!(!text().contains("configmaps"), "{}", text());
}
