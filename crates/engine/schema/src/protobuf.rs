//! Between the protobuf form of built-in kinds and the JSON value that everything else works on, driven by the numbers of
//! the type table. Source: apimachinery `pkg/runtime/serializer/protobuf`, and the `generated.proto` of each group.

mod scalar;
#[cfg(test)]
mod tests;
mod wire;
mod write;

pub use write::{encode_protobuf, encode_protobuf_event};

use serde_json::{Map, Value};

use self::wire::{Raw, Reader};
use crate::catalog::GroupVersionKind;
use crate::path::Path;
use crate::schema::{Field, Schema, Shape, WireForm, Zero};
use crate::table;

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Depth of nesting at most; deeper input is refused before it can exhaust the stack.
const DEPTH_MAX: usize = 128;
/// The definition behind the forms that are a JSON schema or something else.
const JSON_SCHEMA: &str = "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Why a protobuf body could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// Not the envelope that Kubernetes puts around objects.
    #[error("the body is not a Kubernetes object in protobuf: {0}")]
    Envelope(&'static str),
    /// The kind has no protobuf form, as custom resources have none.
    #[error("no kind {:?} in version {:?} can be read from protobuf: send application/json", .0.kind, .0.api_version())]
    Kind(GroupVersionKind),
    /// The bytes are not an object of the kind.
    #[error("the body is not a {kind} in protobuf: {}{problem}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
    Malformed {
        /// The kind that was read.
        kind: String,
        /// The field that was read, as JSON names it; empty for the object itself.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Reads an object from its protobuf form. What it does not say of its kind is taken from `expected`.
///
/// Zeros that Go's types write for absent fields are left out; unknown fields are dropped, as upstream does.
///
/// # Errors
/// When the body is no object in protobuf, or of a kind without a protobuf form.
pub fn decode_protobuf(body: &[u8], expected: &GroupVersionKind) -> Result<Value, ProtobufError> {
    let envelope = Envelope::read(body).map_err(ProtobufError::Envelope)?;
    let of = envelope.kind_or(expected);
    let unknown = || ProtobufError::Kind(of.clone());
    let id = table::find_kind(&of.group, &of.version, &of.kind).ok_or_else(unknown)?;
    let Shape::Object(fields) = &table::definition(id).shape else { return Err(unknown()) };
    let mut object = Map::new();
    message(At { path: &Path::Root, depth: 0 }, (fields, &[]), envelope.raw, &mut object).map_err(
        |fault| ProtobufError::Malformed { kind: of.kind.clone(), path: fault.path, problem: fault.problem },
    )?;
    object.insert("apiVersion".to_owned(), of.api_version().into());
    object.insert("kind".to_owned(), of.kind.into());
    Ok(Value::Object(object))
}

/// The message `runtime.Unknown` around every object.
#[derive(Default)]
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn read(body: &'a [u8]) -> Result<Envelope<'a>, &'static str> {
        let unknown = body.strip_prefix(MAGIC).ok_or("it does not begin with \"k8s\\0\"")?;
        let mut envelope = Envelope::default();
        let mut reader = Reader::new(unknown);
        while let Some((number, raw)) = reader.next()? {
            match (number, raw) {
                (1, Raw::Bytes(type_meta)) => envelope.read_type(type_meta)?,
                (2, Raw::Bytes(bytes)) => envelope.raw = bytes,
                (3, Raw::Bytes(encoding)) if !encoding.is_empty() => {
                    return Err("encoded objects are not supported");
                }
                (1..=4, Raw::Varint(_) | Raw::Fixed32(_) | Raw::Fixed64(_)) => {
                    return Err("the envelope has a value of the wrong type");
                }
                _ => {}
            }
        }
        Ok(envelope)
    }

    fn read_type(&mut self, type_meta: &'a [u8]) -> Result<(), &'static str> {
        let mut reader = Reader::new(type_meta);
        while let Some((number, raw)) = reader.next()? {
            let (1 | 2, Raw::Bytes(bytes)) = (number, raw) else { continue };
            let text = std::str::from_utf8(bytes).map_err(|_| "its kind is not text")?;
            if number == 1 {
                self.api_version = text;
            } else {
                self.kind = text;
            }
        }
        Ok(())
    }

    fn kind_or(&self, expected: &GroupVersionKind) -> GroupVersionKind {
        let kind = if self.kind.is_empty() { &expected.kind } else { self.kind };
        if self.api_version.is_empty() {
            return GroupVersionKind::new(&expected.group, &expected.version, kind);
        }
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", self.api_version));
        GroupVersionKind::new(group, version, kind)
    }
}

/// What is wrong, and where.
struct Fault {
    path: String,
    problem: String,
}

/// Where in the object the walk is.
#[derive(Clone, Copy)]
struct At<'a> {
    path: &'a Path<'a>,
    depth: usize,
}

impl At<'_> {
    fn fault(self, problem: impl Into<String>) -> Fault {
        Fault { path: self.path.to_string(), problem: problem.into() }
    }

    /// The same place one message deeper.
    fn deeper(self) -> Result<Self, Fault> {
        if self.depth == DEPTH_MAX {
            return Err(self.fault("nested too deeply"));
        }
        Ok(At { depth: self.depth + 1, ..self })
    }

    /// Calls `each` with every value of a message.
    fn each<'b>(
        self,
        bytes: &'b [u8],
        mut each: impl FnMut(u32, Raw<'b>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut reader = Reader::new(bytes);
        while let Some((number, raw)) = reader.next().map_err(|problem| self.fault(problem))? {
            each(number, raw)?;
        }
        Ok(())
    }

    fn bytes<'b>(self, raw: Raw<'b>) -> Result<&'b [u8], Fault> {
        match raw {
            Raw::Bytes(bytes) => Ok(bytes),
            _ => Err(self.fault("a number where a message, text or bytes were expected")),
        }
    }
}

/// Reads a message into an object. `prefix` is where the message stands among those that JSON flattens.
fn message(
    at: At<'_>,
    (fields, prefix): (&[Field], &[u32]),
    bytes: &[u8],
    object: &mut Map<String, Value>,
) -> Result<(), Fault> {
    let at = at.deeper()?;
    at.each(bytes, |number, raw| {
        let inside = |field: &&Field| {
            let rest = field.wire.as_ref().and_then(|wire| wire.path.strip_prefix(prefix));
            rest.is_some_and(|rest| rest.first() == Some(&number))
        };
        // Fields of one flattened message share the number, so the first tells which it is.
        let Some(first) = fields.iter().find(inside) else { return Ok(()) };
        if first.wire.as_ref().is_some_and(|wire| wire.path.len() > prefix.len() + 1) {
            let nested: Vec<u32> = prefix.iter().copied().chain([number]).collect();
            return message(at, (fields, &nested), at.bytes(raw)?, object);
        }
        let path = at.path.field(&first.name);
        field(At { path: &path, ..at }, first, raw, object)
    })
}

/// Reads one occurrence of a field. Later ones replace scalars, add to lists and maps, and merge into messages.
fn field(at: At<'_>, field: &Field, raw: Raw<'_>, object: &mut Map<String, Value>) -> Result<(), Fault> {
    let Some(wire) = &field.wire else { return Ok(()) };
    let name = field.name.as_ref();
    let resolved = field.schema.resolve();
    match &resolved.shape {
        Shape::List(item) if wire.form == WireForm::Items => {
            let items = wrapped_items(at, item, raw)?;
            object.insert(name.to_owned(), items.into());
        }
        Shape::List(item) => {
            if let Value::Array(items) = slot(object, name, || Value::Array(Vec::new())) {
                list_item(at, item, raw, items)?;
            }
        }
        Shape::Map(of) => {
            if let Value::Object(map) = slot(object, name, || Value::Object(Map::new())) {
                entry(at, (of, wire.form), raw, map)?;
            }
        }
        Shape::Object(fields) => {
            if let Value::Object(inner) = slot(object, name, || Value::Object(Map::new())) {
                message(at, (fields, &[]), at.bytes(raw)?, inner)?;
            }
        }
        shape => {
            let value = single(at, (shape, wire.form), raw)?;
            let is_unset = wire.zero == Zero::Absent && is_zero(shape, &value);
            if value.is_null() || is_unset {
                object.remove(name);
            } else {
                object.insert(name.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn slot<'a>(object: &'a mut Map<String, Value>, name: &str, empty: impl FnOnce() -> Value) -> &'a mut Value {
    object.entry(name).or_insert_with(empty)
}

/// Whether the value is what Go writes for a scalar that was never set. Other types have no zero that JSON omits.
fn is_zero(shape: &Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::String | Shape::Bytes, Value::String(text)) => text.is_empty(),
        (Shape::Int32 | Shape::Int64 | Shape::Number, Value::Number(number)) => number.as_f64() == Some(0.0),
        (Shape::Bool, Value::Bool(truth)) => !truth,
        _ => false,
    }
}

/// One value that is neither list nor map: an item, a map's value, or a field of a scalar type.
fn value(at: At<'_>, (schema, form): (&Schema, WireForm), raw: Raw<'_>) -> Result<Value, Fault> {
    match &schema.resolve().shape {
        Shape::Object(fields) => {
            let mut object = Map::new();
            message(at, (fields, &[]), at.bytes(raw)?, &mut object)?;
            Ok(Value::Object(object))
        }
        Shape::List(item) => Ok(wrapped_items(at, item, raw)?.into()),
        Shape::Map(_) => Err(at.fault("a map of maps has no protobuf form")),
        shape => single(at, (shape, form), raw),
    }
}

/// A scalar, or one of the messages that JSON shows as something else.
fn single(at: At<'_>, (shape, form): (&Shape, WireForm), raw: Raw<'_>) -> Result<Value, Fault> {
    match (shape, form) {
        (Shape::Any, WireForm::SchemaOrArray | WireForm::SchemaOrBool | WireForm::SchemaOrStrings) => {
            schema_or(at, form, at.bytes(raw)?)
        }
        _ => scalar::read(at, shape, raw),
    }
}

/// Adds one occurrence of a list: an item, or many numbers packed together.
fn list_item(at: At<'_>, item: &Schema, raw: Raw<'_>, items: &mut Vec<Value>) -> Result<(), Fault> {
    let packed = match (&item.resolve().shape, raw) {
        (Shape::Int32 | Shape::Int64 | Shape::Bool, Raw::Bytes(bytes)) => bytes,
        _ => {
            let path = at.path.index(items.len());
            items.push(value(At { path: &path, ..at }, (item, WireForm::Plain), raw)?);
            return Ok(());
        }
    };
    let mut reader = Reader::new(packed);
    while !reader.is_empty() {
        let number = reader.varint().map_err(|problem| at.fault(problem))?;
        items.push(scalar::read(at, &item.resolve().shape, Raw::Varint(number))?);
    }
    Ok(())
}

/// A list inside a message of its own, as number 1.
fn wrapped_items(at: At<'_>, item: &Schema, raw: Raw<'_>) -> Result<Vec<Value>, Fault> {
    let at = at.deeper()?;
    let mut items = Vec::new();
    at.each(at.bytes(raw)?, |number, raw| match number {
        1 => list_item(at, item, raw, &mut items),
        _ => Ok(()),
    })?;
    Ok(items)
}

/// Adds an entry of a map: a message of key 1 and value 2, either of which is empty when it is not there.
fn entry(
    at: At<'_>,
    (of, form): (&Schema, WireForm),
    raw: Raw<'_>,
    map: &mut Map<String, Value>,
) -> Result<(), Fault> {
    let (mut key, mut content) = ("", None);
    at.each(at.bytes(raw)?, |number, raw| {
        match number {
            1 => key = scalar::text(at, at.bytes(raw)?)?,
            2 => content = Some(raw),
            _ => {}
        }
        Ok(())
    })?;
    let path = at.path.key(key);
    let empty = match of.resolve().shape {
        Shape::Int32 | Shape::Int64 | Shape::Bool => Raw::Varint(0),
        Shape::Number => Raw::Fixed64(0),
        _ => Raw::Bytes(b""),
    };
    let content = value(At { path: &path, ..at }, (of, form), content.unwrap_or(empty))?;
    map.insert(key.to_owned(), content);
    Ok(())
}

/// A message that holds a JSON schema as one number, and what it may be instead as the other.
fn schema_or(at: At<'_>, form: WireForm, bytes: &[u8]) -> Result<Value, Fault> {
    let at = at.deeper()?;
    let id = table::find(JSON_SCHEMA).expect("the type table has JSON schemas");
    let schema = Schema::of(Shape::Definition(id));
    let text = Schema::of(Shape::String);
    let schema_number = if form == WireForm::SchemaOrBool { 2 } else { 1 };
    let (mut one, mut truth, mut items) = (None, None, Vec::new());
    at.each(bytes, |number, raw| {
        match (number, form) {
            (1 | 2, _) if number == schema_number => one = Some(value(at, (&schema, WireForm::Plain), raw)?),
            (1, WireForm::SchemaOrBool) => truth = Some(scalar::read(at, &Shape::Bool, raw)?),
            (2, WireForm::SchemaOrArray) => list_item(at, &schema, raw, &mut items)?,
            (2, WireForm::SchemaOrStrings) => list_item(at, &text, raw, &mut items)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(match (form, one) {
        (WireForm::SchemaOrBool, one) => one.or(truth).unwrap_or(Value::Bool(false)),
        (_, one) if items.is_empty() => one.unwrap_or(Value::Null),
        _ => items.into(),
    })
}
