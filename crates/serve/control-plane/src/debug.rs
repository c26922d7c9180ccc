//! What the collections look like inside, over HTTP beside the metrics.

use ambit_mesh::Mesh;
use ambit_runtime::endpoint::{Answer, Handler, text};
use http::{Method, StatusCode};
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Figures on every collection, as JSON.
const DUMP: &str = "/debug/collections";
/// The picture of the collections, for Graphviz.
const PICTURE: &str = "/debug/collections.dot";
/// Followed by `COLLECTION/KEY`: what the value of a key was computed from, as JSON. A part of the key will do where it
/// fits one key only.
const WHY: &str = "/debug/collections/why/";

const JSON: &str = "application/json";
const DOT: &str = "text/vnd.graphviz; charset=utf-8";

/// Answers what is asked about the collections, and leaves everything else to `others`.
pub(crate) fn beside(others: Handler, mesh: Arc<Mutex<Mesh>>) -> Handler {
    Arc::new(move |method, path| match (method, path.starts_with(DUMP)) {
        (_, false) => others(method, path),
        (&Method::GET, true) => answer(path, &mesh),
        (_, true) => text(StatusCode::METHOD_NOT_ALLOWED, "collections are read with GET\n"),
    })
}

fn answer(path: &str, mesh: &Mutex<Mesh>) -> Answer {
    // An answer is given at once: who asks while a batch is applied asks again.
    let mesh = match mesh.try_lock() {
        Ok(mesh) => mesh,
        Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
        Err(TryLockError::WouldBlock) => {
            return text(StatusCode::SERVICE_UNAVAILABLE, "the collections are being updated: ask again\n");
        }
    };
    match path {
        DUMP => json(&mesh.graph.dump()),
        PICTURE => (StatusCode::OK, DOT, mesh.graph.dump().to_dot()),
        _ => match path.strip_prefix(WHY).and_then(|asked| asked.split_once('/')) {
            Some((collection, key)) => why(&mesh, collection, key),
            None => text(
                StatusCode::NOT_FOUND,
                format!("there are {DUMP}, {PICTURE} and {WHY}COLLECTION/KEY here\n"),
            ),
        },
    }
}

fn why(mesh: &Mesh, collection: &str, key: &str) -> Answer {
    match mesh.graph.why(collection, key) {
        Ok(explanation) => json(&explanation),
        Err(keys) if keys.is_empty() => {
            text(StatusCode::NOT_FOUND, format!("no key of a collection {collection:?} has {key:?} in it\n"))
        }
        Err(keys) => {
            let list = keys.join("\n  ");
            text(StatusCode::CONFLICT, format!("{key:?} is in more than one key, among them\n  {list}\n"))
        }
    }
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(body) => (StatusCode::OK, JSON, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambit_collect::Batch;
    use ambit_mesh::{MeshSettings, ObjectName};
    use serde_json::{Value, json};

    fn handler() -> Handler {
        let mut mesh = Mesh::new(MeshSettings::default());
        let mut batch = Batch::new();
        for name in ["web-1", "web-2"] {
            let pod = json!({
                "metadata": {"name": name, "namespace": "demo", "labels": {"app": "web"}},
                "spec": {"containers": []},
                "status": {"podIP": "10.0.0.1"},
            });
            let pod = serde_json::from_value(pod).unwrap();
            batch.set(mesh.inputs.pods, ObjectName::new("demo", name), Arc::new(pod));
        }
        let service = json!({
            "metadata": {"name": "web", "namespace": "demo"},
            "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.1"},
        });
        let service = serde_json::from_value(service).unwrap();
        batch.set(mesh.inputs.services, ObjectName::new("demo", "web"), Arc::new(service));
        mesh.graph.apply(batch);
        beside(Arc::new(|_, path| text(StatusCode::IM_A_TEAPOT, path)), Arc::new(Mutex::new(mesh)))
    }

    #[track_caller]
    fn check(method: &Method, path: &str, status: StatusCode, part: &str) {
        let answer = handler()(method, path);
        assert_eq!(answer.0, status, "{answer:?}");
        assert!(answer.2.contains(part), "{}", answer.2);
    }

    #[test]
    fn the_collections_are_shown_beside_other_endpoints() {
        check(&Method::GET, "/metrics", StatusCode::IM_A_TEAPOT, "/metrics");
        check(&Method::GET, DUMP, StatusCode::OK, r#""name":"pod-workloads""#);
        check(&Method::GET, PICTURE, StatusCode::OK, "digraph");
        check(&Method::POST, DUMP, StatusCode::METHOD_NOT_ALLOWED, "GET");
        check(&Method::GET, "/debug/collections/other", StatusCode::NOT_FOUND, WHY);
        check(&Method::GET, "/debug/collections/why/addresses/web-3", StatusCode::NOT_FOUND, "web-3");
        check(&Method::GET, "/debug/collections/why/addresses/web-", StatusCode::CONFLICT, "Pod/demo/web-2");
    }

    #[test]
    fn a_workload_is_explained_down_to_its_objects() {
        let (status, _, body) = handler()(&Method::GET, "/debug/collections/why/addresses/Pod/demo/web-1");
        assert_eq!(status, StatusCode::OK, "{body}");
        let told: Value = serde_json::from_str(&body).unwrap();
        let workload = &told["because"][0];
        assert_eq!(workload["collection"], "pod-workloads");
        let causes = workload["because"].as_array().unwrap();
        let named: Vec<_> = causes.iter().map(|one| (&one["collection"], &one["key"])).collect();
        assert!(named.contains(&(&json!("pods"), &json!("demo/web-1"))), "{named:?}");
        assert!(named.contains(&(&json!("service-facts"), &json!("demo/web"))), "{named:?}");
    }
}
