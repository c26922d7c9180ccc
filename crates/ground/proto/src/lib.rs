//! Generated messages of the protocols spoken on the wire.
//! They are never edited by hand: the definitions are in `proto/`.

/// One module per protocol package, nested as the packages are.
#[allow(clippy::all, reason = "generated")]
mod packages {
    include!(concat!(env!("OUT_DIR"), "/packages.rs"));
}

/// Incremental discovery (package `envoy.service.discovery.v3`).
pub use packages::envoy::service::discovery::v3 as discovery;
/// The store of clusters (package `etcdserverpb`).
pub use packages::etcdserverpb as etcd;
/// Error details (package `google.rpc`).
pub use packages::google::rpc;
/// Authorization policies (package `istio.security`).
pub use packages::istio::security;
/// The certificate service (package `istio.v1.auth`).
pub use packages::istio::v1::auth as ca;
/// The workload API (package `istio.workload`).
pub use packages::istio::workload;
/// The hand-over protocol (package `istio.workload.zds`).
pub use packages::istio::workload::zds;
/// The container runtime interface (package `runtime.v1`).
pub use packages::runtime::v1 as cri;
