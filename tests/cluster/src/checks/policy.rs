//! Policies in force.

use super::{Scene, within_a_second};
use crate::pods::{self, Job};
use crate::wait::{POLL_TIMED, Seen, until};
use anyhow::{Context as _, Result};
use std::time::{Duration, Instant};

/// How long an open connection may live on after a denial, when times are not judged.
const CLOSE_WAIT: Duration = Duration::from_secs(30);

/// A denial of the client's identity.
pub(super) async fn deny(scene: &Scene<'_>) -> Result<String> {
    let job = Job { namespace: "demo", name: "holder", account: "client", args: &["hold", "server:9000"] };
    pods::start(&scene.client, job).await?;
    let denied = denied(scene).await;
    // Whatever was seen, the checks that follow start without the policy and the pod.
    scene.delete("deny-client.yaml").await?;
    let restored = scene.settled("demo", "restored", "client").await?.success();
    pods::remove(&scene.client, "demo", "holder").await?;
    let restored = restored.context("the deletion did not restore")?;
    Ok(format!("{}\nafter the deletion: {}", denied?, last_line(&restored)))
}

/// Applies the denial: the open connection is closed, a new one refused.
#[expect(clippy::disallowed_methods, reason = "the demo measures what a user sees")]
async fn denied(scene: &Scene<'_>) -> Result<String> {
    let opened =
        wait_for_log(scene, "holder", "echo", CLOSE_WAIT).await.context("no connection could be opened");
    let applied = Instant::now();
    scene.apply("deny-client.yaml").await?;
    opened?;
    let closed = wait_for_log(scene, "holder", "closed", CLOSE_WAIT).await;
    let took = applied.elapsed();
    let refused = scene
        .settled("demo", "denied", "client")
        .await?
        .failure()
        .context("a new connection was let through")?;
    closed.context("the open connection was not closed")?;
    within_a_second(scene.timing, took).context("the open connection was closed late")?;
    Ok(format!(
        "open connection closed {} ms after the apply\nnew connection: {}",
        took.as_millis(),
        last_line(&refused)
    ))
}

/// An allowance for another identity denies everybody else.
pub(super) async fn allow_other(scene: &Scene<'_>) -> Result<String> {
    scene.apply("allow-other.yaml").await?;
    let refused = scene.settled("demo", "not-allowed", "client").await?.failure();
    scene.delete("allow-other.yaml").await?;
    let refused = refused?;
    scene
        .settled("demo", "allowed-again", "client")
        .await?
        .success()
        .context("the deletion did not restore")?;
    Ok(format!("client: {}", last_line(&refused)))
}

/// STRICT refuses who has no identity.
pub(super) async fn strict(scene: &Scene<'_>) -> Result<String> {
    let before = scene.settled("plain", "permissive", "default").await?.success().context("before STRICT")?;
    scene.apply("strict.yaml").await?;
    let outside = scene.settled("plain", "outside", "default").await?.failure();
    let inside = scene.settled("demo", "inside", "client").await?.success();
    // The node's own probes go on reaching the pod, or it would not be an endpoint any more.
    let ready = pods::of_app(&scene.client, "demo", "server").await;
    scene.delete("strict.yaml").await?;
    let (outside, inside) = (outside?, inside.context("the captured pod was refused")?);
    ready.context("the server did not stay ready under STRICT")?;
    Ok(format!(
        "uncaptured before: {}\nuncaptured under STRICT: {}\ncaptured under STRICT: {}",
        last_line(&before),
        last_line(&outside),
        last_line(&inside)
    ))
}

async fn wait_for_log(scene: &Scene<'_>, name: &str, word: &str, limit: Duration) -> Result<()> {
    until(&format!("{word:?} in the log of pod {name}"), limit, POLL_TIMED, async || {
        // The log does not exist before the container does.
        let log = pods::log(&scene.client, "demo", name).await.unwrap_or_default();
        Ok(if log.contains(word) { Seen::Done(()) } else { Seen::NotYet(last_line(&log).to_owned()) })
    })
    .await
}

fn last_line(text: &str) -> &str {
    text.trim().lines().last().unwrap_or_default()
}
