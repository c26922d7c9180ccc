//! Pods as a cluster has them: 4 KiB each, with a status and with their field managers.

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};

/// Where they are.
pub(crate) const PATH: &str = "/api/v1/namespaces/default/pods";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const TIME: &str = "2026-01-01T00:00:00Z";
/// Requests at once.
const AT_ONCE: usize = 64;

/// Name of the pod of a number.
pub(crate) fn name(number: usize) -> String {
    format!("pod-{number:05}")
}

/// Creates pods, with a status.
pub(crate) async fn make(client: &Client, count: usize) -> Result<()> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    send(client, Request::post(ACCOUNTS), "application/json", &account).await?;
    let made = futures::stream::iter(0..count).map(|number| async move {
        send(client, Request::post(PATH), "application/json", &pod(number)).await?;
        let path = format!("{PATH}/{}/status", name(number));
        send(client, Request::patch(path), "application/merge-patch+json", &json!({"status": status(number)}))
            .await
    });
    made.buffer_unordered(AT_ONCE).try_collect::<()>().await
}

async fn send(client: &Client, request: http::request::Builder, content: &str, object: &Value) -> Result<()> {
    let request = request.header(header::CONTENT_TYPE, content).body(serde_json::to_vec(object)?)?;
    client.request_text(request).await?;
    Ok(())
}

fn pod(number: usize) -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": "registry.example/app:1.0", "ports": [{"containerPort": 8080}],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}})
    };
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name(number), "labels": {"app": format!("app-{}", number % 100)}},
        "spec": {"automountServiceAccountToken": false, "containers": [container("app"), container("side")]}})
}

fn status(number: usize) -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": TIME});
    let container = |name: &str| {
        json!({"name": name, "ready": true, "started": true, "restartCount": 0, "image": "registry.example/app:1.0",
            "imageID": "registry.example/app@sha256:1b0a", "containerID": format!("containerd://{number:064x}"),
            "state": {"running": {"startedAt": TIME}}})
    };
    let address = format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
    json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "192.0.2.1",
        "hostIPs": [{"ip": "192.0.2.1"}], "startTime": TIME, "qosClass": "Burstable",
        "conditions": [condition("PodScheduled"), condition("Initialized"), condition("ContainersReady"), condition("Ready")],
        "containerStatuses": [container("app"), container("side")]})
}
