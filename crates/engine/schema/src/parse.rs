//! Reading of JSON and YAML text into values, with every duplicate key noticed.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::path::Path;

/// Depth of nesting at most; deeper input is refused before it can exhaust the stack.
const DEPTH_MAX: usize = 128;
/// Duplicate keys listed per object at most.
const DUPLICATES_MAX: usize = 10;
/// Nodes of a YAML document at most, aliases expanded: bounds what a small text can blow up to.
const YAML_NODES_MAX: usize = 400_000;

/// A value as read from text.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The value; of a duplicated key the last one counts.
    pub value: Value,
    /// Paths of keys that were given more than once.
    pub duplicates: Vec<String>,
}

impl From<Value> for Parsed {
    fn from(value: Value) -> Parsed {
        Parsed { value, duplicates: Vec::new() }
    }
}

/// Text that is not the format it claims to be.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Not JSON.
    #[error("the body is not valid JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// Not YAML.
    #[error("the body is not valid YAML: {0}")]
    Yaml(String),
}

/// Reads JSON.
///
/// # Errors
/// When the text is not one JSON value, or nests too deeply.
pub fn parse_json(text: &[u8]) -> Result<Parsed, ParseError> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let seed = Node { path: Path::Root, depth: 0, duplicates: &mut duplicates };
    let value = seed.deserialize(&mut deserializer).map_err(ParseError::Json)?;
    deserializer.end().map_err(ParseError::Json)?;
    Ok(Parsed { value, duplicates })
}

/// Reads one YAML document, with the habits of YAML 1.1 that Kubernetes has.
///
/// # Errors
/// When the text is not one YAML document, or is too large once its aliases are expanded.
pub fn parse_yaml(text: &str) -> Result<Parsed, ParseError> {
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
        legacy_octal_numbers: true,
        budget: serde_saphyr::budget! { max_nodes: YAML_NODES_MAX, max_depth: DEPTH_MAX },
    };
    let mut duplicates = Vec::new();
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        Node { path: Path::Root, depth: 0, duplicates: &mut duplicates }.deserialize(deserializer)
    })
    .map_err(|error| ParseError::Yaml(error.to_string()))?;
    Ok(Parsed { value, duplicates })
}

struct Node<'a, 'p> {
    path: Path<'p>,
    depth: usize,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.depth > DEPTH_MAX {
            return Err(D::Error::custom("nested too deeply"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a JSON number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = self.path.index(items.len());
            let seed = Node { path, depth: self.depth + 1, duplicates: self.duplicates };
            match access.next_element_seed(seed)? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let path = self.path.field(&key);
            if map.contains_key(&key) && self.duplicates.len() < DUPLICATES_MAX {
                self.duplicates.push(path.to_string());
            }
            let seed = Node { path, depth: self.depth + 1, duplicates: self.duplicates };
            let value = access.next_value_seed(seed)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
