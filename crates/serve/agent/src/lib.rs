//! The node agent: CNI events, enrollment of pods, rules and the hand-over to the proxy.
//! It never carries a pod's traffic.

mod annotate;
mod annotated;
mod capture;
mod confine;
mod discovery;
mod enroll;
mod error;
mod events;
#[cfg(test)]
mod fixture;
mod handover;
mod headroom;
mod http;
pub mod install;
mod metrics;
mod plugin_log;
mod pod_set;
mod run;
mod status;
mod work;

pub use ambit_linux::own_mounts::OwnMounts;
pub use ambit_node_plan::enroll::selector::Selectors;
pub use annotated::Annotated;
pub use confine::confine;
pub use error::Error;
pub use run::run;
pub use status::{NodeStatus, PODS_PATH, PodStatus};

use ambit_runtime::Shutdown;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// What becomes of running pods that are to be captured, while they are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncaptured {
    /// The node drops their traffic.
    KeptOff,
    /// They use the network past the mesh.
    LetBe,
}

/// Settings of the agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the node whose pods this agent enrolls.
    pub node_name: String,
    /// Directory of the socket to which the plugin posts events; made if missing.
    pub run_dir: PathBuf,
    /// Socket on which proxies connect for the hand-over; its directory is made if missing.
    pub handover_socket: PathBuf,
    /// Where the node's /proc is mounted.
    pub proc_root: PathBuf,
    /// The node's network namespace.
    pub host_netns: PathBuf,
    /// Namespace of the mesh's own pods.
    pub system_namespace: String,
    /// Namespaces whose pods are never captured.
    pub excluded_namespaces: Vec<String>,
    /// Which pods are captured, in place of the label `istio.io/dataplane-mode`.
    pub selectors: Option<Selectors>,
    /// Whether DNS is captured where the pod does not say.
    pub dns_capture: bool,
    /// Whether IPv6 is captured.
    pub ipv6: bool,
    /// Address of `/healthz` and `/readyz`.
    pub health: SocketAddr,
    /// Address of `/metrics`.
    pub metrics: SocketAddr,
    /// User id of the node runtime, whose probes reach captured pods as plain text.
    pub probe_uid: u32,
    /// Whether a clean stop releases all pods; otherwise they stay captured.
    pub release_on_stop: bool,
    /// Cancelled before the stop, it makes that stop release all pods: the agent is removed for good.
    pub removal: Option<Shutdown>,
    /// What becomes of running pods that are to be captured, while they are not.
    pub uncaptured: Uncaptured,
    /// Where the plugin and its entry are kept in place; none leaves that to somebody else.
    pub install: Option<install::Settings>,
    /// The process's own view of the files, as [`confine`] made it; none sees them as everybody does.
    pub mounts: Option<Arc<OwnMounts>>,
}

impl Settings {
    /// Whether a stop at this moment releases all pods.
    fn releases(&self) -> bool {
        self.release_on_stop || self.removal.as_ref().is_some_and(Shutdown::is_cancelled)
    }

    /// The settings of a node with the field's usual paths and ports.
    pub fn new(node_name: impl Into<String>) -> Self {
        use ambit_names::{mesh, path, port};
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self {
            node_name: node_name.into(),
            run_dir: path::CNI_RUN_DIR.into(),
            handover_socket: path::HANDOVER_SOCKET.into(),
            proc_root: "/proc".into(),
            host_netns: "/proc/self/ns/net".into(),
            system_namespace: mesh::SYSTEM_NAMESPACE.into(),
            excluded_namespaces: vec!["kube-system".into()],
            selectors: None,
            dns_capture: true,
            ipv6: true,
            health: local(port::AGENT_HEALTH),
            metrics: local(port::METRICS),
            probe_uid: 0,
            release_on_stop: false,
            removal: None,
            uncaptured: Uncaptured::KeptOff,
            install: None,
            mounts: None,
        }
    }
}
