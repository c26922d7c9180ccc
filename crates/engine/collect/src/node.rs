//! The nodes of a graph behind one interface, and the typed handles that name them.

use crate::store::{Key, Store, Value};
use std::any::Any;
use std::marker::PhantomData;

/// A transformation that panicked. Its key keeps the outputs it had; it runs again when something it read changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name of the collection.
    pub collection: &'static str,
    /// The key whose transformation panicked.
    pub key: String,
    /// The panic's message.
    pub message: String,
}

pub(crate) type Nodes = [Box<dyn Node>];

/// One collection of a graph, whatever its types.
pub(crate) trait Node: Send {
    fn name(&self) -> &'static str;
    fn store(&self) -> &dyn Any;
    fn store_mut(&mut self) -> &mut dyn Any;
    /// Takes in the changes of older nodes.
    fn update(&mut self, older: &Nodes, faults: &mut Vec<Fault>);
    fn clear_changes(&mut self);
    fn len(&self) -> usize;
    /// How often the transformation ran.
    fn runs(&self) -> u64;
    /// How many recorded reads it holds.
    fn reads(&self) -> usize;
}

/// Names a collection of a graph. Use it only with that graph.
pub struct Collection<K, V> {
    pub(crate) node: usize,
    types: PhantomData<fn() -> (K, V)>,
}

/// Names a collection that is written from outside.
pub struct Input<K, V>(pub(crate) Collection<K, V>);

/// Names an index with keys `I` over a collection.
pub struct Index<I, K, V> {
    pub(crate) of: Collection<K, V>,
    pub(crate) index: usize,
    types: PhantomData<fn() -> I>,
}

impl<K, V> Collection<K, V> {
    pub(crate) fn at(node: usize) -> Self {
        Self { node, types: PhantomData }
    }
}

impl<K, V> Input<K, V> {
    /// The collection to read it as.
    pub fn collection(self) -> Collection<K, V> {
        self.0
    }
}

impl<I, K, V> Index<I, K, V> {
    pub(crate) fn at(of: Collection<K, V>, index: usize) -> Self {
        Self { of, index, types: PhantomData }
    }
}

impl<K, V> Clone for Collection<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V> Copy for Collection<K, V> {}
impl<K, V> Clone for Input<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V> Copy for Input<K, V> {}
impl<I, K, V> Clone for Index<I, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<I, K, V> Copy for Index<I, K, V> {}

pub(crate) fn store<K: Key, V: Value>(nodes: &Nodes, of: Collection<K, V>) -> &Store<K, V> {
    typed(nodes[of.node].store())
}

pub(crate) fn store_mut<K: Key, V: Value>(nodes: &mut Nodes, of: Collection<K, V>) -> &mut Store<K, V> {
    nodes[of.node].store_mut().downcast_mut().expect("a handle has its collection's types")
}

pub(crate) fn typed<K: Key, V: Value>(store: &dyn Any) -> &Store<K, V> {
    store.downcast_ref().expect("a handle has its collection's types")
}

/// A node that is written from outside.
pub(crate) struct InputNode<K, V> {
    name: &'static str,
    store: Store<K, V>,
}

impl<K: Key, V: Value> InputNode<K, V> {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, store: Store::new() }
    }
}

impl<K: Key, V: Value> Node for InputNode<K, V> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn store(&self) -> &dyn Any {
        &self.store
    }
    fn store_mut(&mut self) -> &mut dyn Any {
        &mut self.store
    }
    fn update(&mut self, _older: &Nodes, _faults: &mut Vec<Fault>) {
        self.store.settle();
    }
    fn clear_changes(&mut self) {
        self.store.clear_changes();
    }
    fn len(&self) -> usize {
        self.store.len()
    }
    fn runs(&self) -> u64 {
        0
    }
    fn reads(&self) -> usize {
        0
    }
}
