//! Labels and annotations of objects, and what they say.

use ambit_api::istio::WorkloadSelector;
use ambit_names::label;
use std::collections::BTreeMap;

/// Labels or annotations, as objects carry them.
pub(crate) type Map = BTreeMap<String, String>;

/// What a pod carries and a selector asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Label {
    /// The namespace that an object is in.
    Namespace(String),
    /// A label with its value.
    Pair(String, String),
}

fn pairs(labels: &Map) -> impl Iterator<Item = Label> {
    labels.iter().map(|(key, value)| Label::Pair(key.clone(), value.clone()))
}

/// What an object carries that selectors can ask for.
pub(crate) fn carried(namespace: &str, labels: Option<&Map>) -> Vec<Label> {
    let namespace = Label::Namespace(namespace.to_owned());
    std::iter::once(namespace).chain(labels.into_iter().flat_map(pairs)).collect()
}

/// What a selector asks for, in one namespace or in all.
pub(crate) fn wanted(namespace: Option<&String>, selector: &Map) -> Vec<Label> {
    namespace.cloned().map(Label::Namespace).into_iter().chain(pairs(selector)).collect()
}

/// The value of `key`, if there are labels at all and it is not empty.
pub(crate) fn value<'a>(labels: Option<&'a Map>, key: &str) -> Option<&'a str> {
    labels?.get(key).map(String::as_str).filter(|value| !value.is_empty())
}

/// The labels a policy selects by. An empty selector selects the same as none: everything.
pub(crate) fn selected(selector: Option<&WorkloadSelector>) -> Option<&Map> {
    selector.map(|s| &s.match_labels).filter(|labels| !labels.is_empty())
}

/// The waypoint that an object asks for.
pub(crate) fn waypoint(labels: Option<&Map>) -> Option<&str> {
    value(labels, label::USE_WAYPOINT).filter(|name| *name != "none")
}
