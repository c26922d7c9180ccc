//! Who may do what: certificates, tokens, and those who show neither.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use ambit_api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenReview};
use ambit_api::core::v1::{Pod, Secret, ServiceAccount};
use ambit_api::rbac::v1::RoleBinding;
use cluster::{TestCluster, object};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, Config};
use serde_json::json;

/// A client over TLS that knows the CA and shows what `config` says.
fn client(cluster: &TestCluster, token: Option<&str>) -> Client {
    let mut config = Config::new(format!("https://{}", cluster.address).parse().unwrap());
    let der = rustls_pki_types::pem::PemObject::from_pem_slice(cluster.pki.ca_pem().as_bytes());
    let der: rustls_pki_types::CertificateDer<'static> = der.unwrap();
    config.root_cert = Some(vec![der.to_vec()]);
    config.auth_info.token = token.map(|token| token.to_owned().into());
    Client::try_from(config).unwrap()
}

#[track_caller]
fn code<T: std::fmt::Debug>(outcome: Result<T, kube::Error>) -> u16 {
    match outcome {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("an API error was expected, not {other:?}"),
    }
}

async fn pod_and_token(cluster: &TestCluster, audiences: &[&str]) -> String {
    let admin = cluster.client();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "worker"}}))).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(admin);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "worker", "containers": [{"name": "c", "image": "i"}]}});
    let pod = pods.create(&PostParams::default(), &object(pod)).await.unwrap();
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod.metadata.uid});
    let request: TokenRequest =
        object(json!({"spec": {"audiences": audiences, "expirationSeconds": 3607, "boundObjectRef": bound}}));
    let made = accounts.create_token_request("worker", &PostParams::default(), &request).await.unwrap();
    let status = made.status.unwrap();
    assert!(status.expiration_timestamp.0 > jiff_of(&made.metadata.creation_timestamp.unwrap()));
    status.token
}

fn jiff_of(time: &ambit_api::meta::Time) -> jiff::Timestamp {
    time.0
}

#[tokio::test]
async fn without_credentials_only_health_and_version_are_answered() {
    let cluster = TestCluster::in_memory().await;
    let anonymous = client(&cluster, None);
    assert_eq!(anonymous.apiserver_version().await.unwrap().minor, "35");
    for path in ["/healthz", "/livez", "/readyz"] {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        assert_eq!(anonymous.request_text(request).await.unwrap(), "ok");
    }
    let pods: Api<Pod> = Api::default_namespaced(anonymous.clone());
    assert_eq!(code(pods.list(&ListParams::default()).await), 401);
    assert_eq!(code(anonymous.list_api_groups().await), 401);
    for junk in ["junk", "a.b.c"] {
        let pods: Api<Pod> = Api::default_namespaced(client(&cluster, Some(junk)));
        assert_eq!(code(pods.list(&ListParams::default()).await), 401);
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_no_credential() {
    let (cluster, other) = (TestCluster::in_memory().await, TestCluster::in_memory().await);
    // The other cluster's administrator, sent to this cluster's address with this cluster's CA trusted.
    let foreign = other.kubeconfig_for(cluster.address, cluster.pki.ca_pem());
    let config = kube::config::Kubeconfig::from_yaml(&foreign).unwrap();
    let config = Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    let outcome = Client::try_from(config).unwrap().apiserver_version().await;
    assert!(outcome.is_err(), "the handshake fails: {outcome:?}");
    cluster.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_service_account_token_speaks_for_its_account_while_its_pod_lives() {
    let cluster = TestCluster::in_memory().await;
    let token = pod_and_token(&cluster, &[]).await;
    let worker = client(&cluster, Some(&token));
    let review: Api<SelfSubjectReview> = Api::all(worker.clone());
    let me = review.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
    let me = me.status.unwrap().user_info.unwrap();
    assert_eq!(me.username.as_deref(), Some("system:serviceaccount:default:worker"));
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    assert_eq!(me.groups.unwrap(), groups);
    assert_eq!(me.extra.unwrap()["authentication.kubernetes.io/pod-name"], ["p"]);
    let pods: Api<Pod> = Api::default_namespaced(worker.clone());
    assert_eq!(code(pods.list(&ListParams::default()).await), 403, "nothing is allowed that no role allows");
    let account = json!({"kind": "ServiceAccount", "name": "worker", "namespace": "default"});
    let view = json!({"kind": "ClusterRole", "name": "view"});
    let bindings: Api<RoleBinding> = Api::default_namespaced(cluster.client());
    let binding = json!({"metadata": {"name": "worker"}, "roleRef": view, "subjects": [account]});
    bindings.create(&PostParams::default(), &object(binding)).await.unwrap();
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let secrets: Api<Secret> = Api::default_namespaced(worker);
    assert_eq!(code(secrets.list(&ListParams::default()).await), 403);
    assert_eq!(code(pods.delete("p", &DeleteParams::default()).await), 403);
    let admin: Api<Pod> = Api::default_namespaced(cluster.client());
    admin.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(code(pods.list(&ListParams::default()).await), 401, "the token died with its pod");
    cluster.stop().await;
}

#[tokio::test]
async fn token_reviews_tell_for_whom_a_token_is_good() {
    let cluster = TestCluster::in_memory().await;
    let token = pod_and_token(&cluster, &["istio-ca"]).await;
    let reviews: Api<TokenReview> = Api::all(cluster.client());
    let review = async |token: &str, audiences: &[&str]| {
        let spec = json!({"token": token, "audiences": audiences});
        let review = object::<TokenReview>(json!({"metadata": {}, "spec": spec}));
        reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap()
    };
    let good = review(&token, &["istio-ca", "other"]).await;
    assert_eq!((good.authenticated, good.audiences), (Some(true), Some(vec!["istio-ca".to_owned()])));
    assert_eq!(good.user.unwrap().username.as_deref(), Some("system:serviceaccount:default:worker"));
    let other = review(&token, &["other"]).await;
    assert_eq!(other.authenticated, Some(false));
    assert!(other.error.unwrap().contains("other audiences"));
    assert_eq!(review(&token, &[]).await.authenticated, Some(false), "not for the API server itself");
    assert_eq!(review("junk", &["istio-ca"]).await.authenticated, Some(false));
    // Nor does it open the API.
    let pods: Api<Pod> = Api::default_namespaced(client(&cluster, Some(&token)));
    assert_eq!(code(pods.list(&ListParams::default()).await), 401);
    cluster.stop().await;
}

#[tokio::test]
async fn tokens_are_bound_to_pods_of_their_account_only() {
    let cluster = TestCluster::in_memory().await;
    pod_and_token(&cluster, &[]).await;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client());
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "other"}}))).await.unwrap();
    let request = async |account: &str, spec: serde_json::Value| {
        let request = object::<TokenRequest>(json!({"spec": spec}));
        code(accounts.create_token_request(account, &PostParams::default(), &request).await)
    };
    let pod =
        |uid: &str| json!({"audiences": [], "boundObjectRef": {"kind": "Pod", "name": "p", "uid": uid}});
    assert_eq!(request("other", pod("")).await, 400);
    assert_eq!(request("worker", pod("wrong")).await, 409);
    assert_eq!(request("worker", json!({"audiences": [], "expirationSeconds": 10})).await, 422);
    assert_eq!(request("nobody", json!({"audiences": []})).await, 404);
    let missing = json!({"audiences": [], "boundObjectRef": {"kind": "Pod", "name": "none"}});
    assert_eq!(request("worker", missing).await, 404);
    cluster.stop().await;
}
