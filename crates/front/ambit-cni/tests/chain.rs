//! The plugin's binary behind a reference plugin, called as a runtime calls a chain: the result of each goes to the
//! next one.

// This file is a test from its first line; the lint only knows test functions.
#![allow(clippy::unwrap_used, reason = "a failed step of a test ends it")]

use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Where the reference plugins are.
const PLUGINS: &str = "/usr/lib/cni";

/// Calls a plugin with the configuration on its standard input.
fn call(program: &Path, command: &str, pod: &str, conf: &Value) -> Output {
    let mut child = Command::new(program)
        .env_clear()
        .envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("CNI_PATH", PLUGINS), ("CNI_IFNAME", "lo")])
        .envs([("CNI_COMMAND", command), ("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/proc/self/ns/net")])
        .env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME=p", pod))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(conf.to_string().as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn ours() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ambit-cni"))
}

/// host-local gives out an address without touching a network: the result that a chained plugin gets.
#[track_caller]
fn check_chain(version: &str) {
    let dir = tempfile::tempdir().unwrap();
    let conf = json!({
        "cniVersion": version, "name": "n", "type": "bridge", "exclude_namespaces": ["kube-system"],
        "cni_agent_run_dir": dir.path(), "pod_namespace": "istio-system",
        "ipam": {"type": "host-local", "dataDir": dir.path(), "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]]},
    });
    let before = call(&Path::new(PLUGINS).join("host-local"), "ADD", "kube-system", &conf);
    assert!(before.status.success(), "{version}: {}", String::from_utf8_lossy(&before.stdout));
    let result: Value = serde_json::from_slice(&before.stdout).unwrap();
    let mut chained = conf.clone();
    chained["prevResult"] = result.clone();
    chained["prevResult"]["x-unknown"] = json!([1, "two"]);
    let passed = call(ours(), "ADD", "kube-system", &chained);
    assert!(passed.status.success(), "{version}: {}", String::from_utf8_lossy(&passed.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&passed.stdout).unwrap(), chained["prevResult"], "{version}");
    // A pod that may be the mesh's does not start without an agent, and is deleted without one.
    let refused = call(ours(), "ADD", "shop", &chained);
    let object: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(
        (refused.status.code(), &object["code"], &object["cniVersion"]),
        (Some(1), &json!(11), &json!(version))
    );
    for _ in 0..2 {
        let deleted = call(ours(), "DEL", "shop", &json!("garbage"));
        assert_eq!((deleted.status.code(), deleted.stdout.len()), (Some(0), 0));
    }
    assert!(call(&Path::new(PLUGINS).join("host-local"), "DEL", "kube-system", &conf).status.success());
}

#[test]
fn results_of_the_reference_plugins_pass_in_every_version_that_they_speak() {
    let said = call(&Path::new(PLUGINS).join("host-local"), "VERSION", "", &json!({"cniVersion": "1.0.0"}));
    let theirs: Value = serde_json::from_slice(&said.stdout).unwrap();
    let theirs = theirs["supportedVersions"].as_array().unwrap().clone();
    let both: Vec<&str> =
        ["0.3.1", "0.4.0", "1.0.0", "1.1.0"].into_iter().filter(|v| theirs.contains(&json!(v))).collect();
    assert!(both.len() >= 3, "{theirs:?}");
    both.into_iter().for_each(check_chain);
}

#[test]
fn a_deletion_succeeds_with_nothing_at_all() {
    let bare =
        Command::new(ours()).env_clear().env("CNI_COMMAND", "DEL").stdin(Stdio::null()).output().unwrap();
    assert!(bare.status.success() && bare.stdout.is_empty() && bare.stderr.is_empty());
}
