//! The node runtime: pods on containerd over CRI, probes, logs, images, service routing and cluster DNS.
//! It never decides a pod's next step itself.

mod claim;
mod cni;
mod containerd;
mod context;
mod cri;
pub mod dns;
mod error;
mod images;
mod layout;
mod pods;
mod registration;
mod resolv;
mod run;
mod server;
pub mod services;
mod settings;
mod slices;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use error::Error;
pub use images::{PAUSE_IMAGE, import_image, scratch_image};
pub use resolv::ResolvConf;
pub use run::run;
pub use settings::{ClusterServices, MeshPlugin, Settings};
