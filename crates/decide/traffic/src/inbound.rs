//! What a peer may ask of the tunnel server of a captured pod.

use crate::endpoint;
use crate::outbound::{is_proxy_port, is_waypoint};
use crate::resource::{NetworkAddress, Workload};
use crate::state::State;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Longest authority that is read, in bytes: the longest host name and a port.
const AUTHORITY_BYTES_MAX: usize = 255 + 6;

/// Why a tunnel request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The method is not CONNECT.
    #[error("method {0:?} is not CONNECT")]
    Method(String),
    /// The authority is not `ip:port` or `host:port`.
    #[error("authority {0:?} is not ip:port or host:port")]
    Authority(String),
    /// The authority is the address of another pod.
    #[error("authority {asked} is not this pod, which is {local}")]
    Address {
        /// What was asked.
        asked: SocketAddr,
        /// Where the request arrived.
        local: IpAddr,
    },
    /// No service of that name, or it does not serve the port.
    #[error("host {host:?} with port {port} is not known")]
    Host {
        /// Name.
        host: String,
        /// Port.
        port: u16,
    },
    /// The port is the proxy's own.
    #[error("port {0} is the proxy itself")]
    Loop(u16),
    /// This proxy does not do it yet.
    #[error("not served yet: {0}")]
    NotServed(&'static str),
}

impl ConnectError {
    /// HTTP status of the refusal.
    pub fn status(&self) -> u16 {
        match self {
            Self::Method(_) | Self::Authority(_) | Self::Address { .. } => 400,
            Self::Host { .. } | Self::Loop(_) | Self::NotServed(_) => 503,
        }
    }
}

enum Authority<'a> {
    Address(SocketAddr),
    Host(&'a str, u16),
}

fn parse_authority(text: &str) -> Option<Authority<'_>> {
    if text.len() > AUTHORITY_BYTES_MAX {
        return None;
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(Authority::Address(SocketAddr::new(address.ip().to_canonical(), address.port())));
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_name = !host.is_empty()
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._*".contains(&b))
        && host.bytes().any(|b| b.is_ascii_alphabetic());
    Some(Authority::Host(host, port.parse().ok()?)).filter(|_| is_name)
}

/// Checks a tunnel request that arrived at `local` for the pod `workload`, and gives the address to connect to:
/// always the pod's own, with the asked or translated port. `network` is the proxy's own.
///
/// # Errors
/// The request is refused, with [`ConnectError::status`].
pub fn plan_inbound(
    state: &State,
    network: &Arc<str>,
    workload: &Workload,
    (method, authority): (&str, &str),
    local: IpAddr,
) -> Result<SocketAddr, ConnectError> {
    if method != "CONNECT" {
        return Err(ConnectError::Method(method.chars().take(AUTHORITY_BYTES_MAX).collect()));
    }
    let asked = parse_authority(authority)
        .ok_or_else(|| ConnectError::Authority(authority.chars().take(AUTHORITY_BYTES_MAX).collect()))?;
    let tunnel = workload.application_tunnel;
    let port = match asked {
        Authority::Address(asked) => {
            let ours =
                asked.ip() == local || tunnel.is_some() || names_waypoint(state, network, workload, asked);
            if !ours {
                return Err(ConnectError::Address { asked, local });
            }
            asked.port()
        }
        Authority::Host(host, port) => host_port(state, workload, host, port)?,
    };
    if tunnel.is_some_and(|tunnel| tunnel.proxy_header) {
        return Err(ConnectError::NotServed("the PROXY protocol towards an application"));
    }
    let port = tunnel.map(|tunnel| tunnel.port).filter(|port| *port != 0).unwrap_or(port);
    if is_proxy_port(port) {
        return Err(ConnectError::Loop(port));
    }
    Ok(SocketAddr::new(local, port))
}

/// Whether what lives at `asked` has this workload as its waypoint.
fn names_waypoint(state: &State, network: &Arc<str>, workload: &Workload, asked: SocketAddr) -> bool {
    let at = NetworkAddress { network: network.clone(), address: asked.ip() };
    let of_workload = state.workload_at(&at).and_then(|found| found.waypoint.as_ref());
    let of_service = state.service_at(&at, &workload.namespace);
    let of_service = of_service.into_iter().flat_map(|service| {
        service.waypoint.iter().chain(service.weighted_waypoints.iter().map(|(gateway, _)| gateway))
    });
    of_workload.into_iter().chain(of_service).any(|gateway| is_waypoint(state, gateway, workload))
}

fn host_port(state: &State, workload: &Workload, host: &str, port: u16) -> Result<u16, ConnectError> {
    let unknown = || ConnectError::Host { host: host.to_owned(), port };
    let service = state.service_named(host, &workload.namespace).ok_or_else(unknown)?;
    endpoint::target_port(service, workload, port).ok_or_else(unknown)
}

#[cfg(test)]
mod tests;
