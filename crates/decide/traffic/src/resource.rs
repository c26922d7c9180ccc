//! Workloads and services as the proxy holds them, read from the messages of the workload API.
//! Source: contracts of the field's node proxy; a resource that breaks a rule is refused whole.

use ambit_names::mesh;
use ambit_names::spiffe::Identity;
use ambit_proto::workload as wire;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Why a resource was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// An address is neither 4 nor 16 bytes, or its prefix is too long for it.
    #[error("{field}: an address of {bytes} bytes with prefix {prefix:?} is not an IP address")]
    Address {
        /// Where.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The prefix length given with it.
        prefix: Option<u32>,
    },
    /// A number that the enumeration does not have, or one that is not served.
    #[error("{field}: {value} is not a value this proxy honours")]
    Value {
        /// Where.
        field: &'static str,
        /// The number.
        value: i64,
    },
    /// A required part is absent.
    #[error("{field}: missing")]
    Missing {
        /// Where.
        field: &'static str,
    },
    /// A service key without a namespace.
    #[error("services: key {key:?} is not namespace/hostname")]
    ServiceKey {
        /// The key.
        key: String,
    },
    /// The parts of the identity are not usable.
    #[error("identity: {0}")]
    Identity(String),
    /// The bytes are not such a message.
    #[error("cannot decode: {0}")]
    Decode(String),
    /// The resource is of a type that was not asked for.
    #[error("resource type {0:?} is not served")]
    Type(String),
}

/// An address within a network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetworkAddress {
    /// Network id, empty by default.
    pub network: Arc<str>,
    /// Address.
    pub address: IpAddr,
}

/// Where a waypoint or network gateway is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayDestination {
    /// Key `namespace/hostname` of a service.
    Service(Arc<str>),
    /// An address of a service or workload.
    Address(NetworkAddress),
}

/// A waypoint or network gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Where it is.
    pub destination: GatewayDestination,
    /// Its HBONE port.
    pub hbone_port: u16,
}

/// How a workload receives connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    /// As they are.
    None,
    /// Over HBONE.
    Hbone,
}

/// How an application wants tunnelled connections presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplicationTunnel {
    /// PROXY protocol header before the data.
    pub proxy_header: bool,
    /// Port that overrides the requested one; 0 leaves it.
    pub port: u16,
}

/// Topology of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locality {
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Zone within the zone.
    pub subzone: String,
}

/// Service port to target port; 0 is a named port that the other side resolves.
pub type Ports = BTreeMap<u16, u16>;

/// One addressable instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Key.
    pub uid: Arc<str>,
    /// Pod name.
    pub name: String,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Addresses, first is preferred.
    pub addresses: Vec<IpAddr>,
    /// Name to resolve when there is no address.
    pub hostname: String,
    /// Network id.
    pub network: Arc<str>,
    /// How it receives connections.
    pub tunnel: Tunnel,
    /// Its identity.
    pub identity: Identity,
    /// Its L7 proxy.
    pub waypoint: Option<Gateway>,
    /// The way into its network.
    pub network_gateway: Option<Gateway>,
    /// Node name.
    pub node: Arc<str>,
    /// For telemetry.
    pub canonical_name: String,
    /// For telemetry.
    pub canonical_revision: String,
    /// Word used in baggage: `pod`, `deployment`, `job`, `cronjob`.
    pub workload_type: &'static str,
    /// Name of its controller.
    pub workload_name: String,
    /// It terminates HBONE by itself.
    pub native_tunnel: bool,
    /// Names of the policies that select it.
    pub policies: Vec<Arc<str>>,
    /// Ready to receive.
    pub healthy: bool,
    /// Cluster id.
    pub cluster: String,
    /// Ports by service key.
    pub services: BTreeMap<Arc<str>, Ports>,
    /// How it wants tunnelled connections presented.
    pub application_tunnel: Option<ApplicationTunnel>,
    /// Topology.
    pub locality: Locality,
    /// It shares its node's addresses.
    pub host_network: bool,
    /// Weight among endpoints.
    pub capacity: u32,
}

/// Topology word of a service's routing preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Region.
    Region,
    /// Zone.
    Zone,
    /// Subzone.
    Subzone,
    /// Node.
    Node,
    /// Cluster id.
    Cluster,
    /// Network id.
    Network,
}

/// How endpoints are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BalanceMode {
    /// All alike.
    Any,
    /// Every scope must match.
    Strict,
    /// The longest matched prefix of scopes wins.
    Failover,
    /// No choice: the original address.
    Passthrough,
}

/// Address families that a service answers in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// No preference.
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both.
    Dual,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Key `namespace/hostname`.
    pub key: Arc<str>,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Fully qualified host name.
    pub hostname: Arc<str>,
    /// Host addresses.
    pub vips: Vec<NetworkAddress>,
    /// Address ranges, with their network.
    pub cidrs: Vec<(Arc<str>, IpNet)>,
    /// Target port by port.
    pub ports: Ports,
    /// Identities accepted of its endpoints besides their own.
    pub subject_alt_names: Vec<Identity>,
    /// Its L7 proxy.
    pub waypoint: Option<Gateway>,
    /// Several L7 proxies by weight.
    pub weighted_waypoints: Vec<(Gateway, u32)>,
    /// How endpoints are chosen.
    pub mode: BalanceMode,
    /// Scopes for the choice.
    pub preference: Vec<Scope>,
    /// Unhealthy endpoints are used as well.
    pub allow_unhealthy: bool,
    /// Families.
    pub families: Families,
    /// Preferred among services of one address.
    pub canonical: bool,
    /// Hidden from other namespaces.
    pub namespace_only: bool,
}

impl Service {
    /// Whether connections to it are to go through an L7 proxy.
    pub fn has_waypoint(&self) -> bool {
        self.waypoint.is_some() || !self.weighted_waypoints.is_empty()
    }
}

fn refuse<T>(field: &'static str, value: impl Into<i64>) -> Result<T, ResourceError> {
    Err(ResourceError::Value { field, value: value.into() })
}

/// Reads an address of 4 or 16 bytes; IPv4 mapped into IPv6 becomes IPv4.
pub(crate) fn parse_address(field: &'static str, bytes: &[u8]) -> Result<IpAddr, ResourceError> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Ok(IpAddr::from(v4));
    }
    let v6 = <[u8; 16]>::try_from(bytes).map_err(|_| ResourceError::Address {
        field,
        bytes: bytes.len(),
        prefix: None,
    })?;
    Ok(IpAddr::from(v6).to_canonical())
}

fn parse_port(field: &'static str, port: u32) -> Result<u16, ResourceError> {
    u16::try_from(port).or_else(|_| refuse(field, port))
}

fn parse_ports(list: &[wire::Port]) -> Result<Ports, ResourceError> {
    list.iter()
        .map(|port| {
            if wire::AppProtocol::try_from(port.app_protocol).is_err() {
                return refuse("ports.app_protocol", port.app_protocol);
            }
            let service_port = parse_port("ports.service_port", port.service_port)?;
            Ok((service_port, parse_port("ports.target_port", port.target_port)?))
        })
        .collect()
}

fn parse_gateway(field: &'static str, from: &wire::GatewayAddress) -> Result<Gateway, ResourceError> {
    use wire::gateway_address::Destination;
    let destination = match &from.destination {
        None => return Err(ResourceError::Missing { field }),
        Some(Destination::Hostname(name)) => {
            GatewayDestination::Service(format!("{}/{}", name.namespace, name.hostname).into())
        }
        Some(Destination::Address(address)) => GatewayDestination::Address(NetworkAddress {
            network: address.network.as_str().into(),
            address: parse_address(field, &address.address)?,
        }),
    };
    Ok(Gateway { destination, hbone_port: parse_port(field, from.hbone_mtls_port)? })
}

fn parse_gateway_option(
    field: &'static str,
    from: Option<&wire::GatewayAddress>,
) -> Result<Option<Gateway>, ResourceError> {
    from.map(|gateway| parse_gateway(field, gateway)).transpose()
}

fn or_default<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

fn parse_application_tunnel(
    from: &wire::ApplicationTunnel,
) -> Result<Option<ApplicationTunnel>, ResourceError> {
    use wire::application_tunnel::Protocol;
    let proxy_header = match Protocol::try_from(from.protocol) {
        Ok(Protocol::None) => false,
        Ok(Protocol::Proxy) => true,
        Err(_) => return refuse("application_tunnel.protocol", from.protocol),
    };
    let port = parse_port("application_tunnel.port", from.port)?;
    // A tunnel that asks for nothing is the same as none.
    Ok((proxy_header || port != 0).then_some(ApplicationTunnel { proxy_header, port }))
}

fn parse_tunnel(value: i32) -> Result<Tunnel, ResourceError> {
    match wire::TunnelProtocol::try_from(value) {
        Ok(wire::TunnelProtocol::None) => Ok(Tunnel::None),
        Ok(wire::TunnelProtocol::Hbone) => Ok(Tunnel::Hbone),
        Ok(wire::TunnelProtocol::LegacyIstioMtls) | Err(_) => refuse("tunnel_protocol", value),
    }
}

fn parse_workload_type(value: i32) -> Result<&'static str, ResourceError> {
    match wire::WorkloadType::try_from(value) {
        Ok(wire::WorkloadType::Deployment) => Ok("deployment"),
        Ok(wire::WorkloadType::Cronjob) => Ok("cronjob"),
        Ok(wire::WorkloadType::Pod) => Ok("pod"),
        Ok(wire::WorkloadType::Job) => Ok("job"),
        Err(_) => refuse("workload_type", value),
    }
}

fn parse_workload_services(
    from: &std::collections::HashMap<String, wire::PortList>,
) -> Result<BTreeMap<Arc<str>, Ports>, ResourceError> {
    from.iter()
        .map(|(key, list)| {
            if !key.contains('/') {
                return Err(ResourceError::ServiceKey { key: key.clone() });
            }
            Ok((key.as_str().into(), parse_ports(&list.ports)?))
        })
        .collect()
}

impl TryFrom<wire::Workload> for Workload {
    type Error = ResourceError;

    fn try_from(from: wire::Workload) -> Result<Self, ResourceError> {
        if from.uid.is_empty() {
            return Err(ResourceError::Missing { field: "uid" });
        }
        let healthy = match wire::WorkloadStatus::try_from(from.status) {
            Ok(status) => status == wire::WorkloadStatus::Healthy,
            Err(_) => return refuse("status", from.status),
        };
        let host_network = match wire::NetworkMode::try_from(from.network_mode) {
            Ok(mode) => mode == wire::NetworkMode::HostNetwork,
            Err(_) => return refuse("network_mode", from.network_mode),
        };
        let identity = Identity::new(
            or_default(&from.trust_domain, mesh::TRUST_DOMAIN),
            &from.namespace,
            or_default(&from.service_account, "default"),
        )
        .map_err(|e| ResourceError::Identity(e.to_string()))?;
        let addresses =
            from.addresses.iter().map(|a| parse_address("addresses", a)).collect::<Result<_, _>>()?;
        let application_tunnel =
            from.application_tunnel.as_ref().map(parse_application_tunnel).transpose()?.flatten();
        let locality = from.locality.unwrap_or_default();
        Ok(Self {
            uid: from.uid.into(),
            namespace: from.namespace.into(),
            addresses,
            network: from.network.into(),
            tunnel: parse_tunnel(from.tunnel_protocol)?,
            identity,
            waypoint: parse_gateway_option("waypoint", from.waypoint.as_ref())?,
            network_gateway: parse_gateway_option("network_gateway", from.network_gateway.as_ref())?,
            node: from.node.into(),
            workload_type: parse_workload_type(from.workload_type)?,
            policies: from.authorization_policies.into_iter().map(Into::into).collect(),
            healthy,
            cluster: or_default(&from.cluster_id, mesh::CLUSTER_ID).to_owned(),
            services: parse_workload_services(&from.services)?,
            application_tunnel,
            locality: Locality { region: locality.region, zone: locality.zone, subzone: locality.subzone },
            host_network,
            capacity: from.capacity.unwrap_or(1),
            name: from.name,
            hostname: from.hostname,
            canonical_name: from.canonical_name,
            canonical_revision: from.canonical_revision,
            workload_name: from.workload_name,
            native_tunnel: from.native_tunnel,
        })
    }
}

fn parse_scope(value: i32) -> Result<Scope, ResourceError> {
    use wire::load_balancing::Scope as Wire;
    match Wire::try_from(value) {
        Ok(Wire::Region) => Ok(Scope::Region),
        Ok(Wire::Zone) => Ok(Scope::Zone),
        Ok(Wire::Subzone) => Ok(Scope::Subzone),
        Ok(Wire::Node) => Ok(Scope::Node),
        Ok(Wire::Cluster) => Ok(Scope::Cluster),
        Ok(Wire::Network) => Ok(Scope::Network),
        Ok(Wire::UnspecifiedScope) | Err(_) => refuse("load_balancing.routing_preference", value),
    }
}

fn parse_balancing(
    from: Option<&wire::LoadBalancing>,
) -> Result<(BalanceMode, Vec<Scope>, bool), ResourceError> {
    use wire::load_balancing::{HealthPolicy, Mode};
    let Some(from) = from else { return Ok((BalanceMode::Any, vec![], false)) };
    let mode = match Mode::try_from(from.mode) {
        Ok(Mode::UnspecifiedMode) => BalanceMode::Any,
        Ok(Mode::Strict) => BalanceMode::Strict,
        Ok(Mode::Failover) => BalanceMode::Failover,
        Ok(Mode::Passthrough) => BalanceMode::Passthrough,
        Err(_) => return refuse("load_balancing.mode", from.mode),
    };
    let allow_unhealthy = match HealthPolicy::try_from(from.health_policy) {
        Ok(policy) => policy == HealthPolicy::AllowAll,
        Err(_) => return refuse("load_balancing.health_policy", from.health_policy),
    };
    let preference = from.routing_preference.iter().map(|s| parse_scope(*s)).collect::<Result<_, _>>()?;
    Ok((mode, preference, allow_unhealthy))
}

type Addresses = (Vec<NetworkAddress>, Vec<(Arc<str>, IpNet)>);

fn parse_vips(from: &[wire::NetworkAddress]) -> Result<Addresses, ResourceError> {
    let (mut vips, mut cidrs) = (vec![], vec![]);
    for one in from {
        let address = parse_address("addresses", &one.address)?;
        let network: Arc<str> = one.network.as_str().into();
        let host_prefix = if address.is_ipv4() { 32 } else { 128 };
        match one.length {
            None => vips.push(NetworkAddress { network, address }),
            Some(length) if length == host_prefix => vips.push(NetworkAddress { network, address }),
            Some(length) => {
                let net = u8::try_from(length).ok().and_then(|l| IpNet::new(address, l).ok());
                let bytes = one.address.len();
                let fault = ResourceError::Address { field: "addresses", bytes, prefix: Some(length) };
                cidrs.push((network, net.ok_or(fault)?));
            }
        }
    }
    Ok((vips, cidrs))
}

impl TryFrom<wire::Service> for Service {
    type Error = ResourceError;

    fn try_from(from: wire::Service) -> Result<Self, ResourceError> {
        if from.hostname.is_empty() {
            return Err(ResourceError::Missing { field: "hostname" });
        }
        let families = match wire::IpFamilies::try_from(from.ip_families) {
            Ok(wire::IpFamilies::Automatic) => Families::Any,
            Ok(wire::IpFamilies::Ipv4Only) => Families::V4,
            Ok(wire::IpFamilies::Ipv6Only) => Families::V6,
            Ok(wire::IpFamilies::Dual) => Families::Dual,
            Err(_) => return refuse("ip_families", from.ip_families),
        };
        let (vips, cidrs) = parse_vips(&from.addresses)?;
        let (mode, preference, allow_unhealthy) = parse_balancing(from.load_balancing.as_ref())?;
        let weighted_waypoints = from
            .weighted_waypoints
            .iter()
            .map(|one| {
                let gateway = one.destination.as_ref();
                let field = "weighted_waypoints";
                let gateway = parse_gateway(field, gateway.ok_or(ResourceError::Missing { field })?)?;
                Ok((gateway, one.weight))
            })
            .collect::<Result<_, ResourceError>>()?;
        Ok(Self {
            key: format!("{}/{}", from.namespace, from.hostname).into(),
            vips,
            cidrs,
            ports: parse_ports(&from.ports)?,
            // Names of other kinds cannot match a peer of ours; they are left out.
            subject_alt_names: from.subject_alt_names.iter().filter_map(|san| san.parse().ok()).collect(),
            waypoint: parse_gateway_option("waypoint", from.waypoint.as_ref())?,
            weighted_waypoints,
            mode,
            preference,
            allow_unhealthy,
            families,
            canonical: from.canonical,
            namespace_only: from.visibility == i32::from(wire::service::Visibility::Namespace),
            name: from.name,
            namespace: from.namespace.into(),
            hostname: from.hostname.into(),
        })
    }
}
