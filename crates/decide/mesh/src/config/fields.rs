//! The fields there are: the table of the mesh configuration's messages and enums.

use crate::config::document::Tree;
use std::collections::BTreeMap;
use std::sync::LazyLock;

const TABLE: &str = include_str!("fields.txt");

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Text,
    Bool,
    /// An integer within these bounds, which may be given as text.
    Integer(i64, i64),
    Double,
    /// Seconds, as `1.5s`.
    Duration,
    /// Anything.
    Any,
    Message(&'static str),
    Enum(&'static str),
}

/// Whether a field holds one value or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    One,
    List,
    Map,
}

/// One field of a message.
#[derive(Debug)]
pub(crate) struct Field {
    /// The name in JSON, `camelCase`.
    pub(crate) name: String,
    pub(crate) kind: Type,
    pub(crate) shape: Shape,
    /// Of the fields of one group at most one can be set.
    pub(crate) group: Option<&'static str>,
}

/// The fields of a message by every name they have.
pub(crate) struct Message {
    fields: Vec<Field>,
    by_name: BTreeMap<String, usize>,
}

impl Message {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.by_name.get(name).map(|at| &self.fields[*at])
    }

    /// The field whose name is the most like this one, if it is like it at all.
    pub(crate) fn nearest(&self, name: &str) -> Option<&str> {
        let distances = self.fields.iter().map(|field| (distance(&field.name, name), field.name.as_str()));
        distances.min().filter(|(distance, _)| *distance <= name.len() / 3).map(|(_, name)| name)
    }
}

/// The values of an enum, in the order in which the field's API has them.
#[derive(Debug)]
pub(crate) struct Enum {
    values: Vec<(&'static str, i64)>,
}

impl Enum {
    /// The names.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.values.iter().map(|(name, _)| *name).collect()
    }

    /// The name of this value, given by name or, as protobuf's JSON form allows, by number.
    pub(crate) fn name(&self, given: &Tree) -> Option<&'static str> {
        let is_given = |name: &str, number: i64| match given {
            Tree::Text(text) => text == name,
            Tree::Integer(given) => *given == number,
            _ => false,
        };
        self.values.iter().find(|(name, number)| is_given(name, *number)).map(|(name, _)| *name)
    }

    fn read(words: std::str::Split<'static, char>) -> Self {
        let mut next = 0;
        let value = |word: &'static str| {
            let (name, number) = word.split_once('=').unwrap_or((word, ""));
            let number = number.parse().unwrap_or(next);
            next = number + 1;
            (name, number)
        };
        Self { values: words.map(value).collect() }
    }
}

struct Tables {
    messages: BTreeMap<&'static str, Message>,
    enums: BTreeMap<&'static str, Enum>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(read);

/// The message of that name.
///
/// # Panics
/// Never: only names of the table are asked for, and a test reads the whole table.
pub(crate) fn message(name: &str) -> &'static Message {
    TABLES.messages.get(name).expect("the table has every message that it refers to")
}

/// The enum of that name.
///
/// # Panics
/// Never: only names of the table are asked for.
pub(crate) fn enumeration(name: &str) -> &'static Enum {
    TABLES.enums.get(name).expect("the table has every enum that it refers to")
}

fn read() -> Tables {
    let lines = || TABLE.lines().filter(|line| !line.starts_with('#'));
    let mut enums = BTreeMap::new();
    for line in lines().filter_map(|line| line.strip_prefix("enum ")) {
        let mut words = line.split(' ');
        enums.insert(words.next().unwrap_or_default(), Enum::read(words));
    }
    let mut messages: BTreeMap<&str, Message> = BTreeMap::new();
    let mut current = "";
    for line in lines() {
        if let Some(name) = line.strip_prefix("message ") {
            current = name;
            messages.insert(name, Message { fields: Vec::new(), by_name: BTreeMap::new() });
        } else if let Some(line) = line.strip_prefix("  ")
            && let Some(message) = messages.get_mut(current)
        {
            add(message, line, &enums);
        }
    }
    Tables { messages, enums }
}

fn add(message: &mut Message, line: &'static str, enums: &BTreeMap<&str, Enum>) {
    let mut words = line.split(' ');
    let (wire, kind) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let group = words.next().and_then(|word| word.strip_prefix("oneof="));
    let (shape, kind) = match (kind.strip_prefix("[]"), kind.strip_prefix("{}")) {
        (Some(kind), _) => (Shape::List, kind),
        (_, Some(kind)) => (Shape::Map, kind),
        _ => (Shape::One, kind),
    };
    let kind = match kind {
        "string" => Type::Text,
        "bool" => Type::Bool,
        "int32" => Type::Integer(i32::MIN.into(), i32::MAX.into()),
        "uint32" => Type::Integer(0, u32::MAX.into()),
        "int64" => Type::Integer(i64::MIN, i64::MAX),
        "double" => Type::Double,
        "duration" => Type::Duration,
        "struct" => Type::Any,
        name if enums.contains_key(name) => Type::Enum(name),
        name => Type::Message(name),
    };
    let at = message.fields.len();
    let name = camel(wire);
    message.by_name.insert(wire.to_owned(), at);
    message.by_name.insert(name.clone(), at);
    message.fields.push(Field { name, kind, shape, group });
}

/// The JSON name of a field, as protobuf makes it.
fn camel(wire: &str) -> String {
    let mut name = String::with_capacity(wire.len());
    let mut upper = false;
    for letter in wire.chars() {
        if letter == '_' {
            upper = true;
        } else {
            name.push(if upper { letter.to_ascii_uppercase() } else { letter });
            upper = false;
        }
    }
    name
}

/// Edits that lead from one text to the other, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        for message in TABLES.messages.values() {
            for field in &message.fields {
                if let Type::Message(name) = field.kind {
                    assert!(TABLES.messages.contains_key(name), "{name} is missing");
                }
            }
        }
        let is_whole = |one: &Enum| one.values.len() > 1 || one.names() == ["SERVICE_REGISTRY"];
        assert!(TABLES.enums.values().all(is_whole));
    }

    #[test]
    fn fields_have_both_names() {
        let mesh = message("MeshConfig");
        assert_eq!(mesh.field("trust_domain").unwrap().name, "trustDomain");
        assert_eq!(mesh.field("meshMTLS").unwrap().kind, Type::Message("MeshConfig.TLSConfig"));
        assert_eq!(mesh.field("mesh_mTLS").unwrap().name, "meshMTLS");
        assert_eq!(mesh.nearest("trustdomian"), Some("trustDomain"));
        assert_eq!(mesh.nearest("somethingElse"), None);
    }
}
