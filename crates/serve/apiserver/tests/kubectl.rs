//! kubectl, unmodified, against the server over TLS.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use cluster::{TestCluster, object};
use kube::api::{Api, PostParams};
use serde_json::json;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

/// A kubectl that has not finished by then hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// kubectl with the administrator's credentials for one cluster.
struct Kubectl {
    home: tempfile::TempDir,
}

impl Kubectl {
    fn of(cluster: &TestCluster) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config"), cluster.kubeconfig()).unwrap();
        Self { home }
    }

    fn command(&self, args: &[&str]) -> Command {
        let program = ["/usr/local/bin/kubectl", "/usr/bin/kubectl"]
            .into_iter()
            .map(PathBuf::from)
            .find(|p| p.exists());
        let program = program.expect(
            "these tests need kubectl: apt-get install kubernetes-client, or put it in /usr/local/bin",
        );
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .env("KUBECONFIG", self.home.path().join("config"))
            .env("HOME", self.home.path())
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl; answers its exit code and both outputs together.
    async fn run(&self, args: &[&str], input: &str) -> (i32, String) {
        let mut child = self.command(args).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        let output =
            tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("kubectl hangs").unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text)
    }

    /// kubectl must succeed and say each of `expected`.
    async fn ok(&self, args: &[&str], input: &str, expected: &[&str]) -> String {
        let (code, text) = self.run(args, input).await;
        assert_eq!(code, 0, "kubectl {args:?}: {text}");
        for part in expected {
            assert!(text.contains(part), "kubectl {args:?} does not say {part:?}: {text}");
        }
        text
    }

    /// kubectl must fail and say `expected`.
    async fn fails(&self, args: &[&str], input: &str, expected: &str) {
        let (code, text) = self.run(args, input).await;
        assert!(code != 0 && text.contains(expected), "kubectl {args:?} exits with {code} and says: {text}");
    }
}

const MANIFEST: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: 'demo:1', ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: web}}
spec: {containers: [{name: c, image: 'demo:1'}]}
";

async fn cluster_with_account() -> TestCluster {
    let cluster = TestCluster::in_memory().await;
    let accounts: Api<ambit_api::core::v1::ServiceAccount> = Api::default_namespaced(cluster.client());
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "default"}}))).await.unwrap();
    cluster
}

#[tokio::test]
async fn kubectl_finds_what_is_served() {
    let cluster = cluster_with_account().await;
    let kubectl = Kubectl::of(&cluster);
    kubectl.ok(&["version"], "", &["Server Version: v1.35"]).await;
    kubectl.ok(&["api-resources"], "", &["deployments", "apps/v1", "endpointslices", "crd,crds"]).await;
    kubectl.ok(&["api-versions"], "", &["apps/v1", "discovery.k8s.io/v1", "\nv1\n"]).await;
    kubectl.ok(&["explain", "pods.spec.containers"], "", &["KIND:       Pod", "image\t<string>"]).await;
    kubectl.ok(&["get", "--raw", "/readyz?verbose"], "", &["[+]store ok", "readyz check passed"]).await;
    kubectl.ok(&["get", "namespaces"], "", &["NAME", "STATUS", "AGE", "kube-system", "Active"]).await;
    kubectl.fails(&["get", "nonsense"], "", "the server doesn't have a resource type").await;
    cluster.stop().await;
}

#[tokio::test]
async fn kubectl_applies_changes_and_deletes_a_manifest() {
    let cluster = cluster_with_account().await;
    let kubectl = Kubectl::of(&cluster);
    let apply = ["apply", "-f", "-"];
    kubectl
        .ok(&apply, MANIFEST, &["deployment.apps/web created", "service/web created", "pod/one created"])
        .await;
    kubectl
        .ok(
            &apply,
            MANIFEST,
            &["deployment.apps/web unchanged", "service/web unchanged", "pod/one unchanged"],
        )
        .await;
    let more = MANIFEST.replace("replicas: 2", "replicas: 3");
    kubectl.ok(&apply, &more, &["deployment.apps/web configured", "service/web unchanged"]).await;
    kubectl.ok(&["get", "deployments"], "", &["READY", "UP-TO-DATE", "0/3"]).await;
    kubectl
        .ok(&["get", "all", "-o", "wide"], "", &["pod/one", "Pending", "service/kubernetes", "SELECTOR"])
        .await;
    kubectl.ok(&["describe", "pod", "one"], "", &["Service Account:  default", "kube-api-access-"]).await;
    kubectl.ok(&["describe", "deployment", "web"], "", &["Replicas:               3 desired"]).await;
    kubectl.ok(&["label", "pod", "one", "tier=front"], "", &["pod/one labeled"]).await;
    kubectl.ok(&["get", "pods", "-l", "tier=front", "-o", "name"], "", &["pod/one"]).await;
    kubectl.ok(&["annotate", "pod", "one", "a=b"], "", &["pod/one annotated"]).await;
    kubectl.ok(&["scale", "deployment", "web", "--replicas=1"], "", &["deployment.apps/web scaled"]).await;
    // kubectl diff exits with 1 when something differs.
    kubectl.fails(&["diff", "-f", "-"], &more, "+  replicas: 3").await;
    for (form, patch) in [
        ("strategic", r#"{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"demo:2"}]}}}}"#),
        ("merge", r#"{"spec":{"replicas":4}}"#),
        ("json", r#"[{"op":"replace","path":"/spec/replicas","value":5}]"#),
    ] {
        kubectl.ok(&["patch", "deployment", "web", "--type", form, "-p", patch], "", &["patched"]).await;
    }
    let wanted = [
        "get",
        "deployment",
        "web",
        "-o",
        "jsonpath={.spec.replicas} {.spec.template.spec.containers[*].image}",
    ];
    assert_eq!(kubectl.ok(&wanted, "", &[]).await, "5 demo:2");
    kubectl.ok(&["delete", "-f", "-"], MANIFEST, &["\"web\" deleted", "\"one\" deleted"]).await;
    kubectl.fails(&["get", "pod", "one"], "", "pods \"one\" not found").await;
    cluster.stop().await;
}

/// The create commands of single kinds send protobuf.
#[tokio::test]
async fn kubectl_creates_by_command() {
    let cluster = cluster_with_account().await;
    let kubectl = Kubectl::of(&cluster);
    let create = async |line: &str, expected: &str| {
        let args: Vec<&str> = std::iter::once("create").chain(line.split(' ')).collect();
        kubectl.ok(&args, "", &[expected]).await
    };
    create("namespace shop", "namespace/shop created").await;
    create("serviceaccount clerk -n shop", "serviceaccount/clerk created").await;
    create("configmap settings --from-literal=a=b", "configmap/settings created").await;
    create("secret generic keys --from-literal=k=v", "secret/keys created").await;
    create("deployment web --image=demo-app:1 --replicas=0", "deployment.apps/web created").await;
    create("service clusterip web --tcp=80:8080", "service/web created").await;
    let token = create("token clerk -n shop --duration=10m", "").await;
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
    for (of, path, expected) in [
        ("configmap/settings", "{.data.a}", "b"),
        ("secret/keys", "{.data.k} {.type}", "dg== Opaque"),
        ("deployment/web", "{.spec.replicas} {.spec.strategy.type}", "0 RollingUpdate"),
        ("deployment/web", "{.spec.template.spec.containers[*].image}", "demo-app:1"),
        ("deployment/web", "{.spec.template.spec.restartPolicy}", "Always"),
        ("service/web", "{.spec.type} {.spec.ports[0].targetPort}", "ClusterIP 8080"),
    ] {
        let path = format!("jsonpath={path}");
        assert_eq!(kubectl.ok(&["get", of, "-o", &path], "", &[]).await, expected);
    }
    kubectl.fails(&["create", "namespace", "shop"], "", "namespaces \"shop\" already exists").await;
    let invalid = ["create", "deployment", "bad", "--image=demo-app:1", "--replicas=-2"];
    kubectl.fails(&invalid, "", "spec.replicas").await;
    kubectl.ok(&["delete", "deployment", "web", "--now"], "", &["deleted"]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn kubectl_is_told_what_is_wrong() {
    let cluster = cluster_with_account().await;
    let kubectl = Kubectl::of(&cluster);
    let create = ["create", "-f", "-"];
    let unknown = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: bad}, spec: {x: 1}}";
    kubectl.fails(&create, unknown, "unknown field \"spec\"").await;
    let wrong_kind = "---\n{apiVersion: v1, kind: Nonsense, metadata: {name: bad}}";
    kubectl.fails(&create, wrong_kind, "no matches for kind \"Nonsense\"").await;
    let wrong_type = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: bad}, data: [1]}";
    kubectl.fails(&create, wrong_type, "data").await;
    let wrong_name = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: Not_Legal}}";
    kubectl.fails(&create, wrong_name, "metadata.name: Invalid value").await;
    let elsewhere = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: nowhere}}";
    kubectl.fails(&create, elsewhere, "namespaces \"nowhere\" not found").await;
    kubectl.fails(&["exec", "one", "--", "ls"], "", "pods \"one\" not found").await;
    cluster.stop().await;
}

#[tokio::test]
async fn kubectl_watches_a_table() {
    let cluster = cluster_with_account().await;
    let kubectl = Kubectl::of(&cluster);
    let mut child = kubectl.command(&["get", "configmaps", "-w", "--no-headers"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let manifest = |data: &str| {
        format!("---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: seen}}, data: {{{data}}}}}")
    };
    kubectl.ok(&["apply", "-f", "-"], &manifest("a: b"), &["created"]).await;
    kubectl.ok(&["apply", "-f", "-"], &manifest("a: b, c: d"), &["configured"]).await;
    for cells in ["seen   1", "seen   2"] {
        let line = tokio::time::timeout(PATIENCE, lines.next_line())
            .await
            .expect("a row per change")
            .unwrap()
            .unwrap();
        assert!(line.starts_with(cells), "{line}");
    }
    child.kill().await.unwrap();
    cluster.stop().await;
}

#[tokio::test]
async fn kubectl_works_with_custom_resources_at_once() {
    let cluster = cluster_with_account().await;
    let kubectl = Kubectl::of(&cluster);
    let definition = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Spec, type: string, jsonPath: .spec.cron}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, required: [cron], properties: {cron: {type: string}, replicas: {type: integer, default: 1}}}
          status: {type: object, properties: {seen: {type: boolean}}}
";
    kubectl.ok(&["apply", "-f", "-"], definition, &["created"]).await;
    kubectl
        .ok(
            &["wait", "crd/crontabs.example.com", "--for=condition=Established", "--timeout=10s"],
            "",
            &["condition met"],
        )
        .await;
    let object =
        "---\n{apiVersion: example.com/v1, kind: CronTab, metadata: {name: mine}, spec: {cron: '* *'}}";
    kubectl.ok(&["apply", "-f", "-"], object, &["crontab.example.com/mine created"]).await;
    kubectl.ok(&["get", "ct"], "", &["NAME", "SPEC", "mine", "* *"]).await;
    assert_eq!(kubectl.ok(&["get", "ct", "mine", "-o", "jsonpath={.spec.replicas}"], "", &[]).await, "1");
    let broken = object.replace("cron: '* *'", "other: 1");
    kubectl.fails(&["create", "-f", "-"], &broken, "unknown field \"spec.other\"").await;
    kubectl.ok(&["delete", "crd", "crontabs.example.com"], "", &["deleted"]).await;
    // kubectl still has the resource in its discovery cache.
    kubectl.fails(&["get", "ct"], "", "could not find the requested resource").await;
    kubectl.ok(&["apply", "-f", "-"], definition, &["created"]).await;
    kubectl.ok(&["get", "ct"], "", &["No resources found"]).await;
    cluster.stop().await;
}

/// Objects of client-side apply become the server's, and others' fields are taken by force only.
#[tokio::test]
async fn kubectl_applies_on_the_server() {
    let cluster = cluster_with_account().await;
    let kubectl = Kubectl::of(&cluster);
    let deployment = MANIFEST.split("---").next().unwrap();
    kubectl.ok(&["apply", "-f", "-"], deployment, &["deployment.apps/web created"]).await;
    let server = ["apply", "--server-side", "-f", "-"];
    kubectl.ok(&server, deployment, &["deployment.apps/web serverside-applied"]).await;
    let shown = ["get", "deployment", "web", "--show-managed-fields", "-o", "yaml"];
    let text =
        kubectl.ok(&shown, "", &["manager: kubectl\n", "operation: Apply", "k:{\"name\":\"web\"}"]).await;
    assert!(
        !text.contains("kubectl-client-side-apply"),
        "what client-side apply owned is taken over: {text}"
    );
    kubectl.ok(&["scale", "deployment/web", "--replicas=5"], "", &["scaled"]).await;
    let conflict = "conflict with \"kubectl\" with subresource \"scale\" using apps/v1: .spec.replicas";
    kubectl.fails(&server, deployment, conflict).await;
    // What nobody else has is no conflict, and the difference is shown before it is made.
    let without = deployment.replace("  replicas: 2\n", "");
    kubectl.ok(&server, &without, &["serverside-applied"]).await;
    let (code, text) =
        kubectl.run(&["diff", "--server-side", "-f", "-"], &without.replace("demo:1", "demo:2")).await;
    assert!(
        code == 1 && text.contains("+        - image: demo:2") || text.contains("+      - image: demo:2"),
        "{code} {text}"
    );
    let forced = ["apply", "--server-side", "--force-conflicts", "--field-manager=other", "-f", "-"];
    kubectl.ok(&forced, &deployment.replace("demo:1", "demo:3"), &["serverside-applied"]).await;
    kubectl
        .ok(
            &[
                "get",
                "deployment",
                "web",
                "-o",
                "jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image}",
            ],
            "",
            &["2 demo:3"],
        )
        .await;
    kubectl
        .ok(
            &["apply", "--server-side", "--dry-run=server", "-f", "-"],
            MANIFEST.split("---").nth(1).unwrap(),
            &["service/web serverside-applied (server dry run)"],
        )
        .await;
    kubectl.fails(&["get", "service", "web"], "", "not found").await;
    kubectl.fails(&["apply", "--server-side", "-f", "-"], &deployment.replace("spec:", "spc:"), "spc").await;
    cluster.stop().await;
}
