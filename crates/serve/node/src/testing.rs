//! What the tests with a real container runtime share.

use crate::settings::Settings;
use ambit_trust::pki::ClusterPki;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Set in the process that runs a test inside namespaces of its own.
const INSIDE: &str = "AMBIT_TEST_INSIDE";
/// How long a condition may take to come true.
const WAIT: Duration = Duration::from_secs(60);

/// Runs `test` in a process of its own with mount, network and process namespaces of its own; a test that fails leaves
/// no process behind, as they end with the last of these. `name` is the test's full name.
#[track_caller]
pub(crate) fn in_own_namespaces(name: &str, test: impl Future<Output = ()>) {
    if std::env::var_os(INSIDE).is_some() {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        let _ = ambit_runtime::logging::init("info", ambit_runtime::logging::LogFormat::Text);
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test);
        return;
    }
    let status = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{name} failed inside its namespaces (it needs root)");
}

/// A directory whose path is short enough for sockets.
pub(crate) fn short_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("an").tempdir_in("/tmp").unwrap()
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(WAIT, holds).await.is_ok(), "waited in vain until {what}");
}

/// Settings of a node that keeps everything in `dir`.
pub(crate) fn settings(dir: &Path) -> Settings {
    let pki = ClusterPki::in_memory(&[]).unwrap();
    Settings {
        node_name: "node-1".into(),
        node_ips: vec!["127.0.0.1".parse().unwrap()],
        state_dir: dir.to_owned(),
        pod_cidrs: vec!["10.244.0.0/24".parse().unwrap()],
        cluster_dns: "10.96.0.10".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
        cni_bin_dirs: vec!["/usr/lib/cni".into(), "/opt/cni/bin".into()],
        bridge: "ambit0".into(),
        mesh_plugin: None,
        pause_binary: static_binary("ambit-pause"),
        images: Vec::new(),
        listen: "127.0.0.1:10250".parse().unwrap(),
        client_ca_pem: pki.ca_pem().to_owned(),
        server: pki.issue_server("system:node:node-1", &["127.0.0.1".to_owned()]).unwrap(),
        cluster_services: None,
    }
}

/// A static binary of this workspace, built if it is not there.
pub(crate) fn static_binary(package: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", "static", "--target", &target, "-p", package])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .current_dir(&root)
        .status()
        .unwrap();
    assert!(built.success(), "{package} does not build");
    root.join("target").join(&target).join("static").join(package)
}

/// Command lines of processes that name `dir`.
pub(crate) fn processes_naming(dir: &Path) -> Vec<String> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| *pid != own);
    let line = |pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let lines = pids.map(|pid| String::from_utf8_lossy(&line(pid)).replace('\0', " "));
    lines.filter(|line| line.contains(&*dir.to_string_lossy())).collect()
}
