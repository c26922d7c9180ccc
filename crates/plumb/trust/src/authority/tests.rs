use super::*;
use std::str::FromStr;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

const ID: &str = "spiffe://cluster.local/ns/demo/sa/client";
const NOW_SECS: u64 = 1_800_000_000;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_SECS)
}

fn request(names: &[SanType]) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names.to_vec();
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}

fn der(pem: &str) -> Vec<u8> {
    let block = Pem::iter_from_buffer(pem.as_bytes()).next().unwrap().unwrap();
    block.contents
}

#[test]
fn a_signed_certificate_has_the_fields_of_the_contract() {
    let authority = Authority::self_signed("cluster.local", now()).unwrap();
    let request = CertificateRequest::parse(&request(&[uri(ID)])).unwrap();
    let pem = authority.sign(&request, ID, Duration::from_secs(3600), now()).unwrap();
    let (leaf, root) = (der(&pem), der(authority.root_pem()));
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    let (_, root) = X509Certificate::from_der(&root).unwrap();

    leaf.verify_signature(Some(root.public_key())).unwrap();
    let names = leaf.subject_alternative_name().unwrap().unwrap();
    assert!(names.critical, "RFC 5280: critical when the subject is empty");
    assert_eq!(names.value.general_names, [GeneralName::URI(ID)]);
    assert_eq!(leaf.subject().iter().count(), 0);
    let secs = i64::try_from(NOW_SECS).unwrap();
    assert_eq!(leaf.validity().not_before.timestamp(), secs - 120);
    assert_eq!(leaf.validity().not_after.timestamp(), secs + 3600);
    let usage = leaf.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
    let extended = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.server_auth && extended.client_auth && !extended.any);
    assert!(!leaf.is_ca());
    assert!(root.is_ca());
}

#[track_caller]
fn check_names(names: &[SanType], expected: Option<&str>) {
    let authority = Authority::self_signed("cluster.local", now()).unwrap();
    let request = CertificateRequest::parse(&request(names)).unwrap();
    let signed = authority.sign(&request, ID, Duration::from_secs(60), now());
    assert_eq!(signed.err().map(|e| e.to_string()).as_deref(), expected);
}

#[test]
fn a_request_may_name_only_the_identity() {
    check_names(&[], None);
    check_names(&[uri(ID)], None);
    let other = "spiffe://cluster.local/ns/demo/sa/admin";
    let expected = format!("the certificate request is for [{other:?}], not for {ID:?}");
    check_names(&[uri(other)], Some(&expected));
    let expected = format!("the certificate request is for [{ID:?}, \"a.example\"], not for {ID:?}");
    check_names(&[uri(ID), dns("a.example")], Some(&expected));
}

#[track_caller]
fn check_bad_request(pem: &str, expected: &str) {
    let error = CertificateRequest::parse(pem).expect_err("it is not valid").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn requests_that_are_none_are_refused() {
    check_bad_request("", "not valid");
    check_bad_request("no PEM at all", "not valid");
    check_bad_request(&"x".repeat(REQUEST_BYTES_MAX + 1), "the limit is 16384");
    let authority = Authority::self_signed("cluster.local", now()).unwrap();
    check_bad_request(authority.root_pem(), "not valid");
    // A flipped bit in the last byte breaks the signature.
    let pem = request(&[uri(ID)]);
    let mut broken = der(&pem);
    *broken.last_mut().unwrap() ^= 1;
    let broken = rustls_pki_types::CertificateSigningRequestDer::from(broken);
    let error = CertificateSigningRequestParams::from_der(&broken).err();
    assert_eq!(error, Some(rcgen::Error::InvalidCertificationRequestSignature));
}

#[track_caller]
fn check_lifetime(requested_secs: i64, expected: Result<u64, &str>) {
    let granted = Lifetimes::default().grant(requested_secs);
    let granted = granted.map(|d| d.as_secs()).map_err(|e| e.to_string());
    assert_eq!(granted, expected.map_err(str::to_owned));
}

#[test]
fn lifetimes_are_bounded_not_shortened() {
    check_lifetime(0, Ok(86_400));
    check_lifetime(-5, Ok(86_400));
    check_lifetime(60, Ok(60));
    check_lifetime(7_776_000, Ok(7_776_000));
    check_lifetime(7_776_001, Err("a lifetime of 7776001 s is more than the allowed 7776000 s"));
}

#[test]
fn no_certificate_outlives_the_root() {
    let authority = Authority::self_signed("cluster.local", now()).unwrap();
    let late = now() + ROOT_VALIDITY - Duration::from_secs(60);
    let request = CertificateRequest::parse(&request(&[])).unwrap();
    let leaf = der(&authority.sign(&request, ID, Duration::from_secs(3600), late).unwrap());
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    let root_end = OffsetDateTime::from(now() + ROOT_VALIDITY);
    assert_eq!(leaf.validity().not_after.to_datetime(), root_end);
    let expired = authority.sign(&request, ID, Duration::from_secs(60), now() + ROOT_VALIDITY);
    assert!(matches!(expired, Err(AuthorityError::Expired(_))));
}

#[test]
fn a_kept_root_is_taken_up_again_and_a_broken_one_is_not() {
    let first = Authority::self_signed("cluster.local", now()).unwrap();
    let kept = first.to_keyed();
    let again = Authority::from_pem(&kept.cert_pem, &kept.key_pem).unwrap();
    assert_eq!(again.root_pem(), first.root_pem());

    let other = Authority::self_signed("cluster.local", now()).unwrap().to_keyed();
    let mixed = Authority::from_pem(&kept.cert_pem, &other.key_pem).map(|_| ());
    assert!(mixed.unwrap_err().to_string().contains("does not belong"));
    let server = first.issue_server(&["a.example".into()], Duration::from_secs(60), now()).unwrap();
    let leaf = Authority::from_pem(&server.cert_pem, &server.key_pem).map(|_| ());
    assert!(leaf.unwrap_err().to_string().contains("not one of an authority"));
    assert!(Authority::from_pem("", &kept.key_pem).is_err());
    assert!(Authority::from_pem(&kept.cert_pem, "").is_err());
}

#[test]
fn a_server_certificate_has_names_and_addresses() {
    let authority = Authority::self_signed("cluster.local", now()).unwrap();
    let names = ["istiod.istio-system.svc".to_owned(), "127.0.0.1".to_owned()];
    let issued = authority.issue_server(&names, Duration::from_secs(60), now()).unwrap();
    let leaf = der(&issued.cert_pem);
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    let address = std::net::Ipv4Addr::from_str("127.0.0.1").unwrap().octets();
    assert_eq!(
        leaf.subject_alternative_name().unwrap().unwrap().value.general_names,
        [GeneralName::DNSName("istiod.istio-system.svc"), GeneralName::IPAddress(&address)]
    );
    assert!(authority.issue_server(&["bad näme".into()], Duration::from_secs(60), now()).is_err());
}
