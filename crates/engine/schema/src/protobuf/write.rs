//! From the JSON value of a built-in kind to its protobuf form: the way back of what the rest of this module reads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{DEPTH_MAX, JSON_SCHEMA, MAGIC};
use crate::schema::{Field, Schema, Shape, WireForm};
use crate::table;

/// Wire types (protobuf.dev/programming-guides/encoding).
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const DELIMITED: u32 = 2;

/// An object of a built-in kind, or a list of such, in protobuf; what it is stands in the value. `None`: its kind has no such
/// form, as custom resources have none, or the value is none of its kind.
#[must_use]
pub fn encode_protobuf(object: &Value) -> Option<Vec<u8>> {
    let (api_version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let id = table::find_kind(group, version, kind)?;
    let Shape::Object(fields) = &table::definition(id).shape else { return None };
    let mut raw = Writer::default();
    message(&mut raw, (fields, &[]), object.as_object()?, 0)?;
    let mut of = Writer::default();
    of.bytes(1, api_version.as_bytes());
    of.bytes(2, kind.as_bytes());
    let mut envelope = Writer(MAGIC.to_vec());
    envelope.bytes(1, &of.0);
    envelope.bytes(2, &raw.0);
    // Content encoding and type, both empty, as Kubernetes writes them.
    envelope.bytes(3, b"");
    envelope.bytes(4, b"");
    Some(envelope.0)
}

/// An event of a watch: a frame of its length (4 bytes, big endian), then the message with type 1 and, inside of 2, the object's
/// own form. Source: apimachinery `pkg/runtime/serializer/protobuf` and `pkg/apis/meta/v1/watch.go`.
#[must_use]
pub fn encode_protobuf_event(change: &str, object: &Value) -> Option<Vec<u8>> {
    let mut inside = Writer::default();
    inside.bytes(1, &encode_protobuf(object)?);
    let mut event = Writer::default();
    event.bytes(1, change.as_bytes());
    event.bytes(2, &inside.0);
    let length = u32::try_from(event.0.len()).ok()?;
    Some([&length.to_be_bytes()[..], &event.0].concat())
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
            value >>= 7;
        }
        self.0.push(u8::try_from(value).unwrap_or_default());
    }

    fn key(&mut self, number: u32, wire: u32) {
        self.number(u64::from(number << 3 | wire));
    }

    fn varint(&mut self, number: u32, value: u64) {
        self.key(number, VARINT);
        self.number(value);
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.key(number, DELIMITED);
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Writes the fields of an object. `prefix` is where the message stands among those that JSON flattens.
fn message(
    out: &mut Writer,
    (fields, prefix): (&[Field], &[u32]),
    object: &Map<String, Value>,
    depth: usize,
) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    let mut flattened = Vec::new();
    for field in fields {
        let Some(wire) = &field.wire else { continue };
        match wire.path.strip_prefix(prefix) {
            Some([number]) => {
                if let Some(value) = object.get(field.name.as_ref()).filter(|value| !value.is_null()) {
                    write(out, *number, (&field.schema, wire.form), value, depth)?;
                }
            }
            Some([number, ..]) if !flattened.contains(number) => flattened.push(*number),
            _ => {}
        }
    }
    for number in flattened {
        let nested: Vec<u32> = prefix.iter().copied().chain([number]).collect();
        let mut inner = Writer::default();
        message(&mut inner, (fields, &nested), object, depth + 1)?;
        if !inner.0.is_empty() {
            out.bytes(number, &inner.0);
        }
    }
    Some(())
}

/// Writes one field, all of its items and entries.
fn write(
    out: &mut Writer,
    number: u32,
    (schema, form): (&Schema, WireForm),
    value: &Value,
    depth: usize,
) -> Option<()> {
    match (&schema.resolve().shape, value) {
        (Shape::List(item), Value::Array(items)) if form == WireForm::Items => {
            out.bytes(number, &wrapped(item, items, depth)?);
        }
        (Shape::List(item), Value::Array(items)) => {
            for of in items {
                single(out, number, (item, WireForm::Plain), of, depth)?;
            }
        }
        (Shape::Map(of), Value::Object(map)) => {
            for (key, of_key) in map {
                let mut entry = Writer::default();
                entry.bytes(1, key.as_bytes());
                single(&mut entry, 2, (of, form), of_key, depth)?;
                out.bytes(number, &entry.0);
            }
        }
        _ => single(out, number, (schema, form), value, depth)?,
    }
    Some(())
}

fn wrapped(item: &Schema, items: &[Value], depth: usize) -> Option<Vec<u8>> {
    let mut inner = Writer::default();
    for of in items {
        single(&mut inner, 1, (item, WireForm::Plain), of, depth + 1)?;
    }
    Some(inner.0)
}

/// Writes one value that is no list or map of the field itself.
fn single(
    out: &mut Writer,
    number: u32,
    (schema, form): (&Schema, WireForm),
    value: &Value,
    depth: usize,
) -> Option<()> {
    match (&schema.resolve().shape, value) {
        (Shape::Object(fields), Value::Object(object)) => {
            let mut inner = Writer::default();
            message(&mut inner, (fields, &[]), object, depth + 1)?;
            out.bytes(number, &inner.0);
        }
        (Shape::List(item), Value::Array(items)) => out.bytes(number, &wrapped(item, items, depth)?),
        (Shape::Any, _) if form != WireForm::Plain => out.bytes(number, &schema_or(form, value, depth)?),
        (Shape::String, Value::String(text)) => out.bytes(number, text.as_bytes()),
        (Shape::Bytes, Value::String(text)) => out.bytes(number, &STANDARD.decode(text).ok()?),
        (Shape::Int32 | Shape::Int64, _) => out.varint(number, whole(value)?.cast_unsigned()),
        (Shape::Bool, Value::Bool(truth)) => out.varint(number, u64::from(*truth)),
        (Shape::Number, Value::Number(of)) => {
            out.key(number, FIXED64);
            out.0.extend_from_slice(&of.as_f64()?.to_le_bytes());
        }
        (Shape::Time | Shape::MicroTime, Value::String(text)) => {
            let time: Timestamp = text.parse().ok()?;
            let mut inner = Writer::default();
            inner.varint(1, time.as_second().cast_unsigned());
            inner.varint(2, i64::from(time.subsec_nanosecond()).cast_unsigned());
            out.bytes(number, &inner.0);
        }
        (Shape::Quantity, _) => {
            let mut inner = Writer::default();
            inner.bytes(1, plain(value)?.as_bytes());
            out.bytes(number, &inner.0);
        }
        (Shape::IntOrString, _) => {
            let mut inner = Writer::default();
            match value {
                Value::String(text) => {
                    inner.varint(1, 1);
                    inner.varint(2, 0);
                    inner.bytes(3, text.as_bytes());
                }
                of => {
                    inner.varint(1, 0);
                    inner.varint(2, whole(of)?.cast_unsigned());
                    inner.bytes(3, b"");
                }
            }
            out.bytes(number, &inner.0);
        }
        (Shape::Any | Shape::AnyObject, _) => {
            let mut inner = Writer::default();
            inner.bytes(1, value.to_string().as_bytes());
            out.bytes(number, &inner.0);
        }
        _ => return None,
    }
    Some(())
}

fn whole(value: &Value) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "only numbers without a fraction are taken")]
    value.as_i64().or_else(|| value.as_f64().filter(|of| of.fract() == 0.0).map(|of| of as i64))
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A JSON schema, or what stands in its place.
fn schema_or(form: WireForm, value: &Value, depth: usize) -> Option<Vec<u8>> {
    let schema = Schema::of(Shape::Definition(table::find(JSON_SCHEMA)?));
    let mut inner = Writer::default();
    match (form, value) {
        (WireForm::SchemaOrBool, Value::Bool(truth)) => inner.varint(1, u64::from(*truth)),
        (WireForm::SchemaOrBool, of) => {
            inner.varint(1, 1);
            single(&mut inner, 2, (&schema, WireForm::Plain), of, depth + 1)?;
        }
        (WireForm::SchemaOrArray, Value::Array(items)) => {
            for of in items {
                single(&mut inner, 2, (&schema, WireForm::Plain), of, depth + 1)?;
            }
        }
        (WireForm::SchemaOrStrings, Value::Array(items)) => {
            for of in items {
                inner.bytes(2, of.as_str()?.as_bytes());
            }
        }
        (_, of) => single(&mut inner, 1, (&schema, WireForm::Plain), of, depth + 1)?,
    }
    Some(inner.0)
}
