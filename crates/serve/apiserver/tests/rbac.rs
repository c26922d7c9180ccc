//! Role-based access control, asked over TLS by users that an administrator speaks as.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use ambit_api::authentication::v1::SelfSubjectReview;
use ambit_api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use ambit_api::core::v1::ConfigMap;
use ambit_api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use cluster::{TestCluster, object};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

/// A client whose every request is made in the name of `user`.
async fn speaking_as(cluster: &TestCluster, user: &str, groups: &[&str]) -> Client {
    let config = Kubeconfig::from_yaml(&cluster.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(groups.iter().map(|g| (*g).to_owned()).collect());
    Client::try_from(config).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, kube::Error>) -> String {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 403 => status.message,
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, (kind, role): (&str, &str), (subject, of): (&str, &str)) -> Value {
    json!({
        "metadata": {"name": name}, "roleRef": {"kind": kind, "name": role},
        "subjects": [{"kind": subject, "name": of}],
    })
}

async fn create<K>(api: &Api<K>, value: Value) -> Result<K, kube::Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &object::<K>(value)).await
}

#[tokio::test]
async fn a_change_of_roles_and_bindings_is_seen_by_the_next_request() {
    let cluster = TestCluster::in_memory().await;
    let (roles, bindings): (Api<Role>, Api<RoleBinding>) =
        (Api::default_namespaced(cluster.client()), Api::default_namespaced(cluster.client()));
    let maps: Api<ConfigMap> = Api::default_namespaced(speaking_as(&cluster, "bob", &["dev"]).await);
    let list = async || maps.list(&ListParams::default()).await;
    let why = refused(list().await);
    assert!(
        why.contains(
            r#"User "bob" cannot list resource "configmaps" in API group "" in the namespace "default""#
        ),
        "{why}"
    );
    create(&bindings, binding("dev", ("Role", "maps"), ("Group", "dev"))).await.unwrap();
    let why = refused(list().await);
    assert!(why.contains(r#"Role "maps" of binding "dev" is missing"#), "{why}");
    let rules = json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"]}]);
    create(&roles, role("maps", rules)).await.unwrap();
    list().await.unwrap();
    let elsewhere: Api<ConfigMap> =
        Api::namespaced(speaking_as(&cluster, "bob", &["dev"]).await, "kube-system");
    refused(elsewhere.list(&ListParams::default()).await);
    let patch = json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]});
    roles.patch("maps", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    refused(list().await);
    bindings.delete("dev", &DeleteParams::default()).await.unwrap();
    refused(maps.get("x").await);
    cluster.stop().await;
}

#[tokio::test]
async fn nobody_gives_away_what_they_have_not() {
    let cluster = TestCluster::in_memory().await;
    let admin: Api<ClusterRoleBinding> = Api::all(cluster.client());
    let own: Api<RoleBinding> = Api::default_namespaced(cluster.client());
    create(&own, binding("ann", ("ClusterRole", "admin"), ("User", "ann"))).await.unwrap();
    let ann = speaking_as(&cluster, "ann", &[]).await;
    let (roles, bindings): (Api<Role>, Api<RoleBinding>) =
        (Api::default_namespaced(ann.clone()), Api::default_namespaced(ann));
    let rule = |verbs: &[&str], group: &str, resource: &str| json!([{"verbs": verbs, "apiGroups": [group], "resources": [resource]}]);
    create(&roles, role("maps", rule(&["get"], "", "configmaps"))).await.unwrap();
    let why = refused(create(&roles, role("nodes", rule(&["get", "list"], "", "nodes"))).await);
    assert!(why.contains("is attempting to grant RBAC permissions not currently held"), "{why}");
    assert!(why.contains(r#"{APIGroups:[""], Resources:["nodes"], Verbs:["list"]}"#), "{why}");
    // Neither by a change, nor by binding somebody else's role.
    let patch = Patch::Merge(json!({"rules": rule(&["*"], "*", "*")}));
    refused(roles.patch("maps", &PatchParams::default(), &patch).await);
    refused(create(&bindings, binding("x", ("ClusterRole", "cluster-admin"), ("User", "ann"))).await);
    let missing = create(&bindings, binding("x", ("ClusterRole", "none"), ("User", "ann"))).await;
    assert!(matches!(missing, Err(kube::Error::Api(status)) if status.code == 404));
    create(&bindings, binding("bob", ("ClusterRole", "view"), ("User", "bob"))).await.unwrap();
    // Labels give nothing away, whatever the rules.
    let given: Api<Role> = Api::default_namespaced(cluster.client());
    create(&given, role("wide", rule(&["*"], "*", "*"))).await.unwrap();
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    roles.patch("wide", &PatchParams::default(), &label).await.unwrap();
    // Who may escalate or bind by name, may.
    let powers = json!([
        {"verbs": ["escalate"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]},
        {"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["cluster-admin"]},
    ]);
    let cluster_roles: Api<ClusterRole> = Api::all(cluster.client());
    create(&cluster_roles, role("powers", powers)).await.unwrap();
    create(&admin, binding("powers", ("ClusterRole", "powers"), ("User", "ann"))).await.unwrap();
    create(&roles, role("nodes", rule(&["get"], "", "nodes"))).await.unwrap();
    create(&bindings, binding("x", ("ClusterRole", "cluster-admin"), ("User", "ann"))).await.unwrap();
    cluster.stop().await;
}

#[tokio::test]
async fn another_s_name_is_used_by_those_who_may() {
    let cluster = TestCluster::in_memory().await;
    let me = async |client: Client| {
        let reviews: Api<SelfSubjectReview> = Api::all(client);
        let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
        Ok::<_, kube::Error>(review.status.unwrap().user_info.unwrap())
    };
    let bob = me(speaking_as(&cluster, "bob", &["dev"]).await).await.unwrap();
    assert_eq!(bob.username.as_deref(), Some("bob"));
    assert_eq!(bob.groups.unwrap(), ["dev", "system:authenticated"]);
    let account = me(speaking_as(&cluster, "system:serviceaccount:a:b", &[]).await).await.unwrap();
    let groups = ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"];
    assert_eq!(account.groups.unwrap(), groups);
    // A user that is no administrator needs to be allowed each part.
    let config = |user: &str| {
        let credentials = cluster.pki.issue_client("carl", &[], std::time::Duration::from_secs(600)).unwrap();
        let url = format!("https://{}", cluster.address);
        let text = ambit_trust::pki::kubeconfig(
            &url,
            cluster.pki.ca_pem(),
            &credentials.cert_pem,
            &credentials.key_pem,
        );
        let user = user.to_owned();
        async move {
            let config = Kubeconfig::from_yaml(&text).unwrap();
            let mut config =
                Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
            config.auth_info.impersonate = Some(user);
            Client::try_from(config).unwrap()
        }
    };
    let why = refused(me(config("bob").await).await);
    assert!(
        why.contains(r#"users "bob" is forbidden: User "carl" cannot impersonate resource "users""#),
        "{why}"
    );
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client());
    let rule = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"]}]);
    create(&roles, role("as-bob", rule)).await.unwrap();
    create(&bindings, binding("carl", ("ClusterRole", "as-bob"), ("User", "carl"))).await.unwrap();
    assert_eq!(me(config("bob").await).await.unwrap().username.as_deref(), Some("bob"));
    refused(me(config("admin").await).await);
    cluster.stop().await;
}

#[tokio::test]
async fn reviews_tell_what_is_allowed_and_why() {
    let cluster = TestCluster::in_memory().await;
    let bindings: Api<RoleBinding> = Api::default_namespaced(cluster.client());
    create(&bindings, binding("bob", ("ClusterRole", "view"), ("User", "bob"))).await.unwrap();
    let attributes =
        |verb: &str, resource: &str| json!({"verb": verb, "resource": resource, "namespace": "default"});
    let bob = speaking_as(&cluster, "bob", &[]).await;
    let own: Api<SelfSubjectAccessReview> = Api::all(bob.clone());
    let all: Api<SubjectAccessReview> = Api::all(cluster.client());
    let local: Api<LocalSubjectAccessReview> = Api::default_namespaced(cluster.client());
    for (verb, resource, expected) in
        [("list", "pods", true), ("list", "secrets", false), ("delete", "pods", false)]
    {
        let spec = json!({"resourceAttributes": attributes(verb, resource)});
        let status = create(&own, json!({"metadata": {}, "spec": spec})).await.unwrap().status.unwrap();
        assert_eq!(status.allowed, expected, "{verb} {resource} {:?}", status.reason);
        let spec = json!({"user": "bob", "resourceAttributes": attributes(verb, resource)});
        let review = json!({"metadata": {}, "spec": spec});
        let status = create(&all, review.clone()).await.unwrap().status.unwrap();
        assert_eq!(status.allowed, expected);
        let why = status.reason.unwrap();
        let words = if expected {
            r#"RBAC: allowed by RoleBinding "bob/default" of ClusterRole "view" to User "bob""#
        } else {
            "cannot"
        };
        assert!(why.contains(words), "{why}");
        let mut review = review;
        review["metadata"]["namespace"] = "default".into();
        assert_eq!(create(&local, review).await.unwrap().status.unwrap().allowed, expected);
    }
    let rules: Api<SelfSubjectRulesReview> = Api::all(bob);
    let review = create(&rules, json!({"metadata": {}, "spec": {"namespace": "default"}})).await.unwrap();
    let status = review.status.unwrap();
    assert!(
        !status.incomplete
            && status.resource_rules.iter().any(|r| r.resources.iter().flatten().any(|r| r == "pods"))
    );
    assert!(
        status.non_resource_rules.iter().any(|r| r
            .non_resource_urls
            .iter()
            .flatten()
            .any(|url| url == "/openapi/*"))
    );
    cluster.stop().await;
}

#[tokio::test]
async fn default_roles_are_completed_at_start_unless_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let storage = || ambit_apiserver::Storage::Disk(dir.path().to_owned());
    let cluster = TestCluster::with(storage()).await;
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    let more = json!({"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["widgets"]});
    let patch = Patch::Merge(json!({"rules": [more]}));
    for name in ["system:basic-user", "system:kube-dns"] {
        roles.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
    let annotation =
        json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}});
    roles.patch("system:kube-dns", &PatchParams::default(), &Patch::Merge(annotation)).await.unwrap();
    let before = roles.get("view").await.unwrap();
    drop(roles);
    cluster.stop().await;
    let cluster = TestCluster::with(storage()).await;
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    let rules = async |name: &str| roles.get(name).await.unwrap().rules.unwrap();
    let completed = rules("system:basic-user").await;
    assert!(
        completed.len() > 1 && completed.iter().any(|rule| rule.resources == Some(vec!["widgets".into()]))
    );
    assert_eq!(rules("system:kube-dns").await.len(), 1);
    assert_eq!(
        roles.get("view").await.unwrap().resource_version(),
        before.resource_version(),
        "nothing to write"
    );
    cluster.stop().await;
}
