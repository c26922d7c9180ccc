//! The whole node against the real API server and the real containerd.

use crate::settings::{MeshPlugin, Settings};
use crate::{images, layout::Layout, run, testing};
use ambit_api::core::v1::{ConfigMap, Event, Node, Pod, ServiceAccount};
use ambit_apiserver::{ApiServer, Storage};
use ambit_runtime::{Readiness, Shutdown};
use ambit_trust::pki::{ClusterPki, kubeconfig};
use futures::{AsyncBufReadExt, TryStreamExt};
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinHandle;

const IMAGE: &str = "ambit.local/demo-app:1";

/// An API server in memory, and a node.
struct Cluster {
    settings: Settings,
    pki: ClusterPki,
    server: kube::Client,
    pods: Api<Pod>,
    client: kube::Client,
    stop: Shutdown,
    node: JoinHandle<Result<(), crate::Error>>,
    api: JoinHandle<()>,
}

impl Cluster {
    async fn start(dir: &Path, mesh_plugin: Option<MeshPlugin>) -> Self {
        let pki = ClusterPki::in_memory(&[]).unwrap();
        let mut settings = testing::settings(dir);
        settings.mesh_plugin = mesh_plugin;
        settings.client_ca_pem = pki.ca_pem().to_owned();
        settings.server = pki.issue_server("system:node:node-1", &["127.0.0.1".to_owned()]).unwrap();
        let archive = dir.join("demo-app.tar");
        let binary = testing::static_binary("ambit-demo-app");
        std::fs::write(&archive, images::scratch_image(&binary, IMAGE).unwrap()).unwrap();
        settings.images = vec![archive];
        let api = ApiServer::open(ambit_apiserver::Settings {
            storage: Storage::Memory,
            listen: None,
            advertise: None,
            pki: pki.clone(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
        })
        .await
        .unwrap();
        let client = api.client("admin", &["system:masters"]);
        let server = api.client("system:node:node-1", &["system:nodes"]);
        let stop = Shutdown::new();
        let api_stop = stop.child_token();
        let api = tokio::spawn(async move { api.run(Readiness::default(), api_stop).await.unwrap() });
        // What the controllers make in every namespace.
        let account = json!({ "metadata": { "name": "default" } });
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        accounts.create(&PostParams::default(), &serde_json::from_value(account).unwrap()).await.unwrap();
        let cluster = Self {
            pods: Api::namespaced(client.clone(), "default"),
            node: start_node(&settings, &server, stop.child_token()).await,
            settings,
            pki,
            server,
            client,
            stop,
            api,
        };
        cluster.create_config_map("kube-root-ca.crt", json!({ "ca.crt": "CA" })).await;
        cluster
    }

    async fn create_config_map(&self, name: &str, data: Value) {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), "default");
        let object = json!({ "metadata": { "name": name }, "data": data });
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    async fn create(&self, name: &str, spec: Value) -> Pod {
        let mut spec = spec;
        spec["nodeName"] = json!("node-1");
        let pod = json!({ "metadata": { "name": name, "labels": { "app": name } }, "spec": spec });
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    /// Waits until the pod's status is as `wanted`, a function of its JSON.
    async fn until(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Pod {
        let mut last = None;
        let look = async {
            loop {
                let pod = self.pods.get(name).await.unwrap();
                let status = json!(pod.status);
                if wanted(&status) {
                    return pod;
                }
                last = Some(status);
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(60), look).await {
            Ok(pod) => pod,
            Err(_) => panic!("waited in vain until {name} is {what}: {last:#?}"),
        }
    }

    async fn log(&self, name: &str, params: LogParams) -> String {
        self.pods.logs(name, &params).await.unwrap()
    }

    async fn reasons(&self, name: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let list = events.list(&ListParams::default()).await.unwrap();
        let of_pod = list.items.into_iter().filter(|e| e.involved_object.name.as_deref() == Some(name));
        of_pod.filter_map(|e| e.reason).collect()
    }
}

async fn start_node(
    settings: &Settings,
    client: &kube::Client,
    stop: Shutdown,
) -> JoinHandle<Result<(), crate::Error>> {
    let readiness = Readiness::default();
    let blocker = readiness.block("test");
    let node = tokio::spawn(run(settings.clone(), client.clone(), readiness.clone(), stop));
    testing::until("the node has begun", async || readiness.waiting_for().len() == 2 || node.is_finished())
        .await;
    drop(blocker);
    testing::until("the node is ready", async || readiness.waiting_for().is_empty() || node.is_finished())
        .await;
    node
}

fn container(extra: Value) -> Value {
    let mut container = json!({ "name": "a", "image": IMAGE });
    container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!({ "containers": [container] })
}

fn ready(status: &Value) -> bool {
    status["conditions"]
        .as_array()
        .is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

fn waiting(status: &Value) -> &Value {
    &status["containerStatuses"][0]["state"]["waiting"]["reason"]
}

/// The answer of a pod's HTTP server.
fn fetch(ip: &str) -> String {
    let mut stream = std::net::TcpStream::connect((ip, 8080)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A pod whose plugin gets no answer does not start, and starts by itself once there is one.
#[test]
fn a_pod_waits_for_the_plugin_of_the_mesh() {
    testing::in_own_namespaces("tests::a_pod_waits_for_the_plugin_of_the_mesh", async {
        let dir = testing::short_dir();
        let agent = dir.path().join("agent");
        std::fs::create_dir(&agent).unwrap();
        let mesh = MeshPlugin {
            binary: testing::static_binary("ambit-cni"),
            run_dir: agent.clone(),
            exclude_namespaces: vec!["kube-system".into()],
            pod_namespace: "istio-system".into(),
        };
        let cluster = Cluster::start(dir.path(), Some(mesh)).await;
        cluster.create("web", container(json!({ "args": ["idle"] }))).await;
        testing::until("the failure is told", async || {
            cluster.reasons("web").await.iter().any(|r| r == "FailedCreatePodSandBox")
        })
        .await;
        let waiting_pod = cluster.pods.get("web").await.unwrap();
        assert_eq!(waiting(&json!(waiting_pod.status)), "ContainerCreating");

        let listener = std::os::unix::net::UnixListener::bind(agent.join("pluginevent.sock")).unwrap();
        let asked = std::thread::spawn(move || answer_plugin(&listener));
        let pod = cluster.until("web", "ready", ready).await;
        let event = asked.join().unwrap();
        assert_eq!((&event["PodName"], &event["PodNamespace"]), (&json!("web"), &json!("default")));
        assert_eq!(event["PodUID"], json!(pod.metadata.uid));
        assert_eq!(event["IPs"][0]["Address"]["IP"], json!(pod.status.unwrap().pod_ip));
        check_stop(cluster).await;
    });
}

/// Stands for the agent, which is no part of this room: answers one event and returns it.
fn answer_plugin(listener: &std::os::unix::net::UnixListener) -> Value {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = String::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).unwrap();
        request.push_str(std::str::from_utf8(&piece[..read]).unwrap());
        let (head, body) = request.split_once("\r\n\r\n").unwrap_or_default();
        let lengths =
            head.lines().filter_map(|l| l.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if { lengths }.next_back() == Some(body.len()) {
            let body = serde_json::from_str(body).unwrap();
            let answer = r#"{"captured":false,"reason":"test"}"#;
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
            stream.write_all(format!("{head}{answer}").as_bytes()).unwrap();
            return body;
        }
    }
}

#[test]
fn pods_live_and_die_and_nothing_is_left() {
    testing::in_own_namespaces("tests::pods_live_and_die_and_nothing_is_left", async {
        let dir = testing::short_dir();
        let cluster = Cluster::start(dir.path(), None).await;
        check_node(&cluster).await;
        check_server_pod(&cluster).await;
        check_access(&cluster).await;
        check_endings(&cluster).await;
        check_faults(&cluster).await;
        let cluster = check_node_crash(cluster).await;
        check_deletion(&cluster).await;
        check_stop(cluster).await;
    });
}

async fn check_node(cluster: &Cluster) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = json!(nodes.get("node-1").await.unwrap());
    assert!(ready(&node["status"]), "{node:#}");
    assert_eq!(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10250);
    assert_eq!(node["status"]["addresses"][0], json!({ "type": "InternalIP", "address": "127.0.0.1" }));
    let version = node["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap();
    assert!(version.starts_with("containerd://1."), "{version}");
}

async fn check_server_pod(cluster: &Cluster) {
    let spec = container(json!({
        "command": ["/ambit-demo-app"],
        "args": ["serve", "--port", "$(PORT)"],
        "env": [
            { "name": "PORT", "value": "8080" },
            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
        ],
        "readinessProbe": { "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 1 },
        "livenessProbe": { "tcpSocket": { "port": 8080 } },
    }));
    cluster.create("web", spec).await;
    let pod = cluster.until("web", "ready", ready).await;
    let status = pod.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let answer = fetch(&status.pod_ip.unwrap());
    assert!(answer.ends_with("hello from web peer=10.244.0.1\n"), "{answer}");
    let log = cluster.log("web", LogParams::default()).await;
    assert!(log.starts_with("listening on [::]:8080\n") && log.contains("GET / from 10.244.0.1\n"), "{log}");
    let tail = LogParams { tail_lines: Some(1), timestamps: true, ..LogParams::default() };
    let tail = cluster.log("web", tail).await;
    let (time, _) = tail.split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok() && tail.lines().count() == 1, "{tail}");
    for reason in ["Pulled", "Created", "Started"] {
        testing::until(reason, async || cluster.reasons("web").await.iter().any(|r| r == reason)).await;
    }

    // The token volume is what clients in pods expect.
    let uid = pod.metadata.uid.unwrap();
    let volumes = Layout::new(&cluster.settings.state_dir).unwrap().pod(&uid).join("volumes/files");
    let volume = std::fs::read_dir(volumes).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::read_to_string(volume.join("ca.crt")).unwrap(), "CA");
    assert_eq!(std::fs::read_to_string(volume.join("namespace")).unwrap(), "default");
    assert_eq!(std::fs::read_to_string(volume.join("token")).unwrap().split('.').count(), 3);
}

/// Only the API server and administrators read logs at the node itself.
async fn check_access(cluster: &Cluster) {
    let read = async |user: &str, group: &str, path: &str| {
        let issued = cluster.pki.issue_client(user, &[group], Duration::from_secs(60)).unwrap();
        let url = "https://127.0.0.1:10250";
        let text = kubeconfig(url, cluster.pki.ca_pem(), &issued.cert_pem, &issued.key_pem);
        let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        let client = kube::Client::try_from(config).unwrap();
        let answer =
            client.send(http::Request::get(path).body(kube::client::Body::empty()).unwrap()).await.unwrap();
        answer.status().as_u16()
    };
    let log = "/containerLogs/default/web/a";
    assert_eq!(read("admin", "system:masters", "/healthz").await, 200);
    assert_eq!(read("admin", "system:masters", log).await, 200);
    assert_eq!(read("system:node:node-1", "system:nodes", log).await, 403);
    assert_eq!(read("admin", "system:masters", "/containerLogs/default/none/a").await, 404);
    assert_eq!(read("admin", "system:masters", "/containerLogs/default/web/none").await, 400);
    assert_eq!(read("admin", "system:masters", &format!("{log}?previous=true")).await, 400);
    assert_eq!(read("admin", "system:masters", &format!("{log}?tailLines=x")).await, 400);
    assert_eq!(read("admin", "system:masters", "/exec/default/web/a").await, 404);
}

async fn check_endings(cluster: &Cluster) {
    cluster.create("crash", container(json!({ "args": ["exit", "3"] }))).await;
    let mut once = container(json!({ "args": ["exit", "0"] }));
    once["restartPolicy"] = json!("Never");
    once["initContainers"] = json!([{ "name": "first", "image": IMAGE, "args": ["exit", "0"] }]);
    cluster.create("once", once.clone()).await;
    once["initContainers"][0]["args"] = json!(["exit", "4"]);
    cluster.create("broken", once).await;

    let crashed = cluster.until("crash", "backing off", |s| waiting(s) == "CrashLoopBackOff").await;
    let container = &json!(crashed.status)["containerStatuses"][0];
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 3);
    assert_eq!(container["restartCount"], 1);
    let done = cluster.until("once", "done", |s| s["phase"] == "Succeeded").await;
    assert_eq!(json!(done.status)["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
    let failed = cluster.until("broken", "failed", |s| s["phase"] == "Failed").await;
    assert_eq!(json!(failed.status)["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 4);
    testing::until("the back-off is told", async || {
        cluster.reasons("crash").await.iter().any(|r| r == "BackOff")
    })
    .await;
}

async fn check_faults(cluster: &Cluster) {
    let mut absent = container(json!({ "imagePullPolicy": "Never" }));
    absent["containers"][0]["image"] = json!("ambit.local/none:1");
    cluster.create("absent", absent).await;
    cluster.until("absent", "refused", |s| waiting(s) == "ErrImageNeverPull").await;
    let gpu = json!({ "containers": [{ "name": "a", "image": IMAGE, "ports": [{ "containerPort": 1, "hostPort": 1 }] }] });
    cluster.create("refused", gpu).await;
    cluster.until("refused", "refused", |s| waiting(s) == "CreateContainerConfigError").await;
    let sick = json!({ "exec": { "command": ["/ambit-demo-app", "exit", "1"] }, "periodSeconds": 1, "failureThreshold": 1 });
    cluster.create("sick", container(json!({ "args": ["idle"], "livenessProbe": sick }))).await;
    cluster
        .until("sick", "restarted", |s| s["containerStatuses"][0]["restartCount"].as_u64() > Some(0))
        .await;

    let mut late =
        container(json!({ "args": ["idle"], "volumeMounts": [{ "name": "conf", "mountPath": "/conf" }] }));
    late["volumes"] = json!([{ "name": "conf", "configMap": { "name": "late" } }]);
    cluster.create("late", late).await;
    testing::until("the missing ConfigMap is told", async || {
        cluster.reasons("late").await.iter().any(|r| r == "FailedMount")
    })
    .await;
    cluster.create_config_map("late", json!({ "key": "value" })).await;
    cluster.until("late", "ready", ready).await;
}

/// A node that ends without warning is followed by one that finds the pods as they are.
async fn check_node_crash(mut cluster: Cluster) -> Cluster {
    let before = json!(cluster.pods.get("web").await.unwrap().status);
    cluster.node.abort();
    let _ = (&mut cluster.node).await;
    cluster.node = start_node(&cluster.settings, &cluster.server, cluster.stop.child_token()).await;
    let answer = fetch(before["podIP"].as_str().unwrap());
    assert!(answer.contains("hello from web"), "{answer}");
    cluster.create("after", container(json!({ "args": ["idle"] }))).await;
    cluster.until("after", "ready", ready).await;
    let after = json!(cluster.pods.get("web").await.unwrap().status);
    let id = |status: &Value| status["containerStatuses"][0]["containerID"].clone();
    assert_eq!((id(&after), &after["containerStatuses"][0]["restartCount"]), (id(&before), &json!(0)));
    cluster
}

async fn check_deletion(cluster: &Cluster) {
    let follow = LogParams { follow: true, tail_lines: Some(0), ..LogParams::default() };
    let mut followed = cluster.pods.log_stream("web", &follow).await.unwrap().lines();
    fetch(&cluster.pods.get("web").await.unwrap().status.unwrap().pod_ip.unwrap());
    let seen = async {
        while let Some(line) = followed.try_next().await.unwrap() {
            if line.contains("GET / from") {
                return;
            }
        }
        panic!("the log ended while its container runs");
    };
    tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap();
    let uid = cluster.pods.get("web").await.unwrap().metadata.uid.unwrap();
    cluster.pods.delete("web", &DeleteParams::default()).await.unwrap();
    let rest = followed.try_collect::<Vec<_>>();
    tokio::time::timeout(Duration::from_secs(20), rest)
        .await
        .expect("the log ends with its container")
        .unwrap();
    testing::until("the pod is deleted", async || cluster.pods.get_opt("web").await.unwrap().is_none()).await;
    let layout = Layout::new(&cluster.settings.state_dir).unwrap();
    assert!(!layout.pod(&uid).exists());
    testing::until("its logs are gone", async || !layout.pod_logs("default", "web", &uid).exists()).await;
    assert_eq!(
        crate::containerd::cgroup_dirs(&layout.pod_cgroup("BestEffort", &uid)),
        Vec::<std::path::PathBuf>::new()
    );
    testing::until("its end is told", async || cluster.reasons("web").await.iter().any(|r| r == "Killing"))
        .await;
}

async fn check_stop(cluster: Cluster) {
    let dir = cluster.settings.state_dir.clone();
    cluster.stop.cancel();
    cluster.node.await.unwrap().unwrap();
    cluster.api.await.unwrap();
    assert_eq!(testing::processes_naming(&dir), Vec::<String>::new());
    assert_eq!(ambit_linux::mount::mount_points_below(&dir).unwrap(), Vec::<std::path::PathBuf>::new());
    let links = std::process::Command::new("ip").args(["-o", "link"]).output().unwrap();
    let links = String::from_utf8(links.stdout).unwrap();
    assert_eq!(links.lines().count(), 1, "only the loopback link is left: {links}");
    let layout = Layout::new(&dir).unwrap();
    assert_eq!(crate::containerd::cgroup_dirs(&layout.cgroup()), Vec::<std::path::PathBuf>::new());
    assert!(!layout.run_dir().exists() && !layout.pods().exists());
}
