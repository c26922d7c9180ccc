//! Cluster roles that take up the rules of others.
//! Source of behaviour: upstream pkg/controller/clusterroleaggregation.

use crate::selector;
use ambit_api::rbac::v1::{ClusterRole, PolicyRule};

/// The rules that `role` should have, if it has others: those of all roles that its selectors take, each once, in the
/// order of selectors and then of names. Roles that take up nothing keep what they have.
pub fn plan<'a>(
    role: &ClusterRole,
    all: impl IntoIterator<Item = &'a ClusterRole, IntoIter: Clone>,
) -> Option<Vec<PolicyRule>> {
    let selectors = role.aggregation_rule.as_ref()?.cluster_role_selectors.as_ref()?;
    let all = all.into_iter();
    let mut rules: Vec<PolicyRule> = Vec::new();
    for wanted in selectors {
        let mut parts: Vec<&ClusterRole> = all
            .clone()
            .filter(|part| part.metadata.name != role.metadata.name)
            .filter(|part| selector::matches(wanted, part.metadata.labels.as_ref()))
            .collect();
        parts.sort_by_key(|part| &part.metadata.name);
        for rule in parts.into_iter().flat_map(|part| part.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    (rules != role.rules.clone().unwrap_or_default()).then_some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn role(name: &str, label: &str, verbs: &[&str]) -> ClusterRole {
        let rules: Vec<_> = verbs.iter().map(|verb| json!({"verbs": [verb], "resources": ["x"]})).collect();
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": rules}))
            .unwrap()
    }

    fn aggregate(labels: &[&str], verbs: &[&str]) -> ClusterRole {
        let selectors: Vec<_> = labels.iter().map(|label| json!({"matchLabels": {*label: "true"}})).collect();
        let mut made = role("all", "to-all", verbs);
        made.aggregation_rule =
            Some(serde_json::from_value(json!({"clusterRoleSelectors": selectors})).unwrap());
        made
    }

    #[track_caller]
    fn check(role: &ClusterRole, parts: &[ClusterRole], expected: Option<&[&str]>) {
        let verbs =
            plan(role, parts).map(|rules| rules.into_iter().map(|r| r.verbs.concat()).collect::<Vec<_>>());
        assert_eq!(
            verbs.as_deref(),
            expected.map(|verbs| verbs.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>()).as_deref()
        );
    }

    #[test]
    fn rules_of_the_parts_are_taken_up_once() {
        let parts = [role("b", "to-all", &["get", "list"]), role("a", "to-all", &["watch", "get"])];
        check(&aggregate(&["to-all"], &[]), &parts, Some(&["watch", "get", "list"]));
        check(&aggregate(&["to-all"], &["watch", "get", "list"]), &parts, None);
        check(&aggregate(&["to-all", "other"], &["old"]), &[role("c", "other", &["x"])], Some(&["x"]));
        check(&aggregate(&["none"], &["old"]), &parts, Some(&[]));
        check(&role("plain", "to-all", &["get"]), &parts, None);
        // It never takes up itself.
        let own = aggregate(&["to-all"], &["get"]);
        check(&own, std::slice::from_ref(&own), Some(&[]));
    }
}
