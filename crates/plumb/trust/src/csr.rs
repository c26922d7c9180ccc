//! A new key with a request for a certificate of it.

use crate::spiffe::Identity;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;

/// A certificate request could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate request for {identity}")]
pub struct RequestError {
    identity: Identity,
    #[source]
    source: rcgen::Error,
}

/// A key and the request for its certificate.
pub struct CertificateRequest {
    /// PKCS#10, in PEM.
    pub pem: String,
    /// The private key of the certificate to come.
    pub key: PrivateKeyDer<'static>,
}

/// Makes an ECDSA P-256 key and a request with an empty subject and the identity as (critical) URI name.
///
/// # Errors
/// The cryptography library refuses.
pub fn request(identity: &Identity) -> Result<CertificateRequest, RequestError> {
    let make = || {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into()?)];
        let pem = params.serialize_request(&key)?.pem()?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(CertificateRequest { pem, key })
    };
    make().map_err(|source| RequestError { identity: identity.clone(), source })
}

impl fmt::Debug for CertificateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateRequest").finish_non_exhaustive()
    }
}
