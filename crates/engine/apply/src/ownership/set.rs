//! Sets of fields. Source: structured-merge-diff `fieldpath/set.go`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::Value;

use super::element::{PathElement, spell_path};
use super::value_type::{Typed, ValueType};

/// A set of fields of an object, as a tree. A field can be in the set without those inside it, and the other way round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeMap<PathElement, Node>);

/// A step: whether it is in the set itself, and what is in the set below it. One of the two always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) member: bool,
    pub(super) children: FieldSet,
}

impl Node {
    /// A field by itself.
    pub(super) fn leaf() -> Node {
        Node { member: true, children: FieldSet::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

impl FieldSet {
    /// All fields that a value of the type sets. Source: `toFieldSetWalker` in `typed/tofieldset.go`.
    #[must_use]
    pub fn of<T: ValueType>(value: &Value, value_type: &T) -> FieldSet {
        collect(value, &Typed::of(value_type)).children
    }

    /// The set of these fields.
    pub fn from_paths<'a>(paths: impl IntoIterator<Item = &'a [PathElement]>) -> FieldSet {
        let mut set = FieldSet::default();
        for path in paths {
            set.insert(path);
        }
        set
    }

    /// The set of one field that is reached through these fields.
    #[must_use]
    pub fn of_field(path: &[&str]) -> FieldSet {
        let path: Vec<_> = path.iter().map(|name| PathElement::Field((*name).to_owned())).collect();
        FieldSet::from_paths([path.as_slice()])
    }

    /// Adds a field; those around it are not added. The empty path, which is the whole object, is never in a set.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        let node = self.0.entry(first.clone()).or_default();
        if rest.is_empty() {
            node.member = true;
        } else {
            node.children.insert(rest);
        }
    }

    /// Whether the field is in the set.
    #[must_use]
    pub fn contains(&self, path: &[PathElement]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        self.0
            .get(first)
            .is_some_and(|node| if rest.is_empty() { node.member } else { node.children.contains(rest) })
    }

    /// Whether nothing is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many fields are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values().map(|node| usize::from(node.member) + node.children.len()).sum()
    }

    /// The part of the set below a step.
    #[must_use]
    pub fn below(&self, element: &PathElement) -> Option<&FieldSet> {
        self.0.get(element).map(|node| &node.children).filter(|set| !set.is_empty())
    }

    /// All fields in the set: at each level first those of the level, then what is inside them.
    #[must_use]
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut paths = Vec::new();
        self.push_paths(&mut Vec::new(), &mut paths);
        paths
    }

    fn push_paths(&self, prefix: &mut Vec<PathElement>, paths: &mut Vec<Vec<PathElement>>) {
        let members = self.0.iter().filter(|(_, node)| node.member);
        paths.extend(members.map(|(element, _)| {
            let mut path = prefix.clone();
            path.push(element.clone());
            path
        }));
        for (element, node) in &self.0 {
            prefix.push(element.clone());
            node.children.push_paths(prefix, paths);
            prefix.pop();
        }
    }

    /// The fields as conflict messages spell them: `.spec.containers[name="x"].image`.
    #[must_use]
    pub fn spelt(&self) -> Vec<String> {
        self.paths().iter().map(|path| spell_path(path)).collect()
    }

    /// The fields of either set.
    #[must_use]
    pub fn union(mut self, other: &FieldSet) -> FieldSet {
        self.extend(other);
        self
    }

    fn extend(&mut self, other: &FieldSet) {
        for (element, node) in &other.0 {
            match self.0.entry(element.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(node.clone());
                }
                Entry::Occupied(mut entry) => {
                    let own = entry.get_mut();
                    own.member |= node.member;
                    own.children.extend(&node.children);
                }
            }
        }
    }

    /// The fields of both sets.
    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        self.keep(|element, node| {
            let other = other.0.get(element)?;
            Some(Node {
                member: node.member && other.member,
                children: node.children.intersection(&other.children),
            })
        })
    }

    /// The fields that are not in the other set. A field inside one of the other set stays.
    #[must_use]
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        self.keep(|element, node| {
            let Some(other) = other.0.get(element) else { return Some(node.clone()) };
            Some(Node {
                member: node.member && !other.member,
                children: node.children.difference(&other.children),
            })
        })
    }

    /// The fields that are neither in the other set nor inside one of it. Source: `RecursiveDifference`.
    #[must_use]
    pub fn without(&self, other: &FieldSet) -> FieldSet {
        self.keep(|element, node| match other.0.get(element) {
            None => Some(node.clone()),
            Some(other) if other.member => None,
            Some(other) => {
                Some(Node { member: node.member, children: node.children.without(&other.children) })
            }
        })
    }

    /// The fields that have none of the set inside them.
    #[must_use]
    pub fn leaves(&self) -> FieldSet {
        self.keep(|_, node| Some(Node { member: node.children.is_empty(), children: node.children.leaves() }))
    }

    /// The set with each struct field in it that has a field of the set inside it. Source:
    /// `EnsureNamedFieldsAreMembers`.
    pub(super) fn with_named_fields<T: ValueType>(&self, value_type: &Typed<T>) -> FieldSet {
        self.keep(|element, node| {
            let (named, inner) = match element {
                PathElement::Field(name) => (value_type.declares(name), value_type.field(name)),
                _ => (false, value_type.item()),
            };
            Some(Node { member: node.member || named, children: node.children.with_named_fields(&inner) })
        })
    }

    fn keep(&self, change: impl Fn(&PathElement, &Node) -> Option<Node>) -> FieldSet {
        let kept = self.0.iter().filter_map(|(element, node)| {
            let node = change(element, node).filter(|node| !node.is_empty())?;
            Some((element.clone(), node))
        });
        FieldSet(kept.collect())
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (&PathElement, &Node)> {
        self.0.iter()
    }

    pub(super) fn node(&self, element: &PathElement) -> Option<&Node> {
        self.0.get(element)
    }

    /// Puts a step with all that is below it; nothing happens when that is nothing.
    pub(super) fn put(&mut self, element: PathElement, node: Node) {
        if !node.is_empty() {
            self.0.insert(element, node);
        }
    }
}

fn collect<T: ValueType>(value: &Value, value_type: &Typed<T>) -> Node {
    if value_type.is_leaf(value) {
        return Node::leaf();
    }
    match value {
        Value::Object(fields) => {
            // An empty object says something; an empty list of items that are told apart does not.
            let mut whole = Node { member: fields.is_empty(), children: FieldSet::default() };
            for (name, inner) in fields {
                let mut node = collect(inner, &value_type.field(name));
                node.member |= !value_type.declares(name);
                whole.children.put(PathElement::Field(name.clone()), node);
            }
            whole
        }
        Value::Array(items) => Node { member: false, children: collect_items(items, value_type) },
        _ => Node::leaf(),
    }
}

fn collect_items<T: ValueType>(items: &[Value], value_type: &Typed<T>) -> FieldSet {
    let item_type = value_type.item();
    let mut set = FieldSet::default();
    for item in items {
        let Ok(element) = value_type.element_of(item) else { continue };
        // Items that cannot be told apart are owned as a whole.
        let children = match set.node(&element) {
            Some(_) => FieldSet::default(),
            None => collect(item, &item_type).children,
        };
        set.put(element, Node { member: true, children });
    }
    set
}
