//! Runs the probes of a pod's containers.

use crate::context::Context;
use ambit_api::IntOrString;
use ambit_api::core::v1::{Container, HTTPGetAction, Pod, Probe};
use ambit_node_plan::pod::{ProbeTask, ProbeTiming, init_containers};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// Results that wait for the pod's worker.
const RESULTS_MAX: usize = 64;
/// Most of an answer that is shown in an event, in bytes.
const SHOWN_BYTES_MAX: usize = 1024;
/// Most of an HTTP answer that is read, in bytes. Source: kubelet's HTTP prober.
const BODY_BYTES_MAX: usize = 10 * 1024;

/// What one run of a probe came to.
#[derive(Debug)]
pub(super) struct ProbeResult {
    pub(super) task: ProbeTask,
    /// Nothing, or why it failed.
    pub(super) outcome: Result<(), String>,
}

/// The running probes of one pod. Dropping it ends them.
pub(super) struct Probes {
    running: BTreeMap<ProbeTask, AbortHandle>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<ProbeResult>,
    receiver: mpsc::Receiver<ProbeResult>,
}

impl Probes {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(RESULTS_MAX);
        Self { running: BTreeMap::new(), tasks: JoinSet::new(), sender, receiver }
    }

    /// The next result. Cancel safe.
    pub(super) async fn next(&mut self) -> ProbeResult {
        loop {
            match self.receiver.recv().await {
                Some(result) if self.running.contains_key(&result.task) => return result,
                Some(_) => {}
                // The sender lives as long as this.
                None => std::future::pending::<()>().await,
            }
        }
    }

    /// Starts the probes that are wanted and not running, and ends the others.
    pub(super) fn reconcile(
        &mut self,
        context: &Arc<Context>,
        pod: &Pod,
        ip: Option<IpAddr>,
        wanted: &[ProbeTask],
    ) {
        while self.tasks.try_join_next().is_some() {}
        self.running.retain(|task, handle| {
            let keep = wanted.contains(task);
            if !keep {
                handle.abort();
            }
            keep
        });
        for task in wanted {
            let spec = pod.spec.iter().flat_map(|s| init_containers(s).iter().chain(&s.containers));
            let container = spec.into_iter().find(|c| c.name == task.container);
            let Some(container) = container.filter(|_| !self.running.contains_key(task)) else { continue };
            let Some(probe) = task.kind.of(container) else { continue };
            let target = Target {
                context: Arc::clone(context),
                container: container.clone(),
                probe: probe.clone(),
                ip,
            };
            let handle = self.tasks.spawn(target.repeat(task.clone(), self.sender.clone()));
            self.running.insert(task.clone(), handle);
        }
    }
}

/// What a probe is run against.
struct Target {
    context: Arc<Context>,
    container: Container,
    probe: Probe,
    ip: Option<IpAddr>,
}

impl Target {
    async fn repeat(self, task: ProbeTask, results: mpsc::Sender<ProbeResult>) {
        let timing = ProbeTiming::of(&self.probe);
        let elapsed = self.context.clock.timestamp().duration_since(task.started).unsigned_abs();
        tokio::time::sleep(timing.initial_delay.saturating_sub(elapsed)).await;
        let mut ticks = tokio::time::interval(timing.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let outcome = match tokio::time::timeout(timing.timeout, self.run(&task, timing.timeout)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(format!("no answer within {} s", timing.timeout.as_secs())),
            };
            if results.send(ProbeResult { task: task.clone(), outcome }).await.is_err() {
                return;
            }
        }
    }

    async fn run(&self, task: &ProbeTask, timeout: Duration) -> Result<(), String> {
        if let Some(exec) = &self.probe.exec {
            let command = exec.command.clone().unwrap_or_default();
            let answer = self.context.cri.exec(&task.run, &command, timeout).await;
            let answer = answer.map_err(|e| e.full_text())?;
            let text = String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
            return if answer.exit_code == 0 { Ok(()) } else { Err(shorten(&text)) };
        }
        if let Some(get) = &self.probe.http_get {
            return self.http_get(get).await;
        }
        if let Some(tcp) = &self.probe.tcp_socket {
            let address = self.address(tcp.host.as_deref(), &tcp.port)?;
            return connect(address).await.map(drop);
        }
        Err("the probe has no action this node serves".to_owned())
    }

    fn address(&self, host: Option<&str>, port: &IntOrString) -> Result<SocketAddr, String> {
        let number = match port {
            IntOrString::Int(number) => u16::try_from(*number).ok(),
            IntOrString::String(name) => {
                let mut ports = self.container.ports.iter().flatten();
                let named = ports.find(|p| p.name.as_deref() == Some(name)).map(|p| p.container_port);
                named.and_then(|p| u16::try_from(p).ok()).or_else(|| name.parse().ok())
            }
        };
        let number = number.filter(|n| *n != 0).ok_or_else(|| format!("port {port:?} is not known"))?;
        let host = host.filter(|h| !h.is_empty());
        let ip = match host {
            Some(host) => host.parse().map_err(|_| format!("host {host:?} is not an address"))?,
            None => self.ip.ok_or("the pod has no address")?,
        };
        Ok(SocketAddr::new(ip, number))
    }

    async fn http_get(&self, get: &HTTPGetAction) -> Result<(), String> {
        let address = self.address(get.host.as_deref(), &get.port)?;
        let path = get.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let mut request = http::Request::get(&path)
            .header(http::header::USER_AGENT, concat!("kube-probe/ambit-", env!("CARGO_PKG_VERSION")))
            .header(http::header::ACCEPT, "*/*")
            .header(http::header::CONNECTION, "close");
        let own_host = get.http_headers.iter().flatten().any(|h| h.name.eq_ignore_ascii_case("host"));
        if !own_host {
            request = request.header(http::header::HOST, address.to_string());
        }
        for header in get.http_headers.iter().flatten() {
            request = request.header(&header.name, &header.value);
        }
        let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|e| e.to_string())?;
        let stream = connect(address).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|e| format!("GET {path}: {e}"))?;
            let status = response.status();
            // Read so that the server is not cut off in the middle of a short answer; what it says does not count.
            let _ = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
            let passed = status.is_success() || status.is_redirection();
            if passed {
                Ok(())
            } else {
                Err(format!("HTTP probe failed with statuscode: {}", status.as_u16()))
            }
        };
        // The connection is driven by the same future, so that the deadline ends both.
        tokio::select! {
            outcome = exchange => outcome,
            Err(e) = connection => Err(format!("GET {path}: {e}")),
        }
    }
}

async fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    TcpStream::connect(address).await.map_err(|e| format!("dial tcp {address}: {e}"))
}

fn shorten(text: &str) -> String {
    let text = text.trim();
    let end = (0..=text.len().min(SHOWN_BYTES_MAX)).rev().find(|i| text.is_char_boundary(*i));
    text[..end.unwrap_or_default()].to_owned()
}
