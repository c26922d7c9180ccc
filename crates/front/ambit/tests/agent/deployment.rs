//! The agent's example manifest, applied to our API server.

use crate::lab::{Lab, Proxy, on_a_node, state, text};
use ambit_api::apps::v1::DaemonSet;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MANIFEST: &str = include_str!("../../../../../examples/agent/daemonset.yaml");

fn kubectl(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new("kubectl");
    // Its cache of what the server has stays with the test.
    command.arg("--kubeconfig").arg(lab.at("kubeconfig")).arg("--cache-dir").arg(lab.at("cache"));
    command.args(arguments).output().unwrap()
}

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A kubeconfig of the agent's service account, in place of the administrator's.
fn of_account(lab: &Lab) -> PathBuf {
    let token = done(&kubectl(lab, &["create", "token", "istio-cni", "-n", "istio-system"]));
    with_token(lab, "agent", token.trim())
}

fn with_token(lab: &Lab, name: &str, token: &str) -> PathBuf {
    let path = lab.at(name).with_extension("kubeconfig");
    let admin = std::fs::read_to_string(lab.at("kubeconfig")).unwrap();
    let mut config: Value = serde_saphyr::from_str(&admin).unwrap();
    config["users"][0]["user"] = json!({ "token": token });
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[track_caller]
fn check_node(lab: &Lab, kubeconfig: &Path, code: i32, expected: &str) {
    let output = lab.agent_of(Command::new("env"), kubeconfig).arg("check").output().unwrap();
    let said = text(&output);
    assert!(said.contains("API server: answers") && said.contains(expected), "{said}");
    assert_eq!(output.status.code(), Some(code), "{said}");
}

/// Paths of all values.
fn keys(value: &Value) -> BTreeSet<String> {
    let inside: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(n, value)| (n.to_string(), value)).collect(),
        _ => return BTreeSet::from([String::new()]),
    };
    inside
        .iter()
        .flat_map(|(name, value)| keys(value).into_iter().map(move |rest| format!("{name}.{rest}")))
        .collect()
}

#[test]
fn the_manifest_is_accepted_and_gives_the_agent_all_that_it_needs_and_no_more() {
    on_a_node(async |mut lab| {
        // Nothing here acts on DaemonSets; the pod that one of a cluster's would make is judged beside it.
        let (set, others): (Vec<&str>, Vec<&str>) =
            MANIFEST.split("\n---\n").partition(|document| document.contains("kind: DaemonSet"));
        let set: Value = serde_saphyr::from_str(set[0]).unwrap();
        let files = ["others.yaml", "pod.yaml", "set.yaml"].map(|name| lab.at(name).display().to_string());
        let mut pod = set["spec"]["template"].clone();
        (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
        (pod["metadata"]["name"], pod["metadata"]["namespace"]) =
            (json!("istio-cni-node-x"), json!("istio-system"));
        std::fs::write(&files[0], others.join("\n---\n")).unwrap();
        std::fs::write(&files[1], pod.to_string()).unwrap();
        std::fs::write(&files[2], set.to_string()).unwrap();
        done(&kubectl(&lab, &["create", "namespace", "istio-system"]));
        done(&kubectl(&lab, &["apply", "--dry-run=server", "-f", &files[0]]));
        done(&kubectl(&lab, &["apply", "-f", &files[0]]));
        let said = done(&kubectl(&lab, &["apply", "--dry-run=server", "-f", &files[1]]));
        assert!(said.contains("pod/istio-cni-node-x created (server dry run)"), "{said}");
        let said = done(&kubectl(&lab, &["apply", "--dry-run=server", "-f", &files[2]]));
        assert!(said.contains("daemonset.apps/istio-cni-node created (server dry run)"), "{said}");
        // No field of the set is unknown to Kubernetes.
        let typed: DaemonSet = serde_json::from_value(set.clone()).unwrap();
        assert_eq!(keys(&serde_json::to_value(&typed).unwrap()), keys(&set));
        // What it is given is what it keeps, and the right to give up the rest.
        let context =
            typed.spec.unwrap().template.spec.unwrap().containers[0].security_context.clone().unwrap();
        let capabilities = context.capabilities.unwrap();
        assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
        let given = capabilities.add.unwrap();
        assert_eq!(given, ["NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "DAC_OVERRIDE", "SETPCAP"]);
        // The check of the node tells of the API server what its account may.
        check_node(&lab, &lab.at("kubeconfig"), 1, "the cluster has no node n1");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
        std::fs::write(&files[2], node.to_string()).unwrap();
        done(&kubectl(&lab, &["apply", "-f", &files[2]]));
        let agent_s = of_account(&lab);
        check_node(&lab, &agent_s, 0, "permissions: all that the agent needs");
        check_node(&lab, &lab.at("kubeconfig"), 0, "n1 is known");
        let other = done(&kubectl(&lab, &["create", "token", "default", "-n", "shop"]));
        let nobody = with_token(&lab, "nobody", other.trim());
        check_node(&lab, &nobody, 1, "may not watch pods: no pod can be captured");
        // With the rights of its account and those of its container it captures and releases.
        let mut agent = Command::new("setpriv");
        let bounding: Vec<String> = given.iter().map(|name| format!("+{}", name.to_lowercase())).collect();
        agent.arg(format!("--bounding-set=-all,{}", bounding.join(",")));
        let agent = lab.start(agent, &agent_s, &[]).await;
        crate::check_confined(&agent);
        let net = lab.make_pod_net();
        let before = state(&net.netns);
        // Without a proxy it waits, and an event tells it.
        assert_eq!(lab.add("web", &net).await.0, 500);
        crate::lab::until("its event is written", async || {
            done(&kubectl(&lab, &["get", "events", "-n", "shop"])).contains("no proxy is connected")
        })
        .await;
        let _proxy = Proxy::connect(&lab);
        lab.until_redirection("web", Some("enabled")).await;
        assert_ne!(state(&net.netns), before);
        lab.label_namespace(None).await;
        lab.until_redirection("web", None).await;
        assert_eq!(state(&net.netns), before);
        assert!(agent.stop().await.success());
    });
}
