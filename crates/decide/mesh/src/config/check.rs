//! Checks a document against the fields there are.

use crate::config::document::{Fault, Node, Note, Place, Tree, parse};
use crate::config::fields::{self, Field, Shape, Type};
use serde_json::{Number, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Faults that one document shows; the rest is counted.
const FAULTS_MAX: usize = 100;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Name of the source.
    pub source: Arc<str>,
    /// Place in its text.
    pub place: Place,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.place)
    }
}

/// A value that fits its field, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The value.
    pub item: Item,
    /// Where it comes from.
    pub origin: Origin,
}

/// A value that fits its field.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Text, a number, a boolean, or what has no fields of its own.
    Scalar(Value),
    /// A list.
    List(Vec<Entry>),
    /// A message by the JSON names of its fields, or a map.
    Map(BTreeMap<String, Entry>),
}

impl Item {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Scalar(value) => value.clone(),
            Self::List(items) => items.iter().map(|entry| entry.item.to_json()).collect(),
            Self::Map(entries) => {
                entries.iter().map(|(key, entry)| (key.clone(), entry.item.to_json())).collect()
            }
        }
    }
}

/// A document that has been looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// Its fields; those with faults are left out.
    pub fields: BTreeMap<String, Entry>,
    /// What is wrong. A document with faults must not be used.
    pub faults: Vec<Fault>,
    /// What has no effect.
    pub notes: Vec<Note>,
}

/// Checks a mesh configuration.
pub fn check_mesh(source: &str, text: &[u8]) -> Checked {
    let mut checked = check(source, text, "MeshConfig");
    crate::config::layers::check_meaning(&mut checked);
    checked
}

/// Checks the networks of a mesh.
pub fn check_networks(source: &str, text: &[u8]) -> Checked {
    let mut checked = check(source, text, "MeshNetworks");
    let unused = checked.fields.iter().map(|(name, entry)| (name.clone(), entry.origin.place));
    let notes = unused.map(|(name, place)| Fault::new(place, &name, "not used here")).collect::<Vec<_>>();
    checked.notes.extend(notes);
    checked
}

fn check(source: &str, text: &[u8], message: &'static str) -> Checked {
    let mut checker = Checker { source: source.into(), faults: Vec::new(), notes: Vec::new(), more: 0 };
    let fields = match parse(text) {
        Ok(node) => match checker.message(&node, message, "") {
            Some(Item::Map(fields)) => fields,
            _ => BTreeMap::new(),
        },
        Err(fault) => {
            checker.faults.push(fault);
            BTreeMap::new()
        }
    };
    if checker.more > 0 {
        let place = Place { line: 1, column: 1 };
        checker.faults.push(Fault::new(place, "", format!("{} more faults are not shown", checker.more)));
    }
    Checked { fields, faults: checker.faults, notes: checker.notes }
}

struct Checker {
    source: Arc<str>,
    faults: Vec<Fault>,
    notes: Vec<Note>,
    more: usize,
}

impl Checker {
    fn fault(&mut self, place: Place, path: &str, message: impl Into<String>) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(Fault::new(place, path, message));
        } else {
            self.more += 1;
        }
    }

    fn wrong(&mut self, node: &Node, path: &str, expected: &str) -> Option<Item> {
        self.fault(node.place, path, format!("it is {}, {expected} is expected", node.tree.shown()));
        None
    }

    fn entry(&self, node: &Node, item: Item) -> Entry {
        Entry { item, origin: Origin { source: self.source.clone(), place: node.place } }
    }

    fn message(&mut self, node: &Node, name: &'static str, path: &str) -> Option<Item> {
        let message = fields::message(name);
        let Tree::Map(entries) = &node.tree else { return self.wrong(node, path, "a mapping of fields") };
        let mut known: BTreeMap<String, Entry> = BTreeMap::new();
        let mut seen: BTreeMap<&str, Place> = BTreeMap::new();
        let mut groups: BTreeMap<&str, &str> = BTreeMap::new();
        for (key, value) in entries {
            let Some(text) = key.tree.key() else {
                self.wrong(key, path, "the name of a field");
                continue;
            };
            let Some(field) = message.field(&text) else {
                let hint = message.nearest(&text).map(|name| format!(", did you mean {name}?"));
                let message = format!("there is no such field, it has no effect{}", hint.unwrap_or_default());
                self.notes.push(Fault::new(key.place, &join(path, &text), message));
                continue;
            };
            let path = join(path, &field.name);
            if let Some(first) = seen.insert(&field.name, key.place) {
                self.fault(key.place, &path, format!("it is set twice, first at {first}: keep one of them"));
                continue;
            }
            if matches!(value.tree, Tree::Null) {
                continue;
            }
            if let Some(group) = field.group
                && let Some(other) = groups.insert(group, &field.name)
            {
                self.fault(key.place, &path, format!("{other} is set as well, only one of them is expected"));
                continue;
            }
            if let Some(item) = self.shaped(value, field, &path) {
                known.insert(field.name.clone(), self.entry(value, item));
            }
        }
        Some(Item::Map(known))
    }

    fn shaped(&mut self, node: &Node, field: &Field, path: &str) -> Option<Item> {
        match (field.shape, &node.tree) {
            (Shape::One, _) => self.value(node, field.kind, path),
            (Shape::List, Tree::List(items)) => {
                let mut list = Vec::with_capacity(items.len());
                for (at, item) in items.iter().enumerate() {
                    if let Some(value) = self.value(item, field.kind, &format!("{path}[{at}]")) {
                        list.push(self.entry(item, value));
                    }
                }
                Some(Item::List(list))
            }
            (Shape::Map, Tree::Map(entries)) => Some(Item::Map(self.map(entries, field.kind, path))),
            (Shape::List, _) => self.wrong(node, path, "a list"),
            (Shape::Map, _) => self.wrong(node, path, "a mapping"),
        }
    }

    fn map(&mut self, entries: &[(Node, Node)], kind: Type, path: &str) -> BTreeMap<String, Entry> {
        let mut map: BTreeMap<String, Entry> = BTreeMap::new();
        let mut seen: BTreeMap<String, Place> = BTreeMap::new();
        for (key, value) in entries {
            let Some(text) = key.tree.key() else {
                self.wrong(key, path, "a text as key (write it in quotes)");
                continue;
            };
            let path = join(path, &text);
            if let Some(first) = seen.insert(text.clone(), key.place) {
                self.fault(key.place, &path, format!("it is set twice, first at {first}: keep one of them"));
                continue;
            }
            if let Some(item) = self.value(value, kind, &path) {
                map.insert(text, self.entry(value, item));
            }
        }
        map
    }

    fn value(&mut self, node: &Node, kind: Type, path: &str) -> Option<Item> {
        let scalar = match (kind, &node.tree) {
            (Type::Message(name), _) => return self.message(node, name, path),
            (Type::Text, Tree::Text(text)) => Value::String(text.clone()),
            (Type::Text, Tree::Bool(_) | Tree::Integer(_) | Tree::Float(_)) => {
                return self.wrong(node, path, "a text (write it in quotes)");
            }
            (Type::Text, _) => return self.wrong(node, path, "a text"),
            (Type::Bool, Tree::Bool(value)) => Value::Bool(*value),
            (Type::Bool, _) => return self.wrong(node, path, "true or false"),
            (Type::Integer(min, max), tree) => match integer(tree).filter(|n| (min..=max).contains(n)) {
                Some(number) => Value::from(number),
                None => return self.wrong(node, path, &format!("an integer from {min} to {max}")),
            },
            (Type::Double, Tree::Float(value)) => Number::from_f64(*value).map_or(Value::Null, Value::Number),
            (Type::Double, Tree::Integer(value)) => Value::from(*value),
            (Type::Double, _) => return self.wrong(node, path, "a number"),
            (Type::Duration, Tree::Text(text)) if is_duration(text) => Value::String(text.clone()),
            (Type::Duration, _) => {
                return self.wrong(node, path, "a duration in seconds such as 10s or 0.5s");
            }
            (Type::Enum(name), tree) => match fields::enumeration(name).name(tree) {
                Some(name) => Value::String(name.to_owned()),
                None => {
                    let names = fields::enumeration(name).names().join(", ");
                    return self.wrong(node, path, &format!("one of {names}"));
                }
            },
            (Type::Any, tree) => plain(tree),
        };
        Some(Item::Scalar(scalar))
    }
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn integer(tree: &Tree) -> Option<i64> {
    match tree {
        Tree::Integer(value) => Some(*value),
        Tree::Text(text) => text.parse().ok(),
        _ => None,
    }
}

/// Seconds with up to nine decimals, as protobuf's JSON form has it.
fn is_duration(text: &str) -> bool {
    let Some(number) = text.strip_suffix('s') else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match number.strip_prefix('-').unwrap_or(number).split_once('.') {
        Some((whole, part)) => digits(whole) && digits(part) && part.len() <= 9,
        None => digits(number.strip_prefix('-').unwrap_or(number)),
    }
}

fn plain(tree: &Tree) -> Value {
    match tree {
        Tree::Null => Value::Null,
        Tree::Bool(value) => Value::Bool(*value),
        Tree::Integer(value) => Value::from(*value),
        Tree::Float(value) => Number::from_f64(*value).map_or(Value::Null, Value::Number),
        Tree::Text(text) => Value::String(text.clone()),
        Tree::List(items) => items.iter().map(|item| plain(&item.tree)).collect(),
        Tree::Map(entries) => {
            entries.iter().filter_map(|(key, value)| Some((key.tree.key()?, plain(&value.tree)))).collect()
        }
    }
}
