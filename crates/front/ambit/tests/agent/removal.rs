//! An agent that is asked to stop because it is replaced, and one that is removed for good.

use crate::lab::{LIST, Lab, Proxy, on_a_node, state, text};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// What is answered for the agent's DaemonSet, a kind that our own API server does not have.
type Set = Arc<Mutex<(u16, Value)>>;

/// Passes everything on to the API server, and answers for the DaemonSet itself.
async fn pass_on(
    client: kube::Client,
    set: Set,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Body>> {
    if request.uri().path().ends_with("/daemonsets/istio-cni-node") {
        let (code, body) = set.lock().unwrap().clone();
        let answer = Response::builder().status(code).header("Content-Type", "application/json");
        return Ok(answer.body(Body::from(body.to_string().into_bytes()))?);
    }
    let (mut parts, body) = request.into_parts();
    parts.headers.remove("host");
    let body = body.collect().await?.to_bytes();
    Ok(client.send(Request::from_parts(parts, Body::from(body.to_vec()))).await?)
}

/// A kubeconfig for a server in front of the API server.
async fn in_front(lab: &Lab, set: Set) -> PathBuf {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = lab.client();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (client, set) = (client.clone(), set.clone());
            tokio::spawn(async move {
                let service = service_fn(move |request| pass_on(client.clone(), set.clone(), request));
                // A client that has gone is nobody's fault.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    let path = lab.at("front.kubeconfig");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[test]
fn inv_06_an_agent_whose_daemon_set_is_gone_releases_its_pods_and_takes_the_plugin_away() {
    on_a_node(async |mut lab| {
        let there =
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "istio-cni-node"}});
        let set: Set = Arc::new(Mutex::new((200, there.clone())));
        let kubeconfig = in_front(&lab, set.clone()).await;
        let start = async |lab: &Lab| {
            lab.start(Command::new("env"), &kubeconfig, &["--removed-with", "istio-system/istio-cni-node"])
                .await
        };
        let agent = start(&lab).await;
        let proxy = Proxy::connect(&lab);
        let net = lab.make_pod_net();
        let before = state(&net.netns);
        assert_eq!(lab.add("web", &net).await.0, 200);
        drop(proxy);
        // A replacement, and a moment in which the API server knows nothing: all stays.
        assert!(agent.stop().await.success());
        *set.lock().unwrap() = (200, there.clone());
        let agent = start(&lab).await;
        *set.lock().unwrap() = (503, json!({}));
        assert!(agent.stop().await.success());
        assert!(state(&net.netns).contains("istio-ambient-nat"));
        assert!(lab.conf().contains("ambit-cni") && lab.at("bin/ambit-cni").exists());
        // The set is gone.
        *set.lock().unwrap() = (200, there);
        let agent = start(&lab).await;
        *set.lock().unwrap() = (
            404,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
            "reason": "NotFound", "message": "gone", "details": {"name": "istio-cni-node", "kind": "daemonsets"}}),
        );
        assert!(agent.stop().await.success());
        assert_eq!(state(&net.netns), before);
        assert_eq!(lab.redirection("web").await, None);
        assert_eq!(lab.conf(), LIST);
        assert!(!lab.at("bin/ambit-cni").exists());
        // It is not there at the start: a mistake in the setting.
        let mut agent = lab.agent_of(Command::new("env"), &kubeconfig);
        let output = agent.args(["--removed-with", "istio-system/istio-cni-node"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output).contains("there is no istio-system/istio-cni-node"), "{}", text(&output));
    });
}
