//! Why the control plane stops.

use ambit_kube::InformerError;
use ambit_trust::authority::AuthorityError;
use std::net::SocketAddr;

/// Why the control plane stops.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for {what}: is another control plane running there?")]
    Listen {
        /// What was to be served.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The kept root cannot be used. It is never replaced by itself: every workload trusts it.
    #[error(
        "Secret {namespace}/{name} holds no usable certificate authority: repair it, or delete it to start with a new root"
    )]
    Root {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: &'static str,
        /// The cause.
        #[source]
        source: AuthorityError,
    },
    /// The control plane's own certificate cannot be made.
    #[error("cannot make the serving certificate for {names:?}")]
    ServingCertificate {
        /// Names it was to have.
        names: Vec<String>,
        /// The cause.
        #[source]
        source: AuthorityError,
    },
    /// The serving certificate is not accepted by the TLS library.
    #[error("cannot serve TLS with the certificate made for it")]
    Tls(#[source] rustls::Error),
    /// The last good mesh configuration cannot be kept, or read. Tried again.
    #[error("cannot read or write the ConfigMap that keeps the last good mesh configuration")]
    MeshConfigKept(#[source] kube::Error),
    /// Watching the cluster ended.
    #[error("cannot watch the cluster")]
    Informers(#[source] InformerError),
    /// The gRPC server failed.
    #[error("the server on {address} failed")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
    /// A task failed or panicked.
    #[error("a task of the control plane ended: {0}")]
    Task(String),
}
