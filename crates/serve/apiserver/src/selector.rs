//! Label and field selectors: reading and matching them.

use crate::object::Object;
use crate::status::{Answer, Failure};
use ambit_schema::ResourceType;
use ambit_store::Key;
use serde_json::Value;

/// Requirements a selector may have: more is refused rather than matched slowly.
const REQUIREMENTS_MAX: usize = 200;

/// Which objects a list or watch is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelRequirement {
    label: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    /// `x>n` (true) or `x<n`.
    Compare(bool, i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    path: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Reads the two selector parameters.
    pub(crate) fn parse(kind: &ResourceType, labels: Option<&str>, fields: Option<&str>) -> Answer<Self> {
        let selector = Self {
            labels: parse_labels(labels.unwrap_or_default()).map_err(|e| {
                Failure::bad_request(format!(
                    "unable to parse label selector {:?}: {e}",
                    labels.unwrap_or_default()
                ))
            })?,
            fields: parse_fields(fields.unwrap_or_default()).map_err(Failure::bad_request)?,
        };
        if selector.labels.len() + selector.fields.len() > REQUIREMENTS_MAX {
            return Err(Failure::bad_request(format!(
                "a selector has at most {REQUIREMENTS_MAX} requirements"
            )));
        }
        for field in &selector.fields {
            if !matches!(&*field.path, "metadata.name" | "metadata.namespace") {
                // The absence of a field reads as an empty one: only the path decides.
                kind.field_for_selector(&Value::Object(serde_json::Map::new()), &field.path).ok_or_else(|| {
                    Failure::bad_request(format!(
                        "Unable to find {:?} that match label selector \"\", field selector {:?}: field label not supported: {}",
                        kind.group_resource(), fields.unwrap_or_default(), field.path
                    ))
                })?;
            }
        }
        Ok(selector)
    }

    /// Whether every object matches.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The name the selector demands, if it does.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.iter().find(|f| f.path == "metadata.name" && f.equal).map(|f| f.value.as_str())
    }

    /// Whether an object matches; `value` gives its fields when they are needed.
    pub(crate) fn matches<'a>(
        &self,
        kind: &ResourceType,
        key: &Key,
        object: &'a Object,
        value: impl FnOnce() -> std::borrow::Cow<'a, Value>,
    ) -> bool {
        if !self.labels.iter().all(|requirement| requirement.matches(object.labels())) {
            return false;
        }
        let (named, other): (Vec<_>, Vec<_>) =
            self.fields.iter().partition(|f| matches!(&*f.path, "metadata.name" | "metadata.namespace"));
        let found = |f: &FieldRequirement| if f.path == "metadata.name" { &key.name } else { &key.namespace };
        if !named.iter().all(|f| (**found(f) == *f.value) == f.equal) {
            return false;
        }
        if other.is_empty() {
            return true;
        }
        let value = value();
        other.iter().all(|f| {
            let found = kind.field_for_selector(&value, &f.path).unwrap_or_default();
            (found == f.value) == f.equal
        })
    }
}

impl LabelRequirement {
    fn matches(&self, labels: &[(Box<str>, Box<str>)]) -> bool {
        let found = labels.iter().find(|(label, _)| **label == *self.label).map(|(_, value)| &**value);
        match (&self.test, found) {
            (Test::In(values), Some(found)) => values.iter().any(|value| value == found),
            (Test::NotIn(values), Some(found)) => !values.iter().any(|value| value == found),
            (Test::NotIn(_), None) | (Test::Exists, Some(_)) | (Test::Absent, None) => true,
            (Test::Compare(greater, than), Some(found)) => {
                found.parse::<i64>().is_ok_and(|found| if *greater { found > *than } else { found < *than })
            }
            (Test::In(_) | Test::Exists | Test::Compare(..), None) | (Test::Absent, Some(_)) => false,
        }
    }
}

/// Splits at commas that are not inside parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split(text).into_iter().map(|part| parse_label(part.trim())).collect()
}

fn parse_label(text: &str) -> Result<LabelRequirement, String> {
    let (label, test) = if let Some(absent) = text.strip_prefix('!') {
        (absent.trim(), Test::Absent)
    } else if let Some((label, set)) = set(text, " notin") {
        (label, Test::NotIn(parse_set(set)?))
    } else if let Some((label, set)) = set(text, " in") {
        (label, Test::In(parse_set(set)?))
    } else if let Some((label, value)) = text.split_once("!=") {
        (label.trim(), Test::NotIn(vec![label_value(value)?]))
    } else if let Some((label, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (label.trim(), Test::In(vec![label_value(value)?]))
    } else if let Some((label, number)) = text.split_once(['>', '<']) {
        let number = number.trim().parse().map_err(|_| format!("{number:?} is not a number"))?;
        (label.trim(), Test::Compare(text.contains('>'), number))
    } else {
        (text, Test::Exists)
    };
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if label.is_empty() || !label.chars().all(legal) {
        return Err(format!("{label:?} is not a label"));
    }
    Ok(LabelRequirement { label: label.to_owned(), test })
}

fn set<'a>(text: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let open = text.find('(')?;
    Some((text[..open].trim_end().strip_suffix(word)?.trim(), &text[open..]))
}

fn parse_set(text: &str) -> Result<Vec<String>, String> {
    let inner = text.trim().strip_prefix('(').and_then(|t| t.strip_suffix(')'));
    inner
        .ok_or_else(|| format!("{text:?} is not a set in parentheses"))?
        .split(',')
        .map(label_value)
        .collect()
}

fn label_value(text: &str) -> Result<String, String> {
    let text = text.trim();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() > 63 || !text.chars().all(legal) {
        return Err(format!("{text:?} is not a label value"));
    }
    Ok(text.to_owned())
}

fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, String> {
    text.split(',').filter(|part| !part.is_empty()).map(parse_field).collect()
}

fn parse_field(text: &str) -> Result<FieldRequirement, String> {
    let (path, value, equal) = if let Some((path, value)) = text.split_once("!=") {
        (path, value, false)
    } else if let Some((path, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (path, value, true)
    } else {
        return Err(format!("invalid field selector {text:?}: it is not path=value or path!=value"));
    };
    Ok(FieldRequirement { path: path.trim().to_owned(), value: value.trim().to_owned(), equal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(selector: &str, labels: &[(&str, &str)], expected: bool) {
        let labels: Vec<_> = labels.iter().map(|(k, v)| (Box::from(*k), Box::from(*v))).collect();
        let requirements = parse_labels(selector).expect(selector);
        assert_eq!(requirements.iter().all(|r| r.matches(&labels)), expected, "{selector}");
    }

    #[test]
    fn label_selectors_match_as_kubectl_writes_them() {
        let web = &[("app", "web"), ("tier", "front")];
        check("", web, true);
        check("app=web", web, true);
        check("app==web,tier=front", web, true);
        check("app=web,tier=back", web, false);
        check("app!=web", web, false);
        check("app!=web", &[], true);
        check("app in (web, db)", web, true);
        check("app notin (web,db)", web, false);
        check("app notin (web,db),tier", &[("tier", "x")], true);
        check("app", web, true);
        check("!app", web, false);
        check("!other", web, true);
        check("n>3", &[("n", "4")], true);
        check("n<3", &[("n", "4")], false);
    }

    #[test]
    fn malformed_selectors_are_refused() {
        for bad in ["=", "a b", "app in web", "app in (we b)", "a=b=c", ",", "n>x", "a=(b)"] {
            assert!(parse_labels(bad).is_err(), "{bad}");
        }
        assert!(parse_fields("spec.nodeName").is_err());
    }
}
