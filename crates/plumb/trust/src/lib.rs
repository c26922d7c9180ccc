//! TLS set-up, SPIFFE peer checks, certificate requests, signing and rotation.
//! It never decides who may do what.

pub mod authority;
pub mod pki;
