//! Label selectors.

use ambit_api::meta::{LabelSelector, LabelSelectorRequirement};
use std::collections::BTreeMap;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Whether the selector takes an object with these labels. An empty selector takes everything; a requirement that
/// does not parse takes nothing, so that a bad selector never claims objects of others.
pub fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let equal = selector.match_labels.as_ref().is_none_or(|wanted| matches_all(wanted, labels));
    equal && selector.match_expressions.iter().flatten().all(|requirement| holds(requirement, labels))
}

/// Whether each wanted label is there with its value.
pub fn matches_all(wanted: &Labels, labels: Option<&Labels>) -> bool {
    wanted.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// Whether the selector has no requirement at all.
pub fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn holds(requirement: &LabelSelectorRequirement, labels: Option<&Labels>) -> bool {
    let value = labels.and_then(|labels| labels.get(&requirement.key));
    let listed = || requirement.values.iter().flatten().any(|wanted| Some(wanted) == value);
    match requirement.operator.as_str() {
        "In" => listed(),
        // An absent label is not in any set. Source: API reference of LabelSelectorRequirement.
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(selector: &str, labels: &str, expected: bool) {
        let selector: LabelSelector = serde_json::from_str(selector).expect("a selector");
        let labels: Labels = serde_json::from_str(labels).expect("labels");
        assert_eq!(matches(&selector, Some(&labels)), expected);
    }

    #[test]
    fn selectors_take_what_the_api_reference_says() {
        check("{}", r#"{"a":"1"}"#, true);
        check(r#"{"matchLabels":{"a":"1"}}"#, r#"{"a":"1","b":"2"}"#, true);
        check(r#"{"matchLabels":{"a":"1","b":"1"}}"#, r#"{"a":"1","b":"2"}"#, false);
        check(
            r#"{"matchExpressions":[{"key":"a","operator":"In","values":["1","2"]}]}"#,
            r#"{"a":"2"}"#,
            true,
        );
        check(r#"{"matchExpressions":[{"key":"a","operator":"NotIn","values":["1"]}]}"#, "{}", true);
        check(
            r#"{"matchExpressions":[{"key":"a","operator":"NotIn","values":["1"]}]}"#,
            r#"{"a":"1"}"#,
            false,
        );
        check(r#"{"matchExpressions":[{"key":"a","operator":"Exists"}]}"#, "{}", false);
        check(r#"{"matchExpressions":[{"key":"a","operator":"DoesNotExist"}]}"#, "{}", true);
        check(
            r#"{"matchExpressions":[{"key":"a","operator":"Near","values":["1"]}]}"#,
            r#"{"a":"1"}"#,
            false,
        );
    }
}
