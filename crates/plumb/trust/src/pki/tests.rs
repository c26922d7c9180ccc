use super::*;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc as StdArc;

fn sans() -> Vec<String> {
    vec!["127.0.0.1".into(), "localhost".into()]
}

/// Verifies a certificate as a TLS server would.
fn accepts(pki: &ClusterPki, cert_pem: &str) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.ca_pem().as_bytes()).unwrap()).unwrap();
    let provider = StdArc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(StdArc::new(roots), provider)
        .build()
        .unwrap();
    let cert = CertificateDer::from_pem_slice(cert_pem.as_bytes()).unwrap();
    verifier.verify_client_cert(&cert, &[], rustls_pki_types::UnixTime::now()).is_ok()
}

#[test]
fn client_certificates_carry_user_and_groups_and_only_their_own_ca_vouches_for_them() {
    let pki = ClusterPki::in_memory(&sans()).unwrap();
    let admin = pki.issue_client("admin", &["system:masters", "ops"], Duration::from_secs(60)).unwrap();
    assert!(accepts(&pki, &admin.cert_pem));
    assert!(!accepts(&ClusterPki::in_memory(&sans()).unwrap(), &admin.cert_pem));
    let der = CertificateDer::from_pem_slice(admin.cert_pem.as_bytes()).unwrap();
    let (_, cert) = x509_parser::parse_x509_certificate(&der).unwrap();
    let users: Vec<_> = cert.subject().iter_common_name().map(|n| n.as_str().unwrap()).collect();
    let groups: Vec<_> = cert.subject().iter_organization().map(|n| n.as_str().unwrap()).collect();
    assert_eq!((users, groups), (vec!["admin"], vec!["system:masters", "ops"]));
    let refused = pki.issue_client("admin", &["a", "b", "c"], Duration::from_secs(60));
    assert!(matches!(refused, Err(Error::TooManyGroups { count: 3, .. })));
}

#[test]
fn a_server_certificate_does_not_pass_as_a_client() {
    let pki = ClusterPki::in_memory(&sans()).unwrap();
    assert!(!accepts(&pki, &pki.server().cert_pem));
}

#[test]
fn key_material_is_private_and_the_same_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = ClusterPki::load_or_create(dir.path(), &sans()).unwrap();
    let admin = first.issue_client("admin", &[], Duration::from_secs(60)).unwrap();
    for name in ["ca.key", "apiserver.key", "sa.key"] {
        let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let second = ClusterPki::load_or_create(dir.path(), &sans()).unwrap();
    assert_eq!(first.ca_pem(), second.ca_pem());
    assert_eq!(first.server().cert_pem, second.server().cert_pem);
    assert_eq!(first.account_key_pem(), second.account_key_pem());
    assert!(accepts(&second, &admin.cert_pem));
}

#[test]
fn a_new_name_gets_a_new_serving_certificate_from_the_same_ca() {
    let dir = tempfile::tempdir().unwrap();
    let first = ClusterPki::load_or_create(dir.path(), &sans()).unwrap();
    let more = [sans(), vec!["10.96.0.1".into(), "kubernetes.default.svc".into()]].concat();
    let second = ClusterPki::load_or_create(dir.path(), &more).unwrap();
    assert_eq!(first.ca_pem(), second.ca_pem());
    assert_ne!(first.server().cert_pem, second.server().cert_pem);
    let third = ClusterPki::load_or_create(dir.path(), &sans()).unwrap();
    assert_eq!(second.server().cert_pem, third.server().cert_pem);
}

#[track_caller]
fn check_damage(damage: impl Fn(&Path), expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    ClusterPki::load_or_create(dir.path(), &sans()).unwrap();
    damage(dir.path());
    let error = ClusterPki::load_or_create(dir.path(), &sans()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn damaged_files_are_named_and_not_replaced() {
    check_damage(|dir| fs::remove_file(dir.join("ca.key")).unwrap(), "ca.key is missing");
    check_damage(
        |dir| fs::write(dir.join("ca.crt"), "junk").unwrap(),
        "ca.crt does not hold a valid CA certificate",
    );
    check_damage(
        |dir| fs::write(dir.join("ca.key"), "junk").unwrap(),
        "ca.key does not hold a valid private key",
    );
    check_damage(
        |dir| fs::write(dir.join("sa.key"), "").unwrap(),
        "sa.key does not hold a valid private key",
    );
    check_damage(
        |dir| fs::write(dir.join("apiserver.crt"), "x").unwrap(),
        "apiserver.crt does not hold a valid",
    );
}

#[test]
fn names_that_fit_in_no_certificate_are_refused() {
    assert!(matches!(ClusterPki::in_memory(&["exämple".into()]), Err(Error::Issue { .. })));
}

#[test]
fn a_kubeconfig_embeds_the_credentials() {
    let text = kubeconfig("https://127.0.0.1:6443", "CA", "CERT", "KEY");
    for part in
        ["server: https://127.0.0.1:6443", "certificate-authority-data: Q0E=", "client-key-data: S0VZ"]
    {
        assert!(text.contains(part), "{part}");
    }
}
