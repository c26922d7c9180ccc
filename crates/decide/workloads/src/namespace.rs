//! Namespace life-cycle: what is in it goes first, then the namespace itself.
//! Source of behaviour: upstream pkg/controller/namespace/deletion.

use ambit_api::core::v1::{Namespace, NamespaceCondition, NamespaceSpec};
use ambit_api::meta::Time;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// The finalizer in `spec.finalizers` that holds a namespace until it is empty.
pub const FINALIZER: &str = "kubernetes";

/// What to do for a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It stays, or others hold it: nothing.
    Leave,
    /// Delete what is in it, then report with [`conditions`], then go on with [`finalized`] if nothing is left.
    Empty,
}

/// Decides for one namespace.
pub fn plan(namespace: &Namespace) -> Step {
    let held = finalizers(namespace).any(|finalizer| finalizer == FINALIZER);
    if namespace.metadata.deletion_timestamp.is_some() && held { Step::Empty } else { Step::Leave }
}

fn finalizers(namespace: &Namespace) -> impl Iterator<Item = &String> {
    namespace.spec.iter().flat_map(|spec| spec.finalizers.iter().flatten())
}

/// What was found when emptying a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Objects left by resource, such as `pods.` or `deployments.apps`.
    pub objects: BTreeMap<String, usize>,
    /// Objects left by a finalizer they carry.
    pub finalizers: BTreeMap<String, usize>,
    /// Why the kinds of the server could not be listed in full.
    pub discovery_failure: Option<String>,
    /// What could not be deleted, and why.
    pub failures: Vec<String>,
}

impl Contents {
    /// Whether the namespace is known to be empty.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty() && self.discovery_failure.is_none()
    }
}

/// The namespace without our finalizer, for its `finalize` subresource.
pub fn finalized(namespace: &Namespace) -> Namespace {
    let finalizers = finalizers(namespace).filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
    Namespace { spec: Some(NamespaceSpec { finalizers: Some(finalizers) }), ..namespace.clone() }
}

/// The five conditions of a namespace that is going. Those that did not change keep their time.
pub fn conditions(namespace: &Namespace, found: &Contents, now: Timestamp) -> Vec<NamespaceCondition> {
    let known = namespace.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let mut conditions = known.clone();
    for mut condition in described(found) {
        let before = known.iter().find(|before| before.type_ == condition.type_);
        condition.last_transition_time = match before {
            Some(before) if before.status == condition.status => before.last_transition_time.clone(),
            _ => Some(Time(now)),
        };
        conditions.retain(|other| other.type_ != condition.type_);
        conditions.push(condition);
    }
    conditions
}

fn described(found: &Contents) -> [NamespaceCondition; 5] {
    let failures = (!found.failures.is_empty()).then(|| {
        let left: usize = found.objects.values().sum();
        format!("Failed to delete all resource types, {left} remaining: {}", found.failures.join(", "))
    });
    let remaining = listed(&found.objects, |name, count| format!("{name} has {count} resource instances"))
        .map(|list| format!("Some resources are remaining: {list}"));
    let held = listed(&found.finalizers, |name, count| format!("{name} in {count} resource instances"))
        .map(|list| format!("Some content in the namespace has finalizers remaining: {list}"));
    [
        condition(
            "NamespaceDeletionDiscoveryFailure",
            found.discovery_failure.clone().map(|message| ("DiscoveryFailed", message)),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        condition(
            "NamespaceDeletionContentFailure",
            failures.map(|message| ("ContentDeletionFailed", message)),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        condition(
            "NamespaceContentRemaining",
            remaining.map(|message| ("SomeResourcesRemain", message)),
            ("ContentRemoved", "All content successfully removed"),
        ),
        condition(
            "NamespaceFinalizersRemaining",
            held.map(|message| ("SomeFinalizersRemain", message)),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ]
}

fn listed(counts: &BTreeMap<String, usize>, show: impl Fn(&str, usize) -> String) -> Option<String> {
    let list: Vec<String> = counts.iter().map(|(name, count)| show(name, *count)).collect();
    (!list.is_empty()).then(|| list.join(", "))
}

/// A condition that is true with the reason and message of `problem`, else false with those of `fine`.
fn condition(kind: &str, problem: Option<(&str, String)>, fine: (&str, &str)) -> NamespaceCondition {
    let status = if problem.is_some() { "True" } else { "False" };
    let (reason, message) = problem.unwrap_or((fine.0, fine.1.to_owned()));
    NamespaceCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn namespace(value: serde_json::Value) -> Namespace {
        serde_json::from_value(value).expect("a namespace")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn only_a_deleted_namespace_that_we_hold_is_emptied() {
        let gone = "2026-01-01T00:00:00Z";
        let of = |meta, finalizers| namespace(json!({"metadata": meta, "spec": {"finalizers": finalizers}}));
        assert_eq!(plan(&of(json!({}), json!(["kubernetes"]))), Step::Leave);
        assert_eq!(plan(&of(json!({"deletionTimestamp": gone}), json!(["kubernetes"]))), Step::Empty);
        assert_eq!(plan(&of(json!({"deletionTimestamp": gone}), json!(["other/one"]))), Step::Leave);
    }

    #[test]
    fn finalizers_of_others_stay() {
        let namespace =
            namespace(json!({"metadata": {}, "spec": {"finalizers": ["kubernetes", "other/one"]}}));
        assert_eq!(finalized(&namespace).spec.unwrap().finalizers.unwrap(), ["other/one"]);
    }

    #[test]
    fn conditions_say_what_is_left_and_keep_their_times() {
        let mut found = Contents::default();
        assert!(found.is_empty());
        found.objects.insert("pods.".to_owned(), 2);
        found.finalizers.insert("a/b".to_owned(), 1);
        assert!(!found.is_empty());
        let mut namespace = namespace(json!({"metadata": {}}));
        let first = conditions(&namespace, &found, at(10));
        let show = |conditions: &[NamespaceCondition]| -> Vec<String> {
            let line = |c: &NamespaceCondition| {
                format!("{}={} {}", c.type_, c.status, c.message.as_deref().unwrap())
            };
            conditions.iter().map(line).collect()
        };
        assert_eq!(
            show(&first)[3..],
            [
                "NamespaceContentRemaining=True Some resources are remaining: pods. has 2 resource instances",
                "NamespaceFinalizersRemaining=True Some content in the namespace has finalizers remaining: a/b in 1 \
             resource instances",
            ]
        );
        namespace.status.get_or_insert_default().conditions = Some(first);
        let second = conditions(&namespace, &Contents::default(), at(20));
        let times: Vec<i64> =
            second.iter().map(|c| c.last_transition_time.as_ref().unwrap().0.as_second()).collect();
        assert_eq!(times, [10, 10, 10, 20, 20]);
    }
}
