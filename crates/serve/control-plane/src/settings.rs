//! Settings of the control plane.

use crate::mesh_config::MeshConfigSources;
use ambit_mesh::MeshSettings;
use ambit_names::{mesh, port};
use ambit_trust::authority::Lifetimes;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Settings of the control plane.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where discovery and certificates are served over TLS.
    pub listen: SocketAddr,
    /// Where metrics and the state of the collections are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Cluster id, cluster domain and system namespace. Trust domain and root namespace come from the mesh configuration.
    pub mesh: MeshSettings,
    /// Trust domain that stands above the one of the mesh configuration.
    pub trust_domain: Option<String>,
    /// Where the mesh configuration comes from, beside ConfigMaps of the system namespace.
    pub mesh_config: MeshConfigSources,
    /// Audiences of tokens that are accepted; one of them must fit.
    pub token_audiences: Vec<String>,
    /// Accounts (`namespace/name`) that may ask for certificates of other accounts on their node.
    pub trusted_node_accounts: Vec<String>,
    /// Names and addresses in the serving certificate.
    pub server_names: Vec<String>,
    /// Validity of the serving certificate, which is renewed after half of it.
    pub server_lifetime: Duration,
    /// Bounds of the validity of workload certificates.
    pub workload_lifetimes: Lifetimes,
}

impl Default for Settings {
    fn default() -> Self {
        let mesh = MeshSettings::default();
        let service = format!("istiod.{}", mesh.system_namespace);
        Self {
            listen: SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port::CONTROL_PLANE),
            metrics: None,
            token_audiences: vec![mesh::TOKEN_AUDIENCE.to_owned()],
            trusted_node_accounts: vec![format!("{}/{}", mesh.system_namespace, mesh::PROXY_ACCOUNT)],
            server_names: vec![
                format!("{service}.svc"),
                service.clone(),
                format!("{service}.svc.{}", mesh.cluster_domain),
                "localhost".to_owned(),
                "127.0.0.1".to_owned(),
                "::1".to_owned(),
            ],
            mesh_config: MeshConfigSources {
                namespace: mesh.system_namespace.clone(),
                ..MeshConfigSources::default()
            },
            mesh,
            trust_domain: None,
            server_lifetime: Duration::from_secs(365 * 24 * 3600),
            workload_lifetimes: Lifetimes::default(),
        }
    }
}
