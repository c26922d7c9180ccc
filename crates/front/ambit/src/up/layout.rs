//! Where things of a cluster started by `ambit up` are.

use crate::cli::Up;
use crate::roles::program_dir;
use ambit_names::port;
use anyhow::{Context as _, Result, anyhow, bail};
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

/// Longest path of a unix socket that the kernel takes. Unit: bytes. Source: sockaddr_un.
const SOCKET_PATH_MAX: usize = 107;

/// Files and folders of a cluster, and the addresses of its parts.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Certificates and keys of the cluster.
    pub(crate) pki: PathBuf,
    /// The objects.
    pub(crate) objects: PathBuf,
    /// The node's state.
    pub(crate) node: PathBuf,
    /// Logs of child processes.
    pub(crate) logs: PathBuf,
    /// Run directory of plugin and agent.
    pub(crate) cni_run_dir: PathBuf,
    /// Socket of the hand-over.
    pub(crate) handover_socket: PathBuf,
    /// Roots of the mesh.
    pub(crate) root_file: PathBuf,
    /// Token of the proxy.
    pub(crate) token_file: PathBuf,
    /// Kubeconfig of the agent.
    pub(crate) agent_kubeconfig: PathBuf,
    /// Names the running agent.
    pub(crate) agent_pid: PathBuf,
    /// Names the running proxy.
    pub(crate) proxy_pid: PathBuf,
    /// This program.
    pub(crate) own_program: PathBuf,
    /// Folder of the companion programs.
    pub(crate) programs: PathBuf,
    /// Address of the node.
    pub(crate) node_ip: IpAddr,
    /// The node's address on the bridge: the first of the pods' network.
    pub(crate) gateway: IpAddr,
    /// Address of discovery and certificates.
    pub(crate) control_plane: SocketAddr,
    lock: PathBuf,
}

impl Layout {
    /// The layout below the state folder.
    ///
    /// # Errors
    /// This program's own place is not known, the folder's path is too long for sockets, or the pods' network is empty.
    pub(crate) fn new(args: &Up) -> Result<Self> {
        let state = std::path::absolute(&args.state)
            .with_context(|| format!("cannot use {}", args.state.display()))?;
        let pods = args.network.pod_cidr;
        let gateway = pods.hosts().next().ok_or_else(|| anyhow!("--pod-cidr {pods} holds no address"))?;
        let run = state.join("run");
        let layout = Self {
            pki: state.join("pki"),
            objects: state.join("objects"),
            node: state.join("node"),
            logs: state.join("log"),
            cni_run_dir: run.join("istio-cni"),
            handover_socket: run.join("ztunnel.sock"),
            root_file: run.join("root-cert.pem"),
            token_file: run.join("istio-token"),
            agent_kubeconfig: run.join("agent.kubeconfig"),
            agent_pid: run.join("agent.pid"),
            proxy_pid: run.join("proxy.pid"),
            own_program: std::env::current_exe().context("cannot find this program's own file")?,
            programs: program_dir(&args.programs)?,
            node_ip: primary_address().unwrap_or(gateway),
            gateway,
            control_plane: SocketAddr::from((Ipv4Addr::LOCALHOST, port::CONTROL_PLANE)),
            lock: state.join("lock"),
        };
        let longest = layout.node.join("containerd/state/containerd.sock.ttrpc");
        if longest.as_os_str().len() > SOCKET_PATH_MAX {
            bail!("--state {} is too long a path for unix sockets: use a shorter one", state.display());
        }
        Ok(layout)
    }

    /// Makes the folders, and makes sure that no other cluster runs on them as long as the result lives.
    ///
    /// # Errors
    /// A folder cannot be made, or a cluster runs on the state folder.
    pub(crate) fn prepare(&self) -> Result<Flock<File>> {
        for dir in [&self.pki, &self.objects, &self.node, &self.logs, &self.cni_run_dir] {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
            made.with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let file =
            File::create(&self.lock).with_context(|| format!("cannot make {}", self.lock.display()))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            let state = self.lock.parent().unwrap_or(&self.lock).display();
            anyhow!("another ambit up runs on {state}: stop it, or choose another folder with --state")
        })
    }
}

/// The address that packets to elsewhere would carry; none without a route to elsewhere.
fn primary_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // No packet is sent: connecting only asks the kernel for the route. The address is one for documentation.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}
