//! Stored field sets, fitted to a schema that has become other since: what is owned as a whole now is no longer owned
//! in parts. Source: structured-merge-diff `typed/reconcile_schema.go`; the other way round nothing is done there.

use super::element::PathElement;
use super::set::{FieldSet, Node};
use super::value_type::{ListType, Typed, ValueType};

/// The set with the parts of atomic objects and lists replaced by these.
pub(super) fn reconcile<T: ValueType>(fields: FieldSet, value_type: &T) -> FieldSet {
    let typed = Typed::of(value_type);
    if is_outdated(&fields, &typed) { reconcile_below(&fields, &typed) } else { fields }
}

/// Whether something in the set is inside what the type owns as a whole.
fn is_outdated<T: ValueType>(fields: &FieldSet, value_type: &Typed<T>) -> bool {
    fields.nodes().any(|(element, node)| {
        let inner = inner_type(element, value_type);
        is_split(&node.children, &inner) || is_outdated(&node.children, &inner)
    })
}

fn reconcile_below<T: ValueType>(fields: &FieldSet, value_type: &Typed<T>) -> FieldSet {
    let mut out = FieldSet::default();
    for (element, node) in fields.nodes() {
        let inner = inner_type(element, value_type);
        let node = if is_split(&node.children, &inner) {
            Node::leaf()
        } else {
            Node { member: node.member, children: reconcile_below(&node.children, &inner) }
        };
        out.put(element.clone(), node);
    }
    out
}

fn inner_type<T: ValueType>(element: &PathElement, value_type: &Typed<T>) -> Typed<T> {
    match element {
        PathElement::Field(name) => value_type.field(name),
        _ => value_type.item(),
    }
}

/// Whether the parts that are owned are those of something that is atomic now. Of types that are not known nothing is.
fn is_split<T: ValueType>(parts: &FieldSet, value_type: &Typed<T>) -> bool {
    if value_type.0.is_none() {
        return false;
    }
    let atomic_list = value_type.list() == ListType::Atomic;
    parts.nodes().any(|(element, _)| match element {
        PathElement::Field(_) => value_type.is_atomic_object(),
        _ => atomic_list,
    })
}
