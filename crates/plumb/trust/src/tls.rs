//! TLS between workloads, where identities are checked instead of host names, and TLS to the control plane.

use crate::certificate::WorkloadCertificate;
use crate::provider;
use crate::spiffe::{self, Identity};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use std::sync::Arc;
use webpki::{EndEntityCert, KeyUsage};

/// Application protocol of tunnels and of gRPC.
const ALPN_H2: &[u8] = b"h2";

/// The peer's certificate is good, but not of a peer we expect.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// None of the peer's identities is expected.
    #[error("the peer is {shown:?}, expected one of {expected:?}")]
    Unexpected {
        /// What it showed.
        shown: Vec<Identity>,
        /// What it should be.
        expected: Vec<Identity>,
    },
    /// The peer is of another trust domain.
    #[error("the peer is {shown:?}, which is not of trust domain {trust_domain}")]
    TrustDomain {
        /// What it showed.
        shown: Vec<Identity>,
        /// Ours.
        trust_domain: String,
    },
}

impl std::fmt::Debug for PeerError {
    /// The TLS library prints causes with `Debug`; operators should read the same sentence everywhere.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The trusted roots for the control plane cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// No certificate in the text.
    #[error("the root certificates hold no certificate in PEM")]
    Empty,
    /// A certificate is refused.
    #[error("the root certificates cannot be used: {0}")]
    Refused(String),
}

/// TLS towards a workload that must prove one of `expected`.
///
/// # Errors
/// The cryptography library refuses.
pub fn client_config(
    certificate: &WorkloadCertificate,
    expected: Vec<Identity>,
) -> Result<ClientConfig, Error> {
    let verifier = Arc::new(PeerVerifier::new(certificate, Accept::OneOf(expected)));
    let mut config = ClientConfig::builder_with_provider(provider::mesh())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certificate.certified().clone())));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// TLS for workloads of our trust domain, who must show a certificate.
///
/// # Errors
/// The cryptography library refuses.
pub fn server_config(certificate: &WorkloadCertificate) -> Result<ServerConfig, Error> {
    let domain = certificate.identity().trust_domain().to_owned();
    let verifier = Arc::new(PeerVerifier::new(certificate, Accept::TrustDomain(domain)));
    let mut config = ServerConfig::builder_with_provider(provider::mesh())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate.certified().clone())));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    // A resumed session would keep a peer's identity past its certificate.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The first identity that the peer of a finished handshake proved.
pub fn peer_identity(certificates: Option<&[CertificateDer<'_>]>) -> Option<Identity> {
    spiffe::identities(certificates?.first()?).into_iter().next()
}

/// The server name that is given where identities are checked instead. It is never sent.
pub fn no_server_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into())
}

#[derive(Debug)]
enum Accept {
    OneOf(Vec<Identity>),
    TrustDomain(String),
}

#[derive(Debug)]
struct PeerVerifier {
    anchors: Arc<[TrustAnchor<'static>]>,
    algorithms: WebPkiSupportedAlgorithms,
    accept: Accept,
}

impl PeerVerifier {
    fn new(certificate: &WorkloadCertificate, accept: Accept) -> Self {
        let algorithms = provider::mesh().signature_verification_algorithms;
        Self { anchors: certificate.anchors().clone(), algorithms, accept }
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        (now, usage): (UnixTime, KeyUsage),
    ) -> Result<(), Error> {
        let read = EndEntityCert::try_from(leaf).map_err(refused)?;
        read.verify_for_usage(self.algorithms.all, &self.anchors, intermediates, now, usage, None, None)
            .map_err(refused)?;
        let shown = spiffe::identities(leaf);
        let fault = match &self.accept {
            Accept::OneOf(expected) if !shown.iter().any(|id| expected.contains(id)) => {
                PeerError::Unexpected { shown, expected: expected.clone() }
            }
            Accept::TrustDomain(domain) if !shown.iter().any(|id| id.trust_domain() == domain) => {
                PeerError::TrustDomain { shown, trust_domain: domain.clone() }
            }
            _ => return Ok(()),
        };
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(fault)))))
    }
}

fn refused(error: webpki::Error) -> Error {
    Error::InvalidCertificate(match error {
        webpki::Error::CertExpired { .. } => CertificateError::Expired,
        webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    })
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(leaf, intermediates, (now, KeyUsage::server_auth()))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(leaf, intermediates, (now, KeyUsage::client_auth()))?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// TLS to the control plane: host names are checked against `roots_pem`; `alternative` is accepted as well.
///
/// # Errors
/// The roots cannot be used.
pub fn control_plane_config(
    roots_pem: &[u8],
    alternative: Option<ServerName<'static>>,
) -> Result<ClientConfig, RootsError> {
    let refused = |e: &dyn std::fmt::Display| RootsError::Refused(e.to_string());
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots_pem) {
        roots.add(root.map_err(|e| refused(&e))?).map_err(|e| refused(&e))?;
    }
    if roots.is_empty() {
        return Err(RootsError::Empty);
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider::control())
        .build()
        .map_err(|e| refused(&e))?;
    let mut config = ClientConfig::builder_with_provider(provider::control())
        .with_safe_default_protocol_versions()
        .map_err(|e| refused(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AlternativeName { inner, alternative }))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(config)
}

/// The usual checks, with a second accepted name.
#[derive(Debug)]
struct AlternativeName {
    inner: Arc<WebPkiServerVerifier>,
    alternative: Option<ServerName<'static>>,
}

impl ServerCertVerifier for AlternativeName {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify =
            |name: &ServerName<'_>| self.inner.verify_server_cert(leaf, intermediates, name, ocsp, now);
        match (verify(name), &self.alternative) {
            (
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                )),
                Some(alternative),
            ) => verify(alternative),
            (verdict, _) => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
