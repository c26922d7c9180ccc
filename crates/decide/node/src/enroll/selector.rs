//! Which pods are to be captured by the labels of the pod and its namespace, where an operator says so in place of the
//! usual labels (`enablement_selectors` of the field's agent).

use ambit_api::meta::{LabelSelector, LabelSelectorRequirement};
use serde_json::Value;
use std::collections::BTreeMap;

/// Pairs of selectors, of which one must take both the pod and its namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct Selectors {
    pairs: Vec<Pair>,
}

#[derive(Debug, Clone, PartialEq)]
struct Pair {
    pod: LabelSelector,
    namespace: LabelSelector,
}

/// Whether a pod is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selected {
    /// It is.
    Yes,
    /// It is not, whatever its namespace says.
    No,
    /// That depends on its namespace, which is not known.
    Unknown,
}

type Labels = BTreeMap<String, String>;

impl Selectors {
    /// Reads a list of `{podSelector, namespaceSelector}`. A selector that is left out or empty takes everything.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(list: &Value) -> Result<Self, String> {
        let entries = list.as_array().ok_or("the enablement selectors are not a list")?;
        let pairs = entries.iter().enumerate().map(|(index, entry)| {
            let fields = entry.as_object().ok_or(format!("[{index}] is not an object"))?;
            let other =
                fields.keys().find(|key| !matches!(key.as_str(), "podSelector" | "namespaceSelector"));
            if let Some(other) = other {
                return Err(format!("[{index}].{other}: use podSelector and namespaceSelector"));
            }
            let read =
                |field: &str| selector(fields.get(field)).map_err(|e| format!("[{index}].{field}: {e}"));
            Ok(Pair { pod: read("podSelector")?, namespace: read("namespaceSelector")? })
        });
        Ok(Self { pairs: pairs.collect::<Result<_, _>>()? })
    }

    /// Whether a pod with these labels is selected. `namespace` are the labels of its namespace, if that is known.
    pub fn select(&self, pod: Option<&Labels>, namespace: Option<Option<&Labels>>) -> Selected {
        let mut selected = Selected::No;
        for pair in self.pairs.iter().filter(|pair| takes(&pair.pod, pod)) {
            match namespace {
                _ if is_empty(&pair.namespace) => return Selected::Yes,
                Some(labels) if takes(&pair.namespace, labels) => return Selected::Yes,
                Some(_) => {}
                None => selected = Selected::Unknown,
            }
        }
        selected
    }
}

fn selector(value: Option<&Value>) -> Result<LabelSelector, String> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(LabelSelector::default()) };
    let selector: LabelSelector = serde_json::from_value(value.clone()).map_err(|e| e.to_string())?;
    for requirement in selector.match_expressions.iter().flatten() {
        let has_values = requirement.values.as_ref().is_some_and(|values| !values.is_empty());
        match requirement.operator.as_str() {
            "In" | "NotIn" if has_values => {}
            "Exists" | "DoesNotExist" if !has_values => {}
            "In" | "NotIn" => {
                return Err(format!("{} names no values for {}", requirement.operator, requirement.key));
            }
            "Exists" | "DoesNotExist" => {
                return Err(format!("{} takes no values for {}", requirement.operator, requirement.key));
            }
            other => return Err(format!("operator {other:?}: use In, NotIn, Exists or DoesNotExist")),
        }
    }
    Ok(selector)
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn takes(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let value_of = |key: &str| labels.and_then(|labels| labels.get(key));
    selector.match_labels.iter().flatten().all(|(key, value)| value_of(key) == Some(value))
        && selector.match_expressions.iter().flatten().all(|r| holds(r, value_of(&r.key)))
}

/// The operators were checked when the selector was read.
fn holds(requirement: &LabelSelectorRequirement, value: Option<&String>) -> bool {
    let listed = value.is_some_and(|value| requirement.values.iter().flatten().any(|one| one == value));
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        _ => value.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn labels(of: &[(&str, &str)]) -> Labels {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[track_caller]
    fn check(list: &Value, pod: &[(&str, &str)], namespace: Option<&[(&str, &str)]>, expected: Selected) {
        let (pod, namespace) = (labels(pod), namespace.map(labels));
        let selected = Selectors::parse(list).unwrap().select(Some(&pod), namespace.as_ref().map(Some));
        assert_eq!(selected, expected, "{list} {pod:?} {namespace:?}");
    }

    #[test]
    fn the_field_s_usual_selectors_are_the_usual_labels() {
        const MODE: &str = "istio.io/dataplane-mode";
        let usual = json!([
            {"podSelector": {"matchLabels": { MODE: "ambient" }}},
            {"podSelector": {"matchExpressions": [{"key": MODE, "operator": "NotIn", "values": ["none"]}]},
             "namespaceSelector": {"matchLabels": { MODE: "ambient" }}},
        ]);
        let (plain, ambient): (&[_], &[_]) = (&[], &[(MODE, "ambient")]);
        check(&usual, plain, Some(plain), Selected::No);
        check(&usual, plain, Some(ambient), Selected::Yes);
        check(&usual, plain, None, Selected::Unknown);
        check(&usual, ambient, None, Selected::Yes);
        check(&usual, &[(MODE, "none")], Some(ambient), Selected::No);
        check(&usual, &[(MODE, "none")], None, Selected::No);
        check(&usual, &[(MODE, "sidecar")], Some(ambient), Selected::Yes);
    }

    #[test]
    fn every_operator_counts_and_an_empty_selector_takes_everything() {
        let of = |operator: &str, values: Value| json!([{"podSelector": {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}}]);
        check(&of("In", json!(["a", "b"])), &[("k", "b")], None, Selected::Yes);
        check(&of("In", json!(["a", "b"])), &[], None, Selected::No);
        check(&of("NotIn", json!(["a"])), &[], None, Selected::Yes);
        check(&of("NotIn", json!(["a"])), &[("k", "a")], None, Selected::No);
        check(&of("Exists", json!(null)), &[("k", "")], None, Selected::Yes);
        check(&of("DoesNotExist", json!([])), &[("k", "")], None, Selected::No);
        check(&of("DoesNotExist", json!([])), &[], None, Selected::Yes);
        check(&json!([{}]), &[], None, Selected::Yes);
        check(&json!([{"podSelector": {}, "namespaceSelector": {}}]), &[], None, Selected::Yes);
        check(&json!([]), &[("k", "a")], Some(&[]), Selected::No);
    }

    #[test]
    fn faults_are_named_with_their_place() {
        let fault = |list: Value| Selectors::parse(&list).unwrap_err();
        assert_eq!(fault(json!({})), "the enablement selectors are not a list");
        assert_eq!(fault(json!([{}, 1])), "[1] is not an object");
        assert_eq!(fault(json!([{"selector": {}}])), "[0].selector: use podSelector and namespaceSelector");
        let of = |operator: &str, values: Value| json!([{"namespaceSelector": {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}}]);
        let place = "[0].namespaceSelector: ";
        assert_eq!(
            fault(of("Equals", json!(["a"]))),
            format!("{place}operator \"Equals\": use In, NotIn, Exists or DoesNotExist")
        );
        assert_eq!(fault(of("In", json!([]))), format!("{place}In names no values for k"));
        assert_eq!(fault(of("Exists", json!(["a"]))), format!("{place}Exists takes no values for k"));
        assert!(fault(json!([{"podSelector": {"matchLabels": 1}}])).starts_with("[0].podSelector: "));
    }
}
