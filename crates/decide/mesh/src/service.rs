//! Service to the workload API's service.

use crate::labels::{self, Map};
use crate::resource::ip_bytes;
use ambit_api::IntOrString;
use ambit_api::core::v1 as core;
use ambit_proto::workload;
use ambit_proto::workload::load_balancing::{HealthPolicy, Mode, Scope};
use std::net::IpAddr;

/// Annotation for clusters whose Services have no `trafficDistribution` yet.
const TRAFFIC_DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";
/// Ports whose protocols start with the server's words: they are TCP unless something else is said.
const SERVER_FIRST_PORTS: [i32; 4] = [25, 53, 3306, 27017];

/// A service and what its endpoints are computed from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceInfo {
    pub(crate) service: workload::Service,
    /// Empty for a service without a selector.
    pub(crate) selector: Map,
    /// Names of the ports, in the order of `service.ports`.
    pub(crate) ports: Vec<PortNames>,
}

/// What a port is called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PortNames {
    pub(crate) name: String,
    /// Name of the container port it stands for, when it is not a number.
    pub(crate) target: Option<String>,
}

impl ServiceInfo {
    /// `namespace/hostname`.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.service.namespace, self.service.hostname)
    }
}

/// Facts from elsewhere that a service depends on.
pub(crate) struct Context<'a> {
    pub(crate) cluster_domain: &'a str,
    pub(crate) network: &'a str,
    pub(crate) namespace_annotations: Option<&'a Map>,
}

/// Converts a service; none for what proxies have no use for: names outside the cluster, unreadable addresses.
pub(crate) fn convert(service: &core::Service, context: &Context<'_>) -> Option<ServiceInfo> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let name = service.metadata.name.clone()?;
    let namespace = service.metadata.namespace.clone()?;
    let ports = spec.ports.as_deref().unwrap_or_default();
    let converted = workload::Service {
        hostname: hostname(&name, &namespace, context.cluster_domain),
        name,
        namespace,
        addresses: addresses(spec, context.network)?,
        ports: ports.iter().map(port).collect(),
        load_balancing: load_balancing(service, spec, context.namespace_annotations),
        ip_families: ip_families(spec).into(),
        // Other sources of the same hostname are seen only by their own namespace.
        canonical: true,
        ..Default::default()
    };
    Some(ServiceInfo {
        service: converted,
        selector: spec.selector.clone().unwrap_or_default(),
        ports: ports.iter().map(port_names).collect(),
    })
}

pub(crate) fn hostname(name: &str, namespace: &str, cluster_domain: &str) -> String {
    format!("{name}.{namespace}.svc.{cluster_domain}")
}

fn addresses(spec: &core::ServiceSpec, network: &str) -> Option<Vec<workload::NetworkAddress>> {
    let several = spec.cluster_ips.as_deref().filter(|ips| !ips.is_empty());
    let ips = several.map_or_else(|| spec.cluster_ip.iter().collect(), |ips| ips.iter().collect::<Vec<_>>());
    let given = ips.into_iter().filter(|ip| !ip.is_empty() && *ip != "None");
    given
        .map(|ip| {
            let ip: IpAddr = ip.parse().ok()?;
            Some(workload::NetworkAddress {
                network: network.to_owned(),
                address: ip_bytes(ip),
                length: None,
            })
        })
        .collect()
}

fn port(port: &core::ServicePort) -> workload::Port {
    let number = |port: i32| u32::try_from(port).unwrap_or_default();
    let target_port = match &port.target_port {
        Some(IntOrString::Int(target)) => number(*target),
        Some(IntOrString::String(_)) => 0,
        // The API server fills it in; without one it is the same port (API field targetPort).
        None => number(port.port),
    };
    workload::Port { service_port: number(port.port), target_port, app_protocol: app_protocol(port).into() }
}

fn port_names(port: &core::ServicePort) -> PortNames {
    let target = match &port.target_port {
        Some(IntOrString::String(name)) => Some(name.clone()),
        _ => None,
    };
    PortNames { name: port.name.clone().unwrap_or_default(), target }
}

/// Source: Istio's protocol selection, `appProtocol` before the prefix of the port's name.
fn app_protocol(port: &core::ServicePort) -> workload::AppProtocol {
    use workload::AppProtocol as P;
    if port.protocol.as_deref() == Some("UDP") {
        return P::Unknown;
    }
    let name = port.app_protocol.as_deref().or(port.name.as_deref()).unwrap_or_default();
    match (port.app_protocol.as_deref(), name) {
        (Some(_), "kubernetes.io/h2c") => return P::Http2,
        (Some(_), "kubernetes.io/ws") => return P::Http11,
        (Some(_), "kubernetes.io/wss") => return P::Tls,
        _ => {}
    }
    let name = name.to_ascii_lowercase();
    // Not gRPC on the wire, and its name holds a hyphen.
    if name.starts_with("grpc-web") {
        return P::Unknown;
    }
    match name.split('-').next().unwrap_or_default() {
        "http" => P::Http11,
        "http2" => P::Http2,
        "grpc" => P::Grpc,
        "https" | "tls" => P::Tls,
        "tcp" => P::Tcp,
        "udp" | "http_proxy" | "mongo" | "redis" | "mysql" => P::Unknown,
        _ if SERVER_FIRST_PORTS.contains(&port.port) => P::Tcp,
        _ => P::Unknown,
    }
}

fn ip_families(spec: &core::ServiceSpec) -> workload::IpFamilies {
    match spec.ip_families.as_deref().unwrap_or_default() {
        [] => workload::IpFamilies::Automatic,
        [one] if one == "IPv4" => workload::IpFamilies::Ipv4Only,
        [_] => workload::IpFamilies::Ipv6Only,
        _ => workload::IpFamilies::Dual,
    }
}

fn load_balancing(
    service: &core::Service,
    spec: &core::ServiceSpec,
    namespace_annotations: Option<&Map>,
) -> Option<workload::LoadBalancing> {
    let (scopes, mode): (&[Scope], Mode) = if spec.internal_traffic_policy.as_deref() == Some("Local") {
        (&[Scope::Node], Mode::Strict)
    } else {
        match distribution(service, spec, namespace_annotations) {
            Distribution::Any => (&[], Mode::UnspecifiedMode),
            Distribution::SameZone => (&[Scope::Network, Scope::Region, Scope::Zone], Mode::Failover),
            Distribution::SameNode => {
                let scopes = &[Scope::Network, Scope::Region, Scope::Zone, Scope::Subzone, Scope::Node];
                (scopes, Mode::Failover)
            }
        }
    };
    let health = match spec.publish_not_ready_addresses {
        Some(true) => HealthPolicy::AllowAll,
        _ => HealthPolicy::OnlyHealthy,
    };
    let result = workload::LoadBalancing {
        routing_preference: scopes.iter().map(|scope| (*scope).into()).collect(),
        mode: mode.into(),
        health_policy: health.into(),
    };
    (result != workload::LoadBalancing::default()).then_some(result)
}

enum Distribution {
    Any,
    SameZone,
    SameNode,
}

/// The spec's field, else the object's annotation, else the namespace's. A spec value that is not known is passed
/// over; an annotation that is not known stops the search.
fn distribution(
    service: &core::Service,
    spec: &core::ServiceSpec,
    namespace_annotations: Option<&Map>,
) -> Distribution {
    let known = |text: &str| match text {
        "preferclose" | "prefersamezone" => Some(Distribution::SameZone),
        "prefersamenode" => Some(Distribution::SameNode),
        _ => None,
    };
    let field = match spec.traffic_distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") => Some(Distribution::SameZone),
        Some("PreferSameNode") => Some(Distribution::SameNode),
        _ => None,
    };
    field.unwrap_or_else(|| {
        [service.metadata.annotations.as_ref(), namespace_annotations]
            .into_iter()
            .find_map(|annotations| labels::value(annotations, TRAFFIC_DISTRIBUTION))
            .and_then(|text| known(&text.to_ascii_lowercase()))
            .unwrap_or(Distribution::Any)
    })
}
