//! Release of pods whose namespace leaves the mesh.

use super::{REQUEST_TIMEOUT_MS, Scene, marker};
use crate::capture::Capture;
use crate::pods;
use ambit_api::core::v1::Namespace;
use ambit_names::{annotation, cluster, label, mark, port};
use anyhow::{Context as _, Result, anyhow, bail};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::process::Command;

/// The label goes: no table, rule or route of ours stays in the pod's namespace, and plain traffic works.
pub(super) async fn released(scene: &Scene<'_>) -> Result<String> {
    let server = pods::of_app(&scene.client, "demo", "server").await?;
    let uid = pods::uid(&server)?.to_owned();
    let captured = contents(&uid)?;
    if !captured.iter().any(|l| l.contains("istio-ambient")) {
        bail!("the captured pod's namespace holds none of the rules that should go: {captured:?}");
    }
    set_mode(scene, None).await?;
    let name = server.metadata.name.clone().unwrap_or_default();
    let gone = |p: &ambit_api::core::v1::Pod| pods::annotation(p, annotation::REDIRECTION).is_empty();
    pods::wait(&scene.client, "demo", &name, "lose its redirection annotation", gone).await?;
    let left = contents(&uid)?;
    if !left.is_empty() {
        bail!("the released pod's namespace still holds: {}", left.join("; "));
    }
    let plain = plain_traffic(scene).await;
    set_mode(scene, Some("ambient")).await?;
    let again = |p: &ambit_api::core::v1::Pod| pods::annotation(p, annotation::REDIRECTION) == "enabled";
    pods::wait(&scene.client, "demo", &name, "be captured again", again).await?;
    Ok(format!(
        "captured: {} tables, rules and routes of the mesh; released: none\n{}",
        captured.len(),
        plain?
    ))
}

async fn plain_traffic(scene: &Scene<'_>) -> Result<String> {
    let secret = marker("released");
    let url = format!("http://server.demo.svc.cluster.local/{secret}");
    let capture = Capture::start(cluster::BRIDGE, secret.as_bytes(), port::INBOUND_HBONE)?;
    let args = ["get", &url, "--count", "5", "--interval", "200", "--timeout", REQUEST_TIMEOUT_MS];
    let log = scene.run("demo", "released", "client", &args).await?.success().context("plain traffic")?;
    let seen = capture.stop()?;
    if seen.marker_in_plain == 0 {
        bail!(
            "the traffic of released pods is not plain: {} packets, {} TLS records",
            seen.packets,
            seen.tls_records
        );
    }
    Ok(format!("plain request: {}", log.trim().lines().last().unwrap_or_default()))
}

async fn set_mode(scene: &Scene<'_>, mode: Option<&str>) -> Result<()> {
    let api: Api<Namespace> = Api::all(scene.client.clone());
    let patch = json!({ "metadata": { "labels": { label::DATAPLANE_MODE: mode } } });
    api.patch("demo", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

/// Tables, routing rules and routes of the mesh in the network namespace of a pod.
fn contents(uid: &str) -> Result<Vec<String>> {
    let pid = process_of(uid)?;
    let mut found = inside(pid, &["nft", "list", "tables"])?;
    for family in ["-4", "-6"] {
        let rules = inside(pid, &["ip", family, "rule", "show"])?;
        found.extend(
            rules.into_iter().filter(|l| !["0:", "32766:", "32767:"].iter().any(|p| l.starts_with(p))),
        );
        let table = mark::ROUTE_TABLE.to_string();
        found.extend(inside(pid, &["ip", family, "route", "show", "table", &table])?);
    }
    Ok(found)
}

fn inside(pid: u32, command: &[&str]) -> Result<Vec<String>> {
    let out = Command::new("nsenter")
        .args(["-t", &pid.to_string(), "-n"])
        .args(command)
        .output()
        .with_context(|| format!("cannot run nsenter {command:?}"))?;
    // `ip route show` of a table that does not exist fails; that is what is hoped for.
    Ok(String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(|l| l.trim().to_owned())
        .filter(|l| !l.is_empty())
        .collect())
}

/// A process of the pod, found by its control group.
fn process_of(uid: &str) -> Result<u32> {
    let underscored = uid.replace('-', "_");
    std::fs::read_dir("/proc")?
        .flatten()
        .filter_map(|e| e.file_name().to_string_lossy().parse::<u32>().ok())
        .find(|pid| {
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            groups.contains(uid) || groups.contains(&underscored)
        })
        .ok_or_else(|| anyhow!("no process runs in a control group of pod {uid}"))
}
