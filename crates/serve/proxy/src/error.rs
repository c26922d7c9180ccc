//! Why the proxy ends, and why a connection fails.

use ambit_traffic::{ConnectError, Denial, OutboundError};
use ambit_trust::spiffe::Identity;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The proxy cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port of its own is not free.
    #[error("cannot listen on {address} for {what}: stop whatever uses the port, or choose another")]
    Listen {
        /// For what.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// No thread for sockets.
    #[error("cannot start the thread that makes sockets in pods")]
    Thread(#[source] io::Error),
    /// The node agent breaks the hand-over protocol in a way that leaves the set of pods unknown.
    #[error("the node agent on {} broke the hand-over protocol: {what}", socket.display())]
    Handover {
        /// Its socket.
        socket: PathBuf,
        /// What it did.
        what: &'static str,
    },
    /// A task of the proxy failed.
    #[error("{0}")]
    Task(String),
}

/// Why a call to the control plane failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// A file that is read for each connection or request.
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The address is not `https://host:port`.
    #[error("control plane address {0:?} is not https://host:port")]
    Address(String),
    /// The root certificates.
    #[error(transparent)]
    Roots(#[from] ambit_trust::tls::RootsError),
    /// No connection.
    #[error("cannot connect to the control plane at {address}: {detail}")]
    Connect { address: String, detail: String },
    /// The call was refused or broke.
    #[error("the control plane answered {code}: {message}")]
    Status { code: tonic::Code, message: String },
    /// No answer in time.
    #[error("the control plane did not answer within {0:?}")]
    Deadline(std::time::Duration),
    /// The token is not usable as a header.
    #[error("the token in {} is not one line of text", .0.display())]
    Token(PathBuf),
    /// A request could not be made.
    #[error(transparent)]
    Request(#[from] ambit_trust::csr::RequestError),
    /// The certificate authority's answer.
    #[error("the certificate authority's answer is refused: {0}")]
    Certificate(#[from] ambit_trust::certificate::CertificateError),
}

impl From<tonic::Status> for ControlError {
    fn from(status: tonic::Status) -> Self {
        Self::Status { code: status.code(), message: status.message().to_owned() }
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    /// The pod is not known to discovery.
    #[error("workload {0} has not arrived from the control plane")]
    UnknownWorkload(String),
    /// No way to the destination.
    #[error(transparent)]
    Outbound(#[from] OutboundError),
    /// The destination is a port of the proxy.
    #[error("{0} is the proxy itself")]
    Loop(SocketAddr),
    /// The tunnel request is refused.
    #[error(transparent)]
    Request(#[from] ConnectError),
    /// Policy.
    #[error("connection refused by policy: {0}")]
    Denied(Denial),
    /// Policy, later.
    #[error("connection closed due to policy change: {0}")]
    PolicyChanged(Denial),
    /// The other end cannot be reached.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        to: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// The other end does not answer.
    #[error("no answer from {to} within {seconds} s, maybe a NetworkPolicy blocks HBONE port {port}", port = to.port())]
    ConnectTimeout { to: SocketAddr, seconds: u64 },
    /// No certificate of our own.
    #[error("no certificate for {identity}: {detail}")]
    Certificate { identity: Identity, detail: String },
    /// The handshake failed.
    #[error("TLS with {with} failed: {detail}")]
    Tls { with: SocketAddr, detail: String },
    /// HTTP/2 failed.
    #[error("HTTP/2 with {with} failed: {detail}")]
    Http2 { with: SocketAddr, detail: String },
    /// The peer's proxy refused the tunnel.
    #[error("the peer's proxy at {with} answered {status}")]
    Status { with: SocketAddr, status: u16 },
    /// The bytes stopped.
    #[error("{0}")]
    Relay(#[from] crate::relay::RelayError),
    /// The proxy or the pod ends.
    #[error("the pod is gone, or the proxy ends")]
    Closing,
}

impl ConnectionError {
    /// The value of `response_flags` in metrics.
    pub(crate) fn flag(&self) -> &'static str {
        match self {
            Self::Denied(_) | Self::PolicyChanged(_) => "DENY",
            Self::Certificate { .. } => "IDENTITY_ERROR",
            Self::Tls { .. } => "TLS_FAILURE",
            Self::Http2 { .. } => "H2_HANDSHAKE_FAILURE",
            Self::ConnectTimeout { .. } => "NETWORK_POLICY",
            Self::Relay(_) | Self::Closing => "-",
            Self::UnknownWorkload(_)
            | Self::Outbound(_)
            | Self::Loop(_)
            | Self::Request(_)
            | Self::Connect { .. }
            | Self::Status { .. } => "CONNECT",
        }
    }
}
