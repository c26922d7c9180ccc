//! The API server as a process of its own.

use crate::measure::proportional;
use ambit_kube::Liveness;
use ambit_runtime::Clock;
use anyhow::{Context as _, Result, ensure};
use http::Request;
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time for a server to start, and pause between looks.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(1);

/// A server that runs, on a folder.
pub(crate) struct Server {
    process: Child,
    kubeconfig: PathBuf,
    /// An administrator's.
    pub(crate) client: Client,
    /// From its start to its first answer that it is ready.
    pub(crate) ready_after: Duration,
}

impl Server {
    /// Starts the program `ambit` and waits until it is ready.
    pub(crate) async fn start(program: &Path, state: &Path) -> Result<Self> {
        let address = free()?;
        let kubeconfig: PathBuf = state.join("kubeconfig");
        // Another start's file would be taken for this one's.
        let _ = std::fs::remove_file(&kubeconfig);
        let begun = Clock.now();
        let mut process = Command::new(program)
            .args(["apiserver", "--listen", &address.to_string(), "--state"])
            .arg(state)
            .arg("--write-kubeconfig")
            .arg(&kubeconfig)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let end = begun + PATIENCE;
        let mut client = None;
        loop {
            if let Some(client) = &client
                && is_ready(client).await
            {
                break;
            }
            if client.is_none()
                && let Ok(text) = std::fs::read_to_string(&kubeconfig)
            {
                client = connect(&text).await.ok();
                continue;
            }
            ensure!(process.try_wait()?.is_none(), "the API server ended by itself");
            ensure!(Clock.now() < end, "the API server is not ready after {PATIENCE:?}");
            tokio::time::sleep(PAUSE).await;
        }
        let ready_after = Clock.now() - begun;
        let client = client.context("no kubeconfig was written")?;
        Ok(Self { process, kubeconfig, client, ready_after })
    }

    /// The file with which others connect, too.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Processor time that the process has used.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let schedstat = |path: PathBuf| -> Option<u64> {
            std::fs::read_to_string(path).ok()?.split(' ').next()?.parse().ok()
        };
        let mut nanoseconds = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            // One that has ended meanwhile had little to do.
            nanoseconds += schedstat(thread?.path().join("schedstat")).unwrap_or_default();
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Bytes of memory that belong to the process, shared pages counted in part.
    pub(crate) fn memory(&self) -> Result<u64> {
        proportional(self.process.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// A client of a kubeconfig's cluster.
pub(crate) async fn connect(kubeconfig: &str) -> Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(ambit_kube::connect(config, Liveness::default())?)
}

async fn is_ready(client: &Client) -> bool {
    let Ok(request) = Request::get("/readyz").body(Vec::new()) else { return false };
    client.request_text(request).await.is_ok_and(|text| text == "ok")
}
