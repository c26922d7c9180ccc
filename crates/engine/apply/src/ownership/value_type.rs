//! What the walks of this room need to know of a type.

use std::collections::BTreeMap;

use serde_json::Value;

use super::element::PathElement;

/// How items of a list are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType<'a> {
    /// The list is one value.
    Atomic,
    /// Items are scalars and differ.
    Set,
    /// Items are objects that differ in these fields.
    Map(&'a [String]),
}

/// The type of a value as far as ownership and merging go. Whether a value is a scalar, a list or an object is read
/// from the value itself: it has been checked against its schema before.
pub trait ValueType: Clone {
    /// How the items of the list are told apart.
    fn list(&self) -> ListType<'_>;
    /// Whether the object is owned as a whole.
    fn is_atomic_object(&self) -> bool;
    /// Whether the field is one of a struct: such a field is owned through what is in it. Entries of a map are not.
    fn declares(&self, field: &str) -> bool;
    /// The type of a field or of a map's entry; `None` when the schema knows none. A type that takes anything answers
    /// for every field.
    fn field(&self, field: &str) -> Option<Self>;
    /// The type of the list's items.
    fn item(&self) -> Option<Self>;
    /// The default of a field that tells items apart; asked of the type of the items.
    fn key_default(&self, key: &str) -> Option<Value>;
    /// Whether upstream's Go type writes the declared field even when it is empty (a struct that is no pointer, a list
    /// without `omitempty`). Who fills such a field owns what is in it, and not the field. It only decides whether
    /// field sets of new objects are spelt as upstream spells them.
    fn is_always_present(&self, field: &str) -> bool {
        let _ = field;
        false
    }
}

/// A type, or that none is known: objects are then owned by entry and lists as a whole, which is upstream's
/// `__untyped_deduced_`.
#[derive(Clone)]
pub(super) struct Typed<T>(pub(super) Option<T>);

impl<T: ValueType> Typed<T> {
    pub(super) fn of(value_type: &T) -> Typed<T> {
        Typed(Some(value_type.clone()))
    }

    pub(super) fn list(&self) -> ListType<'_> {
        self.0.as_ref().map_or(ListType::Atomic, ValueType::list)
    }

    pub(super) fn is_atomic_object(&self) -> bool {
        self.0.as_ref().is_some_and(ValueType::is_atomic_object)
    }

    pub(super) fn declares(&self, field: &str) -> bool {
        self.0.as_ref().is_some_and(|known| known.declares(field))
    }

    pub(super) fn is_always_present(&self, field: &str) -> bool {
        self.0.as_ref().is_some_and(|known| known.is_always_present(field))
    }

    pub(super) fn field(&self, field: &str) -> Typed<T> {
        Typed(self.0.as_ref().and_then(|known| known.field(field)))
    }

    pub(super) fn item(&self) -> Typed<T> {
        Typed(self.0.as_ref().and_then(ValueType::item))
    }

    /// Whether the value is owned as a whole, whatever is in it. An empty object or list is not: see the walks.
    pub(super) fn is_leaf(&self, value: &Value) -> bool {
        match value {
            Value::Object(_) => self.is_atomic_object(),
            Value::Array(_) => self.list() == ListType::Atomic,
            _ => true,
        }
    }

    /// What tells the item apart in a list of this type that is no atomic one. Source: `listItemToPathElement` in
    /// structured-merge-diff `typed/helpers.go`, its texts too.
    pub(super) fn element_of(&self, item: &Value) -> Result<PathElement, String> {
        match self.list() {
            ListType::Atomic => Err("invalid indexing of non-associative list".to_owned()),
            ListType::Set => set_element(item),
            ListType::Map(keys) => self.keyed_element(keys, item),
        }
    }

    fn keyed_element(&self, keys: &[String], item: &Value) -> Result<PathElement, String> {
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let item_type = self.item();
        let mut found = BTreeMap::new();
        for key in keys {
            let value = match fields.get(key) {
                Some(value) => Some(value.clone()),
                None => item_type.0.as_ref().and_then(|known| known.key_default(key)),
            };
            if let Some(value) = value {
                found.insert(key.clone(), value);
            }
        }
        if found.is_empty() && !keys.is_empty() {
            let keys: Vec<_> = keys.iter().map(|key| format!("{key:?}")).collect();
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                keys.join(" ")
            ));
        }
        Ok(PathElement::Key(found))
    }
}

fn set_element(item: &Value) -> Result<PathElement, String> {
    match item {
        Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
        Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
        Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
        scalar => Ok(PathElement::Value(scalar.clone())),
    }
}
