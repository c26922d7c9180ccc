use super::*;
use serde_json::json;

fn binding(role: (&str, &str), subjects: &[(&str, &str, &str)]) -> Value {
    let subjects: Vec<Value> = subjects
        .iter()
        .map(|(kind, namespace, name)| json!({"kind": kind, "namespace": namespace, "name": name}))
        .collect();
    json!({"roleRef": {"kind": role.0, "name": role.1}, "subjects": subjects})
}

fn role(verb: &str, resource: &str) -> Value {
    json!({"rules": [{"verbs": [verb], "apiGroups": [""], "resources": [resource]}]})
}

/// Ann may get pods everywhere, developers secrets in `a`, the account a/worker what the role `a/jobs` says.
fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.set(Kind::ClusterRole, ("", "pods"), Some(&role("get", "pods")));
    policy.set(Kind::ClusterRole, ("", "secrets"), Some(&role("get", "secrets")));
    policy.set(Kind::Role, ("a", "jobs"), Some(&role("create", "jobs")));
    let ann = binding(("ClusterRole", "pods"), &[("User", "", "ann")]);
    policy.set(Kind::ClusterRoleBinding, ("", "ann"), Some(&ann));
    let developers = binding(("ClusterRole", "secrets"), &[("Group", "", "dev")]);
    policy.set(Kind::RoleBinding, ("a", "dev"), Some(&developers));
    let worker = binding(("Role", "jobs"), &[("ServiceAccount", "", "worker")]);
    policy.set(Kind::RoleBinding, ("a", "worker"), Some(&worker));
    policy
}

fn asked(
    policy: &Policy,
    user: (&str, &[&str]),
    verb: &str,
    resource: &str,
    namespace: &str,
) -> Option<String> {
    let groups: Vec<String> = user.1.iter().map(|g| (*g).to_owned()).collect();
    let request = Request {
        verb: verb.into(),
        resource: resource.into(),
        namespace: namespace.into(),
        ..Request::default()
    };
    policy.allows(User { name: user.0, groups: &groups }, &request).map(|grant| grant.to_string())
}

#[track_caller]
fn check(user: (&str, &[&str]), verb: &str, resource: &str, namespace: &str, expected: bool) {
    assert_eq!(asked(&policy(), user, verb, resource, namespace).is_some(), expected);
}

#[test]
fn bindings_give_roles_to_users_groups_and_accounts() {
    check(("ann", &[]), "get", "pods", "a", true);
    check(("ann", &[]), "get", "pods", "", true);
    check(("ann", &[]), "list", "pods", "a", false);
    check(("bob", &[]), "get", "pods", "a", false);
    // A user is no group, whatever its name.
    check(("dev", &[]), "get", "secrets", "a", false);
    check(("bob", &["dev"]), "get", "secrets", "a", true);
    check(("bob", &["dev"]), "get", "secrets", "b", false);
    check(("bob", &["dev"]), "get", "secrets", "", false);
    check(("system:serviceaccount:a:worker", &[]), "create", "jobs", "a", true);
    check(("system:serviceaccount:b:worker", &[]), "create", "jobs", "a", false);
}

#[test]
fn a_grant_says_where_it_comes_from() {
    let why = asked(&policy(), ("ann", &[]), "get", "pods", "a").unwrap();
    assert_eq!(why, r#"RBAC: allowed by ClusterRoleBinding "ann" of ClusterRole "pods" to User "ann""#);
    let why = asked(&policy(), ("bob", &["x", "dev"]), "get", "secrets", "a").unwrap();
    assert_eq!(why, r#"RBAC: allowed by RoleBinding "dev/a" of ClusterRole "secrets" to Group "dev""#);
}

#[test]
fn changes_and_deletions_take_effect() {
    let mut policy = policy();
    policy.set(Kind::ClusterRole, ("", "pods"), None);
    assert!(asked(&policy, ("ann", &[]), "get", "pods", "a").is_none());
    let groups = [];
    let found = policy.rules_of(User { name: "ann", groups: &groups }, "a");
    assert_eq!(found.missing, [r#"ClusterRole "pods" of binding "ann" is missing"#]);
    policy.set(Kind::ClusterRole, ("", "pods"), Some(&role("list", "pods")));
    assert!(asked(&policy, ("ann", &[]), "list", "pods", "a").is_some());
    let bob = binding(("ClusterRole", "pods"), &[("User", "", "bob")]);
    policy.set(Kind::ClusterRoleBinding, ("", "ann"), Some(&bob));
    assert!(asked(&policy, ("ann", &[]), "list", "pods", "a").is_none());
    assert!(asked(&policy, ("bob", &[]), "list", "pods", "a").is_some());
    policy.set(Kind::ClusterRoleBinding, ("", "ann"), None);
    assert!(asked(&policy, ("bob", &[]), "list", "pods", "a").is_none());
    for name in ["dev", "worker"] {
        policy.set(Kind::RoleBinding, ("a", name), None);
    }
    assert!(policy.by_subject.is_empty() && policy.bindings.is_empty(), "nothing is left behind");
}

#[test]
fn what_cannot_be_read_allows_nothing() {
    let mut policy = policy();
    policy.set(Kind::ClusterRole, ("", "pods"), Some(&json!({"rules": "all"})));
    assert!(asked(&policy, ("ann", &[]), "get", "pods", "a").is_none());
    let odd = binding(("Role", "jobs"), &[("User", "", "eve")]);
    policy.set(Kind::ClusterRoleBinding, ("", "eve"), Some(&odd));
    let nowhere = binding(("ClusterRole", "secrets"), &[("ServiceAccount", "", "x")]);
    policy.set(Kind::ClusterRoleBinding, ("", "x"), Some(&nowhere));
    assert!(asked(&policy, ("eve", &[]), "create", "jobs", "a").is_none());
    assert!(asked(&policy, ("system:serviceaccount::x", &[]), "get", "secrets", "a").is_none());
}

#[test]
fn rules_of_a_user_are_told_once_a_binding() {
    let groups = ["dev".to_owned()];
    let mut policy = policy();
    let twice = binding(("ClusterRole", "pods"), &[("User", "", "ann"), ("Group", "", "dev")]);
    policy.set(Kind::ClusterRoleBinding, ("", "ann"), Some(&twice));
    let user = User { name: "ann", groups: &groups };
    assert_eq!(policy.rules_of(user, "").rules.len(), 1);
    assert_eq!(policy.rules_of(user, "a").rules.len(), 2);
    assert_eq!(policy.rules_of(user, "b").cloned(), [Rule::of("", &["pods"], &["get"])]);
}
