//! What changed between two objects. Source: structured-merge-diff `typed/compare.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::element::{PathElement, equal};
use super::set::{FieldSet, Node};
use super::value_type::{ListType, Typed, ValueType};

/// What changed between two objects. No field is in two of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that only the new object has.
    pub added: FieldSet,
    /// Fields that both have with other values.
    pub modified: FieldSet,
    /// Fields that only the old object has.
    pub removed: FieldSet,
}

impl Comparison {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// The comparison without these fields and what is inside them.
    pub(super) fn without(self, fields: &FieldSet) -> Comparison {
        if fields.is_empty() {
            return self;
        }
        Comparison {
            added: self.added.without(fields),
            modified: self.modified.without(fields),
            removed: self.removed.without(fields),
        }
    }

    /// The fields that have a new value.
    pub(super) fn set(&self) -> FieldSet {
        self.added.clone().union(&self.modified)
    }
}

/// Compares two objects of one type.
#[must_use]
pub fn compare<T: ValueType>(old: &Value, new: &Value, value_type: &T) -> Comparison {
    let changes = compare_values(old, new, &Typed::of(value_type));
    Comparison {
        added: changes.added.children,
        modified: changes.modified.children,
        removed: changes.removed.children,
    }
}

/// What changed at and below one field.
#[derive(Default)]
struct Changes {
    added: Node,
    modified: Node,
    removed: Node,
}

impl Changes {
    fn modified() -> Changes {
        Changes { modified: Node::leaf(), ..Changes::default() }
    }

    fn take(&mut self, element: &PathElement, inner: Changes) {
        for (whole, part) in [
            (&mut self.added, inner.added),
            (&mut self.modified, inner.modified),
            (&mut self.removed, inner.removed),
        ] {
            if !part.is_empty() {
                whole.children.put(element.clone(), part);
            }
        }
    }
}

/// Stands for an object that upstream's type writes though it is empty.
static EMPTY_OBJECT: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));

fn compare_values<T: ValueType>(old: &Value, new: &Value, value_type: &Typed<T>) -> Changes {
    if old == new {
        return Changes::default();
    }
    let by_entry = |value: &Value| matches!(value, Value::Object(_)) && !value_type.is_leaf(value);
    let by_item = |value: &Value| matches!(value, Value::Array(_)) && !value_type.is_leaf(value);
    // Null takes the form of the other side: an object or list with nothing in it.
    match (old, new) {
        _ if is_bare(old) && is_bare(new) => Changes::modified(),
        (Value::Object(old), Value::Object(new)) if !value_type.is_atomic_object() => {
            compare_objects(old, new, value_type)
        }
        (Value::Array(old), Value::Array(new)) if value_type.list() != ListType::Atomic => {
            compare_lists(old, new, value_type)
        }
        (Value::Null, _) if by_entry(new) || by_item(new) => {
            Changes { added: Node { member: false, ..whole(new, value_type) }, ..Changes::default() }
        }
        (_, Value::Null) if by_entry(old) || by_item(old) => {
            Changes { removed: Node { member: false, ..whole(old, value_type) }, ..Changes::default() }
        }
        _ => compare_leaves(old, new, value_type),
    }
}

/// An object, list or null with nothing in it: two such are compared as a whole, to tell null from empty.
fn is_bare(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Two values of which one at least is owned as a whole. Where the other is an object or a list, it comes or goes with
/// all that is in it.
fn compare_leaves<T: ValueType>(old: &Value, new: &Value, value_type: &Typed<T>) -> Changes {
    if equal(old, new) {
        return Changes::default();
    }
    let inner = |value: &Value| {
        if value_type.is_leaf(value) { FieldSet::default() } else { whole(value, value_type).children }
    };
    Changes {
        added: Node { member: false, children: inner(new) },
        removed: Node { member: false, children: inner(old) },
        modified: Node::leaf(),
    }
}

fn compare_objects<T: ValueType>(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    value_type: &Typed<T>,
) -> Changes {
    let mut changes = Changes::default();
    let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for name in names {
        let (mut before, mut after) = (old.get(name), new.get(name));
        if (before.is_none() || after.is_none()) && value_type.is_always_present(name) {
            let stand_in = before.or(after).and_then(stand_in);
            before = before.or(stand_in);
            after = after.or(stand_in);
        }
        let inner = compare_sides(before, after, &value_type.field(name));
        changes.take(&PathElement::Field(name.clone()), inner);
    }
    changes
}

/// What upstream's type writes where a field that is always there is empty.
fn stand_in(other: &Value) -> Option<&'static Value> {
    match other {
        Value::Object(_) => Some(&EMPTY_OBJECT),
        Value::Array(_) => Some(&Value::Null),
        _ => None,
    }
}

/// Compares where one side may have nothing.
fn compare_sides<T: ValueType>(old: Option<&Value>, new: Option<&Value>, value_type: &Typed<T>) -> Changes {
    match (old, new) {
        (Some(old), Some(new)) => compare_values(old, new, value_type),
        (None, Some(new)) => Changes { added: whole(new, value_type), ..Changes::default() },
        (Some(old), None) => Changes { removed: whole(old, value_type), ..Changes::default() },
        (None, None) => Changes::default(),
    }
}

/// A value that comes or goes: itself and all that is in it.
fn whole<T: ValueType>(value: &Value, value_type: &Typed<T>) -> Node {
    let mut node = Node::leaf();
    match value {
        Value::Object(fields) if !value_type.is_atomic_object() => {
            for (name, inner) in fields {
                let inner = whole(inner, &value_type.field(name));
                node.children.put(PathElement::Field(name.clone()), inner);
            }
        }
        Value::Array(items) if value_type.list() != ListType::Atomic => {
            let item_type = value_type.item();
            for (element, items) in index(items, value_type) {
                let inner = match items.as_slice() {
                    [item] => whole(item, &item_type),
                    _ => Node::leaf(),
                };
                node.children.put(element, inner);
            }
        }
        _ => {}
    }
    node
}

/// The items by what tells them apart; several where nothing does.
fn index<'a, T: ValueType>(
    items: &'a [Value],
    value_type: &Typed<T>,
) -> BTreeMap<PathElement, Vec<&'a Value>> {
    let mut indexed: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for item in items {
        if let Ok(element) = value_type.element_of(item) {
            indexed.entry(element).or_default().push(item);
        }
    }
    indexed
}

fn compare_lists<T: ValueType>(old: &[Value], new: &[Value], value_type: &Typed<T>) -> Changes {
    let item_type = value_type.item();
    let (old, new) = (index(old, value_type), index(new, value_type));
    let elements: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let mut changes = Changes::default();
    for element in elements {
        let before = old.get(element).map_or(&[][..], Vec::as_slice);
        let after = new.get(element).map_or(&[][..], Vec::as_slice);
        changes.take(element, compare_items(before, after, &item_type));
    }
    changes
}

/// Items that look alike are compared as if they were one value.
fn compare_items<T: ValueType>(old: &[&Value], new: &[&Value], item_type: &Typed<T>) -> Changes {
    match (old, new) {
        ([] | [_], [] | [_]) => compare_sides(old.first().copied(), new.first().copied(), item_type),
        ([] | [_], _) => {
            let mut changes = compare_sides(old.first().copied(), None, item_type);
            changes.added = Node::leaf();
            changes
        }
        (_, [] | [_]) => {
            let mut changes = compare_sides(None, new.first().copied(), item_type);
            changes.removed = Node::leaf();
            changes
        }
        _ => {
            let same = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| equal(old, new));
            if same { Changes::default() } else { Changes::modified() }
        }
    }
}
