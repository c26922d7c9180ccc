//! The graph: makes collections, applies batches, shows what changed.

use crate::derived::Derived;
use crate::merged::Merged;
use crate::node::{self, Collection, Fault, Index, Input, InputNode, Node, Nodes};
use crate::reads::Reads;
use crate::store::{Change, Key, Value};
use std::sync::Arc;

/// Collections and how they follow from each other.
#[derive(Default)]
pub struct Graph {
    nodes: Vec<Box<dyn Node>>,
    faults: Vec<Fault>,
}

/// Figures on one collection, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionStats {
    /// Its name.
    pub name: &'static str,
    /// Values in it.
    pub len: usize,
    /// How often its transformation has run.
    pub runs: u64,
    /// Recorded reads.
    pub reads: usize,
}

impl Graph {
    /// A graph without collections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a collection that is written with [`Batch`]es.
    pub fn input<K: Key, V: Value>(&mut self, name: &'static str) -> Input<K, V> {
        Input(self.add(InputNode::<K, V>::new(name)))
    }

    /// Adds a collection that has at most one value for each value of `from`, under the same key.
    pub fn map<K: Key, V: Value, O: Value>(
        &mut self,
        name: &'static str,
        from: Collection<K, V>,
        transform: impl Fn(&mut Reads<'_>, &K, &V) -> Option<O> + Send + 'static,
    ) -> Collection<K, O> {
        self.flat_map(name, from, move |reads, key, value| {
            transform(reads, key, value).map(|output| (key.clone(), output)).into_iter().collect()
        })
    }

    /// Adds a collection that has any number of values, each under a key of its own, for each value of `from`.
    ///
    /// When two inputs lead to the same output key, the one with the smaller key is seen.
    pub fn flat_map<K: Key, V: Value, OK: Key, OV: Value>(
        &mut self,
        name: &'static str,
        from: Collection<K, V>,
        transform: impl Fn(&mut Reads<'_>, &K, &V) -> Vec<(OK, OV)> + Send + 'static,
    ) -> Collection<OK, OV> {
        self.add(Derived::new(name, from, Box::new(transform)))
    }

    /// Adds a collection that shows several others as one; for a key in more than one, the earlier source is seen.
    pub fn merge<K: Key, V: Value>(
        &mut self,
        name: &'static str,
        sources: &[Collection<K, V>],
    ) -> Collection<K, V> {
        self.add(Merged::new(name, sources.to_vec()))
    }

    /// Adds an index; `keys_of` lists the buckets of a value. With the single bucket `()` it lists the collection.
    pub fn index<I: Key, K: Key, V: Value>(
        &mut self,
        of: Collection<K, V>,
        keys_of: impl Fn(&K, &V) -> Vec<I> + Send + 'static,
    ) -> Index<I, K, V> {
        Index::at(of, node::store_mut(&mut self.nodes, of).add_index(keys_of))
    }

    /// Applies a batch and everything that follows from it. What changed is shown until the result is dropped.
    pub fn apply(&mut self, batch: Batch) -> Commit<'_> {
        for write in batch.writes {
            write(&mut self.nodes);
        }
        for at in 0..self.nodes.len() {
            let (older, rest) = self.nodes.split_at_mut(at);
            rest[0].update(older, &mut self.faults);
        }
        Commit { graph: self }
    }

    /// The value at a key.
    pub fn get<K: Key, V: Value>(&self, from: Collection<K, V>, key: &K) -> Option<&Arc<V>> {
        node::store(&self.nodes, from).get(key)
    }

    /// All values, in the order of their keys.
    pub fn iter<K: Key, V: Value>(&self, from: Collection<K, V>) -> impl Iterator<Item = (&K, &Arc<V>)> {
        node::store(&self.nodes, from).iter()
    }

    /// Figures on every collection, in the order in which they were made.
    pub fn stats(&self) -> Vec<CollectionStats> {
        let of =
            |n: &dyn Node| CollectionStats { name: n.name(), len: n.len(), runs: n.runs(), reads: n.reads() };
        self.nodes.iter().map(|node| of(node.as_ref())).collect()
    }

    /// Adds a node and computes it from what is already there.
    fn add<K: Key, V: Value>(&mut self, mut node: impl Node + 'static) -> Collection<K, V> {
        node.update(&self.nodes, &mut self.faults);
        node.clear_changes();
        self.nodes.push(Box::new(node));
        Collection::at(self.nodes.len() - 1)
    }
}

/// One write to an input.
type Write = Box<dyn FnOnce(&mut Nodes) + Send>;

/// Writes to inputs that take effect together. Of two writes to a key the later one counts.
#[derive(Default)]
pub struct Batch {
    writes: Vec<Write>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a value.
    pub fn set<K: Key, V: Value>(&mut self, to: Input<K, V>, key: K, value: Arc<V>) {
        self.writes.push(Box::new(move |nodes| node::store_mut(nodes, to.0).set(&key, Some(value))));
    }

    /// Removes a value, if it is there.
    pub fn remove<K: Key, V: Value>(&mut self, from: Input<K, V>, key: K) {
        self.writes.push(Box::new(move |nodes| node::store_mut(nodes, from.0).set(&key, None)));
    }

    /// Number of writes.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

/// What one batch changed, in inputs and everything derived. The graph forgets it when this is dropped.
pub struct Commit<'a> {
    graph: &'a mut Graph,
}

impl Commit<'_> {
    /// The differences in one collection, in the order of keys.
    pub fn changes<K: Key, V: Value>(&self, of: Collection<K, V>) -> impl Iterator<Item = Change<'_, K, V>> {
        node::store(&self.graph.nodes, of).changes()
    }

    /// The graph as it is now.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// Transformations that panicked, also while collections were added before this batch.
    pub fn faults(&self) -> &[Fault] {
        &self.graph.faults
    }
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        self.graph.nodes.iter_mut().for_each(|node| node.clear_changes());
        self.graph.faults.clear();
    }
}
