//! The roles, each started alone; and the settings that `ambit up` shares with them.

use crate::cli;
use crate::kubeconfig::{connect, local, write_private};
use crate::proxy_settings;
use ambit_apiserver::{ApiServer, Storage};
use ambit_cni_conf::Place;
use ambit_controllers::LeaderSettings;
use ambit_names::mesh;
use ambit_node::{ClusterServices, MeshPlugin};
use ambit_runtime::{Readiness, Shutdown};
use ambit_trust::pki::{ClusterPki, Credentials};
use anyhow::{Context as _, Result, anyhow};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Validity of the client certificates that this program issues to itself and its user.
pub(crate) const CLIENT_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// Name of the lease of the controllers.
const CONTROLLERS_LEASE: &str = "ambit-controllers";
/// Where the kernel tells the machine's name, and another random name at each reading.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
const RANDOM_NAME: &str = "/proc/sys/kernel/random/uuid";
/// Members may do all.
pub(crate) const ADMINISTRATORS: &str = "system:masters";

/// Where the CNI configuration is when the command line does not say.
const CONF_DIR: &str = "/etc/cni/net.d";

/// Runs the API server alone.
pub(crate) async fn apiserver(args: cli::Apiserver) -> Result<()> {
    let names = api_names(&args.network, args.listen, &[]);
    let etcd = args.store.etcd().map_err(|fault| anyhow!(fault))?;
    let (pki, storage) = match (&args.state, etcd) {
        (Some(state), Some(etcd)) => {
            (ClusterPki::load_or_create(&state.join("pki"), &names)?, Storage::Etcd(etcd))
        }
        (Some(state), None) => {
            let objects = state.join("objects");
            std::fs::create_dir_all(&objects)
                .with_context(|| format!("cannot make {}", objects.display()))?;
            (ClusterPki::load_or_create(&state.join("pki"), &names)?, Storage::Disk(objects))
        }
        (None, _) => (ClusterPki::in_memory(&names)?, Storage::Memory),
    };
    let settings = api_settings(storage, args.listen, None, pki.clone(), &args.network);
    let server = ApiServer::open(settings).await?;
    if let Some(file) = &args.write_kubeconfig {
        let text = kubeconfig(&pki, args.listen, ("ambit:admin", &[ADMINISTRATORS]))?;
        write_private(file, text.as_bytes())?;
    }
    alone(|readiness, stop| server.run(readiness, stop)).await
}

/// Runs the controllers alone.
pub(crate) async fn controllers(args: cli::Controllers) -> Result<()> {
    let root_ca_pem = read(&args.root_ca)?;
    let client = connect(args.connection.kubeconfig.as_deref()).await?;
    let settings = ambit_controllers::Settings {
        root_ca_pem,
        metrics: args.metrics,
        leader: leader_settings(&args.leader, CONTROLLERS_LEASE)?,
        ..ambit_controllers::Settings::default()
    };
    alone(|readiness, stop| ambit_controllers::run(settings, client, readiness, stop)).await
}

/// Settings of the election of one replica, if there is to be one.
///
/// # Errors
/// No name is set for this replica, and the machine tells none.
fn leader_settings(args: &cli::LeaderElection, lease: &str) -> Result<Option<LeaderSettings>> {
    if !args.leader_elect {
        return Ok(None);
    }
    let identity = match &args.leader_elect_identity {
        Some(identity) => identity.clone(),
        None => {
            let [host, random] = [HOST_NAME, RANDOM_NAME].map(|file| read(Path::new(file)));
            format!("{}_{}", host?.trim(), random?.trim())
        }
    };
    Ok(Some(LeaderSettings::new(&args.leader_elect_namespace, lease, identity)))
}

/// Runs the node runtime alone.
pub(crate) async fn node(args: cli::Node) -> Result<()> {
    let state = std::path::absolute(&args.state)?;
    let server = Credentials { cert_pem: read(&args.server_cert)?, key_pem: read(&args.server_key)? };
    let programs = program_dir(&args.programs)?;
    let settings = node_settings(NodePlace {
        name: &args.node_name,
        ip: args.node_ip,
        state,
        run_dir: args.mesh.then(|| args.run_dir.clone()),
        programs,
        cni_bin_dirs: &args.programs.cni_bin_dirs,
        images: &args.images,
        client_ca_pem: read(&args.client_ca)?,
        server,
        network: &args.network,
    })?;
    let client = connect(args.connection.kubeconfig.as_deref()).await?;
    alone(|readiness, stop| ambit_node::run(settings, client, readiness, stop)).await
}

/// Runs the control plane alone.
pub(crate) async fn control_plane(args: cli::ControlPlane) -> Result<()> {
    let client = connect(args.connection.kubeconfig.as_deref()).await?;
    let settings = control_plane_settings(&args)?;
    alone(|readiness, stop| ambit_control_plane::run(settings, client, readiness, stop)).await
}

/// Settings of the installation.
///
/// # Errors
/// This program's own place is not known, and the plugin's is not set.
pub(crate) fn install_settings(args: &cli::CniInstall) -> Result<ambit_agent::install::Settings> {
    let plugin = match &args.cni_plugin {
        Some(plugin) => plugin.clone(),
        None => {
            let own = std::env::current_exe().context("cannot find this program's own file")?;
            own.with_file_name(ambit_cni_conf::list::PLUGIN_TYPE)
        }
    };
    let place =
        if args.cni_own_file { Place::OwnFile(args.cni_own_file_name.clone()) } else { Place::Primary };
    Ok(ambit_agent::install::Settings {
        conf_dir: args.cni_conf_dir.clone().unwrap_or_else(|| PathBuf::from(CONF_DIR)),
        bin_dir: args.cni_bin_dir.clone(),
        place,
        conf_name: args.cni_conf_name.clone(),
        group_read: args.cni_conf_group_read,
        ..ambit_agent::install::Settings::new(plugin)
    })
}

/// Runs the proxy alone.
pub(crate) async fn proxy() -> Result<()> {
    let settings = proxy_settings::from_environment(std::env::vars())?;
    alone(|readiness, stop| ambit_proxy::run(settings, readiness, stop)).await
}

/// Runs one role until Ctrl-C or SIGTERM, or until it fails.
pub(crate) async fn alone<F, E>(run: impl FnOnce(Readiness, Shutdown) -> F) -> Result<()>
where
    F: Future<Output = Result<(), E>>,
    E: Into<anyhow::Error>,
{
    alone_until(async || {}, run).await
}

/// The same, with something to be done between the signal and the stop.
pub(crate) async fn alone_until<F, E>(
    before: impl AsyncFnOnce(),
    run: impl FnOnce(Readiness, Shutdown) -> F,
) -> Result<()>
where
    F: Future<Output = Result<(), E>>,
    E: Into<anyhow::Error>,
{
    let shutdown = Shutdown::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut role = std::pin::pin!(run(Readiness::default(), shutdown.clone()));
    tokio::select! {
        ended = &mut role => return ended.map_err(Into::into),
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    before().await;
    shutdown.cancel();
    role.await.map_err(Into::into)
}

/// Settings of the API server.
pub(crate) fn api_settings(
    storage: Storage,
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    pki: ClusterPki,
    network: &cli::Network,
) -> ambit_apiserver::Settings {
    ambit_apiserver::Settings {
        storage,
        listen: Some(listen),
        advertise,
        pki,
        service_cidr: network.service_cidr,
        cluster_domain: network.cluster_domain.clone(),
    }
}

/// Names and addresses under which the API server is reached.
pub(crate) fn api_names(network: &cli::Network, listen: SocketAddr, more: &[IpAddr]) -> Vec<String> {
    let fixed =
        ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let mut names: Vec<String> = fixed.map(str::to_owned).into();
    names.push(format!("kubernetes.default.svc.{}", network.cluster_domain));
    let addresses =
        network.service_cidr.hosts().next().into_iter().chain(more.iter().copied()).chain([listen.ip()]);
    names.extend(addresses.filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string()));
    names.sort();
    names.dedup();
    names
}

/// A kubeconfig with a fresh certificate of a user in groups.
///
/// # Errors
/// The certificate cannot be issued.
pub(crate) fn kubeconfig(
    pki: &ClusterPki,
    listen: SocketAddr,
    (user, groups): (&str, &[&str]),
) -> Result<String> {
    let credentials = pki.issue_client(user, groups, CLIENT_VALIDITY)?;
    let url = format!("https://{}", SocketAddr::new(local(listen.ip()), listen.port()));
    Ok(ambit_trust::pki::kubeconfig(&url, pki.ca_pem(), &credentials.cert_pem, &credentials.key_pem))
}

/// Settings of the control plane.
pub(crate) fn control_plane_settings(args: &cli::ControlPlane) -> Result<ambit_control_plane::Settings> {
    let mut settings = ambit_control_plane::Settings::default();
    let service = format!("istiod.{}", args.system_namespace);
    settings.server_names =
        vec![format!("{service}.svc"), service.clone(), format!("{service}.svc.{}", args.cluster_domain)];
    settings.server_names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    settings.server_names.extend(args.server_names.iter().cloned());
    settings.listen = args.listen;
    settings.metrics = Some(args.metrics);
    settings.mesh.cluster_id.clone_from(&args.cluster_id);
    settings.mesh.cluster_domain.clone_from(&args.cluster_domain);
    settings.trust_domain.clone_from(&args.trust_domain);
    settings.mesh.system_namespace.clone_from(&args.system_namespace);
    settings.mesh_config = crate::config::sources(&args.mesh_config, &args.system_namespace)?;
    settings.trusted_node_accounts.clone_from(&args.trusted_node_accounts);
    Ok(settings)
}

/// What a node is started with.
pub(crate) struct NodePlace<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its address.
    pub(crate) ip: IpAddr,
    /// Folder of its state.
    pub(crate) state: PathBuf,
    /// Run directory of plugin and agent; none leaves the mesh out.
    pub(crate) run_dir: Option<PathBuf>,
    /// Folder of the companion programs.
    pub(crate) programs: PathBuf,
    /// Folders of the reference CNI plugins.
    pub(crate) cni_bin_dirs: &'a [PathBuf],
    /// Archives to import.
    pub(crate) images: &'a [PathBuf],
    /// Authority of the clients of its server.
    pub(crate) client_ca_pem: String,
    /// Certificate of its server.
    pub(crate) server: Credentials,
    /// Addresses of the cluster.
    pub(crate) network: &'a cli::Network,
}

/// Settings of the node.
///
/// # Errors
/// The services' network is too small for the cluster DNS.
pub(crate) fn node_settings(place: NodePlace<'_>) -> Result<ambit_node::Settings> {
    let network = place.network;
    let cluster_dns = network.service_cidr.hosts().nth(DNS_INDEX).ok_or_else(|| {
        anyhow!(
            "--service-cidr {} is too small: the cluster DNS takes its tenth address",
            network.service_cidr
        )
    })?;
    let run_dir = place.run_dir.map(|run_dir| MeshPlugin {
        binary: place.programs.join("ambit-cni"),
        run_dir,
        exclude_namespaces: vec!["kube-system".to_owned()],
        pod_namespace: mesh::SYSTEM_NAMESPACE.to_owned(),
    });
    Ok(ambit_node::Settings {
        node_name: place.name.to_owned(),
        node_ips: vec![place.ip],
        state_dir: place.state,
        pod_cidrs: vec![network.pod_cidr],
        cluster_dns,
        cluster_domain: network.cluster_domain.clone(),
        cni_bin_dirs: place.cni_bin_dirs.to_vec(),
        bridge: ambit_names::cluster::BRIDGE.to_owned(),
        mesh_plugin: run_dir,
        pause_binary: place.programs.join("ambit-pause"),
        images: place.images.to_vec(),
        listen: SocketAddr::from(([0, 0, 0, 0], ambit_names::port::NODE)),
        client_ca_pem: place.client_ca_pem,
        server: place.server,
        cluster_services: Some(ClusterServices {
            service_cidrs: vec![network.service_cidr],
            dns_upstreams: upstreams(),
        }),
    })
}

/// Place of the cluster DNS among the services' addresses.
const DNS_INDEX: usize = 9;

/// The machine's own name servers, but those on itself: a pod's question must not come back to the cluster DNS.
fn upstreams() -> Vec<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = text.lines().filter_map(|l| l.strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok());
    servers.filter(|ip| !ip.is_loopback()).map(|ip| SocketAddr::new(ip, ambit_names::port::DNS)).collect()
}

/// Folder of the companion programs: as set, else where this program is.
///
/// # Errors
/// This program's own place is not known.
pub(crate) fn program_dir(paths: &cli::ProgramPaths) -> Result<PathBuf> {
    if let Some(dir) = &paths.programs {
        return std::path::absolute(dir).with_context(|| format!("cannot use {}", dir.display()));
    }
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(own.parent().map(PathBuf::from).unwrap_or_default())
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn network() -> cli::Network {
        let parsed = cli::Cli::try_parse_from(["ambit", "apiserver"]).unwrap();
        let cli::Command::Apiserver(args) = parsed.command else { panic!("another command") };
        args.network
    }

    #[test]
    fn the_api_server_is_reached_by_its_service_address() {
        let names = api_names(&network(), "0.0.0.0:6443".parse().unwrap(), &["10.244.0.1".parse().unwrap()]);
        for name in ["10.96.0.1", "10.244.0.1", "kubernetes.default.svc.cluster.local", "127.0.0.1"] {
            assert!(names.iter().any(|n| n == name), "{name} is not in {names:?}");
        }
        assert!(!names.iter().any(|n| n == "0.0.0.0"));
    }

    #[test]
    fn replicas_stand_under_different_names_unless_told_otherwise() {
        let leader = |more: &[&str]| {
            let line = [&["ambit", "controllers", "--root-ca", "ca.pem"], more].concat();
            let cli::Command::Controllers(args) = cli::Cli::try_parse_from(line).unwrap().command else {
                panic!("another command")
            };
            leader_settings(&args.leader, CONTROLLERS_LEASE).unwrap()
        };
        let named = leader(&["--leader-elect-identity", "a", "--leader-elect-namespace", "n"]).unwrap();
        assert_eq!((&*named.identity, &*named.namespace, &*named.name), ("a", "n", CONTROLLERS_LEASE));
        assert_ne!(leader(&[]).unwrap().identity, leader(&["--leader-elect"]).unwrap().identity);
        assert_eq!(leader(&["--leader-elect=false"]), None);
    }
}
