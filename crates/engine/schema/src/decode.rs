//! From what a client sent to what is kept: types are checked, unknown fields are noticed and dropped.

use std::fmt;

use serde_json::{Map, Value};

use crate::catalog::ResourceType;
use crate::fault::{Faults, FieldFault};
use crate::parse::Parsed;
use crate::path::Path;
use crate::schema::{Schema, Shape, find_field};
use crate::table;

/// Unknown and duplicate fields listed at most, as upstream does.
const STRICT_FAULTS_MAX: usize = 10;

/// What to do about unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and warn the client.
    #[default]
    Warn,
    /// Refuse the object.
    Strict,
}

impl FieldValidation {
    /// Reads the `fieldValidation` option; an empty text is the default.
    #[must_use]
    pub fn parse(text: &str) -> Option<FieldValidation> {
        match text {
            "" | "Warn" => Some(FieldValidation::Warn),
            "Ignore" => Some(FieldValidation::Ignore),
            "Strict" => Some(FieldValidation::Strict),
            _ => None,
        }
    }
}

/// An object that has been read.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object, without unknown fields.
    pub object: Value,
    /// What the client should be warned of.
    pub warnings: Vec<String>,
}

/// Why an object could not be read; a `BadRequest`, whose message is the text of this error.
#[derive(Debug, Clone, PartialEq)]
pub enum DecodeError {
    /// Fields that are unknown or were given twice, and the client asked to be told.
    Strict(Vec<String>),
    /// Values of the wrong JSON type.
    Types {
        /// The kind that was expected.
        kind: String,
        /// Its version.
        version: String,
        /// Where which type was expected.
        faults: Vec<FieldFault>,
    },
}

impl std::error::Error for DecodeError {}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Strict(faults) => write!(f, "strict decoding error: {}", faults.join(", ")),
            DecodeError::Types { kind, version, faults } => {
                write!(f, "{kind} in version \"{version}\" cannot be handled as a {kind}: ")?;
                let texts: Vec<_> =
                    faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect();
                f.write_str(&texts.join(", "))
            }
        }
    }
}

impl ResourceType {
    /// Reads an object of this type: checks JSON types, drops unknown fields.
    ///
    /// Custom resources are only pruned here; their types are checked with the rest of their schema by
    /// `validate_create`, as upstream does.
    ///
    /// # Errors
    /// When values have the wrong type; with `Strict` also when fields are unknown or duplicated.
    pub fn decode(
        &self,
        input: impl Into<Parsed>,
        validation: FieldValidation,
    ) -> Result<Decoded, DecodeError> {
        let Parsed { value: mut object, duplicates } = input.into();
        let mut walk = Walk { unknown: Vec::new(), faults: Faults::default(), custom: self.is_custom() };
        walk.value(&Path::Root, &self.schema, &mut object);
        if !walk.faults.is_empty() {
            return Err(DecodeError::Types {
                kind: self.kind.clone(),
                version: self.version.clone(),
                faults: walk.faults.into_vec(),
            });
        }
        let duplicates = duplicates.iter().map(|path| format!("duplicate field \"{path}\""));
        let unknown = walk.unknown.iter().map(|path| format!("unknown field \"{path}\""));
        let mut faults: Vec<String> = duplicates.chain(unknown).collect();
        faults.truncate(STRICT_FAULTS_MAX);
        match validation {
            FieldValidation::Strict if !faults.is_empty() => Err(DecodeError::Strict(faults)),
            FieldValidation::Ignore => Ok(Decoded { object, warnings: Vec::new() }),
            _ => Ok(Decoded { object, warnings: faults }),
        }
    }
}

/// Reads an object of a kind that is in the type table without being a resource, such as `DeleteOptions` or `Scale`.
///
/// # Errors
/// As [`ResourceType::decode`].
pub fn decode_kind(
    (group, version, kind): (&str, &str, &str),
    input: impl Into<Parsed>,
    validation: FieldValidation,
) -> Option<Result<Decoded, DecodeError>> {
    let schema = Schema::of(Shape::Definition(table::find_kind(group, version, kind)?));
    let of = ResourceType::of_kind(group, version, kind, schema);
    Some(of.decode(input, validation))
}

struct Walk {
    unknown: Vec<String>,
    faults: Faults,
    custom: bool,
}

impl Walk {
    fn value(&mut self, path: &Path<'_>, schema: &Schema, value: &mut Value) {
        // Inside a custom resource, metadata is of a built-in type and read as such.
        let custom = self.custom;
        self.custom &= !matches!(schema.shape, Shape::Definition(_));
        self.value_of(path, schema, value);
        self.custom = custom;
    }

    fn value_of(&mut self, path: &Path<'_>, schema: &Schema, value: &mut Value) {
        let resolved = schema.resolve();
        match (&resolved.shape, &mut *value) {
            (Shape::Object(fields), Value::Object(map)) => self.object(path, (schema, fields), map),
            (Shape::Map(of), Value::Object(map)) => {
                for (key, value) in map.iter_mut() {
                    self.entry(&path.field(key), of, value);
                }
            }
            (Shape::List(of), Value::Array(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.entry(&path.index(index), of, item);
                }
            }
            _ if self.custom => {}
            (shape, value) => self.scalar(path, shape, value),
        }
    }

    /// A null inside a list or map reads as the empty value of its type.
    fn entry(&mut self, path: &Path<'_>, schema: &Schema, value: &mut Value) {
        if value.is_null() && !self.custom {
            match &schema.resolve().shape {
                Shape::String => *value = Value::from(""),
                Shape::Object(_) | Shape::Map(_) => *value = Value::Object(Map::new()),
                _ => {}
            }
        }
        self.value(path, schema, value);
    }

    fn object(
        &mut self,
        path: &Path<'_>,
        (schema, fields): (&Schema, &[crate::schema::Field]),
        map: &mut Map<String, Value>,
    ) {
        map.retain(|name, value| {
            let path = path.field(name);
            let Some(field) = find_field(fields, name) else {
                if !schema.preserve_unknown {
                    self.unknown.push(path.to_string());
                }
                return schema.preserve_unknown;
            };
            // Built-in kinds read null as absent; for custom ones defaulting decides.
            if !self.custom && value.is_null() && !matches!(field.schema.shape, Shape::Any) {
                return false;
            }
            self.value(&path, &field.schema, value);
            true
        });
    }

    fn scalar(&mut self, path: &Path<'_>, shape: &Shape, value: &Value) {
        let fits = match shape {
            Shape::Any => true,
            Shape::AnyObject | Shape::Object(_) | Shape::Map(_) => value.is_object(),
            Shape::List(_) => value.is_array(),
            Shape::String => value.is_string(),
            Shape::Bytes => return self.bytes(path, value),
            Shape::Time | Shape::MicroTime => return self.time(path, value),
            Shape::Quantity => return self.quantity(path, value),
            Shape::IntOrString => value.is_string() || is_int32(value),
            Shape::Int32 => is_int32(value),
            Shape::Int64 => value.is_i64(),
            Shape::Number => value.is_number(),
            Shape::Bool => value.is_boolean(),
            Shape::Definition(_) => true,
        };
        if !fits {
            self.wrong(path, shape, value);
        }
    }

    fn wrong(&mut self, path: &Path<'_>, shape: &Shape, value: &Value) {
        let message = format!("expected {}, got {}", shape_name(shape), value_name(value));
        self.faults.type_invalid(path, value.clone(), message);
    }

    fn bytes(&mut self, path: &Path<'_>, value: &Value) {
        use base64::Engine as _;
        let Some(text) = value.as_str() else { return self.wrong(path, &Shape::Bytes, value) };
        if base64::engine::general_purpose::STANDARD.decode(text.as_bytes()).is_err() {
            self.faults.type_invalid(path, text, "illegal base64 data");
        }
    }

    fn time(&mut self, path: &Path<'_>, value: &Value) {
        let Some(text) = value.as_str() else { return self.wrong(path, &Shape::Time, value) };
        if !text.is_empty() && text.parse::<jiff::Timestamp>().is_err() {
            self.faults.type_invalid(path, text, format!("\"{text}\" is not an RFC 3339 time"));
        }
    }

    fn quantity(&mut self, path: &Path<'_>, value: &Value) {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return self.wrong(path, &Shape::Quantity, value),
        };
        if crate::quantity::Quantity::parse(&text).is_none() {
            self.faults.type_invalid(
                path,
                value.clone(),
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            );
        }
    }
}

fn is_int32(value: &Value) -> bool {
    value.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

pub(crate) fn shape_name(shape: &Shape) -> &'static str {
    match shape {
        Shape::Any | Shape::Definition(_) => "any value",
        Shape::AnyObject | Shape::Object(_) | Shape::Map(_) => "object",
        Shape::List(_) => "array",
        Shape::String => "string",
        Shape::Bytes => "base64 string",
        Shape::Time | Shape::MicroTime => "RFC 3339 time",
        Shape::Quantity => "quantity",
        Shape::IntOrString => "integer or string",
        Shape::Int32 => "32-bit integer",
        Shape::Int64 => "integer",
        Shape::Number => "number",
        Shape::Bool => "boolean",
    }
}

pub(crate) fn value_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
