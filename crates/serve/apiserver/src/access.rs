//! Who asks, and may they: authentication by certificate or token, and the authorisation of this server's own roles.

use crate::cluster::Cluster;
use crate::object::Object;
use crate::request::{User, text};
use crate::tokens::{Claims, Reference};
use std::sync::Arc;

/// What a request wants to do, as authorisation sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Set for requests that are not about a resource.
    pub(crate) path: String,
}

/// Reading verbs.
const READ: [&str; 3] = ["get", "list", "watch"];
/// Reviews of one's own identity and rights.
const SELF_REVIEWS: [&str; 3] = ["selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"];
/// What a node writes, with subresources. Source: the system:node role.
const NODE_WRITES: [&str; 9] = [
    "nodes",
    "nodes/status",
    "pods",
    "pods/status",
    "pods/eviction",
    "events",
    "leases",
    "serviceaccounts/token",
    "csinodes",
];

impl Wish {
    /// Whether `user` may do this. Role based access control is not served yet: administrators and the product's own
    /// roles may do all they ask for; nodes what a node does; service accounts may read all but secrets, and review
    /// tokens and access; others may look at what is served.
    pub(crate) fn is_allowed_to(&self, user: &User) -> bool {
        if user.is_in("system:masters") || user.name.starts_with("ambit:") {
            return true;
        }
        if user.is_anonymous() {
            return matches!(&*self.path, "/version" | "/healthz" | "/livez" | "/readyz")
                || ["/healthz/", "/livez/", "/readyz/"].iter().any(|p| self.path.starts_with(p));
        }
        let reads = READ.contains(&&*self.verb);
        if !self.path.is_empty() {
            return reads && self.path != "/metrics";
        }
        if SELF_REVIEWS.contains(&&*self.resource) {
            return self.verb == "create";
        }
        if user.is_in("system:nodes") && user.name.starts_with("system:node:") {
            let resource = match &*self.subresource {
                "" => self.resource.clone(),
                subresource => format!("{}/{subresource}", self.resource),
            };
            let reviews = matches!(&*self.resource, "tokenreviews" | "subjectaccessreviews");
            return reads || reviews || NODE_WRITES.contains(&&*resource);
        }
        if user.is_in("system:serviceaccounts") {
            let reviews = matches!(&*self.resource, "tokenreviews" | "subjectaccessreviews");
            return (reads && self.resource != "secrets") || (reviews && self.verb == "create");
        }
        false
    }

    /// Why not, in the words of upstream.
    pub(crate) fn refusal(&self, user: &User) -> String {
        if !self.path.is_empty() {
            return format!("User {:?} cannot {} path {:?}", user.name, self.verb, self.path);
        }
        let resource = match &*self.subresource {
            "" => self.resource.clone(),
            subresource => format!("{}/{subresource}", self.resource),
        };
        let place = match &*self.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        format!(
            "User {:?} cannot {} resource {resource:?} in API group {:?} {place}",
            user.name, self.verb, self.group
        )
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(user: &User, verb: &str, resource: &str, expected: bool) {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let wish = Wish {
            verb: verb.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: "a".into(),
            ..Wish::default()
        };
        assert_eq!(wish.is_allowed_to(user), expected, "{user:?} {wish:?}");
    }

    #[test]
    fn each_role_may_do_its_own_things_only() {
        let admin = User::new("admin", ["system:masters"]);
        check(&admin, "delete", "secrets", true);
        check(&User::new("ambit:controllers", ["x"]), "update", "pods/status", true);
        let node = User::new("system:node:n", ["system:nodes"]);
        check(&node, "get", "secrets", true);
        check(&node, "update", "pods/status", true);
        check(&node, "create", "serviceaccounts/token", true);
        check(&node, "create", "deployments", false);
        check(&node, "update", "namespaces", false);
        check(&User::new("system:node:n", ["other"]), "get", "secrets", false);
        let account = User::new("system:serviceaccount:a:b", ["system:serviceaccounts"]);
        check(&account, "list", "pods", true);
        check(&account, "list", "secrets", false);
        check(&account, "create", "tokenreviews", true);
        check(&account, "create", "pods", false);
        check(&account, "create", "selfsubjectreviews", true);
        let nobody = User::new("bob", ["dev"]);
        check(&nobody, "list", "pods", false);
        check(&nobody, "create", "selfsubjectaccessreviews", true);
        check(&User::anonymous(), "list", "pods", false);
        check(&User::anonymous(), "create", "selfsubjectreviews", false);
    }

    #[test]
    fn anonymous_sees_health_and_version_only() {
        let at = |path: &str| Wish { verb: "get".into(), path: path.into(), ..Wish::default() };
        for (path, expected) in [
            ("/healthz", true),
            ("/readyz/store", true),
            ("/version", true),
            ("/api", false),
            ("/metrics", false),
        ] {
            assert_eq!(at(path).is_allowed_to(&User::anonymous()), expected, "{path}");
        }
        let account = User::new("system:serviceaccount:a:b", ["system:serviceaccounts"]);
        assert!(at("/openapi/v3").is_allowed_to(&account) && !at("/metrics").is_allowed_to(&account));
    }
}
