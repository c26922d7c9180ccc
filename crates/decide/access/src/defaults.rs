//! The roles and bindings that every cluster has from its first moment.
//!
//! Source of the field's: kubernetes plugin/pkg/auth/authorizer/rbac/bootstrappolicy. Roles of parts that do not exist
//! here (one per controller, cloud parts) are left out; the parts of this product have roles of their own instead.

mod people;
mod product;

use crate::rule::Rule;
use serde_json::{Value, json};

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";
/// While this annotation is `true`, a server that starts adds what is missing to a default object.
pub const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// Marks the default objects.
const BOOTSTRAPPING: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");

/// What reading takes.
const READ: [&str; 3] = ["get", "list", "watch"];
/// What writing takes.
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// A cluster role and who has it everywhere.
#[derive(Debug)]
struct Default {
    name: &'static str,
    rules: Vec<Rule>,
    /// The roles that take up this one's rules, by the name in their label: `aggregate-to-NAME`.
    part_of: Option<&'static str>,
    /// The name in the label of the roles whose rules this one takes up.
    made_of: Option<&'static str>,
    subjects: Vec<(&'static str, &'static str)>,
}

impl Default {
    fn new(name: &'static str, rules: Vec<Rule>) -> Self {
        Self { name, rules, part_of: None, made_of: None, subjects: Vec::new() }
    }

    fn part_of(self, role: &'static str) -> Self {
        Self { part_of: Some(role), ..self }
    }

    fn made_of(self, role: &'static str) -> Self {
        Self { made_of: Some(role), ..self }
    }

    fn user(mut self, name: &'static str) -> Self {
        self.subjects.push(("User", name));
        self
    }

    fn group(mut self, name: &'static str) -> Self {
        self.subjects.push(("Group", name));
        self
    }
}

/// The label that lets an aggregated role take up others.
fn label(role: &str) -> String {
    format!("{GROUP}/aggregate-to-{role}")
}

fn all() -> Vec<Default> {
    let mut all = people::roles();
    all.extend(product::roles());
    all
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {BOOTSTRAPPING.0: BOOTSTRAPPING.1},
        "annotations": {AUTO_UPDATE: "true"},
    })
}

/// The default ClusterRoles, as objects. Aggregated ones already have the rules of their parts.
pub fn cluster_roles() -> Vec<Value> {
    let all = all();
    let objects = all.iter().map(|role| {
        let mut object = json!({"metadata": metadata(role.name), "rules": rules_with_parts(&all, role)});
        if let Some(aggregate) = role.part_of {
            object["metadata"]["labels"][label(aggregate)] = "true".into();
        }
        if let Some(aggregate) = role.made_of {
            let selector = json!({"matchLabels": {label(aggregate): "true"}});
            object["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
        }
        object
    });
    objects.collect()
}

fn rules_with_parts(all: &[Default], role: &Default) -> Vec<Rule> {
    let Some(aggregate) = role.made_of else { return role.rules.clone() };
    let mut rules = Vec::new();
    for part in all.iter().filter(|part| part.part_of == Some(aggregate)) {
        for rule in rules_with_parts(all, part) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    rules
}

/// The default ClusterRoleBindings, as objects; each has its role's name.
pub fn cluster_role_bindings() -> Vec<Value> {
    let bound = all().into_iter().filter(|role| !role.subjects.is_empty());
    let objects = bound.map(|role| {
        let subjects: Vec<Value> = role
            .subjects
            .iter()
            .map(|(kind, name)| json!({"kind": kind, "apiGroup": GROUP, "name": name}))
            .collect();
        json!({
            "metadata": metadata(role.name),
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role.name},
            "subjects": subjects,
        })
    });
    objects.collect()
}

/// The default Roles: their namespace and the object.
pub fn roles() -> Vec<(&'static str, Value)> {
    let reader = Rule::of("", &["configmaps"], &READ).named(&["extension-apiserver-authentication"]);
    let name = "extension-apiserver-authentication-reader";
    vec![("kube-system", json!({"metadata": metadata(name), "rules": [reader]}))]
}

#[cfg(test)]
mod tests;
