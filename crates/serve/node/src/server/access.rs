//! Who may use the node's server: the API server and the cluster's administrators.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Group of the administrators.
const ADMINISTRATORS: &str = "system:masters";
/// The API server's user towards nodes.
const API_SERVER: &str = "kube-apiserver-kubelet-client";

/// Whether the holder of this certificate, which the cluster's authority has issued, may read what runs on the node.
pub(super) fn may_use_node(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    let subject = parsed.subject();
    let user =
        subject.iter_common_name().filter_map(|name| name.as_str().ok()).any(|name| name == API_SERVER);
    let mut groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    user || groups.any(|group| group == ADMINISTRATORS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambit_trust::pki::ClusterPki;
    use rustls::pki_types::pem::PemObject;
    use std::time::Duration;

    #[track_caller]
    fn check(user: &str, groups: &[&str], expected: bool) {
        let pki = ClusterPki::in_memory(&[]).unwrap();
        let issued = pki.issue_client(user, groups, Duration::from_secs(60)).unwrap();
        let certificate = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap();
        assert_eq!(may_use_node(&certificate), expected);
    }

    #[test]
    fn the_api_server_and_administrators_may_and_nobody_else() {
        check("admin", &["system:masters"], true);
        check("kube-apiserver-kubelet-client", &[], true);
        check("system:node:n1", &["system:nodes"], false);
        check("system:masters", &[], false);
    }

    #[test]
    fn garbage_is_refused() {
        assert!(!may_use_node(&CertificateDer::from(b"garbage".to_vec())));
    }
}
