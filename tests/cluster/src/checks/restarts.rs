//! Parts that die and come back.

use super::{Scene, capture_of_bytes};
use crate::cluster::Cluster;
use crate::pods::{self, Job};
use crate::wait::{POLL, Seen, until};
use ambit_api::core::v1::{ConfigMap, Event};
use ambit_names::{annotation, redirection};
use anyhow::{Context as _, Result, bail};
use kube::api::{Api, ListParams, PostParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use std::time::Duration;

/// How long a part may take to come back.
const BACK_WAIT: Duration = Duration::from_secs(30);

/// While the agent does not answer, a pod that should be captured stays off the network; killed, the agent comes
/// back, and the pod starts by itself.
pub(super) async fn agent(scene: &Scene<'_>) -> Result<String> {
    let agent = scene.cluster.part("agent")?;
    kill(agent, Signal::SIGSTOP).context("cannot freeze the agent")?;
    let held = held_back(scene).await;
    kill(agent, Signal::SIGKILL).context("cannot kill the agent")?;
    let held = held?;
    let back = wait_for_part(scene, "agent", agent).await?;
    let job_done = |p: &ambit_api::core::v1::Pod| pods::phase(p) == "Succeeded";
    pods::wait(&scene.client, "demo", "early", "start by itself and end", job_done).await?;
    let log = pods::log(&scene.client, "demo", "early").await?;
    pods::remove(&scene.client, "demo", "early").await?;
    scene.request("after-agent", "http://server/").await?.success().context("with the new agent")?;
    still_captured(scene).await?;
    Ok(format!(
        "agent {agent} frozen: {held}\nagent {agent} killed, {back} took over: the pod ran: {}",
        log.trim()
    ))
}

/// A killed proxy is replaced, and the pods it served stay captured.
pub(super) async fn proxy(scene: &Scene<'_>) -> Result<String> {
    let proxy = scene.cluster.part("proxy")?;
    kill(proxy, Signal::SIGKILL).context("cannot kill the proxy")?;
    let back = wait_for_part(scene, "proxy", proxy).await?;
    scene.settled("demo", "after-proxy", "client").await?.success().context("with the new proxy")?;
    still_captured(scene).await?;
    let bytes = capture_of_bytes::encrypted(scene).await?;
    Ok(format!("proxy {proxy} killed, {back} took over\n{bytes}"))
}

/// `ambit up` is killed: what it had acknowledged is there when it starts again, and the pods have gone on running.
pub(crate) async fn killed(cluster: &mut Cluster) -> Result<String> {
    let client = cluster.client().await?;
    let before = pods::of_app(&client, "demo", "server").await?;
    let marker: ConfigMap =
        serde_json::from_value(json!({ "metadata": { "name": "kept", "namespace": "demo" } }))?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "demo");
    let made = maps.create(&PostParams::default(), &marker).await?;
    cluster.kill_and_start()?;
    let client = cluster.client().await?;
    let answered = cluster.started.elapsed();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "demo");
    let kept = maps.get("kept").await.context("an acknowledged object is gone")?;
    if kept.metadata.uid != made.metadata.uid {
        bail!("another object has taken the acknowledged one's place");
    }
    let after = pods::of_app(&client, "demo", "server").await?;
    if (pods::uid(&before)?, pods::restarts(&before)) != (pods::uid(&after)?, pods::restarts(&after)) {
        bail!("the pod did not go on running: {} restarts", pods::restarts(&after));
    }
    let args = ["get", "http://server/", "--count", "20", "--interval", "100"];
    let log =
        pods::run(&client, Job { namespace: "demo", name: "after-kill", account: "client", args: &args })
            .await?;
    log.success().context("a request after the start")?;
    Ok(format!(
        "the API answers {} ms after the new start; the pod goes on with {} restarts",
        answered.as_millis(),
        pods::restarts(&after)
    ))
}

/// Creates a pod and waits until its sandbox was refused for want of an agent.
async fn held_back(scene: &Scene<'_>) -> Result<String> {
    let args = ["get", "http://server/", "--count", "1"];
    pods::start(&scene.client, Job { namespace: "demo", name: "early", account: "client", args: &args })
        .await?;
    let events: Api<Event> = Api::namespaced(scene.client.clone(), "demo");
    let of_pod = ListParams::default().fields("involvedObject.name=early,reason=FailedCreatePodSandBox");
    let message = until("a FailedCreatePodSandBox event of the pod", BACK_WAIT, POLL, async || {
        let found = events.list(&of_pod).await?.items.into_iter().next();
        Ok(found.map_or(Seen::NotYet("no event".to_owned()), |e| Seen::Done(e.message.unwrap_or_default())))
    })
    .await?;
    let pod = pods::wait(&scene.client, "demo", "early", "exist", |_| true).await?;
    if pods::phase(&pod) != "Pending" {
        bail!("the pod is {} although its sandbox was refused", pods::phase(&pod));
    }
    Ok(format!("pod Pending, {message}"))
}

async fn wait_for_part(scene: &Scene<'_>, word: &str, old: Pid) -> Result<Pid> {
    until(&format!("another {word}"), BACK_WAIT, POLL, async || {
        Ok(match scene.cluster.part(word) {
            Ok(new) if new != old => Seen::Done(new),
            _ => Seen::NotYet("none".to_owned()),
        })
    })
    .await
}

async fn still_captured(scene: &Scene<'_>) -> Result<()> {
    for app in ["server", "client"] {
        let pod = pods::of_app(&scene.client, "demo", app).await?;
        let state = pods::annotation(&pod, annotation::REDIRECTION);
        if state != redirection::ENABLED {
            bail!("the pod of {app} is not captured any more: {state:?}");
        }
    }
    Ok(())
}
