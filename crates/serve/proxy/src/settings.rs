//! What the proxy is told at start. Defaults are those of the field's node proxy.

use ambit_linux::socket::{Keepalive, Transparency};
use ambit_names::{mark, mesh, path, port};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// A server of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://host:port`; without a scheme, https is meant.
    pub address: String,
    /// File with the trusted roots in PEM, read again for every connection.
    pub root_pem: PathBuf,
    /// A second name that the server's certificate may carry.
    pub alternative_name: Option<String>,
}

/// Flow-control windows and frames of HTTP/2, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Unread bytes of one stream.
    pub stream: u32,
    /// Unread bytes of one connection.
    pub connection: u32,
    /// Largest frame taken.
    pub frame: u32,
}

/// Settings of the node proxy.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Discovery.
    pub control_plane: Endpoint,
    /// Certificates.
    pub ca: Endpoint,
    /// File with the proxy's service account token, read again for every request.
    pub token: PathBuf,
    /// Cluster id.
    pub cluster_id: String,
    /// DNS domain of the cluster.
    pub cluster_domain: String,
    /// Network id of this node.
    pub network: String,
    /// Node name.
    pub node_name: String,
    /// The proxy's own pod.
    pub pod_name: String,
    /// Namespace of the proxy's own pod.
    pub pod_namespace: String,
    /// The proxy's own service account.
    pub service_account: String,
    /// The proxy's own address.
    pub instance_ip: Option<IpAddr>,
    /// Further node metadata for discovery.
    pub metadata: BTreeMap<String, String>,
    /// Socket on which the node agent hands over pods.
    pub handover_socket: PathBuf,
    /// Admin endpoint.
    pub admin: SocketAddr,
    /// Metrics endpoint.
    pub metrics: SocketAddr,
    /// Readiness endpoint.
    pub ready: SocketAddr,
    /// Validity asked for certificates.
    pub certificate_validity: Duration,
    /// HTTP/2 windows of tunnels.
    pub windows: Windows,
    /// Streams on one tunnel connection.
    pub pool_streams_max: usize,
    /// An unused tunnel connection is released after this time.
    pub pool_idle: Duration,
    /// TCP keepalive of connections; none turns it off.
    pub keepalive: Option<Keepalive>,
    /// Listen on IPv6 as well.
    pub ipv6: bool,
    /// Whether source addresses are kept.
    pub transparency: Transparency,
    /// Packet mark of every socket in a pod.
    pub mark: u32,
    /// Time that open connections get at shutdown.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let control_plane = Endpoint {
            address: format!("https://istiod.{}.svc:{}", mesh::SYSTEM_NAMESPACE, port::CONTROL_PLANE),
            root_pem: "./var/run/secrets/istio/root-cert.pem".into(),
            alternative_name: None,
        };
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        Self {
            ca: control_plane.clone(),
            control_plane,
            token: "./var/run/secrets/tokens/istio-token".into(),
            cluster_id: mesh::CLUSTER_ID.into(),
            cluster_domain: mesh::CLUSTER_DOMAIN.into(),
            network: String::new(),
            node_name: String::new(),
            pod_name: String::new(),
            pod_namespace: String::new(),
            service_account: String::new(),
            instance_ip: None,
            metadata: BTreeMap::new(),
            handover_socket: path::HANDOVER_SOCKET.into(),
            admin: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port::PROXY_ADMIN),
            metrics: SocketAddr::new(any, port::PROXY_METRICS),
            ready: SocketAddr::new(any, port::PROXY_READY),
            certificate_validity: Duration::from_secs(24 * 3600),
            windows: Windows { stream: 4 << 20, connection: 16 << 20, frame: 1 << 20 },
            pool_streams_max: 100,
            pool_idle: Duration::from_secs(5 * 60),
            keepalive: Some(Keepalive {
                time: Duration::from_secs(180),
                interval: Duration::from_secs(180),
                retries: 9,
            }),
            ipv6: true,
            transparency: Transparency::BestEffort,
            mark: mark::PROXY,
            drain: Duration::from_secs(5),
        }
    }
}
