//! The form in which field sets are stored: `FieldsV1`. Source: structured-merge-diff `fieldpath/serialize.go` and
//! `serialize-pe.go`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::element::PathElement;
use super::error::ManagersError;
use super::set::{FieldSet, Node};

/// The entry that says that the field around it is owned itself.
const SELF: &str = ".";

impl FieldSet {
    /// Reads the `fieldsV1` of an entry. Steps of kinds that it does not know are dropped, as upstream does.
    ///
    /// # Errors
    /// When it is no object of objects, or a step is malformed.
    pub fn from_fields_v1(fields: &Value) -> Result<FieldSet, ManagersError> {
        read(fields).map(|node| node.children)
    }

    /// Writes the `fieldsV1` of an entry.
    #[must_use]
    pub fn to_fields_v1(&self) -> Value {
        Value::Object(write(self, false))
    }
}

fn read(fields: &Value) -> Result<Node, ManagersError> {
    let Value::Object(fields) = fields else {
        return Err(ManagersError::FieldsV1 {
            step: fields.to_string(),
            what: "it must be an object".to_owned(),
        });
    };
    let mut node = Node::default();
    for (step, inner) in fields {
        if step == SELF {
            node.member = true;
        } else if let Some(element) = read_element(step)? {
            node.children.put(element, read(inner)?);
        }
    }
    node.member |= node.children.is_empty();
    Ok(node)
}

fn read_element(step: &str) -> Result<Option<PathElement>, ManagersError> {
    let fault = |what: String| ManagersError::FieldsV1 { step: step.to_owned(), what };
    let (kind, content) = step.split_once(':').ok_or_else(|| fault("it has no colon".to_owned()))?;
    let element = match kind {
        "f" => PathElement::Field(content.to_owned()),
        "v" => PathElement::Value(serde_json::from_str(content).map_err(|error| fault(error.to_string()))?),
        "k" => {
            let fields: BTreeMap<_, _> =
                serde_json::from_str(content).map_err(|error| fault(error.to_string()))?;
            PathElement::Key(fields)
        }
        "i" => PathElement::Index(content.parse().map_err(|_| fault("it is no whole number".to_owned()))?),
        _ if kind.len() == 1 => return Ok(None),
        _ => return Err(fault("the colon is not its second character".to_owned())),
    };
    Ok(Some(element))
}

fn write(set: &FieldSet, is_member: bool) -> Map<String, Value> {
    let mut out = Map::new();
    if is_member && !set.is_empty() {
        out.insert(SELF.to_owned(), Value::Object(Map::new()));
    }
    for (element, node) in set.nodes() {
        out.insert(write_element(element), Value::Object(write(&node.children, node.member)));
    }
    out
}

fn write_element(element: &PathElement) -> String {
    match element {
        PathElement::Field(name) => format!("f:{name}"),
        PathElement::Key(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{}:{}", quote(name), write_json(value))).collect();
            format!("k:{{{}}}", fields.join(","))
        }
        PathElement::Value(value) => format!("v:{}", write_json(value)),
        PathElement::Index(index) => format!("i:{index}"),
    }
}

fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

/// JSON as Go writes it, where these characters, which stand in strings only, are escaped.
fn write_json(value: &Value) -> String {
    let mut text = value.to_string();
    for (character, escape) in [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ] {
        if text.contains(character) {
            text = text.replace(character, escape);
        }
    }
    text
}
