use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

fn environment(command: &str, pod: &str) -> Environment {
    let (namespace, name) = pod.split_once('/').unwrap_or_default();
    Environment {
        command: command.into(),
        container_id: "c1".into(),
        netns: "/run/netns/x".into(),
        interface: "eth0".into(),
        arguments: format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID=u1"
        ),
        notes: Notes::default(),
    }
}

fn conf(run_dir: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "n", "type": "ambit-cni",
        "cni_agent_run_dir": run_dir, "exclude_namespaces": ["kube-system"], "pod_namespace": "istio-system",
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.5/24", "interface": 0}], "dns": {}},
    })
}

fn add(run_dir: &Path, pod: &str) -> Result<Value, ErrorObject> {
    let text = run(&environment("ADD", pod), conf(run_dir).to_string().as_bytes())?;
    Ok(serde_json::from_str(&text).unwrap())
}

/// An agent that gives one answer and returns what it was asked.
fn agent(run_dir: &Path, answer: String) -> std::thread::JoinHandle<(String, Value)> {
    listen(&run_dir.join(path::PLUGIN_EVENT_SOCKET), answer)
}

fn listen(socket: &Path, answer: String) -> std::thread::JoinHandle<(String, Value)> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let read = stream.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..read]);
            let text = String::from_utf8(request.clone()).unwrap();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && let Ok(body) = serde_json::from_str(body)
            {
                stream.write_all(answer.as_bytes()).unwrap();
                return (head.to_owned(), body);
            }
        }
    })
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn the_agent_is_asked_and_the_previous_result_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(dir.path(), http("200 OK", r#"{"captured":true,"reason":"because"}"#));
    let printed = add(dir.path(), "shop/web").unwrap();
    assert_eq!(printed, conf(dir.path())["prevResult"]);
    let (head, event) = agent.join().unwrap();
    assert!(head.starts_with("POST /ambit/v1/add HTTP/1.1\r\n"), "{head}");
    let expected = json!({
        "Netns": "/run/netns/x", "PodName": "web", "PodNamespace": "shop", "PodUID": "u1",
        "IPs": [{"Interface": 0, "Address": {"IP": "10.0.0.5", "Mask": "////AA=="}, "Gateway": ""}],
        "ContainerID": "c1", "Interface": "eth0",
    });
    assert_eq!(event, expected);
}

#[track_caller]
fn check_refused(answer: String, code: u32, msg: &str, details: &str) {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(dir.path(), answer);
    let object = add(dir.path(), "shop/web").unwrap_err();
    assert_eq!((object.code, object.cni_version.as_str()), (code, "1.0.0"));
    assert!(object.msg.contains(msg) && object.details.contains(details), "{object:?}");
    agent.join().unwrap();
}

#[test]
fn what_the_agent_refuses_fails_with_its_words() {
    check_refused(http("500 No", "no proxy"), 11, "could not capture pod shop/web", "status 500: no proxy");
    check_refused(
        http("404 Not Found", ""),
        11,
        "not a node agent that this plugin knows",
        "foreign or too old",
    );
    check_refused(http("200 OK", "{}"), code::DECODE, "cannot be read", "captured");
    check_refused(
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}".into(),
        11,
        "cannot be reached",
        "cut off",
    );
    check_refused(String::new(), 11, "cannot be reached", "no end");
}

#[test]
fn inv_01_without_an_agent_only_pods_that_need_none_start() {
    let dir = tempfile::tempdir().unwrap();
    let object = add(dir.path(), "shop/web").unwrap_err();
    assert_eq!(object.code, code::TRY_AGAIN_LATER);
    assert!(object.details.contains("pluginevent.sock: No such file"), "{}", object.details);
    for pod in ["istio-system/istio-cni-node-x1", "istio-system/ztunnel-n1", "kube-system/dns", ""] {
        assert_eq!(add(dir.path(), pod).unwrap(), conf(dir.path())["prevResult"], "{pod}");
    }
    for pod in ["istio-system/istiod-1", "shop/ztunnel-1", "shop/istio-cni-node-1"] {
        assert!(add(dir.path(), pod).is_err(), "{pod}");
    }
}

#[track_caller]
fn check(command: &str, input: &str, expected: Result<&str, u32>) {
    let ran = run(&environment(command, "shop/web"), input.as_bytes());
    assert_eq!(ran.as_deref().map_err(|object| object.code), expected, "{command} {input}");
}

#[test]
fn the_other_verbs_answer_as_specified() {
    check("DEL", "nonsense", Ok(""));
    check(
        "CHECK",
        r#"{"cniVersion":"0.4.0","cni_agent_run_dir":"/nonexistent"}"#,
        Err(code::TRY_AGAIN_LATER),
    );
    check("CHECK", r#"{"cniVersion":"0.3.1"}"#, Err(code::INCOMPATIBLE_VERSION));
    check("STATUS", r#"{"cniVersion":"1.1.0","cni_agent_run_dir":"/nonexistent"}"#, Err(code::NOT_AVAILABLE));
    check("STATUS", r#"{"cniVersion":"1.0.0"}"#, Err(code::INCOMPATIBLE_VERSION));
    check("GC", r#"{"cniVersion":"1.1.0"}"#, Err(code::INVALID_CONFIGURATION));
    let gc = r#"{"cniVersion":"1.1.0","cni_agent_run_dir":"/nonexistent","cni.dev/valid-attachments":[]}"#;
    check("GC", gc, Err(code::TRY_AGAIN_LATER));
    check("GC", r#"{"cniVersion":"1.0.0"}"#, Err(code::INCOMPATIBLE_VERSION));
    check(
        "VERSION",
        r#"{"cniVersion":"1.0.0"}"#,
        Ok(
            r#"{"cniVersion":"1.0.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#,
        ),
    );
    check("VERSION", r#"{"cniVersion":"9"}"#, Err(code::INCOMPATIBLE_VERSION));
    check("", "{}", Err(code::INVALID_ENVIRONMENT));
    check("ADD", "", Err(code::DECODE));
    check("ADD", r#"{"prevResult": 3}"#, Err(code::INVALID_CONFIGURATION));
}

/// Runs a verb against an agent with one answer: what came of it, and what the agent was asked.
fn asked(command: &str, answer: String, more: &str) -> (Result<String, ErrorObject>, String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(dir.path(), answer);
    let mut conf = conf(dir.path());
    conf["cniVersion"] = "1.1.0".into();
    if !more.is_empty() {
        conf["cni.dev/valid-attachments"] = serde_json::from_str(more).unwrap();
    }
    let ran = run(&environment(command, "shop/web"), conf.to_string().as_bytes());
    let (head, body) = agent.join().unwrap();
    (ran, head, body)
}

#[test]
fn what_is_said_goes_to_the_agent_s_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = listen(&dir.path().join(path::PLUGIN_LOG_SOCKET), http("200 OK", ""));
    add(dir.path(), "shop/web").unwrap_err();
    let (head, lines) = log.join().unwrap();
    assert!(head.starts_with("POST /log "), "{head}");
    let line: Value = serde_json::from_str(lines[0].as_str().unwrap()).unwrap();
    assert_eq!(line["level"], "error");
    assert!(
        line["msg"].as_str().unwrap().starts_with("ADD of shop/web failed: the mesh's node agent cannot")
    );
    // A log that nobody takes holds nothing up.
    let _silent = UnixListener::bind(dir.path().join("silent.sock")).unwrap();
    std::fs::remove_file(dir.path().join(path::PLUGIN_LOG_SOCKET)).unwrap();
    std::fs::hard_link(dir.path().join("silent.sock"), dir.path().join(path::PLUGIN_LOG_SOCKET)).unwrap();
    assert!(add(dir.path(), "kube-system/dns").is_ok());
}

#[test]
fn check_asks_about_the_pod() {
    let (ran, head, body) = asked("CHECK", http("200 OK", "{}"), "");
    assert_eq!(ran, Ok(String::new()));
    assert!(head.starts_with("POST /ambit/v1/check "), "{head}");
    assert_eq!((&body["PodName"], &body["ContainerID"]), (&json!("web"), &json!("c1")));
    let (ran, ..) = asked("CHECK", http("500 No", "its rules are gone"), "");
    let object = ran.unwrap_err();
    assert_eq!(object.code, code::TRY_AGAIN_LATER);
    assert!(
        object.msg.contains("confirm the capture of pod shop/web") && object.details.contains("are gone")
    );
    let excluded =
        run(&environment("CHECK", "kube-system/dns"), conf(Path::new("/nonexistent")).to_string().as_bytes());
    assert_eq!(excluded, Ok(String::new()), "what ADD lets through has nothing to check");
}

#[test]
fn status_tells_the_agent_s_ability_in_the_specification_s_codes() {
    for (ability, expected) in [
        ("able", Ok(String::new())),
        ("unable", Err(code::NOT_AVAILABLE)),
        ("cut", Err(code::LIMITED_CONNECTIVITY)),
        ("unheard-of", Err(code::NOT_AVAILABLE)),
    ] {
        let body = json!({"ability": ability, "reason": "why"}).to_string();
        let (ran, head, _) = asked("STATUS", http("200 OK", &body), "");
        assert_eq!(ran.map_err(|object| object.code), expected, "{ability}");
        assert!(head.starts_with("POST /ambit/v1/status "), "{head}");
    }
    let (ran, ..) = asked("STATUS", http("404 Not Found", ""), "");
    assert_eq!(ran.unwrap_err().code, code::NOT_AVAILABLE);
}

#[test]
fn gc_tells_which_sandboxes_live() {
    let valid = r#"[{"containerID":"a","ifname":"eth0"},{"containerID":"b","ifname":"eth0"}]"#;
    let (ran, head, body) = asked("GC", http("200 OK", "{}"), valid);
    assert_eq!(ran, Ok(String::new()));
    assert!(head.starts_with("POST /ambit/v1/gc "), "{head}");
    assert_eq!(body, json!({"container_ids": ["a", "b"]}));
}

#[test]
fn add_needs_its_environment() {
    let bare = Environment { command: "ADD".into(), ..Environment::default() };
    let object = run(&bare, b"{}").unwrap_err();
    assert_eq!((object.code, object.msg.as_str()), (code::INVALID_ENVIRONMENT, "CNI_CONTAINERID is missing"));
}

proptest! {
    #[test]
    fn inv_08_no_input_panics(
        command in prop_oneof![Just("ADD"), Just("CHECK"), Just("GC"), Just("STATUS"), Just("VERSION")],
        noise in prop::collection::vec(any::<u8>(), 0..200),
        ips in "[\\[\\]{}\",:a-z0-9./ ]{0,60}",
        version in "(0\\.[1-4]\\.[01]|1\\.[01]\\.0|.{0,5})",
        pod in "[a-z;=/]{0,20}",
    ) {
        // No agent listens below this directory.
        let text = format!(
            r#"{{"cniVersion":"{version}","cni_agent_run_dir":"/nonexistent","prevResult":{{"ips":{ips},"x":1}}}}"#
        );
        let mut environment = environment(command, "");
        environment.arguments = pod;
        let _ = run(&environment, &noise);
        let _ = run(&environment, text.as_bytes());
    }
}
