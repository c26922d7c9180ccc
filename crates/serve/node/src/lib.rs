//! The node runtime: pods on containerd over CRI, probes, logs, images, service routing and cluster DNS.
//! It never decides a pod's next step itself.

pub mod dns;
pub mod services;
mod slices;
