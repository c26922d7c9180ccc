//! What the agent shows of pods, and what it does while it cannot capture one.

use super::tests::{Cluster, Proxy, create, get, until};
use crate::fixture::{PodNet, shell, state};
use crate::status::{NodeStatus, PodStatus};
use ambit_api::core::v1::{Event, Pod};
use ambit_linux::netns::NetNs;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

impl Cluster {
    async fn shown(&self, name: &str) -> Option<PodStatus> {
        let (code, body) = get(self.settings.health, "/debug/pods").await;
        assert_eq!(code, 200, "{body}");
        let status: NodeStatus = serde_json::from_str(&body).unwrap();
        assert_eq!(status.node, "n1");
        status.pods.into_iter().find(|pod| pod.name == name)
    }

    async fn until_state(&self, name: &'static str, state: &'static str) -> PodStatus {
        until("the pod's state", async || self.shown(name).await.is_some_and(|pod| pod.state == state)).await;
        self.shown(name).await.unwrap()
    }

    async fn has_event(&self, reason: &str, text: &str) -> bool {
        let events: Api<Event> = Api::namespaced(self.client(), "shop");
        let listed = events.list(&ListParams::default()).await.unwrap();
        listed.items.iter().any(|event| {
            event.reason.as_deref() == Some(reason) && event.message.as_deref().unwrap().contains(text)
        })
    }

    async fn metric(&self, line: &str) -> bool {
        get(self.settings.metrics, "/metrics").await.1.lines().any(|found| found == line)
    }

    /// What the runtime reports, without any process that could be found.
    async fn report_address(&self, pod: &Pod, net: &PodNet) {
        let address = net.address.to_string();
        let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        let name = pod.metadata.name.as_deref().unwrap();
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }
}

/// Whether packets arrive: a refused connection counts.
fn reaches(from: &NetNs, to: IpAddr) -> bool {
    let to = (to, 9).into();
    match from.run(|| TcpStream::connect_timeout(&to, Duration::from_millis(300))).unwrap() {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv_01_a_pod_that_ran_before_the_agent_is_kept_off_the_network_until_it_is_captured() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let (net, other) = (cluster.node.add_pod(), cluster.node.add_pod());
    cluster.node.netns.run(|| shell("echo 1 > /proc/sys/net/ipv4/ip_forward")).unwrap();
    // As after a reboot without a drain: the sandbox is there, and no process of the pod can be found.
    let pod = cluster.create_pod("web").await;
    cluster.report_address(&pod, &net).await;
    assert!(reaches(&net.netns, other.address));
    let agent = cluster.started().await;
    let _proxy = Proxy::connect(&cluster);
    assert!(!reaches(&net.netns, other.address), "it is kept off from before the agent is ready");
    assert!(!reaches(&other.netns, net.address));
    let shown = cluster.until_state("web", "failed").await;
    assert!(shown.kept_off && shown.wanted == "captured", "{shown:?}");
    assert!(shown.reason.starts_with("no process of pod shop/web was found below"), "{shown:?}");
    assert!(cluster.metric(r#"ambit_agent_pods{state="failed"} 1"#).await);
    assert!(cluster.metric("ambit_agent_kept_off_pods 1").await);
    until("the event", async || cluster.has_event("CaptureFailed", "kept off the network").await).await;
    // Its process comes up. The agent has never stopped looking.
    cluster.report_running(&pod, &net).await;
    let shown = cluster.until_state("web", "captured").await;
    assert!(!shown.kept_off, "{shown:?}");
    until("the quarantine is empty", async || {
        !cluster.host_state().contains("comment \"") || {
            !cluster.host_state().split("table inet ambit-quarantine").nth(1).unwrap().contains("elements")
        }
    })
    .await;
    assert!(reaches(&other.netns, net.gateway));
    assert!(cluster.metric(r#"ambit_agent_pods{state="captured"} 1"#).await);
    assert!(cluster.metric("ambit_agent_kept_off_pods 0").await);
    until("the event", async || cluster.has_event("Captured", "captured by the mesh").await).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pod_s_state_is_shown_with_its_reason() {
    let mut cluster = Cluster::new(None).await;
    cluster.settings.uncaptured = crate::Uncaptured::LetBe;
    let net = cluster.node.add_pod();
    let agent = cluster.started().await;
    let pod = cluster.create_pod("web").await;
    let shown = cluster.until_state("web", "left-alone").await;
    assert!(shown.reason.starts_with("neither the pod nor its namespace is labelled"), "{shown:?}");
    assert_eq!((shown.namespace.as_str(), shown.wanted.as_str()), ("shop", "left-alone"));
    cluster.label_namespace(Some("ambient")).await;
    cluster.until_state("web", "starting").await;
    // Without a proxy it waits, and says so.
    assert_eq!(cluster.add(&pod, &net).await.0, 500);
    let shown = cluster.until_state("web", "pending").await;
    assert!(shown.reason.contains("no proxy is connected") && !shown.kept_off, "{shown:?}");
    until("the event", async || cluster.has_event("CapturePending", "no proxy is connected").await).await;
    assert!(!cluster.host_state().contains("ambit-quarantine"));
    let _proxy = Proxy::connect(&cluster);
    assert_eq!(cluster.add(&pod, &net).await.0, 200);
    cluster.until_state("web", "captured").await;
    cluster.pods().delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    until("it is gone", async || cluster.shown("web").await.is_none()).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_pod_leaves_the_sets_at_once_and_its_address_is_its_successor_s() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let net = cluster.node.add_pod();
    let agent = cluster.started().await;
    let _proxy = Proxy::connect(&cluster);
    let job = cluster.create_pod("job").await;
    assert_eq!(cluster.add(&job, &net).await.0, 200);
    cluster.report_running(&job, &net).await;
    let element = |pod: &Pod| format!("comment \"{}\"", pod.metadata.uid.as_deref().unwrap());
    assert!(cluster.host_state().contains(&element(&job)));
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    cluster.pods().patch_status("job", &PatchParams::default(), &ended).await.unwrap();
    until("it has left", async || !cluster.host_state().contains(&element(&job))).await;
    let shown = cluster.until_state("job", "left-alone").await;
    assert_eq!(shown.reason, "the pod has ended");
    let next = cluster.create_pod("next").await;
    assert_eq!(cluster.add(&next, &net).await.0, 200);
    assert!(cluster.host_state().contains(&element(&next)));
    // The finished pod goes for good: the address stays its successor's.
    cluster.pods().delete("job", &kube::api::DeleteParams::default()).await.unwrap();
    until("it is gone", async || cluster.shown("job").await.is_none()).await;
    assert!(cluster.host_state().contains(&element(&next)));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_static_pod_is_known_by_the_uid_that_its_runtime_uses() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let net = cluster.node.add_pod();
    let _agent = cluster.started().await;
    let _proxy = Proxy::connect(&cluster);
    let hash = "3b1f1ca41f0b4a3e9d530b0a4d9c8e71";
    let mirror = json!({
        "metadata": {"name": "web-n1", "annotations": {
            "kubernetes.io/config.mirror": hash, "kubernetes.io/config.hash": hash}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "ambit.local/demo-app:1"}]},
    });
    let mirror: Pod = create(&cluster.pods(), mirror).await;
    assert_eq!(cluster.add(&mirror, &net).await.0, 200);
    cluster.report_running(&mirror, &net).await;
    cluster.label_namespace(None).await;
    cluster.until_redirection("web-n1", None).await;
    // Its process, whose control group carries the same UID, is found.
    cluster.label_namespace(Some("ambient")).await;
    cluster.until_redirection("web-n1", Some("enabled")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv_06_an_agent_that_is_removed_releases_what_it_captured_and_what_it_has_not_found_yet() {
    let mut cluster = Cluster::new(Some("ambient")).await;
    let (net, lost) = (cluster.node.add_pod(), cluster.node.add_pod());
    let (before, lost_before) = (state(&net.netns), state(&lost.netns));
    let agent = cluster.started().await;
    let proxy = Proxy::connect(&cluster);
    let (web, db) = (cluster.create_pod("web").await, cluster.create_pod("db").await);
    assert_eq!(cluster.add(&web, &net).await.0, 200);
    assert_eq!(cluster.add(&db, &lost).await.0, 200);
    // The process of the one is found at the next start; that of the other is not.
    cluster.report_running(&web, &net).await;
    cluster.report_address(&db, &lost).await;
    drop(proxy);
    agent.stop().await;
    let removal = ambit_runtime::Shutdown::new();
    cluster.settings.removal = Some(removal.clone());
    cluster.started().await.stop().await;
    assert!(state(&net.netns).contains("istio-ambient-nat"), "a stop that is no removal leaves everything");
    let agent = cluster.started().await;
    removal.cancel();
    let error = crate::error::with_causes(&agent.stop_with_error().await);
    assert!(error.contains("pods are still captured: shop/db; delete them"), "{error}");
    assert_eq!(state(&net.netns), before);
    assert_ne!(state(&lost.netns), lost_before);
    assert!(!cluster.host_state().contains("istio-"), "{}", cluster.host_state());
    // Its process shows up: now it is released too.
    std::fs::remove_dir_all(cluster.settings.proc_root.join("4711")).unwrap();
    cluster.report_running(&db, &lost).await;
    cluster.started().await.stop().await;
    assert_eq!(state(&lost.netns), lost_before);
}
