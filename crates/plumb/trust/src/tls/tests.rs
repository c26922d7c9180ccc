use super::*;
use crate::certificate::{CertificateError as ReadError, WorkloadCertificate};
use crate::csr::{self, CertificateRequest};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SanType,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";
const SERVER: &str = "spiffe://cluster.local/ns/shop/sa/server";

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root_pem: String,
}

fn authority() -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_pem = params.self_signed(&key).unwrap().pem();
    Authority { issuer: Issuer::new(params, key), root_pem }
}

impl Authority {
    /// Signs a request for whatever identity, as a careless authority would.
    fn sign(&self, request: &CertificateRequest, identity: &str, days: i64) -> String {
        let mut signed = CertificateSigningRequestParams::from_pem(&request.pem).unwrap();
        signed.params.subject_alt_names = vec![SanType::URI(identity.try_into().unwrap())];
        signed.params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let now = time::OffsetDateTime::from(ambit_runtime::Clock.wall());
        signed.params.not_before = now - time::Duration::days(2);
        signed.params.not_after = now + time::Duration::days(days);
        signed.signed_by(&self.issuer).unwrap().pem()
    }

    fn certificate(&self, identity: &str, days: i64) -> WorkloadCertificate {
        let wanted = identity.parse().unwrap();
        let request = csr::request(&wanted).unwrap();
        let chain = [self.sign(&request, identity, days), self.root_pem.clone()];
        WorkloadCertificate::read(&wanted, &request, &chain).unwrap()
    }
}

/// One handshake and one byte each way; the identity that the server saw, or the first error.
async fn meet(client: ClientConfig, server: ServerConfig) -> Result<Option<Identity>, String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accept = async {
        let mut tls = TlsAcceptor::from(Arc::new(server)).accept(far).await.map_err(|e| e.to_string())?;
        let identity = peer_identity(tls.get_ref().1.peer_certificates());
        tls.write_all(b"x").await.map_err(|e| e.to_string())?;
        tls.flush().await.map_err(|e| e.to_string())?;
        Ok(identity)
    };
    let connect = async {
        let mut tls = TlsConnector::from(Arc::new(client))
            .connect(no_server_name(), near)
            .await
            .map_err(|e| e.to_string())?;
        tls.read_u8().await.map_err(|e| e.to_string())
    };
    let (seen, sent) = tokio::join!(accept, connect);
    sent.map_err(|e| e.to_string())?;
    seen
}

#[track_caller]
fn refused(outcome: Result<Option<Identity>, String>, words: &str) {
    let error = outcome.expect_err("it must be refused");
    assert!(error.contains(words), "{error}");
}

#[tokio::test]
async fn both_sides_prove_who_they_are() {
    let ca = authority();
    let (client, server) = (ca.certificate(CLIENT, 1), ca.certificate(SERVER, 1));
    let expected = vec![SERVER.parse().unwrap()];
    let seen = meet(client_config(&client, expected).unwrap(), server_config(&server).unwrap()).await;
    assert_eq!(seen, Ok(Some(CLIENT.parse().unwrap())));
}

#[tokio::test]
async fn a_peer_that_is_another_is_refused() {
    let ca = authority();
    let (client, server) = (ca.certificate(CLIENT, 1), ca.certificate(SERVER, 1));
    let expected = vec!["spiffe://cluster.local/ns/shop/sa/other".parse().unwrap()];
    refused(
        meet(client_config(&client, expected).unwrap(), server_config(&server).unwrap()).await,
        "expected one of",
    );
}

#[tokio::test]
async fn a_client_of_another_trust_domain_or_authority_is_refused() {
    let (ca, other) = (authority(), authority());
    let server = ca.certificate(SERVER, 1);
    let expected = || vec![SERVER.parse().unwrap()];
    let foreign = ca.certificate("spiffe://elsewhere/ns/shop/sa/client", 1);
    assert!(
        meet(client_config(&foreign, expected()).unwrap(), server_config(&server).unwrap()).await.is_err()
    );
    let stranger = other.certificate(CLIENT, 1);
    refused(
        meet(client_config(&stranger, expected()).unwrap(), server_config(&server).unwrap()).await,
        "invalid peer certificate",
    );
}

#[tokio::test]
async fn an_expired_server_is_refused() {
    let ca = authority();
    let (client, server) = (ca.certificate(CLIENT, 1), ca.certificate(SERVER, -1));
    let expected = vec![SERVER.parse().unwrap()];
    refused(meet(client_config(&client, expected).unwrap(), server_config(&server).unwrap()).await, "xpired");
}

#[tokio::test]
async fn a_client_without_certificate_is_refused() {
    let ca = authority();
    let server = ca.certificate(SERVER, 1);
    let mut client = ClientConfig::builder_with_provider(provider::mesh())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PeerVerifier::new(
            &server,
            Accept::OneOf(vec![SERVER.parse().unwrap()]),
        )))
        .with_no_client_auth();
    client.alpn_protocols = vec![ALPN_H2.to_vec()];
    assert!(meet(client, server_config(&server).unwrap()).await.is_err());
}

#[test]
fn answers_of_the_authority_are_checked() {
    let ca = authority();
    let wanted: Identity = CLIENT.parse().unwrap();
    let request = csr::request(&wanted).unwrap();
    let leaf = ca.sign(&request, CLIENT, 1);
    let read = |chain: &[String]| WorkloadCertificate::read(&wanted, &request, chain).unwrap_err();
    assert!(matches!(read(std::slice::from_ref(&leaf)), ReadError::Length(1)));
    assert!(matches!(read(&[leaf.clone(), String::new()]), ReadError::Pem { index: 1 }));
    assert!(matches!(read(&["nonsense".into(), ca.root_pem.clone()]), ReadError::Pem { index: 0 }));
    let other = ca.sign(&request, SERVER, 1);
    assert!(matches!(read(&[other, ca.root_pem.clone()]), ReadError::Identity { .. }));
    let of_other_key = ca.sign(&csr::request(&wanted).unwrap(), CLIENT, 1);
    assert!(matches!(read(&[of_other_key, ca.root_pem.clone()]), ReadError::Key(_)));
    assert!(matches!(read(&vec![leaf; 1000]), ReadError::Length(1000)));
}

#[test]
fn is_renewed_at_half_of_its_validity() {
    let certificate = authority().certificate(CLIENT, 2);
    let (start, end) = (certificate.not_before(), certificate.not_after());
    assert_eq!(certificate.refresh_at(), start + std::time::Duration::from_secs(2 * 24 * 3600));
    assert!(certificate.valid_at(start) && !certificate.valid_at(end));
    assert!(!certificate.serial().is_empty());
}

#[test]
fn roots_for_the_control_plane_must_hold_a_certificate() {
    assert!(matches!(control_plane_config(b"", None), Err(RootsError::Empty)));
    let pem = authority().root_pem;
    assert!(control_plane_config(pem.as_bytes(), None).is_ok());
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(control_plane_config(broken.as_bytes(), None), Err(RootsError::Refused(_))));
}
