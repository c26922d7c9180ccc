//! Validation of roles and bindings. Source: Kubernetes `pkg/apis/rbac/validation/validation.go`.

use serde_json::Value;

use super::names;
use super::{items, text};
use crate::fault::Faults;
use crate::path::Path;

/// The group of roles, users and groups.
const GROUP: &str = "rbac.authorization.k8s.io";

/// Checks a Role.
pub(super) fn role(role: &Value, path: &Path<'_>, faults: &mut Faults) {
    rules(role, path, true, faults);
}

/// Checks a ClusterRole.
pub(super) fn cluster_role(role: &Value, path: &Path<'_>, faults: &mut Faults) {
    rules(role, path, false, faults);
}

/// Checks which roles a ClusterRole takes up.
pub(super) fn aggregation(rule: &Value, path: &Path<'_>, faults: &mut Faults) {
    let selectors = path.field("clusterRoleSelectors");
    if items(rule, "clusterRoleSelectors").next().is_none() {
        faults
            .required(&selectors, "at least one clusterRoleSelector required if aggregationRule is non-nil");
    }
}

fn rules(role: &Value, path: &Path<'_>, namespaced: bool, faults: &mut Faults) {
    let list = path.field("rules");
    for (index, rule) in items(role, "rules") {
        let path = list.index(index);
        let has = |field: &str| items(rule, field).next().is_some();
        if has("nonResourceURLs") {
            let urls = path.field("nonResourceURLs");
            let value = rule["nonResourceURLs"].clone();
            if namespaced {
                faults.invalid(&urls, value, "namespaced rules cannot apply to non-resource URLs");
            } else if has("apiGroups") || has("resources") || has("resourceNames") {
                faults.invalid(
                    &urls,
                    value,
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            continue;
        }
        if !has("apiGroups") {
            faults.required(&path.field("apiGroups"), "resource rules must supply at least one api group");
        }
        if !has("resources") {
            faults.required(&path.field("resources"), "resource rules must supply at least one resource");
        }
    }
}

/// Checks a RoleBinding.
pub(super) fn role_binding(binding: &Value, path: &Path<'_>, faults: &mut Faults) {
    self::binding(binding, path, &["Role", "ClusterRole"], faults);
}

/// Checks a ClusterRoleBinding.
pub(super) fn cluster_role_binding(binding: &Value, path: &Path<'_>, faults: &mut Faults) {
    self::binding(binding, path, &["ClusterRole"], faults);
}

fn binding(binding: &Value, path: &Path<'_>, kinds: &[&str], faults: &mut Faults) {
    let role = &binding["roleRef"];
    let reference = path.field("roleRef");
    if text(role, "apiGroup") != GROUP {
        faults.not_supported(&reference.field("apiGroup"), role["apiGroup"].clone(), &[GROUP.into()]);
    }
    if !kinds.contains(&text(role, "kind")) && !text(role, "kind").is_empty() {
        let supported: Vec<Value> = kinds.iter().map(|kind| (*kind).into()).collect();
        faults.not_supported(&reference.field("kind"), role["kind"].clone(), &supported);
    }
    let name = text(role, "name");
    if let Err(message) = names::path_segment(name) {
        faults.invalid(&reference.field("name"), name, message);
    }
    let namespaced = kinds.contains(&"Role");
    let list = path.field("subjects");
    for (index, one) in items(binding, "subjects") {
        subject(one, &list.index(index), namespaced, faults);
    }
}

fn subject(subject: &Value, path: &Path<'_>, namespaced: bool, faults: &mut Faults) {
    let (kind, name, group) = (text(subject, "kind"), text(subject, "name"), text(subject, "apiGroup"));
    let expected = match kind {
        "ServiceAccount" => {
            if let Err(message) = names::dns_subdomain(name)
                && !name.is_empty()
            {
                faults.invalid(&path.field("name"), name, message);
            }
            if !namespaced && text(subject, "namespace").is_empty() {
                faults.required(&path.field("namespace"), "");
            }
            ""
        }
        "User" | "Group" => GROUP,
        "" => return,
        _ => {
            let kinds = ["ServiceAccount", "User", "Group"].map(Value::from);
            faults.not_supported(&path.field("kind"), kind, &kinds);
            return;
        }
    };
    if group != expected {
        faults.not_supported(&path.field("apiGroup"), group, &[expected.into()]);
    }
}

/// The role of a binding stays: a subject could otherwise be given more than its author saw.
pub(super) fn binding_update(new: &Value, old: &Value, faults: &mut Faults) {
    if new["roleRef"] != old["roleRef"] {
        faults.invalid(&Path::Root.field("roleRef"), new["roleRef"].clone(), "cannot change roleRef");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(kind: &str, object: Value, expected: &[&str]) {
        let catalog = crate::Catalog::builtin();
        let kind = catalog.kind(GROUP, "v1", kind).unwrap();
        let mut object = object;
        object["metadata"] = json!({"name": "system:x"});
        if kind.is_namespaced() {
            object["metadata"]["namespace"] = "a".into();
        }
        kind.default(&mut object);
        let paths: Vec<String> = kind.validate_create(&object).into_iter().map(|fault| fault.path).collect();
        assert_eq!(paths, expected);
    }

    #[test]
    fn rules_say_what_they_are_about() {
        let rule = |rule: Value| json!({"rules": [rule]});
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        check("ClusterRole", rule(pods.clone()), &[]);
        check("Role", rule(pods), &[]);
        check("Role", json!({}), &[]);
        check("ClusterRole", rule(json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})), &[]);
        check(
            "Role",
            rule(json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})),
            &["rules[0].nonResourceURLs"],
        );
        let both = json!({"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]});
        check("ClusterRole", rule(both), &["rules[0].nonResourceURLs"]);
        check("ClusterRole", rule(json!({"verbs": ["get"]})), &["rules[0].apiGroups", "rules[0].resources"]);
        check("ClusterRole", rule(json!({"apiGroups": [""], "resources": ["pods"]})), &["rules[0].verbs"]);
        let selectors = |list: Value| json!({"aggregationRule": {"clusterRoleSelectors": list}});
        check("ClusterRole", selectors(json!([{"matchLabels": {"a": "b"}}])), &[]);
        check("ClusterRole", selectors(json!([])), &["aggregationRule.clusterRoleSelectors"]);
    }

    #[test]
    fn bindings_name_a_role_and_subjects() {
        let bind = |kind: &str, subject: Value| json!({"roleRef": {"kind": kind, "name": "r"}, "subjects": [subject]});
        check("ClusterRoleBinding", bind("ClusterRole", json!({"kind": "User", "name": "ann"})), &[]);
        check("RoleBinding", bind("Role", json!({"kind": "ServiceAccount", "name": "x"})), &[]);
        check("ClusterRoleBinding", bind("Role", json!({"kind": "Group", "name": "dev"})), &["roleRef.kind"]);
        let account = json!({"kind": "ServiceAccount", "name": "x"});
        check("ClusterRoleBinding", bind("ClusterRole", account), &["subjects[0].namespace"]);
        check("RoleBinding", bind("Role", json!({"kind": "Robot", "name": "x"})), &["subjects[0].kind"]);
        let odd = json!({"kind": "User", "name": "x", "apiGroup": "apps"});
        check("RoleBinding", bind("Role", odd), &["subjects[0].apiGroup"]);
        check("RoleBinding", json!({"roleRef": {"kind": "Role", "name": "a/b"}}), &["roleRef.name"]);
    }

    #[test]
    fn a_binding_keeps_its_role() {
        let catalog = crate::Catalog::builtin();
        let kind = catalog.kind(GROUP, "v1", "ClusterRoleBinding").unwrap();
        let binding = |role: &str| {
            let reference = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
            json!({"metadata": {"name": "x"}, "roleRef": reference})
        };
        assert!(kind.validate_update(&binding("a"), &binding("a")).is_empty());
        let faults = kind.validate_update(&binding("b"), &binding("a"));
        assert_eq!(faults[0].path, "roleRef");
        assert!(faults[0].message.contains("cannot change roleRef"));
    }
}
