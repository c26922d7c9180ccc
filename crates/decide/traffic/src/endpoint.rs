//! The choice of one endpoint of a service.

use crate::resource::{BalanceMode, Families, Scope, Service, Workload};
use crate::state::State;
use rand::Rng;
use std::net::IpAddr;
use std::sync::Arc;

/// Whether a port that the service does not declare may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortMode {
    /// The service must declare it, and the endpoint must know its target.
    Standard,
    /// It may be missing if the endpoint's application tunnel names one.
    Waypoint,
}

/// An endpoint and the port to reach it at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The endpoint.
    pub workload: Arc<Workload>,
    /// Its target port.
    pub port: u16,
}

/// Chooses an endpoint of `service` for a connection of `source` to `port`; none if none is usable.
pub fn choose(
    state: &State,
    service: &Service,
    source: &Workload,
    (port, mode): (u16, PortMode),
    rng: &mut impl Rng,
) -> Option<Endpoint> {
    if mode == PortMode::Standard && !service.ports.contains_key(&port) {
        return None;
    }
    let usable = state
        .endpoints(&service.key)
        .filter(|endpoint| (endpoint.healthy || service.allow_unhealthy) && addressable(endpoint, source));
    let targets = usable.filter_map(|endpoint| Some((endpoint, target_port(service, endpoint, port)?)));
    let ranked: Vec<(usize, &Arc<Workload>, u16)> = targets
        .filter_map(|(endpoint, target)| Some((rank(service, source, endpoint)?, endpoint, target)))
        .collect();
    let best = ranked.iter().map(|(rank, ..)| *rank).max()?;
    let best = ranked.iter().filter(|(rank, ..)| *rank == best);
    let weight = |endpoint: &Workload| u64::from(endpoint.capacity);
    let total: u64 = best.clone().map(|(_, endpoint, _)| weight(endpoint)).sum();
    if total == 0 {
        return None;
    }
    let mut ticket = rng.random_range(0..total);
    for (_, endpoint, port) in best {
        match ticket.checked_sub(weight(endpoint)) {
            Some(rest) => ticket = rest,
            None => return Some(Endpoint { workload: (*endpoint).clone(), port: *port }),
        }
    }
    None
}

/// An endpoint with neither address nor host name is reachable only through the gateway of its network.
fn addressable(endpoint: &Workload, source: &Workload) -> bool {
    let remote = endpoint.network != source.network && endpoint.network_gateway.is_some();
    !endpoint.addresses.is_empty() || !endpoint.hostname.is_empty() || remote
}

/// The port of `endpoint` behind `port` of the service.
pub(crate) fn target_port(service: &Service, endpoint: &Workload, port: u16) -> Option<u16> {
    let of_endpoint = endpoint.services.get(&service.key).and_then(|ports| ports.get(&port));
    let of_service = service.ports.get(&port);
    let numeric = |target: &u16| (*target > 0).then_some(*target);
    let tunnelled = endpoint.application_tunnel.filter(|tunnel| tunnel.port != 0).map(|_| port);
    of_endpoint.and_then(numeric).or_else(|| of_service.and_then(numeric)).or(tunnelled)
}

/// How near an endpoint is; none if the service's rule leaves it out.
fn rank(service: &Service, source: &Workload, endpoint: &Workload) -> Option<usize> {
    let scopes = &service.preference;
    match service.mode {
        BalanceMode::Any | BalanceMode::Passthrough => Some(0),
        BalanceMode::Strict => scopes.iter().all(|scope| same(*scope, source, endpoint)).then_some(0),
        BalanceMode::Failover => Some(failover_rank(scopes, source, endpoint)),
    }
}

/// Length of the matched prefix. A leading network scope adds the number of the others when it matches, and does
/// not end the comparison when it does not.
fn failover_rank(scopes: &[Scope], source: &Workload, endpoint: &Workload) -> usize {
    let prefix = |scopes: &[Scope]| scopes.iter().take_while(|scope| same(**scope, source, endpoint)).count();
    match scopes.split_first() {
        Some((Scope::Network, rest)) if same(Scope::Network, source, endpoint) => {
            1 + rest.len() + prefix(rest)
        }
        Some((Scope::Network, rest)) => prefix(rest),
        _ => prefix(scopes),
    }
}

fn same(scope: Scope, source: &Workload, endpoint: &Workload) -> bool {
    match scope {
        Scope::Region => source.locality.region == endpoint.locality.region,
        Scope::Zone => source.locality.zone == endpoint.locality.zone,
        Scope::Subzone => source.locality.subzone == endpoint.locality.subzone,
        Scope::Node => source.node == endpoint.node,
        Scope::Cluster => source.cluster == endpoint.cluster,
        Scope::Network => source.network == endpoint.network,
    }
}

/// The address of `endpoint` to use: the original one if it has it, else the first of the service's families that
/// is of the original's family, else the first of the service's families.
pub fn choose_address(endpoint: &Workload, service: Option<&Service>, original: IpAddr) -> Option<IpAddr> {
    if endpoint.addresses.contains(&original) {
        return Some(original);
    }
    let families = service.map_or(Families::Any, |service| service.families);
    let served = |address: &&IpAddr| match families {
        Families::Any | Families::Dual => true,
        Families::V4 => address.is_ipv4(),
        Families::V6 => address.is_ipv6(),
    };
    let mut addresses = endpoint.addresses.iter().filter(served);
    let same_family = addresses.clone().find(|address| address.is_ipv4() == original.is_ipv4());
    same_family.or_else(|| addresses.next()).copied()
}

#[cfg(test)]
mod tests;
