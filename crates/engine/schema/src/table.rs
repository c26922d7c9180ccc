//! The type table of the built-in kinds: `data/types.tbl` (generated from what Kubernetes publishes) with the defaults
//! and enumerations of `data/facts.tbl` laid over it. Definitions are indexed at start and parsed when first used.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{LazyLock, OnceLock};

use serde_json::Value;

use crate::schema::{Field, ListKind, MapKind, PatchStrategy, Schema, Shape, Wire, WireForm, Zero};

static TYPES: &str = include_str!("../data/types.tbl");
static FACTS: &str = include_str!("../data/facts.tbl");
static TABLE: LazyLock<Table> = LazyLock::new(|| Table::index(TYPES, FACTS));

/// A definition of the type table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DefinitionId(u16);

struct Table {
    /// Sorted by name, as the file is.
    entries: Vec<Entry>,
    /// Overlay by definition and field.
    facts: HashMap<&'static str, &'static str>,
}

struct Entry {
    name: &'static str,
    kinds: &'static str,
    body: &'static str,
    schema: OnceLock<Schema>,
}

/// Splits a table into blocks: a line that starts at the margin, and the indented lines below it.
fn blocks(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        while rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, tail)| tail);
        }
        if rest.is_empty() {
            return None;
        }
        let (head, tail) = rest.split_once('\n').unwrap_or((rest, ""));
        let bytes = tail.as_bytes();
        let mut end = 0;
        while bytes.get(end) == Some(&b' ') {
            end += tail[end..].find('\n').map_or(tail.len() - end, |length| length + 1);
        }
        let (body, next) = tail.split_at(end);
        rest = next;
        Some((head, body))
    })
}

impl Table {
    fn index(types: &'static str, facts: &'static str) -> Table {
        let entries = blocks(types)
            .map(|(head, body)| {
                let (name, kinds) = head.split_once(' ').unwrap_or((head, ""));
                Entry { name, kinds, body, schema: OnceLock::new() }
            })
            .collect();
        Table { entries, facts: blocks(facts).collect() }
    }

    fn find(&self, name: &str) -> Option<DefinitionId> {
        let index = self.entries.binary_search_by(|entry| entry.name.cmp(name)).ok()?;
        u16::try_from(index).ok().map(DefinitionId)
    }
}

/// The definition of that name, without `io.k8s.`.
pub(crate) fn find(name: &str) -> Option<DefinitionId> {
    TABLE.find(name)
}

/// The definition of a kind.
pub(crate) fn find_kind(group: &str, version: &str, kind: &str) -> Option<DefinitionId> {
    static KINDS: LazyLock<HashMap<String, DefinitionId>> = LazyLock::new(|| {
        let mut kinds = HashMap::new();
        for (index, entry) in TABLE.entries.iter().enumerate() {
            let id = DefinitionId(u16::try_from(index).expect("the table has fewer than 65,536 definitions"));
            kinds.extend(
                entry.kinds.split(' ').filter(|word| word.contains('/')).map(|kind| (kind.to_owned(), id)),
            );
        }
        kinds
    });
    KINDS.get(&format!("{group}/{version}/{kind}")).or_else(|| KINDS.get(&format!("*/*/{kind}"))).copied()
}

/// The name of a definition, without `io.k8s.`.
pub(crate) fn name(id: DefinitionId) -> &'static str {
    TABLE.entries[usize::from(id.0)].name
}

/// The kinds of a definition, each as `group/version/Kind`.
pub(crate) fn kinds(id: DefinitionId) -> impl Iterator<Item = &'static str> {
    TABLE.entries[usize::from(id.0)].kinds.split(' ').filter(|word| word.contains('/'))
}

/// What identifies the contents of the table.
pub(crate) fn fingerprint() -> u64 {
    static FINGERPRINT: LazyLock<u64> = LazyLock::new(|| {
        let mut hasher = DefaultHasher::new();
        (TYPES, FACTS).hash(&mut hasher);
        hasher.finish()
    });
    *FINGERPRINT
}

/// The schema of a definition.
pub(crate) fn definition(id: DefinitionId) -> &'static Schema {
    let entry = &TABLE.entries[usize::from(id.0)];
    entry.schema.get_or_init(|| parse_definition(&TABLE, entry))
}

fn parse_definition(table: &Table, entry: &Entry) -> Schema {
    if let Some(scalar) = entry.kinds.strip_prefix('=') {
        return Schema::of(parse_type(table, scalar));
    }
    let mut fields: Vec<Field> =
        entry.body.lines().map(|line| parse_field(table, line.trim_start())).collect();
    for line in table.facts.get(entry.name).copied().unwrap_or_default().lines() {
        let (name, facts) = line.trim_start().split_once(' ').expect("a fact follows the name of its field");
        let field = fields.iter_mut().find(|field| field.name.as_ref() == name);
        let field = field.unwrap_or_else(|| panic!("facts.tbl names no such field: {} {name}", entry.name));
        apply_facts(field, facts);
    }
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    Schema::of(Shape::Object(fields))
}

fn parse_field(table: &Table, line: &str) -> Field {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let required = name.ends_with('!');
    let mut schema = Schema::of(parse_type(table, words.next().expect("a field has a type")));
    let mut wire = None;
    for word in words {
        if let Some(number) = word.strip_prefix('#') {
            wire = Some(Box::new(parse_wire(number)));
            continue;
        }
        let (key, value) = word.split_once('=').expect("semantics are key=value");
        apply_semantics(&mut schema, key, value);
    }
    Field { name: name.trim_end_matches('!').into(), required, lenient: false, schema, wire }
}

/// A number as the head of `types.tbl` explains it: `2.7?:or-bool`.
fn parse_wire(word: &str) -> Wire {
    let (number, form) = word.split_once(':').unwrap_or((word, ""));
    let form = match form {
        "" => WireForm::Plain,
        "items" => WireForm::Items,
        "or-array" => WireForm::SchemaOrArray,
        "or-bool" => WireForm::SchemaOrBool,
        "or-strings" => WireForm::SchemaOrStrings,
        _ => panic!("types.tbl has an unknown form {form}"),
    };
    let zero = if number.ends_with('?') { Zero::Value } else { Zero::Absent };
    let path = number.trim_end_matches('?').split('.');
    let path = path.map(|part| part.parse().expect("a protobuf number is a number")).collect();
    Wire { path, zero, form }
}

fn parse_type(table: &Table, word: &str) -> Shape {
    if let Some(inner) = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return Shape::List(Box::new(Schema::of(parse_type(table, inner))));
    }
    if let Some(inner) = word.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        return Shape::Map(Box::new(Schema::of(parse_type(table, inner))));
    }
    match word {
        "any" => Shape::Any,
        "any-object" => Shape::AnyObject,
        "string" => Shape::String,
        "bytes" => Shape::Bytes,
        "time" => Shape::Time,
        "micro-time" => Shape::MicroTime,
        "quantity" => Shape::Quantity,
        "int-or-string" => Shape::IntOrString,
        "int32" => Shape::Int32,
        "int64" => Shape::Int64,
        "number" => Shape::Number,
        "bool" => Shape::Bool,
        name => Shape::Definition(table.find(name).unwrap_or_else(|| panic!("types.tbl has no type {name}"))),
    }
}

fn apply_semantics(schema: &mut Schema, key: &str, value: &str) {
    match (key, value) {
        ("list", "set") => schema.list = ListKind::Set,
        ("list", "atomic") => schema.list = ListKind::Atomic,
        ("list", map) => {
            let keys = map.strip_prefix("map:").expect("a list is atomic, a set or a map");
            schema.list = ListKind::Map(keys.split(',').map(str::to_owned).collect());
        }
        ("map", "atomic") => schema.map = MapKind::Atomic,
        ("map", "granular") => schema.map = MapKind::Granular,
        ("patch", strategies) => {
            let has = |name| strategies.split(',').any(|strategy| strategy == name);
            schema.patch = PatchStrategy {
                merge: has("merge"),
                retain_keys: has("retainKeys"),
                replace: has("replace"),
                merge_key: schema.patch.merge_key.take(),
            };
        }
        ("key", key) => schema.patch.merge_key = Some(key.to_owned()),
        _ => panic!("types.tbl has unknown semantics {key}={value}"),
    }
}

/// Facts of `facts.tbl`: `lenient`, `default=JSON` without spaces, `enum=A,B`.
fn apply_facts(field: &mut Field, facts: &str) {
    for fact in facts.split(' ') {
        match fact.split_once('=') {
            None if fact == "lenient" => field.lenient = true,
            Some(("default", json)) => {
                field.schema.default = Some(serde_json::from_str(json).expect("a default is JSON"));
            }
            Some(("enum", words)) => {
                field.schema.enumeration =
                    words.split(',').map(|word| Value::from(word.trim_matches('"'))).collect();
            }
            _ => panic!("facts.tbl has an unknown fact {fact}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_and_fact_parses() {
        for index in 0..TABLE.entries.len() {
            definition(DefinitionId(u16::try_from(index).unwrap()));
        }
        for name in TABLE.facts.keys() {
            assert!(find(name).is_some(), "facts.tbl names no definition of types.tbl: {name}");
        }
    }

    #[test]
    fn names_are_sorted() {
        assert!(TABLE.entries.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn semantics_of_containers() {
        let pod = Schema::of(Shape::Definition(find_kind("", "v1", "Pod").unwrap()));
        let containers = pod.field("spec").and_then(|spec| spec.field("containers")).unwrap();
        assert_eq!(containers.list, ListKind::Map(vec!["name".to_owned()]));
        assert_eq!(containers.patch.merge_key.as_deref(), Some("name"));
        assert!(containers.patch.merge);
    }
}
