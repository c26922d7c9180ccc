//! Service accounts of pods: every pod runs as one, and finds its token in a volume.
//! Source: the ServiceAccount admission plugin.

use super::forbidden;
use super::pod::containers_mut;
use crate::cluster::Cluster;
use crate::request::text;
use crate::status::{Answer, Failure};
use ambit_names::{annotation, path};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A pod may come right behind its namespace: its account gets this long to appear.
const ACCOUNT_WAIT: Duration = Duration::from_secs(3);
/// Validity of the token the node asks for. Source: WarnOnlyBoundTokenExpirationInSeconds of the plugin.
const TOKEN_SECONDS: u32 = 3607;
/// Begins the name of the token volume.
const VOLUME_PREFIX: &str = "kube-api-access-";

/// Gives a new pod its account and the account's token.
pub(super) async fn attach(cluster: &Cluster, pod: &mut Value) -> Answer<()> {
    if pod["metadata"]["annotations"].get(annotation::MIRROR).is_some() {
        // Such a pod stands for a process that is not in this cluster's hands.
        return Ok(());
    }
    let name = match text(pod, "/spec/serviceAccountName") {
        "" => match text(pod, "/spec/serviceAccount") {
            "" => "default".to_owned(),
            name => name.to_owned(),
        },
        name => name.to_owned(),
    };
    pod["spec"]["serviceAccountName"] = name.as_str().into();
    pod["spec"]["serviceAccount"] = name.as_str().into();
    let account = find(cluster, pod, &name).await?;
    if pod["spec"]["imagePullSecrets"].as_array().is_none_or(Vec::is_empty)
        && let Some(secrets) = account.get("imagePullSecrets")
    {
        pod["spec"]["imagePullSecrets"] = secrets.clone();
    }
    let mount = pod["spec"]["automountServiceAccountToken"]
        .as_bool()
        .or(account["automountServiceAccountToken"].as_bool())
        .unwrap_or(true);
    if mount {
        mount_token(pod, &format!("{VOLUME_PREFIX}{}", cluster.name_suffix()));
    }
    Ok(())
}

async fn find(cluster: &Cluster, pod: &Value, name: &str) -> Answer<Value> {
    let namespace = text(pod, "/metadata/namespace");
    // Subscribed before looking, so that an account made in between is seen.
    let mut news = cluster.db.subscribe(&Arc::from("serviceaccounts"));
    let wait = async {
        loop {
            if let Some(account) = cluster.object("serviceaccounts", namespace, name) {
                return Some(account.value());
            }
            news.changed().await.ok()?;
        }
    };
    match tokio::time::timeout(ACCOUNT_WAIT, wait).await {
        Ok(Some(account)) => Ok(account),
        Ok(None) => Err(Failure::unavailable("the store was closed")),
        Err(_) => {
            let why = format!(
                "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
            );
            Err(forbidden(&cluster.built_in("", "v1", "Pod"), pod, &why))
        }
    }
}

fn mount_token(pod: &mut Value, volume: &str) {
    let mut used = false;
    for list in ["initContainers", "containers"] {
        for container in containers_mut(pod, list) {
            let mounts = &mut container["volumeMounts"];
            let here = |m: &Value| m["mountPath"] == path::SERVICE_ACCOUNT;
            if mounts.as_array().is_some_and(|mounts| mounts.iter().any(here)) {
                continue;
            }
            let mount = json!({"name": volume, "readOnly": true, "mountPath": path::SERVICE_ACCOUNT});
            match mounts.as_array_mut() {
                Some(mounts) => mounts.push(mount),
                None => *mounts = json!([mount]),
            }
            used = true;
        }
    }
    if !used {
        return;
    }
    let volume = json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}});
    match pod["spec"]["volumes"].as_array_mut() {
        Some(volumes) => volumes.push(volume),
        None => pod["spec"]["volumes"] = json!([volume]),
    }
}
