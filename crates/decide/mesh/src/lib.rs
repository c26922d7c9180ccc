//! Kubernetes and Istio objects to the mesh's workloads, services and policies.
//! It never speaks xDS or holds a stream.

mod authorization;
pub mod config;
mod labels;
mod mesh;
mod peer_authentication;
mod resource;
mod service;
#[cfg(test)]
mod tests;
mod workload;

pub use authorization::{Conversion, PolicyCondition, convert_authorization_policy};
pub use mesh::{Inputs, Mesh, MeshSettings, ObjectName, Outputs};
pub use resource::{Facts, NetworkIp, Resource};
