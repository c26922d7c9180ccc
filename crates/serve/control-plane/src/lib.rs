//! The mesh control plane: collections, delta xDS server and certificate authority.
//! It never decides what a workload is: decide/mesh does.

mod ads;
mod authentication;
mod ca;
mod chunks;
mod debug;
mod discovered;
mod error;
mod fanout;
mod mesh_config;
mod metrics;
mod owner;
mod pending;
mod pod_index;
mod root;
mod root_publisher;
mod run;
mod server;
mod session;
mod settings;
mod snapshot;
mod status;
mod table;

pub use error::Error;
pub use fanout::Fanout;
pub use mesh_config::{MeshConfigSources, kept_documents};
pub use run::run;
pub use settings::Settings;

pub use ambit_mesh::MeshSettings;
pub use ambit_trust::authority::Lifetimes;
