//! What an apply takes away: what its manager applied before, does not apply any more, and no one else owns.
//! Source: `prune`, `addBackOwnedItems` and `addBackDanglingItems` in structured-merge-diff `merge/update.go`, and
//! `typed/remove.go`.

use serde_json::{Map, Value};

use super::element::PathElement;
use super::set::FieldSet;
use super::value_type::{ListType, Typed, ValueType};

/// The merged object without what its manager gave up. `last` is what it applied before, `owned` what all managers own
/// now, itself included.
pub(super) fn prune<T: ValueType>(merged: Value, last: &FieldSet, owned: &FieldSet, value_type: &T) -> Value {
    // What is applied again is owned: nothing to take away, which is the case of most applies.
    if last.difference(owned).is_empty() {
        return merged;
    }
    let typed = Typed::of(value_type);
    let named = |set: &FieldSet| set.with_named_fields(&typed);
    let fields_of = |value: &Value| named(&FieldSet::of(value, value_type));
    let (last, owned, all) = (named(last), named(owned), fields_of(&merged));
    // Without all that was applied before; then with what is owned; what is missing from that and was applied by this
    // manager goes.
    let bare = remove(&merged, &last, &typed);
    let kept = remove(&merged, &all.difference(&fields_of(&bare).union(&owned)), &typed);
    let gone = all.difference(&fields_of(&kept)).intersection(&last);
    remove(&merged, &gone, &typed)
}

/// The value without the fields of the set and what is inside them. An object or list that loses all it had stays,
/// empty, if it is not in the set itself.
fn remove<T: ValueType>(value: &Value, fields: &FieldSet, value_type: &Typed<T>) -> Value {
    match value {
        _ if fields.is_empty() => value.clone(),
        Value::Object(map) if !value_type.is_atomic_object() => {
            Value::Object(remove_entries(map, fields, value_type))
        }
        Value::Array(items) if value_type.list() != ListType::Atomic => {
            Value::Array(remove_items(items, fields, value_type))
        }
        whole => whole.clone(),
    }
}

fn remove_entries<T: ValueType>(
    map: &Map<String, Value>,
    fields: &FieldSet,
    value_type: &Typed<T>,
) -> Map<String, Value> {
    let rest = map.iter().filter_map(|(name, value)| {
        let rest = remove_at(&PathElement::Field(name.clone()), value, fields, &value_type.field(name))?;
        Some((name.clone(), rest))
    });
    rest.collect()
}

fn remove_items<T: ValueType>(items: &[Value], fields: &FieldSet, value_type: &Typed<T>) -> Vec<Value> {
    let item_type = value_type.item();
    let rest = items.iter().filter_map(|item| match value_type.element_of(item) {
        Ok(element) => remove_at(&element, item, fields, &item_type),
        Err(_) => Some(item.clone()),
    });
    rest.collect()
}

/// What is left of the value at that step.
fn remove_at<T: ValueType>(
    element: &PathElement,
    value: &Value,
    fields: &FieldSet,
    value_type: &Typed<T>,
) -> Option<Value> {
    match fields.node(element) {
        None => Some(value.clone()),
        Some(node) if node.member => None,
        Some(node) => Some(remove(value, &node.children, value_type)),
    }
}
