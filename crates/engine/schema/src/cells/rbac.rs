//! Cells of bindings.

use jiff::Timestamp;
use serde_json::Value;

use super::{age_cell, items, text};

/// The group of roles and bindings.
pub(super) const GROUP: &str = "rbac.authorization.k8s.io";
/// Columns of bindings beside the name.
pub(super) const BINDING_COLUMNS: &[&str] = &["Role", "Age", "*Users", "*Groups", "*ServiceAccounts"];

/// Role, Age, Users, Groups, ServiceAccounts.
pub(super) fn binding(binding: &Value, now: Timestamp) -> Vec<Value> {
    let role = &binding["roleRef"];
    let named = |kind: &str| {
        let of_kind = items(binding, "subjects").filter(|subject| text(subject, "kind") == kind);
        let names: Vec<String> = of_kind
            .map(|subject| match text(subject, "namespace") {
                "" => text(subject, "name").to_owned(),
                namespace => format!("{namespace}/{}", text(subject, "name")),
            })
            .collect();
        Value::from(names.join(", "))
    };
    vec![
        format!("{}/{}", text(role, "kind"), text(role, "name")).into(),
        age_cell(binding, now),
        named("User"),
        named("Group"),
        named("ServiceAccount"),
    ]
}
