//! The directives of strategic merge patches and the order of merged lists.
//! Source: apimachinery `pkg/util/strategicpatch/patch.go`.

use serde_json::{Map, Value};

/// Marks an object of a patch: `delete`, `replace` or `merge`.
pub(crate) const PATCH: &str = "$patch";
/// Lists the only fields that an object keeps.
pub(crate) const RETAIN_KEYS: &str = "$retainKeys";
/// Prefix of the key that lists scalars to delete from a list.
pub(crate) const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";
/// Prefix of the key that gives the order of a list.
pub(crate) const SET_ELEMENT_ORDER: &str = "$setElementOrder/";

/// Removes all directives and nulls from a part of a patch that meets nothing in the object: it becomes the value.
pub(crate) fn without_directives(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(key, value)| !is_directive(key) && !value.is_null())
                .map(|(key, value)| (key, without_directives(value)))
                .collect(),
        ),
        Value::Array(items) => {
            Value::Array(items.into_iter().filter(|item| !is_removal(item)).map(without_directives).collect())
        }
        scalar => scalar,
    }
}

fn is_directive(key: &str) -> bool {
    key == PATCH
        || key == RETAIN_KEYS
        || key.starts_with(DELETE_FROM_PRIMITIVE_LIST)
        || key.starts_with(SET_ELEMENT_ORDER)
}

/// An item that is there for its directive alone.
fn is_removal(item: &Value) -> bool {
    matches!(item.get(PATCH).and_then(Value::as_str), Some("delete" | "replace"))
}

/// What identifies an item: the value of its merge key, or the scalar itself.
pub(crate) fn identity<'a>(item: &'a Value, merge_key: Option<&str>) -> Option<&'a Value> {
    match merge_key {
        Some(key) => item.as_object().and_then(|map: &Map<String, Value>| map.get(key)),
        None => Some(item),
    }
}

/// Where the item stands in a list.
pub(crate) fn position(list: &[Value], item: &Value, merge_key: Option<&str>) -> Option<usize> {
    let wanted = identity(item, merge_key)?;
    list.iter().position(|other| identity(other, merge_key) == Some(wanted))
}

/// Puts merged items in order: those of the patch follow `order`, the others keep the order they had, and the two are
/// interleaved as they were before where that is possible.
pub(crate) fn arrange(
    merged: Vec<Value>,
    order: &[Value],
    before: &[Value],
    merge_key: Option<&str>,
) -> Vec<Value> {
    let (mut ordered, mut others): (Vec<_>, Vec<_>) =
        merged.into_iter().partition(|item| position(order, item, merge_key).is_some());
    ordered.sort_by_key(|item| position(order, item, merge_key));
    others.sort_by_key(|item| position(before, item, merge_key));
    let mut out = Vec::with_capacity(ordered.len() + others.len());
    let mut ordered = ordered.into_iter().peekable();
    for other in others {
        let place = position(before, &other, merge_key);
        while let Some(next) = ordered.peek() {
            let next = position(before, next, merge_key);
            if place.is_some() && next.is_some() && place < next {
                break;
            }
            out.extend(ordered.next());
        }
        out.push(other);
    }
    out.extend(ordered);
    out
}
