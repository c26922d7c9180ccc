//! `ambit status` for other nodes.

use crate::lab::{Proxy, on_a_node, text};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

fn status(kubeconfig: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambit"));
    command.args(["status", "--kubeconfig"]).arg(kubeconfig).args(arguments).output().unwrap()
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(output)))
}

#[test]
fn without_a_way_to_the_agents_the_annotations_are_shown_and_it_is_said() {
    on_a_node(async |mut lab| {
        let agent = lab.start_agent().await;
        let net = lab.make_pod_net();
        // No proxy: the pod waits, which the agent tells by annotation and event.
        assert_eq!(lab.add("web", &net).await.0, 500);
        lab.until_redirection("web", Some("pending")).await;
        let shown = status(&lab.at("kubeconfig"), &["--node", "n1"]);
        let said = text(&shown);
        assert_eq!(shown.status.code(), Some(4), "{said}");
        assert!(said.contains("n1     shop        web   captured   pending   -"), "{said}");
        assert!(said.contains("its agent could not be asked: no pod of an agent runs there"), "{said}");
        crate::lab::until("the agent's event is the reason", async || {
            text(&status(&lab.at("kubeconfig"), &["-A"])).contains("no proxy is connected")
        })
        .await;
        let _proxy = Proxy::connect(&lab);
        lab.until_redirection("web", Some("enabled")).await;
        let shown = status(&lab.at("kubeconfig"), &["-A", "-o", "json", "shop/web"]);
        assert_eq!(shown.status.code(), Some(0), "{}", text(&shown));
        let node = &json_of(&shown)["nodes"][0];
        assert_eq!((&node["source"], &node["pods"][0]["state"]), (&json!("annotations"), &json!("captured")));
        assert_eq!(status(&lab.at("kubeconfig"), &["-A", "ghost"]).status.code(), Some(3));
        let unknown = status(&lab.at("kubeconfig"), &["--node", "n9"]);
        assert_eq!(unknown.status.code(), Some(1));
        assert!(text(&unknown).contains(r#"no pod runs on a node "n9""#), "{}", text(&unknown));
        // On the node itself the agent is asked, and knows more.
        let own = Command::new(env!("CARGO_BIN_EXE_ambit")).args(["status", "-o", "json"]).output().unwrap();
        assert_eq!(own.status.code(), Some(0), "{}", text(&own));
        assert!(!json_of(&own)["pods"][0]["since"].as_str().unwrap().is_empty());
        // What somebody else writes into the annotation is shown as what it is: not as it should be.
        let patch = Patch::Merge(json!({"metadata": {"labels": {"istio.io/dataplane-mode": "none"}}}));
        assert!(agent.stop().await.success());
        lab.pods_of_shop().patch("web", &PatchParams::default(), &patch).await.unwrap();
        let shown = status(&lab.at("kubeconfig"), &["-A"]);
        assert_eq!(shown.status.code(), Some(4));
        assert!(text(&shown).contains("left-alone   releasing"), "{}", text(&shown));
    });
}

/// An API server that reaches the agents, as those of other clusters do: answers by path, until the test ends.
fn scripted(
    answers: impl Fn(&str) -> Option<Value> + Send + 'static,
) -> (tempfile::TempDir, std::path::PathBuf) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
            while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(read) if read > 0 => head.extend(&buffer[..read]),
                    _ => break,
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            let (code, body) = match answers(path) {
                Some(body) => ("200 OK", body),
                None => (
                    "404 Not Found",
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "there is nothing", "reason": "NotFound", "code": 404}),
                ),
            };
            let body = body.to_string();
            let length = body.len();
            // A client that has gone needs no answer.
            let _ = write!(
                stream,
                "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    (dir, kubeconfig)
}

#[test]
fn agents_are_asked_through_an_api_server_that_reaches_them() {
    let pod = |namespace: &str, name: &str, node: &str, labels: Value| {
        json!({"metadata": {"namespace": namespace, "name": name, "uid": name, "labels": labels},
            "spec": {"nodeName": node, "containers": []}, "status": {"podIP": "10.0.0.5"}})
    };
    let agent = json!({"k8s-app": "istio-cni-node"});
    let pods = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [
        pod("istio-system", "agent-a", "a", agent.clone()), pod("shop", "web", "a", json!({})),
        pod("istio-system", "agent-b", "b", agent), pod("shop", "db", "b", json!({})),
    ]});
    let namespaces = json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": {}, "items": [
        {"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}}},
        {"metadata": {"name": "istio-system"}},
    ]});
    let (_dir, kubeconfig) = scripted(move |path| match path {
        "/api/v1/pods" => Some(pods.clone()),
        "/api/v1/namespaces" => Some(namespaces.clone()),
        "/api/v1/namespaces/istio-system/pods/agent-a:8000/proxy/debug/pods" => {
            Some(json!({"node": "a", "pods": [
            {"namespace": "shop", "name": "web", "uid": "web", "wanted": "captured", "state": "captured",
                "since": "2026-01-02T03:04:05Z", "reason": "said by the agent", "kept_off": false}]}))
        }
        _ => None,
    });
    let shown = status(&kubeconfig, &["--all-nodes", "-o", "json"]);
    assert_eq!(shown.status.code(), Some(4), "{}", text(&shown));
    let nodes = &json_of(&shown)["nodes"];
    assert_eq!((&nodes[0]["node"], &nodes[0]["source"]), (&json!("a"), &json!("agent")));
    assert_eq!(nodes[0]["pods"][0]["reason"], "said by the agent");
    assert_eq!((&nodes[1]["node"], &nodes[1]["source"]), (&json!("b"), &json!("annotations")));
    let because = nodes[1]["because"].as_str().unwrap();
    assert!(because.contains("does not reach pod istio-system/agent-b"), "{because}");
    let states: Vec<_> =
        nodes[1]["pods"].as_array().unwrap().iter().map(|pod| (&pod["name"], &pod["state"])).collect();
    assert_eq!(states, [(&json!("agent-b"), &json!("left-alone")), (&json!("db"), &json!("failed"))]);
    assert_eq!(status(&kubeconfig, &["--node", "a"]).status.code(), Some(0));
}
