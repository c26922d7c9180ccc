//! The certificate of a workload, as the certificate authority answers.

use crate::csr::CertificateRequest;
use crate::provider;
use crate::spiffe::{self, Identity};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, TrustAnchor};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Most elements of an answer, and most certificates in its last element: more is no certificate chain.
const CHAIN_ELEMENTS_MAX: usize = 64;

/// The answer of the certificate authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Not at least a leaf and the roots.
    #[error(
        "the chain has {0} elements: a leaf and roots are needed, and at most {CHAIN_ELEMENTS_MAX} are read"
    )]
    Length(usize),
    /// An element is not a certificate in PEM.
    #[error("element {index} of the chain is not PEM with a certificate")]
    Pem {
        /// Which.
        index: usize,
    },
    /// A certificate cannot be read.
    #[error("a certificate of the chain cannot be read: {0}")]
    Malformed(String),
    /// The leaf is of somebody else.
    #[error("the certificate is for {issued:?}, not for {asked}")]
    Identity {
        /// What was asked.
        asked: Identity,
        /// What it says.
        issued: Vec<Identity>,
    },
    /// The leaf is not of our key.
    #[error("the certificate does not belong to the key of the request: {0}")]
    Key(#[source] rustls::Error),
}

/// A certificate with its key, chain and roots.
pub struct WorkloadCertificate {
    identity: Identity,
    certified: Arc<CertifiedKey>,
    anchors: Arc<[TrustAnchor<'static>]>,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl WorkloadCertificate {
    /// Reads the answer to `request` for `identity`: first the leaf, last all roots in one element, in between the
    /// intermediates.
    ///
    /// # Errors
    /// The answer is malformed, of another identity, or of another key.
    pub fn read(
        identity: &Identity,
        request: &CertificateRequest,
        chain: &[String],
    ) -> Result<Self, CertificateError> {
        if !(2..=CHAIN_ELEMENTS_MAX).contains(&chain.len()) {
            return Err(CertificateError::Length(chain.len()));
        }
        let last = chain.len() - 1;
        let parsed: Vec<Vec<CertificateDer<'static>>> =
            chain.iter().enumerate().map(|(index, text)| parse_pem(index, text)).collect::<Result<_, _>>()?;
        let leaf = &parsed[0][0];
        let issued = spiffe::identities(leaf);
        if issued.first() != Some(identity) {
            return Err(CertificateError::Identity { asked: identity.clone(), issued });
        }
        let (not_before, not_after) = validity(leaf)?;
        let anchors = parsed[last].iter().map(anchor).collect::<Result<_, _>>()?;
        let signing_key = provider::mesh()
            .key_provider
            .load_private_key(request.key.clone_key())
            .map_err(CertificateError::Key)?;
        let certified = CertifiedKey::new(parsed[..last].concat(), signing_key);
        certified.keys_match().map_err(CertificateError::Key)?;
        Ok(Self {
            identity: identity.clone(),
            certified: Arc::new(certified),
            anchors,
            not_before,
            not_after,
        })
    }

    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Start of its validity.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// End of its validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Whether it may be shown at `now`.
    pub fn valid_at(&self, now: SystemTime) -> bool {
        now < self.not_after
    }

    /// When to ask for its successor: half of its validity after its start.
    pub fn refresh_at(&self) -> SystemTime {
        let validity = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before + validity / 2
    }

    /// Serial number of the leaf, in hexadecimal.
    pub fn serial(&self) -> String {
        self.certified
            .cert
            .first()
            .and_then(|der| X509Certificate::from_der(der).ok())
            .map_or_else(String::new, |(_, read)| {
                read.raw_serial().iter().map(|b| format!("{b:02x}")).collect()
            })
    }

    pub(crate) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }

    pub(crate) fn anchors(&self) -> &Arc<[TrustAnchor<'static>]> {
        &self.anchors
    }
}

impl fmt::Debug for WorkloadCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadCertificate").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// All certificates of one PEM text, at least one.
fn parse_pem(index: usize, text: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let read: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(text.as_bytes()).take(CHAIN_ELEMENTS_MAX).collect();
    read.ok().filter(|found| !found.is_empty()).ok_or(CertificateError::Pem { index })
}

fn anchor(root: &CertificateDer<'static>) -> Result<TrustAnchor<'static>, CertificateError> {
    let read =
        webpki::anchor_from_trusted_cert(root).map_err(|e| CertificateError::Malformed(e.to_string()))?;
    Ok(read.to_owned())
}

fn validity(leaf: &CertificateDer<'_>) -> Result<(SystemTime, SystemTime), CertificateError> {
    let (_, read) =
        X509Certificate::from_der(leaf).map_err(|e| CertificateError::Malformed(e.to_string()))?;
    let at = |time: x509_parser::time::ASN1Time| {
        UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
    };
    Ok((at(read.validity().not_before), at(read.validity().not_after)))
}
