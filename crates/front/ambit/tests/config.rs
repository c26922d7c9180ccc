//! `ambit config` as its users run it.

use ambit_runtime::Clock;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Long enough for any machine; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

fn ambit(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambit"));
    command.args(arguments).env_remove("SHARED_MESH_CONFIG").env_remove("REVISION");
    command
}

#[track_caller]
fn check(output: &Output, code: i32, stdout: &[&str]) {
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}{complaint}");
    for part in stdout {
        assert!(text.contains(part), "{part} is not in {text}{complaint}");
    }
}

#[test]
fn check_tells_every_fault_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let bad = file("bad.yaml", "trustDomain: true\nconnectTimeout: soon\n");
    let faults = [
        format!("{bad}:1:14: trustDomain: it is the boolean true, a text (write it in quotes) is expected\n"),
        format!("{bad}:2:17: connectTimeout: it is the text \"soon\", a duration in seconds"),
    ];
    check(&ambit(&["config", "check", &bad]).output().unwrap(), 1, &[&faults[0], &faults[1]]);
    let json = ambit(&["config", "check", &bad, "-o", "json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&report["faults"][1]["line"], &report["faults"][1]["field"]),
        (&2.into(), &"connectTimeout".into())
    );
    let good = file("good.yaml", "trustDomain: one.example\naccessLogFile: /dev/stdout\n");
    let expected = format!("{good}:2:16: accessLogFile: not used here (note)");
    check(&ambit(&["config", "check", &good]).output().unwrap(), 0, &[&expected, "no faults"]);
    let missing = ambit(&["config", "check", "/nowhere/mesh.yaml"]).output().unwrap();
    check(&missing, 1, &[]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot read /nowhere/mesh.yaml"));
}

#[test]
fn check_reads_the_standard_input() {
    let mut child =
        ambit(&["config", "check", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"enableTracing: maybe\n").unwrap();
    check(&child.wait_with_output().unwrap(), 1, &["<stdin>:1:16: enableTracing: "]);
}

/// An API server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn server(folder: &Path) -> (Server, String) {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|probe| probe.local_addr()).expect("a free port");
    let kubeconfig = folder.join("kubeconfig").display().to_string();
    let arguments = ["apiserver", "--listen", &free.to_string(), "--write-kubeconfig", &kubeconfig];
    let child = ambit(&arguments).stderr(Stdio::null()).spawn().expect("it starts");
    (Server(child), kubeconfig)
}

#[test]
fn show_tells_what_is_in_force_and_where_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, kubeconfig) = server(folder.path());
    let file = folder.path().join("mesh.yaml");
    std::fs::write(&file, "trustDomain: one.example\n").unwrap();
    let file = file.to_str().unwrap();
    let show = |more: &[&str]| {
        let arguments = [&["config", "show", "--kubeconfig", &kubeconfig], more].concat();
        ambit(&arguments).output().unwrap()
    };
    let deadline = Clock.now() + PATIENCE;
    while !show(&[]).status.success() {
        assert!(Clock.now() < deadline, "{}", String::from_utf8_lossy(&show(&[]).stderr));
    }
    check(&show(&[]), 0, &["trustDomain: cluster.local\n"]);
    let origins = show(&["--origin", "--mesh-config", file]);
    let expected = format!("\"one.example\"  # {file}:1:14\n");
    check(&origins, 0, &[&expected, "# defaults:"]);
    std::fs::write(file, "trustDomain: 1\n").unwrap();
    let bad = show(&["--mesh-config", file]);
    check(&bad, 1, &[]);
    let complaint = String::from_utf8_lossy(&bad.stderr);
    assert!(
        complaint.contains("mesh.yaml:1:14: trustDomain: ") && complaint.contains("none is in force"),
        "{complaint}"
    );
}
