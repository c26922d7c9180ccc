//! The checks of the demo, in the order in which they are made.

mod capture_of_bytes;
mod policy;
mod reach;
mod release;
mod restarts;

pub(crate) use restarts::killed;

use crate::cluster::Cluster;
use crate::pods::{Ended, Job};
use crate::report::{Line, Report};
use anyhow::{Context as _, Result, anyhow};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bound on the answer to one request of a check's pod.
pub(crate) const REQUEST_TIMEOUT_MS: &str = "2000";

/// How strictly times are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// As promised: the demo on an otherwise idle machine.
    Promised,
    /// Only that it happens at all: a test run beside other work.
    Eventually,
}

/// What a check works on.
pub struct Scene<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Its API, over TLS.
    pub client: Client,
    /// Folder of the example policies.
    pub policies: PathBuf,
    /// How strictly times are judged.
    pub timing: Timing,
}

/// Makes all checks and shows each.
pub async fn run_all(scene: &Scene<'_>, report: &mut Report) {
    made(report, "a pod reaches a server by name, ClusterIP and pod address", reach::by_every_address(scene))
        .await;
    made(
        report,
        "bytes between captured pods are encrypted, HBONE carries them",
        capture_of_bytes::encrypted(scene),
    )
    .await;
    made(report, "the server's proxy saw the client's identity", reach::identity_is_logged(scene)).await;
    made(
        report,
        "a DENY policy refuses, closes what is open, and its deletion restores",
        policy::deny(scene),
    )
    .await;
    made(report, "an ALLOW policy for somebody else refuses", policy::allow_other(scene)).await;
    made(report, "STRICT refuses the pod outside the mesh only", policy::strict(scene)).await;
    made(
        report,
        "no captured pod starts without the agent, it starts by itself afterwards",
        restarts::agent(scene),
    )
    .await;
    made(report, "a killed proxy comes back, pods stay captured, connections work", restarts::proxy(scene))
        .await;
    made(report, "taking the label away releases pods without a trace", release::released(scene)).await;
}

#[expect(clippy::disallowed_methods, reason = "the demo measures what a user sees")]
pub(crate) async fn made(
    report: &mut Report,
    promise: &'static str,
    check: impl Future<Output = Result<String>>,
) {
    let started = Instant::now();
    let seen = check.await.map_err(|e| format!("{e:#}"));
    report.add(Line { promise, seen, took: started.elapsed() });
}

impl Scene<'_> {
    /// Runs a pod of the demo workload to its end.
    pub(crate) async fn run(
        &self,
        namespace: &str,
        name: &str,
        account: &str,
        args: &[&str],
    ) -> Result<Ended> {
        crate::pods::run(&self.client, Job { namespace, name, account, args }).await
    }

    /// One request from the mesh's client identity.
    pub(crate) async fn request(&self, name: &str, url: &str) -> Result<Ended> {
        self.run("demo", name, "client", &["get", url, "--count", "1", "--timeout", REQUEST_TIMEOUT_MS]).await
    }

    /// Requests of an identity for two seconds; the outcome is that of the last one, when a change before it has settled.
    pub(crate) async fn settled(&self, namespace: &str, name: &str, account: &str) -> Result<Ended> {
        let url = "http://server.demo.svc.cluster.local/";
        let args = ["get", url, "--count", "20", "--interval", "100", "--timeout", REQUEST_TIMEOUT_MS];
        self.run(namespace, name, account, &args).await
    }

    /// Applies one of the example policies.
    pub(crate) async fn apply(&self, file: &str) -> Result<()> {
        let (api, object) = self.policy(file)?;
        api.create(&PostParams::default(), &object).await.with_context(|| format!("cannot apply {file}"))?;
        Ok(())
    }

    /// Deletes one of the example policies.
    pub(crate) async fn delete(&self, file: &str) -> Result<()> {
        let (api, object) = self.policy(file)?;
        let name = object.metadata.name.unwrap_or_default();
        api.delete(&name, &DeleteParams::default()).await.with_context(|| format!("cannot delete {file}"))?;
        Ok(())
    }

    fn policy(&self, file: &str) -> Result<(Api<DynamicObject>, DynamicObject)> {
        let path = self.policies.join(file);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let object: DynamicObject =
            serde_saphyr::from_str(&text).with_context(|| format!("{file} is no object"))?;
        let types = object.types.as_ref().ok_or_else(|| anyhow!("{file} names no kind"))?;
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let kind = kube::core::GroupVersionKind::gvk(group, version, &types.kind);
        let plural = match types.kind.as_str() {
            "AuthorizationPolicy" => "authorizationpolicies",
            _ => "peerauthentications",
        };
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        Ok((Api::namespaced_with(self.client.clone(), &namespace, &resource), object))
    }
}

/// A marker that occurs nowhere else.
pub(crate) fn marker(name: &str) -> String {
    format!("marker-{name}-{}", std::process::id())
}

/// Bound on what the promises call "within a second".
pub(crate) fn within_a_second(timing: Timing, took: Duration) -> Result<()> {
    if timing == Timing::Promised && took > Duration::from_secs(1) {
        return Err(anyhow!("it took {took:?}, more than a second"));
    }
    Ok(())
}
