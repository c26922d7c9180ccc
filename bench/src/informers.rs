//! Informers of pods over TLS: what the view of a pod costs, and how soon a change is seen.

use crate::measure::{Suite, resident};
use crate::pods;
use crate::server::{Server, connect};
use ambit_api::core::v1::Pod;
use ambit_kube::{Change, Informers, Keep, Query};
use ambit_runtime::{Clock, Shutdown};
use anyhow::{Context as _, Result, bail, ensure};
use http::{Request, header};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

const SYNC: &str = "informers/10,000 pods: start to synced";
const CHANGE: &str = "informers/one pod changed, to the handler";
/// What is kept of a pod, and the benchmark's name.
const MEMORY: [(&str, &str); 3] = [
    ("everything", "informers/memory of a pod, everything kept"),
    ("unmanaged", "informers/memory of a pod, but managedFields"),
    ("named", "informers/memory of a pod, named fields"),
];
/// Named fields, such as a controller of endpoints reads.
const NAMED: [&str; 6] = [
    "metadata.labels",
    "spec.nodeName",
    "spec.containers.ports",
    "status.phase",
    "status.podIPs",
    "status.conditions",
];
/// Begins the name of the work that a fresh process does.
pub(crate) const VIEW: &str = "informers-view:";
const PODS: usize = 10_000;
/// Fresh processes that sync.
const SYNCS: usize = 5;
const CHANGES: usize = 500;

/// What a fresh process measured.
#[derive(Debug, Serialize, Deserialize)]
struct View {
    bytes: u64,
    sync_ns: u64,
}

pub(crate) fn run(suite: &mut Suite, programs: &Path) -> Result<()> {
    let names: Vec<&str> = [SYNC, CHANGE].into_iter().chain(MEMORY.map(|(_, name)| name)).collect();
    if !names.iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    let Some(program) = suite.program(programs.join("ambit"), &names) else { return Ok(()) };
    let runtime = Runtime::new()?;
    let state = tempfile::tempdir()?;
    let server = runtime.block_on(Server::start(&program, state.path()))?;
    runtime.block_on(pods::make(&server.client, PODS))?;
    let mut syncs = Vec::new();
    for round in 0..SYNCS {
        for (kept, name) in MEMORY {
            if round > 0 && kept != MEMORY[0].0 {
                continue;
            }
            let view = in_fresh_process(kept, server.kubeconfig())?;
            if round == 0 {
                suite.record_bytes(name, view.bytes);
            }
            if kept == MEMORY[0].0 {
                syncs.push(Duration::from_nanos(view.sync_ns));
            }
        }
    }
    if suite.wants(SYNC) {
        suite.record(SYNC, syncs);
    }
    if suite.wants(CHANGE) {
        suite.record(CHANGE, runtime.block_on(changes(&server))?);
    }
    Ok(())
}

fn in_fresh_process(kept: &str, kubeconfig: &Path) -> Result<View> {
    let work = format!("{VIEW}{kept}:{}", kubeconfig.display());
    let output = Command::new(std::env::current_exe()?).args(["--once", &work]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Syncs a view of all pods; `work` is what is kept and the kubeconfig. Returns what was measured, as JSON.
pub(crate) fn view(work: &str) -> Result<String> {
    let (kept, kubeconfig) = work.split_once(':').context("no kubeconfig")?;
    let query = match kept {
        "everything" => Query::all().keep(Keep::everything()),
        "unmanaged" => Query::all().keep(Keep::without(&["metadata.managedFields"])),
        "named" => Query::all().keep(Keep::only(&NAMED)),
        other => bail!("nothing is known of keeping {other:?}"),
    };
    let view = Runtime::new()?.block_on(async {
        let client = connect(&std::fs::read_to_string(kubeconfig)?).await?;
        // The connection and its first answer are not part of the view.
        client.request_text(Request::get("/readyz").body(Vec::new())?).await?;
        let before = resident()?;
        let (informers, begun) = (Informers::new(client), Clock.now());
        let pods = informers.informer::<Pod>(query);
        informers.run_and_wait(&Shutdown::new()).await?;
        let sync_ns = u64::try_from((Clock.now() - begun).as_nanos())?;
        ensure!(pods.count() == PODS, "the view has {} pods", pods.count());
        Ok(View { bytes: resident()?.saturating_sub(before) / PODS as u64, sync_ns })
    })?;
    Ok(serde_json::to_string(&view)?)
}

/// From the start of a write to its arrival at a handler, one after the other.
async fn changes(server: &Server) -> Result<Vec<Duration>> {
    let client = &server.client;
    let informers = Informers::new(client.clone());
    let pods = informers.informer::<Pod>(Query::all());
    informers.run_and_wait(&Shutdown::new()).await?;
    let (told, mut heard) = mpsc::unbounded_channel();
    pods.on_change(move |change: &Change<Pod>| {
        let labels = change.latest().metadata.labels.as_ref();
        // Who does not listen any more has measured enough.
        let _ = told.send(labels.and_then(|labels| labels.get("round")).cloned());
    });
    let mut samples = Vec::new();
    for round in 0..CHANGES {
        let body = serde_json::to_vec(&json!({"metadata": {"labels": {"round": round.to_string()}}}))?;
        let patch = Request::patch(format!("{}/{}", pods::PATH, pods::name(round)))
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(body)?;
        let begun = Clock.now();
        let arrived = async {
            while heard.recv().await.context("the informer has ended")? != Some(round.to_string()) {}
            Ok::<_, anyhow::Error>(Clock.now() - begun)
        };
        let (_, sample) = tokio::try_join!(async { Ok(client.request_text(patch).await?) }, arrived)?;
        samples.push(sample);
    }
    Ok(samples)
}
