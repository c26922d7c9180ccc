//! Pods that the checks run, and what they say.

use crate::wait::{POLL, POLL_TIMED, Seen, until};
use ambit_api::core::v1::Pod;
use anyhow::{Context, Result, anyhow, bail};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};
use serde_json::json;
use std::time::Duration;

/// How long a pod may take from its creation to its end.
const RUN_WAIT: Duration = Duration::from_secs(60);
/// Image of the demo workload.
pub const IMAGE: &str = "ambit.local/demo-app:1";

/// A pod to run.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Service account.
    pub account: &'a str,
    /// Arguments of the demo workload.
    pub args: &'a [&'a str],
}

/// How a pod ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Exit code of its container.
    pub code: i32,
    /// All it wrote.
    pub log: String,
}

impl Ended {
    /// The log, if the pod succeeded.
    ///
    /// # Errors
    /// The pod failed; the message holds its log.
    pub fn success(self) -> Result<String> {
        if self.code == 0 { Ok(self.log) } else { bail!("exit code {}: {}", self.code, self.log.trim()) }
    }

    /// The log, if the pod failed.
    ///
    /// # Errors
    /// The pod succeeded.
    pub fn failure(self) -> Result<String> {
        if self.code != 0 { Ok(self.log) } else { bail!("it was let through: {}", self.log.trim()) }
    }
}

/// Creates the pod and leaves it running.
///
/// # Errors
/// The API refuses it.
pub async fn start(client: &Client, job: Job<'_>) -> Result<Pod> {
    let pod = serde_json::from_value(json!({
        "metadata": { "name": job.name, "namespace": job.namespace, "labels": { "app": job.name } },
        "spec": {
            "serviceAccountName": job.account,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": IMAGE, "args": job.args }],
        },
    }))?;
    let api: Api<Pod> = Api::namespaced(client.clone(), job.namespace);
    api.create(&PostParams::default(), &pod).await.with_context(|| format!("cannot create pod {}", job.name))
}

/// Runs the pod to its end, reads its log and deletes it.
///
/// # Errors
/// The API refuses, or the pod does not end in time.
pub async fn run(client: &Client, job: Job<'_>) -> Result<Ended> {
    start(client, job).await?;
    let ended = finish(client, job.namespace, job.name).await;
    remove(client, job.namespace, job.name).await?;
    ended
}

async fn finish(client: &Client, namespace: &str, name: &str) -> Result<Ended> {
    let pod = wait(client, namespace, name, "end", |p| matches!(phase(p), "Succeeded" | "Failed")).await?;
    let code = container(&pod)
        .and_then(|c| c["state"]["terminated"]["exitCode"].as_i64())
        .ok_or_else(|| anyhow!("pod {name} ended without an exit code"))?;
    Ok(Ended { code: i32::try_from(code).unwrap_or(i32::MAX), log: log(client, namespace, name).await? })
}

/// Deletes the pod and waits until it is gone.
///
/// # Errors
/// The API refuses, or the pod stays.
pub async fn remove(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    api.delete(name, &DeleteParams::default()).await?;
    let what = format!("the end of pod {name} after its deletion");
    until(&what, RUN_WAIT, POLL, async || {
        Ok(api.get_opt(name).await?.map_or(Seen::Done(()), |p| Seen::NotYet(state(&p))))
    })
    .await
}

/// What the pod has written so far.
///
/// # Errors
/// The API refuses.
pub async fn log(client: &Client, namespace: &str, name: &str) -> Result<String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    api.logs(name, &LogParams::default()).await.with_context(|| format!("cannot read the log of pod {name}"))
}

/// Waits until `done` holds for the pod.
///
/// # Errors
/// It does not within a minute; the message holds the pod's state.
pub async fn wait(
    client: &Client,
    namespace: &str,
    name: &str,
    what: &str,
    done: impl Fn(&Pod) -> bool,
) -> Result<Pod> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    until(&format!("pod {name} should {what}"), RUN_WAIT, POLL, async || {
        let pod = api.get(name).await?;
        Ok(if done(&pod) { Seen::Done(pod) } else { Seen::NotYet(state(&pod)) })
    })
    .await
}

/// The one ready pod with the label `app=<app>`.
///
/// # Errors
/// There is none within a minute.
pub async fn of_app(client: &Client, namespace: &str, app: &str) -> Result<Pod> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let labelled = ListParams::default().labels(&format!("app={app}"));
    until(&format!("a ready pod of {app}"), RUN_WAIT, POLL, async || {
        let mut pods = api.list(&labelled).await?.items;
        Ok(match pods.iter().position(is_ready) {
            Some(ready) => Seen::Done(pods.swap_remove(ready)),
            None => Seen::NotYet(pods.iter().map(state).collect::<Vec<_>>().join("; ")),
        })
    })
    .await
}

/// Waits until the pod of the app has written the line of a request that succeeded.
///
/// # Errors
/// It does not within a minute; the message holds its log.
pub async fn first_answer(client: &Client, namespace: &str, app: &str) -> Result<()> {
    until(&format!("an answered request of {app}"), RUN_WAIT, POLL_TIMED, async || {
        let pod = of_app(client, namespace, app).await?;
        let written = log(client, namespace, pod.metadata.name.as_deref().unwrap_or_default()).await?;
        let answered = written.lines().any(|l| l.starts_with("200 "));
        Ok(if answered { Seen::Done(()) } else { Seen::NotYet(written) })
    })
    .await
}

/// The pod's address.
///
/// # Errors
/// It has none.
pub fn address(pod: &Pod) -> Result<&str> {
    pod.status.as_ref().and_then(|s| s.pod_ip.as_deref()).ok_or_else(|| anyhow!("the pod has no address"))
}

/// The pod's UID.
///
/// # Errors
/// It has none.
pub fn uid(pod: &Pod) -> Result<&str> {
    pod.metadata.uid.as_deref().ok_or_else(|| anyhow!("the pod has no UID"))
}

/// How often the pod's first container was started again.
pub fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()).and_then(|c| c.first());
    status.map_or(0, |c| c.restart_count)
}

/// The pod's phase; empty when unknown.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// The value of an annotation; empty when absent.
pub fn annotation<'a>(pod: &'a Pod, name: &str) -> &'a str {
    pod.metadata.annotations.as_ref().and_then(|a| a.get(name)).map_or("", String::as_str)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Phase and first container, for messages.
fn state(pod: &Pod) -> String {
    format!("phase {}, {}", phase(pod), container(pod).unwrap_or_default())
}

fn container(pod: &Pod) -> Option<serde_json::Value> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    serde_json::to_value(status).ok()
}
