//! Settings of the node runtime.

use ambit_trust::pki::Credentials;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Everything the node runtime has to be told. All paths are absolute.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the node, a DNS label.
    pub node_name: String,
    /// Addresses of the node, the main one first.
    pub node_ips: Vec<IpAddr>,
    /// Directory for everything the node keeps: the container runtime's files, pods, logs, network configuration.
    pub state_dir: PathBuf,
    /// Addresses for pods, at most one network per family.
    pub pod_cidrs: Vec<IpNet>,
    /// Address of the cluster's name server.
    pub cluster_dns: IpAddr,
    /// Domain of the cluster.
    pub cluster_domain: String,
    /// Directories that hold the reference CNI plugins, in the order they are searched.
    pub cni_bin_dirs: Vec<PathBuf>,
    /// Name of the bridge that pods are attached to.
    pub bridge: String,
    /// The mesh's plugin; none leaves pods outside of the mesh.
    pub mesh_plugin: Option<MeshPlugin>,
    /// The static binary of the pause process.
    pub pause_binary: PathBuf,
    /// Image archives to import at start.
    pub images: Vec<PathBuf>,
    /// Where logs are served to the API server.
    pub listen: SocketAddr,
    /// Certificates of the authority that clients of `listen` must have theirs from.
    pub client_ca_pem: String,
    /// The certificate and key that `listen` is served with.
    pub server: Credentials,
    /// What the cluster's services and names are served from; `None` leaves both to somebody else.
    pub cluster_services: Option<ClusterServices>,
}

/// The mesh's CNI plugin.
#[derive(Debug, Clone)]
pub struct MeshPlugin {
    /// Its binary.
    pub binary: PathBuf,
    /// Directory with the agent's socket.
    pub run_dir: PathBuf,
    /// Namespaces whose pods start without asking the agent.
    pub exclude_namespaces: Vec<String>,
    /// Namespace of the mesh's own pods.
    pub pod_namespace: String,
}

/// Service routing and names, served by the node itself.
#[derive(Debug, Clone)]
pub struct ClusterServices {
    /// Addresses for services.
    pub service_cidrs: Vec<IpNet>,
    /// Name servers for names outside the cluster.
    pub dns_upstreams: Vec<SocketAddr>,
}
