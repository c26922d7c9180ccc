//! Identities in certificates.

pub use ambit_names::spiffe::{Identity, ParseIdentityError};
use rustls_pki_types::CertificateDer;

/// The identities that a certificate carries, in order; names of other kinds are left out. A certificate that
/// cannot be read has none.
pub fn identities(certificate: &CertificateDer<'_>) -> Vec<Identity> {
    let Ok(read) = webpki::EndEntityCert::try_from(certificate) else { return vec![] };
    read.valid_uri_names().filter_map(|name| name.parse().ok()).collect()
}
