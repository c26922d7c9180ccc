//! `ambit controllers` as its users run it: several replicas, of which one works.

use ambit_api::coordination::v1::Lease;
use ambit_runtime::Clock;
use kube::api::Api;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Long enough for any machine; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(50);

/// A program that ends with the test.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ambit"));
        command.args(arguments).env_remove("POD_NAME").stderr(Stdio::null());
        Self(command.spawn().expect("it starts"))
    }

    /// Asks it to stop, and waits for that.
    fn stop(mut self) {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).expect("it runs");
        assert!(self.0.wait().expect("it ends").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|probe| probe.local_addr()).expect("a free port")
}

async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Clock.now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Clock.now() < deadline, "waited in vain for: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

fn read_metrics(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// A client of the cluster, once its API server answers.
async fn connect(kubeconfig: &Path) -> Client {
    eventually("the API server answers", async || {
        let read = Kubeconfig::read_from(kubeconfig).ok()?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.ok()?;
        let client = Client::try_from(config).ok()?;
        client.apiserver_version().await.ok()?;
        Some(client)
    })
    .await
}

#[tokio::test]
async fn of_two_replicas_one_works_and_both_show_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let (config, ca) = (kubeconfig.to_str().unwrap(), folder.path().join("ca.pem"));
    std::fs::write(&ca, "-----BEGIN CERTIFICATE-----\n").unwrap();
    let listen = free_address().to_string();
    let _server = Running::start(&["apiserver", "--listen", &listen, "--write-kubeconfig", config]);
    let leases: Api<Lease> = Api::namespaced(connect(&kubeconfig).await, "kube-system");
    let start = |identity: &str| {
        let metrics = free_address();
        let shown = metrics.to_string();
        let line = ["controllers", "--kubeconfig", config, "--root-ca", ca.to_str().unwrap()];
        let more = ["--metrics", &shown, "--leader-elect-identity", identity];
        (Running::start(&[&line[..], &more].concat()), metrics)
    };
    let holder = async || leases.get_opt("ambit-controllers").await.ok()??.spec?.holder_identity;
    let led_by = async |name: &str| {
        eventually("the lease is held", async || (holder().await.as_deref() == Some(name)).then_some(()))
            .await;
    };
    let works = async |metrics: SocketAddr| {
        eventually("it works", async || {
            read_metrics(metrics)?.contains("workqueue_adds_total{name=\"namespace defaults\"}").then_some(())
        })
        .await;
    };
    let (first, first_metrics) = start("first");
    led_by("first").await;
    works(first_metrics).await;
    let (second, second_metrics) = start("second");
    let text = eventually("the second shows metrics", async || read_metrics(second_metrics)).await;
    assert!(!text.contains("workqueue_adds_total{"), "it does not work: {text}");
    led_by("first").await;
    first.stop();
    led_by("second").await;
    works(second_metrics).await;
    second.stop();
}
