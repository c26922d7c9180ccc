//! Who reaches whom, and as whom.

use super::Scene;
use crate::pods;
use ambit_api::core::v1::Service;
use anyhow::{Context as _, Result, anyhow, bail};
use kube::api::Api;

/// By service name, ClusterIP and pod address.
pub(super) async fn by_every_address(scene: &Scene<'_>) -> Result<String> {
    let server = pods::of_app(&scene.client, "demo", "server").await?;
    let name = server.metadata.name.as_deref().unwrap_or_default();
    let api: Api<Service> = Api::namespaced(scene.client.clone(), "demo");
    let service = api.get("server").await?;
    let cluster_ip =
        service.spec.and_then(|s| s.cluster_ip).ok_or_else(|| anyhow!("the service has no ClusterIP"))?;
    let urls = [
        "http://server/".to_owned(),
        format!("http://{cluster_ip}/"),
        format!("http://{}:8080/", pods::address(&server)?),
    ];
    let mut seen = Vec::new();
    for (n, url) in urls.iter().enumerate() {
        let log = scene.request(&format!("reach-{n}"), url).await?.success().with_context(|| url.clone())?;
        if !log.contains(&format!("hello from {name}")) {
            bail!("{url} gave another answer: {}", log.trim());
        }
        seen.push(format!("{url} -> {}", log.trim()));
    }
    Ok(seen.join("\n"))
}

/// The access log of the inbound side names the client's service account.
pub(super) async fn identity_is_logged(scene: &Scene<'_>) -> Result<String> {
    let want = "spiffe://cluster.local/ns/demo/sa/client";
    scene.request("identity", "http://server/").await?.success()?;
    let lines =
        scene.cluster.proxy_log(&["access", "inbound", want, "spiffe://cluster.local/ns/demo/sa/server"])?;
    let line = lines.last().ok_or_else(|| {
        anyhow!("no inbound line of the proxy's access log names {want} and the server's identity")
    })?;
    Ok(line.clone())
}
