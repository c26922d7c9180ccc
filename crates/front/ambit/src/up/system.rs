//! The objects that the mesh's own parts need in the cluster, and the files that the node proxy reads.

use crate::kubeconfig::write_private;
use ambit_api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use ambit_api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use ambit_names::{annotation, mesh};
use ambit_runtime::Shutdown;
use anyhow::{Context as _, Result, anyhow, bail};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Lifetime asked for the proxy's token. Unit: s. Source: the projected token of the field's node proxies.
const TOKEN_SECONDS: i64 = 43_200;
/// How often the token is renewed, well before half its life.
const TOKEN_RENEWAL: Duration = Duration::from_secs(3600);
/// Pause between two looks at an object that is awaited, or after a failed renewal.
const POLL: Duration = Duration::from_millis(50);
/// How long an object that another part creates is awaited.
const OBJECT_WAIT: Duration = Duration::from_secs(30);

/// Image named by the pods of processes on the node; there is none of that name, since nothing runs from it.
const HOST_PROCESS_IMAGE: &str = "ambit.local/host-process:1";

/// A process of the mesh that runs on the node, outside its container runtime.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostProcess<'a> {
    /// Name of the pod that stands for it.
    pub(crate) pod: &'a str,
    /// Value of its `app` label.
    pub(crate) app: &'a str,
    /// Its service account.
    pub(crate) account: &'a str,
}

/// Creates the system namespace and the definitions of the mesh's resources, where missing.
///
/// # Errors
/// The API server refuses one of them.
pub(crate) async fn install(client: &Client) -> Result<()> {
    let namespace: Namespace = typed(json!({ "metadata": { "name": mesh::SYSTEM_NAMESPACE } }))?;
    ensure(&Api::all(client.clone()), &namespace, mesh::SYSTEM_NAMESPACE).await?;
    for definition in ambit_api::crds() {
        let name = definition.metadata.name.clone().unwrap_or_default();
        ensure(&Api::all(client.clone()), &definition, &name).await?;
    }
    Ok(())
}

/// Creates the service account and the pod that stand for a process on the node: the certificate authority gives
/// a node proxy the certificates of pods on its own node only, and finds that node by the proxy's pod.
///
/// # Errors
/// The API server refuses one of them.
pub(crate) async fn stand_for(
    client: &Client,
    process: HostProcess<'_>,
    node: &str,
    node_ip: &str,
) -> Result<Pod> {
    let account: ServiceAccount =
        typed(json!({ "metadata": { "name": process.account, "namespace": mesh::SYSTEM_NAMESPACE } }))?;
    ensure(&Api::namespaced(client.clone(), mesh::SYSTEM_NAMESPACE), &account, process.account).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), mesh::SYSTEM_NAMESPACE);
    let pod: Pod = typed(json!({
        "metadata": {
            "name": process.pod,
            "namespace": mesh::SYSTEM_NAMESPACE,
            "labels": { "app": process.app, "istio.io/dataplane-mode": "none" },
            "annotations": { annotation::MIRROR: "ambit" },
        },
        "spec": {
            "nodeName": node,
            "hostNetwork": true,
            "serviceAccountName": process.account,
            "automountServiceAccountToken": false,
            "containers": [{ "name": process.app, "image": HOST_PROCESS_IMAGE }],
        },
    }))?;
    ensure(&pods, &pod, process.pod).await?;
    let status = running_status(process.app, node_ip, ambit_runtime::Clock.timestamp());
    pods.patch_status(process.pod, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .with_context(|| format!("cannot write the status of pod {}", process.pod))
}

fn running_status(container: &str, node_ip: &str, now: impl std::fmt::Display) -> Value {
    let now = now.to_string();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
    json!({ "status": {
        "phase": "Running",
        "hostIP": node_ip,
        "podIP": node_ip,
        "podIPs": [{ "ip": node_ip }],
        "startTime": now,
        "containerStatuses": [{
            "name": container,
            "image": HOST_PROCESS_IMAGE,
            "imageID": "",
            "ready": true,
            "started": true,
            "restartCount": 0,
            "state": { "running": { "startedAt": now } },
        }],
        "conditions": [condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")],
    }})
}

/// Writes the roots of the mesh to `file` once the control plane has published them.
///
/// # Errors
/// They do not appear in time, or the file cannot be written.
pub(crate) async fn write_root(client: &Client, file: &Path) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), mesh::SYSTEM_NAMESPACE);
    let wait = async {
        loop {
            let map = maps.get_opt("istio-ca-root-cert").await?;
            if let Some(pem) = map.and_then(|m| m.data).and_then(|mut d| d.remove("root-cert.pem")) {
                return anyhow::Ok(pem);
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let pem = tokio::time::timeout(OBJECT_WAIT, wait).await.map_err(|_| {
        anyhow!("the control plane did not publish ConfigMap istio-ca-root-cert within {OBJECT_WAIT:?}")
    })??;
    std::fs::write(file, pem).with_context(|| format!("cannot write {}", file.display()))
}

/// Keeps a fresh token of the proxy's pod in a file.
pub(crate) struct TokenFile {
    /// The cluster.
    pub(crate) client: Client,
    /// The proxy's pod.
    pub(crate) pod: Pod,
    /// The file; mode 0600.
    pub(crate) file: PathBuf,
}

impl TokenFile {
    /// Asks for a token and writes it, replacing the file at once.
    ///
    /// # Errors
    /// The API server refuses, or the file cannot be written.
    pub(crate) async fn write(&self) -> Result<()> {
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![mesh::TOKEN_AUDIENCE.to_owned()],
                expiration_seconds: Some(TOKEN_SECONDS),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: self.pod.metadata.name.clone(),
                    uid: self.pod.metadata.uid.clone(),
                }),
            },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), mesh::SYSTEM_NAMESPACE);
        let answer = accounts
            .create_token_request(mesh::PROXY_ACCOUNT, &PostParams::default(), &request)
            .await
            .context("cannot get a token for the node proxy")?;
        let token = answer
            .status
            .ok_or_else(|| anyhow!("the API server answered a token request without a token"))?
            .token;
        write_private(&self.file, token.as_bytes())
    }

    /// Renews the token until `shutdown`; a failure is logged and tried again.
    pub(crate) async fn keep_fresh(self, shutdown: Shutdown) -> Result<()> {
        while shutdown.run_until_cancelled(tokio::time::sleep(TOKEN_RENEWAL)).await.is_some() {
            if let Err(error) = self.write().await {
                tracing::warn!(error = format!("{error:#}"), "could not renew the node proxy's token");
            }
        }
        Ok(())
    }
}

/// Creates the object unless it is there already.
async fn ensure<K>(api: &Api<K>, object: &K, name: &str) -> Result<()>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(error) => bail!(anyhow::Error::from(error).context(format!("cannot create {name}"))),
    }
}

fn typed<K: DeserializeOwned>(value: Value) -> Result<K> {
    serde_json::from_value(value).context("an object of the mesh's own is not well-formed")
}
