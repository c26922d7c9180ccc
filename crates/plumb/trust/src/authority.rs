//! The certificate authority: a root, and signing what workloads ask for.
//!
//! Who may have which identity is decided elsewhere; here only the request itself is checked.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use x509_parser::pem::Pem;

#[cfg(test)]
mod tests;

/// Longest certificate request that is looked at. Bytes; an RSA 4096 request has about 1,800.
pub const REQUEST_BYTES_MAX: usize = 16 * 1024;
/// How far a certificate's validity starts in the past, for clocks that lag. Source: istiod.
pub const CLOCK_SKEW: Duration = Duration::from_secs(120);
/// Validity of a root made here.
pub const ROOT_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why the authority could not do something.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Making a key or a certificate failed.
    #[error("cannot make {what}")]
    Make {
        /// What was being made.
        what: &'static str,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// The stored authority cannot be used.
    #[error("the stored certificate authority cannot be used: {0}")]
    Stored(String),
    /// The signing certificate has expired.
    #[error("the signing certificate expired at {0}")]
    Expired(OffsetDateTime),
    /// The request cannot be read, or its signature is wrong.
    #[error("the certificate request is not valid: {0}")]
    Request(String),
    /// The request names somebody else.
    #[error("the certificate request is for {requested:?}, not for {identity:?}")]
    RequestIdentity {
        /// Names in the request.
        requested: Vec<String>,
        /// The identity that was to be certified.
        identity: String,
    },
    /// The wanted lifetime is out of bounds.
    #[error("a lifetime of {requested_secs} s is more than the allowed {max_secs} s")]
    Lifetime {
        /// Asked for. Seconds.
        requested_secs: u64,
        /// Allowed. Seconds.
        max_secs: u64,
    },
}

fn making(what: &'static str) -> impl FnOnce(rcgen::Error) -> AuthorityError {
    move |source| AuthorityError::Make { what, source }
}

/// Bounds of the lifetime of workload certificates.
#[derive(Debug, Clone, Copy)]
pub struct Lifetimes {
    /// Given when none is asked for.
    pub default: Duration,
    /// Longest that may be asked for.
    pub max: Duration,
}

impl Default for Lifetimes {
    /// 24 hours, at most 90 days. Source: istiod.
    fn default() -> Self {
        Self { default: Duration::from_secs(24 * 3600), max: Duration::from_secs(90 * 24 * 3600) }
    }
}

impl Lifetimes {
    /// The lifetime for a request of `requested_secs`; zero and less ask for the default.
    ///
    /// # Errors
    /// More than the longest is asked for: it is refused, not shortened.
    pub fn grant(&self, requested_secs: i64) -> Result<Duration, AuthorityError> {
        match u64::try_from(requested_secs) {
            Err(_) | Ok(0) => Ok(self.default),
            Ok(secs) if secs <= self.max.as_secs() => Ok(Duration::from_secs(secs)),
            Ok(requested_secs) => {
                Err(AuthorityError::Lifetime { requested_secs, max_secs: self.max.as_secs() })
            }
        }
    }
}

/// A certificate with its private key, both PEM. No `Debug`: the key is a secret.
#[derive(Clone)]
pub struct KeyedCertificate {
    /// The certificate.
    pub cert_pem: String,
    /// The private key, PKCS#8.
    pub key_pem: String,
}

/// A certificate request whose own signature has been verified.
#[derive(Debug)]
pub struct CertificateRequest(CertificateSigningRequestParams);

impl CertificateRequest {
    /// Reads a PEM PKCS#10 request and verifies that its sender holds the private key.
    ///
    /// # Errors
    /// It is too long, not a request, or not signed by its own key.
    pub fn parse(pem: &str) -> Result<Self, AuthorityError> {
        if pem.len() > REQUEST_BYTES_MAX {
            return Err(AuthorityError::Request(format!(
                "it has {} bytes, the limit is {REQUEST_BYTES_MAX}",
                pem.len()
            )));
        }
        CertificateSigningRequestParams::from_pem(pem)
            .map(Self)
            .map_err(|e| AuthorityError::Request(e.to_string()))
    }

    /// Whether every name in the request, if any, is `identity`.
    fn check_names(&self, identity: &str) -> Result<(), AuthorityError> {
        let names = &self.0.params.subject_alt_names;
        if names.iter().all(|name| matches!(name, SanType::URI(uri) if uri.as_str() == identity)) {
            return Ok(());
        }
        let requested = names.iter().map(name_text).collect();
        Err(AuthorityError::RequestIdentity { requested, identity: identity.to_owned() })
    }
}

fn name_text(name: &SanType) -> String {
    match name {
        SanType::URI(text) | SanType::DnsName(text) | SanType::Rfc822Name(text) => text.to_string(),
        other => format!("{other:?}"),
    }
}

/// A root certificate with its key: signs for workloads and for the control plane's own server.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert_pem: String,
    not_after: OffsetDateTime,
}

impl Authority {
    /// Makes a root (ECDSA P-256) of `organization`, valid for [`ROOT_VALIDITY`].
    ///
    /// # Errors
    /// The key or the certificate cannot be made.
    pub fn self_signed(organization: &str, now: SystemTime) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate().map_err(making("the root key"))?;
        let mut params = params(now, ROOT_VALIDITY);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert_pem = params.self_signed(&key).map_err(making("the root certificate"))?.pem();
        Self::from_pem(&cert_pem, &key.serialize_pem())
    }

    /// Takes a root from where it was kept.
    ///
    /// # Errors
    /// It cannot be read, is no authority, or the key is not the certificate's.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, AuthorityError> {
        let stored = |e: String| AuthorityError::Stored(e);
        let key = KeyPair::from_pem(key_pem).map_err(|e| stored(format!("its key: {e}")))?;
        let block = Pem::iter_from_buffer(cert_pem.as_bytes())
            .next()
            .ok_or_else(|| stored("there is no certificate".to_owned()))?
            .map_err(|e| stored(format!("its certificate: {e}")))?;
        let cert = block.parse_x509().map_err(|e| stored(format!("its certificate: {e}")))?;
        if !cert.is_ca() {
            return Err(stored("its certificate is not one of an authority".to_owned()));
        }
        if cert.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(stored("its key does not belong to its certificate".to_owned()));
        }
        let not_after = cert.validity().not_after.to_datetime();
        let issuer = Issuer::from_ca_cert_pem(cert_pem, key).map_err(|e| stored(e.to_string()))?;
        Ok(Self { issuer, cert_pem: cert_pem.to_owned(), not_after })
    }

    /// The root certificate, PEM.
    pub fn root_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The root with its key, to be kept.
    pub fn to_keyed(&self) -> KeyedCertificate {
        KeyedCertificate { cert_pem: self.cert_pem.clone(), key_pem: self.issuer.key().serialize_pem() }
    }

    /// Certifies the request's key for `identity`, a full SPIFFE URI; PEM.
    ///
    /// Only the key is taken from the request. The lifetime ends with the root's at the latest.
    ///
    /// # Errors
    /// The request names anything but `identity`, or the root has expired.
    pub fn sign(
        &self,
        request: &CertificateRequest,
        identity: &str,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<String, AuthorityError> {
        request.check_names(identity)?;
        let mut params = self.leaf(now, lifetime)?;
        let uri = identity.try_into().map_err(making("the identity's name"))?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let cert = params
            .signed_by(&request.0.public_key, &self.issuer)
            .map_err(making("the workload's certificate"))?;
        Ok(cert.pem())
    }

    /// Makes a server's certificate for `names` (DNS names and addresses).
    ///
    /// # Errors
    /// A name is not a DNS name, or the root has expired.
    pub fn issue_server(
        &self,
        names: &[String],
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<KeyedCertificate, AuthorityError> {
        let key = KeyPair::generate().map_err(making("the server's key"))?;
        let mut params = self.leaf(now, lifetime)?;
        let with_names = CertificateParams::new(names.to_vec()).map_err(making("the server's names"))?;
        params.subject_alt_names = with_names.subject_alt_names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let cert = params.signed_by(&key, &self.issuer).map_err(making("the server's certificate"))?;
        Ok(KeyedCertificate { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    }

    fn leaf(&self, now: SystemTime, lifetime: Duration) -> Result<CertificateParams, AuthorityError> {
        if OffsetDateTime::from(now) >= self.not_after {
            return Err(AuthorityError::Expired(self.not_after));
        }
        let mut params = params(now, lifetime);
        params.not_after = params.not_after.min(self.not_after);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

/// What all certificates made here share: no subject, a random serial number, and the validity.
fn params(now: SystemTime, lifetime: Duration) -> CertificateParams {
    let now = OffsetDateTime::from(now);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + lifetime;
    params.serial_number = serial_number();
    params
}

/// 127 random bits, never zero. Without randomness the number is derived from the key.
fn serial_number() -> Option<SerialNumber> {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    // RFC 5280 section 4.1.2.2: positive; a set second-highest bit keeps the length fixed.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Some(SerialNumber::from_slice(&bytes))
}
