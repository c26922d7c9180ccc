//! Certificates for the workloads of a node, and for nobody else.

use crate::client::{certificate, root};
use crate::cluster::{Cluster, ControlPlane, account, eventually, pod, proxy};
use ambit_proto::ca::IstioCertificateRequest;
use rcgen::{CertificateParams, KeyPair, SanType};
use tonic::Code;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

const WEB: &str = "spiffe://cluster.local/ns/demo/sa/web";

/// A signing request that names `identity`.
fn request(identity: &str) -> IstioCertificateRequest {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(identity.try_into().unwrap())];
    let csr = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    IstioCertificateRequest { csr, validity_duration: 3600, metadata: None }
}

struct Setup {
    cluster: Cluster,
    control_plane: ControlPlane,
    root: String,
    token: String,
}

impl Setup {
    async fn new() -> Self {
        let cluster = Cluster::start().await;
        for (namespace, name) in
            [("istio-system", "ztunnel"), ("demo", "web"), ("demo", "elsewhere"), ("demo", "failed")]
        {
            cluster.create(account(namespace, name)).await;
        }
        cluster.create(proxy("node1")).await;
        cluster.create(pod("demo", "web", "web", "node1", "10.244.0.5")).await;
        cluster.create(pod("demo", "elsewhere", "elsewhere", "node2", "10.244.1.5")).await;
        let mut failed = pod("demo", "failed", "failed", "node1", "10.244.0.6");
        failed["status"]["phase"] = "Failed".into();
        cluster.create(failed).await;
        let token = cluster.token(&proxy("node1"), "istio-ca").await;
        let control_plane = cluster.control_plane().await;
        let root = root(&cluster).await;
        Self { cluster, control_plane, root, token }
    }

    async fn ask(
        &self,
        identity: Option<&str>,
        request: IstioCertificateRequest,
    ) -> Result<Vec<String>, Code> {
        let token = Some(self.token.as_str());
        let answer = certificate(&self.control_plane, &self.root, token, identity, request).await;
        answer.map(|response| response.cert_chain).map_err(|status| status.code())
    }

    async fn stop(self) {
        self.control_plane.stop().await;
        self.cluster.stop().await;
    }
}

/// The URI names of a certificate.
fn names(pem: &str) -> Vec<String> {
    let block = Pem::iter_from_buffer(pem.as_bytes()).next().unwrap().unwrap();
    let cert = block.parse_x509().unwrap();
    let names = cert.subject_alternative_name().unwrap().unwrap().value.general_names.clone();
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => (*uri).to_owned(),
        other => panic!("{other:?}"),
    };
    names.iter().map(uri).collect()
}

#[tokio::test]
async fn a_proxy_gets_certificates_for_the_workloads_of_its_node_only() {
    let setup = Setup::new().await;
    let chain = setup.ask(Some(WEB), request(WEB)).await.unwrap();
    assert_eq!(chain.len(), 2, "the leaf, then the root");
    assert_eq!(names(&chain[0]), [WEB]);
    assert_eq!(chain[1], setup.root);
    let own = "spiffe://cluster.local/ns/istio-system/sa/ztunnel";
    assert_eq!(names(&setup.ask(None, request(own)).await.unwrap()[0]), [own]);

    for wanted in [
        "spiffe://cluster.local/ns/demo/sa/elsewhere",
        "spiffe://cluster.local/ns/demo/sa/failed",
        "spiffe://cluster.local/ns/demo/sa/nobody",
        "spiffe://other.domain/ns/demo/sa/web",
        "web",
    ] {
        let refused = setup.ask(Some(wanted), request(wanted)).await;
        assert_eq!(refused, Err(Code::Unauthenticated), "{wanted}");
    }
    // When its last pod leaves the node, an identity is no longer to be had there.
    setup.cluster.delete(&pod("demo", "web", "web", "node1", "10.244.0.5")).await;
    eventually("the pod is gone", async || setup.ask(Some(WEB), request(WEB)).await.err()).await;
    setup.stop().await;
}

#[tokio::test]
async fn accounts_that_are_not_trusted_get_their_own_certificate_only() {
    let mut setup = Setup::new().await;
    let web = pod("demo", "web", "web", "node1", "10.244.0.5");
    setup.token = setup.cluster.token(&web, "istio-ca").await;
    let own = setup.ask(None, request(WEB)).await.unwrap();
    assert_eq!(names(&own[0]), [WEB]);
    let proxy = "spiffe://cluster.local/ns/istio-system/sa/ztunnel";
    assert_eq!(setup.ask(Some(proxy), request(proxy)).await, Err(Code::Unauthenticated));
    assert_eq!(setup.ask(Some(WEB), request(WEB)).await, Err(Code::Unauthenticated));
    setup.token = "nonsense".to_owned();
    assert_eq!(setup.ask(None, request(WEB)).await, Err(Code::Unauthenticated));
    setup.stop().await;
}

#[tokio::test]
async fn bad_requests_are_refused() {
    let setup = Setup::new().await;
    let other = "spiffe://cluster.local/ns/demo/sa/admin";
    for (what, request) in [
        ("no request", IstioCertificateRequest { csr: String::new(), ..request(WEB) }),
        ("not a request", IstioCertificateRequest { csr: setup.root.clone(), ..request(WEB) }),
        ("other names", request(other)),
        ("too long a life", IstioCertificateRequest { validity_duration: 91 * 24 * 3600, ..request(WEB) }),
    ] {
        assert_eq!(setup.ask(Some(WEB), request).await, Err(Code::InvalidArgument), "{what}");
    }
    let huge = IstioCertificateRequest { csr: "x".repeat(1024 * 1024), ..request(WEB) };
    assert!(setup.ask(Some(WEB), huge).await.is_err());
    // None of this has done any harm.
    assert!(setup.ask(Some(WEB), request(WEB)).await.is_ok());
    setup.stop().await;
}
