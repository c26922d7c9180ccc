//! The nodes of a graph behind one interface, and the order they stand in.

use crate::dump::{Cause, Kind, Stamp};
use crate::fault::Fault;
use crate::handle::{Collection, Id};
use crate::store::{AnyStore, Store};
use crate::value::{Key, Value};
use std::any::Any;
use std::collections::{BTreeSet, HashMap};

/// One collection of a graph, whatever its types.
pub(crate) trait Node: Any + Send {
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn name(&self) -> &'static str;
    fn kind(&self) -> Kind;
    fn store(&self) -> &dyn AnyStore;
    fn store_mut(&mut self) -> &mut dyn AnyStore;
    /// Takes in the changes of older nodes.
    fn update(&mut self, older: Older<'_>, faults: &mut Vec<Fault>);
    /// The collections it was made from.
    fn from(&self) -> Vec<Id> {
        Vec::new()
    }
    /// Takes notice that nodes have gone.
    fn retire(&mut self, _gone: &BTreeSet<Id>) {}
    /// How often its function ran.
    fn runs(&self) -> u64 {
        0
    }
    /// How many recorded reads it holds.
    fn reads(&self) -> usize {
        0
    }
    /// How many entries it keeps besides values and reads, to know what came of what.
    fn bookkeeping(&self) -> usize {
        0
    }
    /// The collections it has read besides those it was made from.
    fn read_from(&self) -> BTreeSet<Id> {
        BTreeSet::new()
    }
    /// What the value of a key, given as text, was computed from.
    fn causes(&self, _key: &str, _older: Older<'_>) -> Vec<Cause> {
        Vec::new()
    }
}

/// A node and what the graph knows of it.
pub(crate) struct Entry {
    /// Away only while it is updated.
    pub(crate) node: Option<Box<dyn Node>>,
    pub(crate) scope: u64,
    pub(crate) position: usize,
    pub(crate) last_run: Option<Stamp>,
    pub(crate) last_change: Option<Stamp>,
    pub(crate) faults: u64,
}

/// All nodes, in the order in which they are updated.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) entries: HashMap<Id, Entry>,
    pub(crate) order: Vec<Id>,
}

impl Nodes {
    pub(crate) fn node(&self, id: Id) -> Option<&dyn Node> {
        self.entries.get(&id)?.node.as_deref()
    }

    pub(crate) fn node_mut(&mut self, id: Id) -> Option<&mut Box<dyn Node>> {
        self.entries.get_mut(&id)?.node.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &Entry)> {
        self.order.iter().filter_map(|id| Some((*id, self.entries.get(id)?)))
    }

    pub(crate) fn store<K: Key, V: Value>(&self, of: Collection<K, V>) -> &Store<K, V> {
        typed(self.node(of.node).expect(GONE).store())
    }

    pub(crate) fn store_mut<K: Key, V: Value>(&mut self, of: Collection<K, V>) -> &mut Store<K, V> {
        let store = self.node_mut(of.node).expect(GONE).store_mut();
        store.as_any_mut().downcast_mut().expect(TYPES)
    }

    /// Puts a node at a place in the order.
    pub(crate) fn insert(&mut self, id: Id, at: usize, node: Box<dyn Node>, scope: u64) {
        let entry =
            Entry { node: Some(node), scope, position: at, last_run: None, last_change: None, faults: 0 };
        self.entries.insert(id, entry);
        self.order.insert(at, id);
        self.renumber();
    }

    /// Takes nodes out.
    pub(crate) fn remove(&mut self, gone: &BTreeSet<Id>) {
        self.entries.retain(|id, _| !gone.contains(id));
        self.order.retain(|id| !gone.contains(id));
        self.renumber();
        for entry in self.entries.values_mut() {
            if let Some(node) = &mut entry.node {
                node.retire(gone);
            }
        }
    }

    fn renumber(&mut self) {
        for (position, id) in self.order.iter().enumerate() {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.position = position;
            }
        }
    }

    /// The nodes before a place in the order.
    pub(crate) fn before(&self, position: usize) -> Older<'_> {
        Older { nodes: self, position }
    }
}

const GONE: &str = "the collection has gone with the scope that made it, or is of another graph";
const TYPES: &str = "a handle has its collection's types";

pub(crate) fn typed<K: Key, V: Value>(store: &dyn AnyStore) -> &Store<K, V> {
    let any: &dyn Any = store.as_any();
    any.downcast_ref().expect(TYPES)
}

/// The nodes that stand before one: all that it may read.
#[derive(Clone, Copy)]
pub(crate) struct Older<'a> {
    nodes: &'a Nodes,
    position: usize,
}

impl<'a> Older<'a> {
    /// The store of an older collection.
    ///
    /// # Panics
    /// The collection does not stand before this one, or has gone.
    pub(crate) fn store<K: Key, V: Value>(self, of: Collection<K, V>) -> &'a Store<K, V> {
        let entry = self.nodes.entries.get(&of.node).expect(GONE);
        assert!(
            entry.position < self.position,
            "a collection can only read collections that were made before it"
        );
        typed(entry.node.as_deref().expect(GONE).store())
    }

    pub(crate) fn find(self, id: Id) -> Option<&'a dyn AnyStore> {
        Some(self.nodes.node(id)?.store())
    }

    pub(crate) fn name(self, id: Id) -> &'static str {
        self.nodes.node(id).map_or("(gone)", Node::name)
    }
}

/// A node whose values only others write: from outside, or once.
pub(crate) struct InputNode<K, V> {
    name: &'static str,
    kind: Kind,
    store: Store<K, V>,
}

impl<K: Key, V: Value> InputNode<K, V> {
    pub(crate) fn new(name: &'static str, kind: Kind, store: Store<K, V>) -> Self {
        Self { name, kind, store }
    }
}

impl<K: Key, V: Value> Node for InputNode<K, V> {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
    fn name(&self) -> &'static str {
        self.name
    }
    fn kind(&self) -> Kind {
        self.kind
    }
    fn store(&self) -> &dyn AnyStore {
        &self.store
    }
    fn store_mut(&mut self) -> &mut dyn AnyStore {
        &mut self.store
    }
    fn update(&mut self, _older: Older<'_>, _faults: &mut Vec<Fault>) {
        self.store.settle();
    }
}
