//! One step of a path into an object, and the order of such steps.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Number, Value};

/// One step of a path into an object. Steps are in the order in which upstream writes them: fields, keys, values,
/// indexes (structured-merge-diff `fieldpath/element.go`).
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A field of a struct or an entry of a map.
    Field(String),
    /// The item of a list whose fields have these values.
    Key(BTreeMap<String, Value>),
    /// The item of a set.
    Value(Value),
    /// The item at that place. Upstream reads such steps and writes none.
    Index(i64),
}

impl PathElement {
    fn rank(&self) -> u8 {
        match self {
            PathElement::Field(_) => 0,
            PathElement::Key(_) => 1,
            PathElement::Value(_) => 2,
            PathElement::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (PathElement::Field(one), PathElement::Field(two)) => one.cmp(two),
            (PathElement::Key(one), PathElement::Key(two)) => compare_fields(one.iter(), two.iter()),
            (PathElement::Value(one), PathElement::Value(two)) => compare_values(one, two),
            (PathElement::Index(one), PathElement::Index(two)) => one.cmp(two),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// As conflict messages spell it: `.image`, `[name="x"]`, `[="a"]`, `[3]`.
impl fmt::Display for PathElement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(out, ".{name}"),
            PathElement::Key(fields) => {
                let fields: Vec<_> =
                    fields.iter().map(|(name, value)| format!("{name}={}", spell(value))).collect();
                write!(out, "[{}]", fields.join(","))
            }
            PathElement::Value(value) => write!(out, "[={}]", spell(value)),
            PathElement::Index(index) => write!(out, "[{index}]"),
        }
    }
}

/// The path as conflict messages spell it: `.spec.containers[name="x"].image`.
pub(super) fn spell_path(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

fn spell(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => format!("[{}]", items.iter().map(spell).collect::<Vec<_>>().join(",")),
        Value::Object(map) => map.iter().map(|(name, value)| format!("{name}={}", spell(value))).collect(),
        scalar => scalar.to_string(),
    }
}

/// Whether the two are the same value: numbers are compared by amount, so that 1 and 1.0 are one.
pub(super) fn equal(one: &Value, two: &Value) -> bool {
    one == two || compare_values(one, two).is_eq()
}

/// A total order of values: numbers, strings, truth values, lists, objects, null.
pub(super) fn compare_values(one: &Value, two: &Value) -> Ordering {
    match (one, two) {
        (Value::Number(one), Value::Number(two)) => compare_numbers(one, two),
        (Value::String(one), Value::String(two)) => one.cmp(two),
        (Value::Bool(one), Value::Bool(two)) => one.cmp(two),
        (Value::Array(one), Value::Array(two)) => compare_items(one, two),
        (Value::Object(one), Value::Object(two)) => compare_fields(one.iter(), two.iter()),
        _ => rank(one).cmp(&rank(two)),
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn compare_items(one: &[Value], two: &[Value]) -> Ordering {
    let first = one.iter().zip(two).map(|(one, two)| compare_values(one, two)).find(|order| order.is_ne());
    first.unwrap_or_else(|| one.len().cmp(&two.len()))
}

/// Compares two sequences of fields that are sorted by name.
fn compare_fields<'a>(
    mut one: impl Iterator<Item = (&'a String, &'a Value)>,
    mut two: impl Iterator<Item = (&'a String, &'a Value)>,
) -> Ordering {
    loop {
        match (one.next(), two.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some((name, value)), Some((other_name, other))) => {
                let order = name.cmp(other_name).then_with(|| compare_values(value, other));
                if order.is_ne() {
                    return order;
                }
            }
        }
    }
}

/// A number as exactly as it compares: an order through `f64` alone would not be transitive near 2^53, and maps that
/// are sorted by it could lose entries.
enum Amount {
    Whole(i128),
    Other(f64),
}

/// Floats from here on are compared as floats: all of them are beyond every 64-bit integer.
const WHOLE_FLOAT_MAX: f64 = 1e30;

fn amount(number: &Number) -> Amount {
    if let Some(whole) = number.as_i128() {
        return Amount::Whole(whole);
    }
    let float = number.as_f64().unwrap_or_default();
    if float.fract() == 0.0 && float.abs() < WHOLE_FLOAT_MAX {
        // Exact: the float is whole and far inside the range of `i128`.
        Amount::Whole(float as i128)
    } else {
        Amount::Other(float)
    }
}

fn compare_numbers(one: &Number, two: &Number) -> Ordering {
    let float = |amount: &Amount| match amount {
        Amount::Whole(whole) => *whole as f64,
        Amount::Other(float) => *float,
    };
    match (amount(one), amount(two)) {
        (Amount::Whole(one), Amount::Whole(two)) => one.cmp(&two),
        // A fraction is smaller than 2^53, where whole numbers are exact floats; rounding cannot change the order.
        (one, two) => float(&one).partial_cmp(&float(&two)).unwrap_or(Ordering::Equal),
    }
}
