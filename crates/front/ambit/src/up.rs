//! `ambit up`: a cluster with the mesh on this machine.

mod layout;
mod system;

use crate::cli::{ControlPlane, Up};
use crate::kubeconfig::write_private;
use crate::manifests::{self, Manifest};
use crate::parts::Parts;
use crate::preflight;
use crate::proxy_settings::ProxyPlace;
use crate::roles::{self, NodePlace};
use ambit_apiserver::{ApiServer, Storage};
use ambit_names::{mesh, port};
use ambit_runtime::process::{Program, end_leftover};
use ambit_runtime::{Clock, Readiness};
use ambit_trust::pki::ClusterPki;
use anyhow::{Context as _, Result, anyhow};
use kube::Client;
use layout::Layout;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use system::{HostProcess, TokenFile};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

/// How long all parts may take to get ready.
const READY_WAIT: Duration = Duration::from_secs(60);
/// Pause between two looks at what is still missing.
const READY_POLL: Duration = Duration::from_millis(20);

/// Runs the cluster until Ctrl-C or SIGTERM.
///
/// # Errors
/// The machine lacks something, a manifest is not valid, or a part fails. What was started has been stopped then.
pub(crate) async fn run(args: Up) -> Result<()> {
    let manifests = manifests::read(&args.manifests)?;
    let layout = Layout::new(&args)?;
    preflight::check_machine(&wanted(&args, &layout))?;
    let _lock = layout.prepare()?;
    for file in [&layout.agent_pid, &layout.proxy_pid] {
        end_leftover(file).await.context("cannot take over from a run that was killed")?;
    }
    preflight::check_ports(&ports(&args, &layout))?;
    let mut stop = Stop::install()?;
    let mut cluster =
        Cluster { args: &args, layout: &layout, readiness: Readiness::default(), parts: Parts::default() };
    let outcome = tokio::select! {
        outcome = cluster.serve(&manifests) => outcome,
        () = stop.asked() => Ok(()),
    };
    info!("stopping");
    let stopped = cluster.parts.stop().await;
    outcome.and(stopped)
}

/// A cluster that is being started.
struct Cluster<'a> {
    args: &'a Up,
    layout: &'a Layout,
    readiness: Readiness,
    parts: Parts,
}

impl Cluster<'_> {
    /// Starts all parts, each after those it needs, applies the manifests, and goes on until a part fails.
    ///
    /// Cancel safety: what was started is in `parts`.
    async fn serve(&mut self, manifests: &[Manifest]) -> Result<()> {
        let started = Clock.now();
        let names = roles::api_names(
            &self.args.network,
            self.args.listen,
            &[self.layout.gateway, self.layout.node_ip],
        );
        let pki = ClusterPki::load_or_create(&self.layout.pki, &names)?;
        let server = self.open_api_server(&pki).await?;
        let admin = server.client("ambit:admin", &[roles::ADMINISTRATORS]);
        // The parts have the default roles of their names, and no more.
        let control_plane = server.client("ambit:control-plane", &[]);
        let controllers = server.client("ambit:controllers", &[]);
        let node = server.client(&format!("system:node:{}", self.args.node_name), &["system:nodes"]);
        self.write_kubeconfigs(&pki)?;
        let ready = self.readiness.clone();
        self.parts.start("the API server", |stop| server.run(ready, stop));
        self.wait_ready().await?;
        self.parts.during(system::install(&admin)).await?;
        self.start_mesh(&admin, control_plane).await?;
        self.start_node(&pki, node)?;
        let settings =
            ambit_controllers::Settings { root_ca_pem: pki.ca_pem().to_owned(), ..Default::default() };
        let ready = self.readiness.clone();
        // Started last, the controllers stop first: they must not replace the pods that the node ends.
        self.parts
            .start("the controllers", |stop| ambit_controllers::run(settings, controllers, ready, stop));
        self.wait_ready().await?;
        info!(ms = Clock.now().duration_since(started).as_millis(), "cluster is up");
        self.parts.during(manifests::apply(&admin, manifests)).await?;
        if let Some(file) = &self.args.write_kubeconfig {
            info!("use it: kubectl --kubeconfig {} get pods -A", file.display());
        }
        Err(self.parts.any_end().await)
    }

    async fn open_api_server(&self, pki: &ClusterPki) -> Result<ApiServer> {
        let listen = self.args.listen;
        // Pods reach the API server over the bridge, whatever addresses the machine has otherwise.
        let advertise = if listen.ip().is_unspecified() { self.layout.gateway } else { listen.ip() };
        let settings = roles::api_settings(
            Storage::Disk(self.layout.objects.clone()),
            listen,
            Some(SocketAddr::new(advertise, listen.port())).filter(|a| !a.ip().is_loopback()),
            pki.clone(),
            &self.args.network,
        );
        ApiServer::open(settings).await.context("cannot open the API server")
    }

    fn write_kubeconfigs(&self, pki: &ClusterPki) -> Result<()> {
        let text = |user: &str, groups: &[&str]| roles::kubeconfig(pki, self.args.listen, (user, groups));
        write_private(&self.layout.agent_kubeconfig, text("ambit:agent", &[])?.as_bytes())?;
        if let Some(file) = &self.args.write_kubeconfig {
            write_private(file, text("ambit:admin", &[roles::ADMINISTRATORS])?.as_bytes())?;
        }
        Ok(())
    }

    /// Control plane, agent and proxy.
    async fn start_mesh(&mut self, admin: &Client, client: Client) -> Result<()> {
        let (node, node_ip) = (&self.args.node_name, self.layout.node_ip.to_string());
        let (agent_pod, proxy_pod) = (format!("istio-cni-node-{node}"), format!("ztunnel-{node}"));
        let agent = HostProcess { pod: &agent_pod, app: "istio-cni-node", account: "istio-cni" };
        self.parts.during(system::stand_for(admin, agent, node, &node_ip)).await?;
        let proxy = HostProcess { pod: &proxy_pod, app: "ztunnel", account: mesh::PROXY_ACCOUNT };
        let pod = self.parts.during(system::stand_for(admin, proxy, node, &node_ip)).await?;
        let mesh_config = self.args.mesh_config.clone();
        let settings = roles::control_plane_settings(&ControlPlane {
            mesh_config,
            ..ControlPlane::local(self.layout.control_plane, &self.args.network)
        })?;
        let ready = self.readiness.clone();
        self.parts.start("the control plane", |stop| ambit_control_plane::run(settings, client, ready, stop));
        self.parts.during(system::write_root(admin, &self.layout.root_file)).await?;
        let token = TokenFile { client: admin.clone(), pod, file: self.layout.token_file.clone() };
        self.parts.during(token.write()).await?;
        self.parts.start("the renewal of the proxy's token", |stop| token.keep_fresh(stop));
        let place = ProxyPlace {
            control_plane: format!("https://localhost:{}", self.layout.control_plane.port()),
            root_file: self.layout.root_file.clone(),
            token_file: self.layout.token_file.clone(),
            handover_socket: self.layout.handover_socket.clone(),
            node_name: node.clone(),
            node_ip,
            pod_name: proxy_pod,
        };
        let proxy = self.proxy_program(&place);
        self.parts.start("the proxy", |stop| proxy.keep_running(Clock, stop));
        // Started behind the proxy, the agent stops before it: the proxy lets go of every pod and has nothing to drain.
        let agent = self.agent_program();
        self.parts.start("the agent", |stop| agent.keep_running(Clock, stop));
        Ok(())
    }

    fn start_node(&mut self, pki: &ClusterPki, client: Client) -> Result<()> {
        let names =
            [self.args.node_name.clone(), self.layout.node_ip.to_string(), self.layout.gateway.to_string()];
        let settings = roles::node_settings(NodePlace {
            name: &self.args.node_name,
            ip: self.layout.node_ip,
            state: self.layout.node.clone(),
            run_dir: Some(self.layout.cni_run_dir.clone()),
            programs: self.layout.programs.clone(),
            cni_bin_dirs: &self.args.programs.cni_bin_dirs,
            images: &self.args.images,
            client_ca_pem: pki.ca_pem().to_owned(),
            server: pki.issue_server(&self.args.node_name, &names)?,
            network: &self.args.network,
        })?;
        let ready = self.readiness.clone();
        self.parts.start("the node", |stop| ambit_node::run(settings, client, ready, stop));
        Ok(())
    }

    fn agent_program(&self) -> Program {
        let show = |path: &Path| path.display().to_string();
        let pairs = [
            ("--kubeconfig", show(&self.layout.agent_kubeconfig)),
            ("--node-name", self.args.node_name.clone()),
            ("--run-dir", show(&self.layout.cni_run_dir)),
            ("--handover-socket", show(&self.layout.handover_socket)),
        ];
        let mut args = vec!["agent".to_owned(), "--release-on-stop".to_owned()];
        args.extend(pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        Program {
            name: "agent".to_owned(),
            path: self.layout.own_program.clone(),
            args,
            env: vec![],
            log: self.layout.logs.join("agent.log"),
            pid_file: self.layout.agent_pid.clone(),
        }
    }

    fn proxy_program(&self, place: &ProxyPlace) -> Program {
        Program {
            name: "proxy".to_owned(),
            path: self.args.proxy.clone().unwrap_or_else(|| self.layout.own_program.clone()),
            args: vec!["proxy".to_owned()],
            env: place.environment(),
            log: self.layout.logs.join("proxy.log"),
            pid_file: self.layout.proxy_pid.clone(),
        }
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let readiness = self.readiness.clone();
        let wait = async {
            // A part takes its guard as its first step, which may not have run yet.
            tokio::time::sleep(READY_POLL).await;
            while !readiness.waiting_for().is_empty() {
                tokio::time::sleep(READY_POLL).await;
            }
        };
        let limited = async {
            tokio::time::timeout(READY_WAIT, wait).await.map_err(|_| {
                anyhow!(
                    "not ready within {READY_WAIT:?}, still waiting for: {}",
                    readiness.waiting_for().join(", ")
                )
            })
        };
        self.parts.during(limited).await
    }
}

fn wanted<'a>(args: &'a Up, layout: &Layout) -> preflight::Wanted<'a> {
    let companion = |name: &str| {
        (
            layout.programs.join(name),
            "build it with `make programs`, or name its folder with --programs".to_owned(),
        )
    };
    let mut files = vec![companion("ambit-cni"), companion("ambit-pause")];
    files.extend(
        args.proxy.iter().map(|p| (p.clone(), "--proxy names the program of another node proxy".to_owned())),
    );
    let images = args
        .images
        .iter()
        .map(|p| (p.clone(), "--image names an archive: see `ambit image pack --help`".to_owned()));
    files.extend(images);
    preflight::Wanted { cni_bin_dirs: &args.programs.cni_bin_dirs, files }
}

/// Addresses that must be free.
fn ports(args: &Up, layout: &Layout) -> Vec<preflight::Port> {
    let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
    let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    vec![
        (args.listen, "the API server", Some("--listen")),
        (layout.control_plane, "the control plane", None),
        (local(port::CONTROL_PLANE_METRICS), "the control plane's metrics", None),
        (any(port::NODE), "the node's server", None),
        (local(port::AGENT_HEALTH), "the agent's health", None),
        (local(port::METRICS), "the agent's metrics", None),
        (local(port::PROXY_ADMIN), "the proxy's admin endpoint", None),
        (any(port::PROXY_METRICS), "the proxy's metrics", None),
        (any(port::PROXY_READY), "the proxy's readiness", None),
    ]
}

/// Ctrl-C and SIGTERM.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn install() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
