use super::*;
use crate::{Kind, Policy, Request, User};

fn policy() -> Policy {
    let mut policy = Policy::default();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    for role in cluster_roles() {
        policy.set(Kind::ClusterRole, ("", &name(&role)), Some(&role));
    }
    for binding in cluster_role_bindings() {
        policy.set(Kind::ClusterRoleBinding, ("", &name(&binding)), Some(&binding));
    }
    policy
}

#[track_caller]
fn check(user: &str, groups: &[&str], verb: &str, what: (&str, &str), expected: bool) {
    let groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
    let (group, resource) = what;
    let mut request = Request { verb: verb.into(), ..Request::default() };
    if resource.starts_with('/') {
        request.path = resource.into();
    } else {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        request = Request {
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: "a".into(),
            ..request
        };
    }
    let grant = policy().allows(User { name: user, groups: &groups }, &request);
    assert_eq!(grant.is_some(), expected, "{user} {groups:?} {request:?} {grant:?}");
}

#[test]
fn each_may_do_its_own_things_only() {
    let masters = ["system:masters", "system:authenticated"];
    check("admin", &masters, "delete", ("", "secrets"), true);
    check("admin", &masters, "get", ("", "/metrics"), true);
    let known = ["system:authenticated"];
    check("bob", &known, "create", ("authorization.k8s.io", "selfsubjectaccessreviews"), true);
    check("bob", &known, "get", ("", "/apis/apps/v1"), true);
    check("bob", &known, "get", ("", "/metrics"), false);
    check("bob", &known, "list", ("", "pods"), false);
    let unknown = ["system:unauthenticated"];
    check("system:anonymous", &unknown, "get", ("", "/readyz"), true);
    check("system:anonymous", &unknown, "get", ("", "/api"), false);
    let accounts = ["system:serviceaccounts", "system:authenticated"];
    check("system:serviceaccount:a:b", &accounts, "get", ("", "/openid/v1/jwks"), true);
    check("system:serviceaccount:a:b", &accounts, "list", ("", "pods"), false);
    let nodes = ["system:nodes", "system:authenticated"];
    check("system:node:n", &nodes, "patch", ("", "pods/status"), true);
    check("system:node:n", &nodes, "create", ("apps", "deployments"), false);
    check("ambit:agent", &known, "patch", ("", "pods/status"), true);
    check("ambit:agent", &known, "get", ("", "secrets"), false);
    check("ambit:control-plane", &known, "create", ("authentication.k8s.io", "tokenreviews"), true);
    check("ambit:control-plane", &known, "delete", ("", "pods"), false);
    check("ambit:controllers", &known, "delete", ("example.com", "widgets"), true);
    check("ambit:controllers", &known, "create", ("rbac.authorization.k8s.io", "clusterrolebindings"), false);
}

#[test]
fn aggregated_roles_have_the_rules_of_their_parts() {
    let policy = policy();
    let rules = |name: &str| policy.role(Kind::ClusterRole, "", name).unwrap().to_vec();
    let (view, edit, admin) = (rules("view"), rules("edit"), rules("admin"));
    assert!(crate::uncovered(&edit, &view).is_empty());
    assert!(crate::uncovered(&admin, &edit).is_empty());
    assert!(!crate::uncovered(&view, &edit).is_empty());
    assert!(!view.iter().any(|rule| rule.resources.iter().any(|r| r == "secrets")));
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = super::all().iter().map(|role| role.name).collect();
    names.sort_unstable();
    let before = names.len();
    names.dedup();
    assert_eq!(names.len(), before);
}
