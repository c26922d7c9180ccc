//! Per connection: resolve the destination, authorise, choose the tunnel and the pool key.
//! It never owns a socket.

pub mod endpoint;
#[cfg(test)]
mod fixtures;
pub mod inbound;
pub mod outbound;
pub mod policy;
pub mod rbac;
pub mod resource;
pub mod state;

pub use ambit_names::spiffe::Identity;
pub use inbound::{ConnectError, plan_inbound};
pub use outbound::{Carrier, OutboundError, PoolKey, Route, is_proxy_port, plan_outbound};
pub use policy::{Action, Peer, Policy};
pub use rbac::{Denial, Verdict};
pub use resource::{NetworkAddress, ResourceError, Service, Workload};
pub use state::{Change, LocalName, State};
