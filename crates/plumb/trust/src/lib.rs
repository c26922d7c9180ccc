//! TLS set-up, SPIFFE peer checks, certificate requests, signing and rotation.
//! It never decides who may do what.

pub mod authority;
pub mod certificate;
pub mod csr;
pub mod pki;
pub mod provider;
pub mod spiffe;
pub mod tls;
