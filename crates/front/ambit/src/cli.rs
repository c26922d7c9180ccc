//! The command line.

mod set_name;
mod store;

pub(crate) use set_name::SetName;
pub(crate) use store::Store;

use ambit_names::{cluster, mesh, path, port};
use ambit_runtime::logging::LogFormat;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An ambient service mesh for Kubernetes, and a cluster to run it on where there is none.
///
/// `ambit up` starts everything on this machine. Each part can also be started alone and pointed at any cluster with
/// an ordinary kubeconfig.
#[derive(Debug, Parser)]
#[command(name = "ambit", version, propagate_version = true)]
pub(crate) struct Cli {
    /// What is logged to stderr: LEVEL or TARGET=LEVEL, comma-separated.
    #[arg(long, global = true, env = "AMBIT_LOG", default_value = "info", value_name = "FILTER")]
    pub(crate) log: String,
    /// How log events are written.
    #[arg(long, global = true, env = "AMBIT_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How log events are written.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

impl From<Format> for LogFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a cluster with the mesh on this machine, until Ctrl-C.
    Up(Up),
    /// Run the API server alone.
    Apiserver(Apiserver),
    /// Run the built-in controllers alone.
    Controllers(Controllers),
    /// Run the node runtime alone.
    Node(Node),
    /// Run the mesh control plane alone.
    ControlPlane(ControlPlane),
    /// Run the node agent alone.
    Agent(Agent),
    /// Run the node proxy alone. Its settings come from the environment, under the names that node proxies of the
    /// field use (XDS_ADDRESS, CA_ADDRESS, XDS_ROOT_CA, CA_ROOT_CA, AUTH_TOKEN, INPOD_UDS, NODE_NAME, POD_NAME, …).
    Proxy,
    /// Check and show the mesh configuration.
    Config(Config),
    /// Show the capture state of pods of this node or others, and why it is so.
    ///
    /// Exits with 0 if every pod shown is as it was asked for, 1 if the command failed, 3 if a pod that was named is not
    /// known, and 4 if a pod is not as it was asked for.
    Status(Status),
    /// Pack and import container images.
    Image(Image),
}

/// Settings of `ambit up`.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Folder of all state. A cluster started on the same folder again holds the same objects.
    #[arg(long, default_value = "/var/lib/ambit", value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// Write a kubeconfig of an administrator to this file, for kubectl.
    #[arg(long, value_name = "FILE")]
    pub(crate) write_kubeconfig: Option<PathBuf>,
    /// Apply this manifest once the cluster is up: a file, a folder of .yaml, .yml and .json files, or - for stdin.
    #[arg(short = 'f', long = "filename", value_name = "MANIFEST")]
    pub(crate) manifests: Vec<PathBuf>,
    /// Import this image archive (docker or OCI layout) at start.
    #[arg(long = "image", value_name = "FILE")]
    pub(crate) images: Vec<PathBuf>,
    /// Run this program as the node proxy instead of ours, ztunnel for example. It gets the same environment.
    #[arg(long, value_name = "PATH")]
    pub(crate) proxy: Option<PathBuf>,
    /// Address and port of the API server.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], port::API_SERVER)), value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,
    /// Name of the node.
    #[arg(long, default_value = "node-1", value_name = "NAME")]
    pub(crate) node_name: String,
    #[command(flatten)]
    pub(crate) mesh_config: MeshConfig,
    #[command(flatten)]
    pub(crate) network: Network,
    #[command(flatten)]
    pub(crate) programs: ProgramPaths,
}

/// Addresses of a cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct Network {
    /// Addresses of the node's pods.
    #[arg(long, default_value = cluster::POD_CIDR, value_name = "CIDR")]
    pub(crate) pod_cidr: IpNet,
    /// Addresses of services; the tenth is the cluster DNS.
    #[arg(long, default_value = cluster::SERVICE_CIDR, value_name = "CIDR")]
    pub(crate) service_cidr: IpNet,
    /// DNS domain of the cluster.
    #[arg(long, default_value = mesh::CLUSTER_DOMAIN, value_name = "DOMAIN")]
    pub(crate) cluster_domain: String,
}

/// Where the mesh configuration comes from.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MeshConfig {
    /// Revision of the control plane: its mesh configuration is the ConfigMap istio-REVISION.
    #[arg(long, env = "REVISION", value_name = "NAME")]
    pub(crate) revision: Option<String>,
    /// ConfigMap of the system namespace whose mesh configuration is applied first.
    #[arg(long = "shared-mesh-config", env = "SHARED_MESH_CONFIG", value_name = "NAME")]
    pub(crate) shared: Option<String>,
    /// File with a mesh configuration, read at start, in place of the ConfigMap.
    #[arg(long = "mesh-config", value_name = "FILE")]
    pub(crate) file: Option<String>,
}

/// Settings of `ambit config`.
#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    pub(crate) action: ConfigAction,
}

/// What is to be done with the mesh configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigAction {
    /// Check a mesh configuration, or manifests with a ConfigMap that holds one, without a cluster. Each fault is told as
    /// FILE:LINE:COLUMN: field.path: what is wrong, what is expected. Exit code 1 if there are any.
    Check(ConfigCheck),
    /// Show the mesh configuration in force in a cluster. Exit code 1 if its sources have faults.
    Show(ConfigShow),
}

/// Settings of `ambit config check`.
#[derive(Debug, Args)]
pub(crate) struct ConfigCheck {
    /// The file, or - for the standard input.
    pub(crate) file: String,
    /// How the result is printed; one line a fault unless set.
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<ShownAs>,
}

/// Settings of `ambit config show`.
#[derive(Debug, Args)]
pub(crate) struct ConfigShow {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(flatten)]
    pub(crate) sources: MeshConfig,
    /// Namespace of the mesh's own parts.
    #[arg(long, default_value = mesh::SYSTEM_NAMESPACE, value_name = "NAME")]
    pub(crate) system_namespace: String,
    /// One value a line, with the source that it comes from.
    #[arg(long, conflicts_with = "output")]
    pub(crate) origin: bool,
    /// How it is printed; YAML unless set.
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<ShownAs>,
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShownAs {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// Where companion programs are.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProgramPaths {
    /// Folder with ambit-cni and ambit-pause. Default: where this program is.
    #[arg(long, value_name = "DIR")]
    pub(crate) programs: Option<PathBuf>,
    /// Folders with the reference CNI plugins (bridge, host-local, loopback).
    #[arg(long, value_delimiter = ',', default_value = "/usr/lib/cni,/opt/cni/bin", value_name = "DIR,…")]
    pub(crate) cni_bin_dirs: Vec<PathBuf>,
}

/// Settings of `ambit apiserver`.
#[derive(Debug, Args)]
pub(crate) struct Apiserver {
    /// Folder of the objects and certificates. Without it, all is kept in memory and lost at the end.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: Store,
    /// Address and port.
    #[arg(long, default_value_t = SocketAddr::from(([127, 0, 0, 1], port::API_SERVER)), value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,
    /// Write a kubeconfig of an administrator to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) write_kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) network: Network,
}

/// How to reach the cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct Connection {
    /// Kubeconfig of the cluster. Default: in-cluster configuration, else the usual places.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// Settings of `ambit controllers`.
#[derive(Debug, Args)]
pub(crate) struct Controllers {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// PEM file with the cluster's certificate authority, published as ConfigMap kube-root-ca.crt.
    #[arg(long, value_name = "FILE")]
    pub(crate) root_ca: PathBuf,
    /// Address and port of metrics. Without it none are served.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) leader: LeaderElection,
}

/// Which of several replicas works.
#[derive(Debug, Args)]
pub(crate) struct LeaderElection {
    /// Work only while holding a lease, so that of several replicas one works and the others wait.
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true",
        action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) leader_elect: bool,
    /// Namespace of the lease.
    #[arg(long, default_value = "kube-system", value_name = "NAME")]
    pub(crate) leader_elect_namespace: String,
    /// Name of this replica in the lease, unlike that of every other one [default: host name and a random part].
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) leader_elect_identity: Option<String>,
}

/// Settings of `ambit node`.
#[derive(Debug, Args)]
pub(crate) struct Node {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Folder of the node's state.
    #[arg(long, default_value = "/var/lib/ambit-node", value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// Name of the node.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: String,
    /// Address of the node.
    #[arg(long, env = "NODE_IP", value_name = "IP")]
    pub(crate) node_ip: std::net::IpAddr,
    /// PEM file with the authority that signed the API server's and the kubelet client's certificates.
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: PathBuf,
    /// PEM file with the node server's certificate.
    #[arg(long, value_name = "FILE")]
    pub(crate) server_cert: PathBuf,
    /// PEM file with the node server's key.
    #[arg(long, value_name = "FILE")]
    pub(crate) server_key: PathBuf,
    /// Chain the mesh's plugin after the pod network's.
    #[arg(long)]
    pub(crate) mesh: bool,
    /// Run directory that the plugin shares with the node agent.
    #[arg(long, default_value = path::CNI_RUN_DIR, value_name = "DIR")]
    pub(crate) run_dir: PathBuf,
    /// Import this image archive at start.
    #[arg(long = "image", value_name = "FILE")]
    pub(crate) images: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) network: Network,
    #[command(flatten)]
    pub(crate) programs: ProgramPaths,
}

/// Settings of `ambit control-plane`.
#[derive(Debug, Args)]
pub(crate) struct ControlPlane {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Address and port of discovery and certificates.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], port::CONTROL_PLANE)), value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,
    /// Address and port of metrics, and of the state of the collections (/debug/collections).
    #[arg(long, default_value_t = SocketAddr::from(([127, 0, 0, 1], port::METRICS)), value_name = "ADDR:PORT")]
    pub(crate) metrics: SocketAddr,
    /// Trust domain of the mesh, above the one of the mesh configuration.
    #[arg(long, env = "TRUST_DOMAIN", value_name = "DOMAIN")]
    pub(crate) trust_domain: Option<String>,
    #[command(flatten)]
    pub(crate) mesh_config: MeshConfig,
    /// Id of the cluster.
    #[arg(long, env = "CLUSTER_ID", default_value = mesh::CLUSTER_ID, value_name = "ID")]
    pub(crate) cluster_id: String,
    /// DNS domain of the cluster.
    #[arg(long, default_value = mesh::CLUSTER_DOMAIN, value_name = "DOMAIN")]
    pub(crate) cluster_domain: String,
    /// Names that the server's certificate carries, beside istiod.<system namespace>.svc and localhost.
    #[arg(long = "server-name", value_name = "NAME")]
    pub(crate) server_names: Vec<String>,
    /// Namespace of the mesh's own parts.
    #[arg(long, default_value = mesh::SYSTEM_NAMESPACE, value_name = "NAME")]
    pub(crate) system_namespace: String,
    /// Accounts of node proxies, which may ask for the certificates of pods on their node.
    #[arg(
        long,
        env = "CA_TRUSTED_NODE_ACCOUNTS",
        value_delimiter = ',',
        default_value = "istio-system/ztunnel",
        value_name = "NS/SA,…"
    )]
    pub(crate) trusted_node_accounts: Vec<String>,
}

impl ControlPlane {
    /// The settings of a control plane beside its cluster, on this machine.
    pub(crate) fn local(listen: SocketAddr, network: &Network) -> Self {
        Self {
            connection: Connection { kubeconfig: None },
            listen,
            metrics: SocketAddr::from(([127, 0, 0, 1], port::CONTROL_PLANE_METRICS)),
            trust_domain: None,
            mesh_config: MeshConfig::default(),
            cluster_id: mesh::CLUSTER_ID.to_owned(),
            cluster_domain: network.cluster_domain.clone(),
            server_names: Vec::new(),
            system_namespace: mesh::SYSTEM_NAMESPACE.to_owned(),
            trusted_node_accounts: vec![format!("{}/{}", mesh::SYSTEM_NAMESPACE, mesh::PROXY_ACCOUNT)],
        }
    }
}

/// Settings of `ambit agent`.
#[derive(Debug, Args)]
pub(crate) struct Agent {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Without an action, run the agent.
    #[command(subcommand)]
    pub(crate) action: Option<AgentAction>,
    /// Name of the node.
    #[arg(long, global = true, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    #[command(flatten)]
    pub(crate) cni: CniInstall,
    /// Run directory that the CNI plugin shares with the agent.
    #[arg(long, env = "CNI_AGENT_RUN_DIR", default_value = path::CNI_RUN_DIR, value_name = "DIR")]
    pub(crate) run_dir: PathBuf,
    /// Socket of the hand-over to the node proxy.
    #[arg(long, env = "ZTUNNEL_UDS_ADDRESS", default_value = path::HANDOVER_SOCKET, value_name = "PATH")]
    pub(crate) handover_socket: PathBuf,
    /// Where the /proc of the node is mounted. In a container that does not share the node's process ids, /proc is another.
    #[arg(long, default_value = "/proc", value_name = "DIR")]
    pub(crate) proc_root: PathBuf,
    /// Namespaces whose pods are never captured.
    #[arg(
        long,
        env = "EXCLUDE_NAMESPACES",
        value_delimiter = ',',
        default_value = "kube-system",
        value_name = "NAME,…"
    )]
    pub(crate) exclude_namespaces: Vec<String>,
    /// Namespace of the mesh's own parts.
    #[arg(long, env = "SYSTEM_NAMESPACE", default_value = mesh::SYSTEM_NAMESPACE, value_name = "NAME")]
    pub(crate) system_namespace: String,
    /// Release all pods at the end instead of leaving them captured for the next agent.
    #[arg(long)]
    pub(crate) release_on_stop: bool,
    /// Uninstall at the stop if this DaemonSet, to which the agent belongs, is gone or being deleted: release all pods, and take
    /// the plugin and its entry away.
    #[arg(long, conflicts_with = "release_on_stop", value_name = "NAMESPACE/NAME")]
    pub(crate) removed_with: Option<SetName>,
    /// Which pods are captured, in place of the label istio.io/dataplane-mode: a YAML list of {podSelector,
    /// namespaceSelector}.
    #[arg(long, env = "AMBIENT_ENABLEMENT_SELECTOR", value_name = "YAML")]
    pub(crate) enablement_selector: Option<String>,
    /// What becomes of running pods that are to be captured, while they are not.
    #[arg(long, default_value = "kept-off", value_name = "WHAT")]
    pub(crate) uncaptured: Uncaptured,
    /// Capture the pods' DNS as well, for a node proxy that answers it.
    #[arg(long, env = "AMBIENT_DNS_CAPTURE")]
    pub(crate) dns_capture: bool,
    /// Leave IPv6 alone.
    #[arg(long)]
    pub(crate) no_ipv6: bool,
    /// User id of the process that probes pods (kubelet, or `ambit node`).
    #[arg(long, default_value_t = 0, value_name = "UID")]
    pub(crate) probe_uid: u32,
    /// Address and port of health.
    #[arg(long, default_value_t = SocketAddr::from(([127, 0, 0, 1], port::AGENT_HEALTH)), value_name = "ADDR:PORT")]
    pub(crate) health: SocketAddr,
    /// Address and port of metrics.
    #[arg(long, default_value_t = SocketAddr::from(([127, 0, 0, 1], port::METRICS)), value_name = "ADDR:PORT")]
    pub(crate) metrics: SocketAddr,
}

/// What to do instead of running the agent.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum AgentAction {
    /// Tell whether this node can run the mesh, and what to do where it cannot. Changes nothing; exits with 1 if
    /// something is missing.
    Check {
        /// How to print.
        #[arg(long, short, value_enum, default_value_t = CheckOutput::Text)]
        output: CheckOutput,
    },
    /// Release all pods of this node and take the plugin and its entry out of the CNI configuration. The agent must have
    /// been stopped.
    Uninstall,
}

/// How the findings of a check are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckOutput {
    /// A line per finding.
    Text,
    /// A list of objects.
    Json,
}

/// Where the agent keeps the plugin and its entry.
#[derive(Debug, Clone, Args)]
pub(crate) struct CniInstall {
    /// Keep the plugin in the CNI configuration of this directory. Without it, somebody else must.
    #[arg(long, global = true, env = "MOUNTED_CNI_NET_DIR", value_name = "DIR")]
    pub(crate) cni_conf_dir: Option<PathBuf>,
    /// Directory of the runtime's plugins, into which the agent copies its own.
    #[arg(long, global = true, default_value = "/opt/cni/bin", value_name = "DIR")]
    pub(crate) cni_bin_dir: PathBuf,
    /// The plugin's binary. By default ambit-cni beside this program.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) cni_plugin: Option<PathBuf>,
    /// Name of the configuration to use. By default the one that the runtime uses, which may change.
    #[arg(long, global = true, env = "CNI_CONF_NAME", value_parser = conf_name, value_name = "FILE")]
    pub(crate) cni_conf_name: Option<String>,
    /// Leave the runtime's configuration as it is, and keep a file of our own that is made from it and sorts first.
    #[arg(long, global = true, env = "ISTIO_OWNED_CNI_CONFIG")]
    pub(crate) cni_own_file: bool,
    /// Name of the file of our own.
    #[arg(
        long,
        global = true,
        env = "ISTIO_OWNED_CNI_CONFIG_FILENAME",
        default_value = "02-ambit-cni.conflist",
        value_parser = list_name,
        value_name = "FILE"
    )]
    pub(crate) cni_own_file_name: String,
    /// Let the group read a configuration that is made.
    #[arg(long, global = true, env = "CNI_CONF_GROUP_READ")]
    pub(crate) cni_conf_group_read: bool,
    /// Chain the plugin to the others. Must be true: a network of its own would connect no pod.
    #[arg(
        long,
        global = true,
        env = "CHAINED_CNI_PLUGIN",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_parser = only_chained,
        value_name = "BOOL"
    )]
    pub(crate) chained: bool,
}

fn conf_name(text: &str) -> Result<String, String> {
    let is_plain =
        !text.contains('/') && [".conf", ".conflist", ".json"].iter().any(|end| text.ends_with(end));
    is_plain
        .then(|| text.to_owned())
        .ok_or_else(|| "it must be a file name that ends in .conf, .conflist or .json".to_owned())
}

fn list_name(text: &str) -> Result<String, String> {
    conf_name(text)
        .ok()
        .filter(|name| name.ends_with(".conflist"))
        .ok_or_else(|| "it must be a file name that ends in .conflist".to_owned())
}

fn only_chained(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        _ => {
            Err("only true is supported: the mesh's plugin works on the network that others have made"
                .to_owned())
        }
    }
}

/// What becomes of running pods that are to be captured, while they are not.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Uncaptured {
    /// The node drops their traffic.
    KeptOff,
    /// They use the network past the mesh.
    LetBe,
}

/// `ambit status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Show only these pods. Default: all pods of the nodes.
    #[arg(value_name = "[NAMESPACE/]POD")]
    pub(crate) pods: Vec<String>,
    /// Show only pods of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// As what they are shown.
    #[arg(short, long, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: StatusFormat,
    /// Address and port of the agent's health.
    #[arg(long, default_value_t = SocketAddr::from(([127, 0, 0, 1], port::AGENT_HEALTH)), value_name = "ADDR:PORT")]
    pub(crate) agent: SocketAddr,
    /// Show the pods of this node, through the API server: as its agent sees them if the API server reaches it, else as their
    /// annotations tell.
    #[arg(long, value_name = "NAME", conflicts_with = "all_nodes")]
    pub(crate) node: Option<String>,
    /// Show the pods of all nodes, through the API server.
    #[arg(short = 'A', long)]
    pub(crate) all_nodes: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// As what capture states are shown.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum StatusFormat {
    /// One line per pod.
    Table,
    /// What the agent answers.
    Json,
}

/// `ambit image`.
#[derive(Debug, Args)]
pub(crate) struct Image {
    #[command(subcommand)]
    pub(crate) action: ImageAction,
}

/// What to do with an image.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageAction {
    /// Pack one static binary into an image without anything else in it.
    Pack {
        /// The static binary; it becomes the entry point.
        binary: PathBuf,
        /// Name of the image, with its tag.
        #[arg(long, value_name = "NAME:TAG")]
        name: String,
        /// The archive to write.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Import an image archive into a running `ambit up`.
    Import {
        /// The archive (docker or OCI layout).
        file: PathBuf,
        /// State folder of the running cluster.
        #[arg(long, default_value = "/var/lib/ambit", value_name = "DIR")]
        state: PathBuf,
    },
}

#[cfg(test)]
mod tests;
