//! Where an outbound connection of a captured pod goes.

use crate::endpoint::{self, Endpoint, PortMode};
use crate::resource::{Gateway, GatewayDestination, NetworkAddress, Service, Tunnel, Workload};
use crate::state::State;
use ambit_names::port;
use ambit_names::spiffe::Identity;
use rand::Rng;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// How the bytes are carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carrier {
    /// In a tunnel.
    Hbone {
        /// What the peer's proxy is asked to connect to.
        authority: SocketAddr,
        /// The peer must prove one of these; never empty.
        expected: Vec<Identity>,
    },
    /// As they are.
    Tcp,
}

/// The decision on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// How.
    pub carrier: Carrier,
    /// Address to connect to.
    pub connect: SocketAddr,
    /// The endpoint, if known.
    pub workload: Option<Arc<Workload>>,
    /// The service that was addressed, if any.
    pub service: Option<Arc<Service>>,
}

/// Why a connection has nowhere to go. Nothing of this is ever passed through instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboundError {
    /// The connection is to the proxy's own port on the loop-back address.
    #[error("{0} is the proxy itself")]
    Loop(SocketAddr),
    /// The service has no endpoint that can be used for this port.
    #[error("no healthy upstream: service {service} has no usable endpoint for port {port}")]
    NoEndpoint {
        /// Its key.
        service: Arc<str>,
        /// The port.
        port: u16,
    },
    /// The endpoint is in another network that no gateway leads to.
    #[error("no valid destination: {workload} is in network {network:?}, which has no gateway")]
    NoGateway {
        /// Its uid.
        workload: Arc<str>,
        /// Its network.
        network: Arc<str>,
    },
    /// The way is decided, but this proxy does not go it yet.
    #[error("not served yet: {what} for {of}")]
    NotServed {
        /// What.
        what: &'static str,
        /// The service or workload that needs it.
        of: Arc<str>,
    },
}

/// What connections are kept together in one tunnel connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// Identity shown to the peer.
    pub source: Identity,
    /// Identities the peer may show.
    pub expected: Vec<Identity>,
    /// Address of the source.
    pub source_address: IpAddr,
    /// Where the peer's proxy listens.
    pub destination: SocketAddr,
}

/// Whether `port` is one of the proxy's own, to which it must never connect on behalf of a peer.
pub fn is_proxy_port(port: u16) -> bool {
    [port::OUTBOUND, port::INBOUND_PLAINTEXT, port::INBOUND_HBONE].contains(&port)
}

/// Decides where a connection of `source` to `original` goes. `network` is the proxy's own.
///
/// # Errors
/// There is no way, or this proxy does not serve it yet.
pub fn plan_outbound(
    state: &State,
    network: &Arc<str>,
    source: &Workload,
    original: SocketAddr,
    rng: &mut impl Rng,
) -> Result<Route, OutboundError> {
    if original.ip().is_loopback() && is_proxy_port(original.port()) {
        return Err(OutboundError::Loop(original));
    }
    let at = NetworkAddress { network: network.clone(), address: original.ip() };
    let target = state.workload_at(&at);
    let service = state.service_at(&at, &source.namespace);
    if let Some(service) = service.filter(|_| target.is_none())
        && service.has_waypoint()
    {
        return not_served("a waypoint", &service.key);
    }
    if let Some(service) = service {
        return to_service(state, service, source, original, rng);
    }
    let Some(target) = target else { return Ok(pass_through(original, None)) };
    if let Some(waypoint) = &target.waypoint
        && !is_waypoint(state, waypoint, source)
    {
        return not_served("a waypoint", &target.uid);
    }
    to_workload(target, None, original, original.port())
}

fn to_service(
    state: &State,
    service: &Arc<Service>,
    source: &Workload,
    original: SocketAddr,
    rng: &mut impl Rng,
) -> Result<Route, OutboundError> {
    if service.mode == crate::resource::BalanceMode::Passthrough {
        return Ok(pass_through(original, Some(service.clone())));
    }
    let chosen = endpoint::choose(state, service, source, (original.port(), PortMode::Standard), rng);
    let Some(Endpoint { workload, port }) = chosen else {
        return Err(OutboundError::NoEndpoint { service: service.key.clone(), port: original.port() });
    };
    if workload.network != source.network {
        return match &workload.network_gateway {
            Some(_) => not_served("a network gateway", &workload.uid),
            None => Err(OutboundError::NoGateway {
                workload: workload.uid.clone(),
                network: workload.network.clone(),
            }),
        };
    }
    to_workload(&workload, Some(service), original, port)
}

fn to_workload(
    workload: &Arc<Workload>,
    service: Option<&Arc<Service>>,
    original: SocketAddr,
    target_port: u16,
) -> Result<Route, OutboundError> {
    let address = endpoint::choose_address(workload, service.map(Arc::as_ref), original.ip());
    let Some(address) = address else {
        return if workload.addresses.is_empty() {
            not_served("resolving a host name", &workload.uid)
        } else {
            let service = service.map_or(&workload.uid, |service| &service.key).clone();
            Err(OutboundError::NoEndpoint { service, port: original.port() })
        };
    };
    let target = SocketAddr::new(address, target_port);
    let (carrier, connect) = match workload.tunnel {
        Tunnel::None => (Carrier::Tcp, target),
        Tunnel::Hbone => {
            let sans = service.map(|service| service.subject_alt_names.clone()).unwrap_or_default();
            let mut expected: Vec<_> = sans.into_iter().chain([workload.identity.clone()]).collect();
            expected.sort();
            expected.dedup();
            let connect = SocketAddr::new(address, port::INBOUND_HBONE);
            (Carrier::Hbone { authority: target, expected }, connect)
        }
    };
    Ok(Route { carrier, connect, workload: Some(workload.clone()), service: service.cloned() })
}

fn pass_through(original: SocketAddr, service: Option<Arc<Service>>) -> Route {
    Route { carrier: Carrier::Tcp, connect: original, workload: None, service }
}

fn not_served<T>(what: &'static str, of: &Arc<str>) -> Result<T, OutboundError> {
    Err(OutboundError::NotServed { what, of: of.clone() })
}

/// Whether `source` is an endpoint of the waypoint: what it sends has been through the waypoint already.
pub(crate) fn is_waypoint(state: &State, waypoint: &Gateway, source: &Workload) -> bool {
    let of_service = |key: &str| state.endpoints(key).any(|endpoint| endpoint.uid == source.uid);
    match &waypoint.destination {
        GatewayDestination::Service(key) => of_service(key),
        GatewayDestination::Address(at) => {
            state.workload_at(at).is_some_and(|found| found.uid == source.uid)
                || state.service_at(at, &source.namespace).is_some_and(|service| of_service(&service.key))
        }
    }
}

#[cfg(test)]
mod tests;
