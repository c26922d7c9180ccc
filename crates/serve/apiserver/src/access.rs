//! Who asks, and may they: authentication by certificate or token, and the decision by roles.

use crate::cluster::Cluster;
use crate::object::Object;
use crate::request::{MASTERS, User, text};
use crate::tokens::{Claims, Reference};
use ambit_access::Request;
use std::sync::Arc;

/// Whether `user` may do this, and why; the error says why not.
pub(crate) fn decide(cluster: &Cluster, user: &User, request: &Request) -> Result<String, String> {
    if user.is_master() {
        return Ok(format!("allowed to the group {MASTERS:?}"));
    }
    cluster.rbac.read(&cluster.db, |policy| match policy.allows(user.subject(), request) {
        Some(grant) => Ok(grant.to_string()),
        None => {
            let missing = policy.rules_of(user.subject(), &request.namespace).missing;
            let missing: String = missing.iter().map(|why| format!(": RBAC: {why}")).collect();
            Err(refusal(user, request) + &missing)
        }
    })
}

/// Why a request is refused, in the words of upstream.
fn refusal(user: &User, request: &Request) -> String {
    if !request.path.is_empty() {
        return format!("User {:?} cannot {} path {:?}", user.name, request.verb, request.path);
    }
    let place = match &*request.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    format!(
        "User {:?} cannot {} resource {:?} in API group {:?} {place}",
        user.name,
        request.verb,
        request.full_resource(),
        request.group
    )
}

/// The user of a certificate that the cluster's CA has signed: common name and organisations.
pub(crate) fn certificate_user(der: &[u8]) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups: Vec<String> = certificate
        .subject()
        .iter_organization()
        .filter_map(|o| o.as_str().ok())
        .map(str::to_owned)
        .collect();
    Some(authenticated(User::new(name, groups)))
}

/// Adds the group of all who said who they are.
pub(crate) fn authenticated(mut user: User) -> User {
    if !user.is_in("system:authenticated") {
        user.groups.push("system:authenticated".into());
    }
    user
}

/// The user of a token that is valid for one of the audiences, and the audiences that matched; the error says why not.
pub(crate) fn token_user(
    cluster: &Cluster,
    token: &str,
    audiences: &[String],
) -> Result<(User, Vec<String>), String> {
    let (claims, matched) =
        cluster.tokens.verify(token, audiences, cluster.clock.timestamp()).map_err(|e| e.to_string())?;
    check_alive(cluster, &claims)?;
    let Claims { jti, kubernetes, sub, .. } = claims;
    let namespace = &kubernetes.namespace;
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    let mut user = User { uid: kubernetes.serviceaccount.uid, ..User::new(sub, groups) };
    let mut extra = |name: &str, value: String| {
        user.extra.push((format!("authentication.kubernetes.io/{name}"), vec![value]));
    };
    extra("credential-id", format!("JTI={jti}"));
    if let Some(pod) = kubernetes.pod {
        extra("pod-name", pod.name);
        extra("pod-uid", pod.uid);
    }
    if let Some(node) = kubernetes.node {
        extra("node-name", node.name);
        extra("node-uid", node.uid);
    }
    Ok((user, matched))
}

/// A token dies with its account and with the object it is bound to.
fn check_alive(cluster: &Cluster, claims: &Claims) -> Result<(), String> {
    let subject = &claims.kubernetes;
    let alive = |what: &str, collection: &str, namespace: &str, reference: &Reference| {
        let found: Option<Arc<Object>> = cluster.object(collection, namespace, &reference.name);
        let same = found.is_some_and(|o| text(&o.value(), "/metadata/uid") == reference.uid);
        if same { Ok(()) } else { Err(format!("the token's {what} {namespace}/{} is gone", reference.name)) }
    };
    alive("service account", "serviceaccounts", &subject.namespace, &subject.serviceaccount)?;
    if let Some(pod) = &subject.pod {
        alive("pod", "pods", &subject.namespace, pod)?;
    }
    if let Some(secret) = &subject.secret {
        alive("secret", "secrets", &subject.namespace, secret)?;
    }
    Ok(())
}
