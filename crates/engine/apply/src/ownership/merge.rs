//! An object with a configuration laid over it. Source: structured-merge-diff `typed/merge.go`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::element::PathElement;
use super::value_type::{ListType, Typed, ValueType};

/// Lays the configuration over the live value. Nothing is removed: what the configuration does not name stays.
pub(super) fn merge<T: ValueType>(live: &Value, config: &Value, value_type: &Typed<T>) -> Value {
    match (live, config) {
        (Value::Object(old), Value::Object(new)) if !value_type.is_atomic_object() => {
            Value::Object(merge_objects(old, new, value_type))
        }
        (Value::Array(old), Value::Array(new)) if value_type.list() != ListType::Atomic => {
            Value::Array(merge_lists(old, new, value_type))
        }
        // A null says nothing about what others put into an object or a list.
        (Value::Object(old), Value::Null) if !value_type.is_atomic_object() && !old.is_empty() => {
            live.clone()
        }
        (Value::Array(old), Value::Null) if value_type.list() != ListType::Atomic && !old.is_empty() => {
            live.clone()
        }
        _ => config.clone(),
    }
}

fn merge_objects<T: ValueType>(
    live: &Map<String, Value>,
    config: &Map<String, Value>,
    value_type: &Typed<T>,
) -> Map<String, Value> {
    let mut merged = live.clone();
    for (name, value) in config {
        let value = match live.get(name) {
            Some(old) => merge(old, value, &value_type.field(name)),
            None => value.clone(),
        };
        merged.insert(name.clone(), value);
    }
    merged
}

/// Items of a list by what tells them apart.
struct Index<'a> {
    order: Vec<(PathElement, &'a Value)>,
    /// `None` where several items look alike: none of them can be merged with.
    by_element: BTreeMap<PathElement, Option<&'a Value>>,
}

impl<'a> Index<'a> {
    fn of<T: ValueType>(items: &'a [Value], value_type: &Typed<T>) -> Index<'a> {
        let mut index = Index { order: Vec::new(), by_element: BTreeMap::new() };
        for item in items {
            let Ok(element) = value_type.element_of(item) else { continue };
            index.by_element.entry(element.clone()).and_modify(|known| *known = None).or_insert(Some(item));
            index.order.push((element, item));
        }
        index
    }

    fn has(&self, element: &PathElement) -> bool {
        self.by_element.contains_key(element)
    }

    fn item(&self, element: &PathElement) -> Option<&'a Value> {
        self.by_element.get(element).copied().flatten()
    }
}

/// Merges lists whose items are told apart: items of the configuration come in its order, the others keep their place
/// beside their neighbours as far as that order lets them.
fn merge_lists<T: ValueType>(live: &[Value], config: &[Value], value_type: &Typed<T>) -> Vec<Value> {
    let (live, config) = (Index::of(live, value_type), Index::of(config, value_type));
    let item_type = value_type.item();
    // Of the items that both have, the one that comes next in the configuration.
    let mut shared =
        config.order.iter().map(|(element, _)| element).filter(|element| live.has(element)).peekable();
    let mut out = Vec::with_capacity(live.order.len() + config.order.len());
    let mut done = BTreeSet::new();
    let (mut left, mut right) = (live.order.as_slice(), config.order.as_slice());
    loop {
        match (left, right) {
            ([], []) => return out,
            ([(element, item), rest @ ..], _) if !config.has(element) => {
                out.push((*item).clone());
                left = rest;
            }
            // Merged already, or going to be where the configuration wants it.
            ([(element, _), rest @ ..], _)
                if done.contains(element) || shared.peek().is_some_and(|next| *next != element) =>
            {
                left = rest;
            }
            (_, [(element, item), rest @ ..]) => {
                out.push(match live.item(element) {
                    Some(old) => merge(old, item, &item_type),
                    None => (*item).clone(),
                });
                done.insert(element);
                shared.next_if(|next| *next == element);
                right = rest;
            }
            // Not reached: what the configuration has is done when its items are used up.
            ([_, rest @ ..], []) => left = rest,
        }
    }
}
