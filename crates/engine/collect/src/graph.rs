//! The graph: makes collections, applies batches, shows what changed.

use crate::derived::Derived;
use crate::dump::{Dump, Explanation, Kind, Stamp};
use crate::explain::{explain, figures};
use crate::fault::{Fault, contain};
use crate::handle::{Collection, Id, Index, Input, LabelIndex, SelectorIndex, Union};
use crate::index::{Guarded, KeyedIndex};
use crate::joined::{Combine, Joined};
use crate::label::{Labelled, Selecting};
use crate::merged::{Choose, Merged};
use crate::node::{InputNode, Node, Nodes, typed};
use crate::reads::Reads;
use crate::store::{AnyStore, Change, Store};
use crate::value::{Key, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// Collections and how they follow from each other.
#[derive(Default)]
pub struct Graph {
    nodes: Nodes,
    faults: Vec<Fault>,
    observers: Vec<Observer>,
    scopes: BTreeMap<u64, Opened>,
    /// The scope that owns what is made now; 0 is the graph itself.
    current: u64,
    next_id: Id,
    batches: u64,
}

/// A part of a graph that can be taken out again as a whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Scope(u64);

struct Opened {
    name: String,
    /// Its collections stand before these unions.
    before: BTreeSet<Id>,
    /// Indexes that it made on collections of others.
    indexes: Vec<(Id, usize)>,
}

/// Told of every change of one collection.
struct Observer {
    of: Id,
    scope: u64,
    notify: Notify,
}

type Notify = Box<dyn FnMut(&dyn AnyStore, &mut Vec<Fault>) + Send>;

impl Graph {
    /// A graph without collections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a collection that is written with [`Batch`]es.
    pub fn input<K: Key, V: Value>(&mut self, name: &'static str) -> Input<K, V> {
        Input(self.add(InputNode::<K, V>::new(name, Kind::Input, Store::new())))
    }

    /// Adds a collection that never changes.
    pub fn fixed<K: Key, V: Value>(
        &mut self,
        name: &'static str,
        values: impl IntoIterator<Item = (K, Arc<V>)>,
    ) -> Collection<K, V> {
        let mut store = Store::new();
        values.into_iter().for_each(|(key, value)| store.set(&key, Some(value)));
        self.add(InputNode::new(name, Kind::Fixed, store))
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

    /// Adds a collection of the keys that both collections have.
    pub fn join<K: Key, A: Value, B: Value, O: Value>(
        &mut self,
        name: &'static str,
        left: Collection<K, A>,
        right: Collection<K, B>,
        combine: impl Fn(&K, &A, &B) -> Option<O> + Send + 'static,
    ) -> Collection<K, O> {
        self.full_join(name, left, right, move |key, a, b| combine(key, a?, b?))
    }

    /// Adds a collection of the keys of `left`, with the value that `right` may have at each.
    pub fn left_join<K: Key, A: Value, B: Value, O: Value>(
        &mut self,
        name: &'static str,
        left: Collection<K, A>,
        right: Collection<K, B>,
        combine: impl Fn(&K, &A, Option<&B>) -> Option<O> + Send + 'static,
    ) -> Collection<K, O> {
        self.full_join(name, left, right, move |key, a, b| combine(key, a?, b))
    }

    /// Adds a collection of the keys that either collection has; `combine` gets at least one value.
    pub fn full_join<K: Key, A: Value, B: Value, O: Value>(
        &mut self,
        name: &'static str,
        left: Collection<K, A>,
        right: Collection<K, B>,
        combine: impl Fn(&K, Option<&A>, Option<&B>) -> Option<O> + Send + 'static,
    ) -> Collection<K, O> {
        let combine: Combine<K, A, B, O> = Box::new(combine);
        self.add(Joined::new(name, left, right, combine))
    }

    /// Adds a collection that shows several others as one; for a key in more than one, the earlier source is seen.
    pub fn merge<K: Key, V: Value>(
        &mut self,
        name: &'static str,
        sources: &[Collection<K, V>],
    ) -> Collection<K, V> {
        self.add_merge(name, sources, None)
    }

    /// Like [`Graph::merge`], but `choose` makes the value that is seen from all there are, in the order of `sources`.
    pub fn merge_with<K: Key, V: Value>(
        &mut self,
        name: &'static str,
        sources: &[Collection<K, V>],
        choose: impl Fn(&K, &[&V]) -> V + Send + 'static,
    ) -> Collection<K, V> {
        self.add_merge(name, sources, Some(Box::new(choose)))
    }

    fn add_merge<K: Key, V: Value>(
        &mut self,
        name: &'static str,
        sources: &[Collection<K, V>],
        choose: Option<Choose<K, V>>,
    ) -> Collection<K, V> {
        let mut merged = Merged::new(name, Kind::Merge, choose);
        sources.iter().for_each(|source| merged.connect(*source, 0));
        self.add(merged)
    }

    /// Adds a merge without sources, to which [`Graph::connect`] adds them.
    pub fn union<K: Key, V: Value>(&mut self, name: &'static str) -> Union<K, V> {
        Union(self.add(Merged::<K, V>::new(name, Kind::Union, None)))
    }

    /// Makes `source` a source of a union from the next batch on. For a key in more than one source, the one with the
    /// smallest `precedence`, then the one connected first, is seen.
    ///
    /// # Panics
    /// `source` does not stand before the union: it was made after it, outside a scope that was opened before it.
    pub fn connect<K: Key, V: Value>(
        &mut self,
        union: Union<K, V>,
        source: Collection<K, V>,
        precedence: u32,
    ) {
        let position = |id: Id| self.nodes.entries.get(&id).map(|entry| entry.position);
        assert!(
            position(source.node).is_some_and(|source| Some(source) < position(union.0.node)),
            "a source must stand before its union: make it within a scope that is opened before the union"
        );
        let node = self.nodes.node_mut(union.0.node).expect("the union stands after its source");
        let merged: &mut dyn std::any::Any = node.as_any_mut();
        let merged: &mut Merged<K, V> = merged.downcast_mut().expect("a union's node is a merge");
        merged.connect(source, precedence);
    }

    /// Opens a scope whose collections can be sources of these unions. Make its collections in [`Graph::within`].
    pub fn open(&mut self, name: impl Into<String>, before: &[u64]) -> Scope {
        self.next_id += 1;
        let opened =
            Opened { name: name.into(), before: before.iter().copied().collect(), indexes: Vec::new() };
        self.scopes.insert(self.next_id, opened);
        Scope(self.next_id)
    }

    /// Makes collections, indexes and handlers that the scope owns.
    pub fn within<T>(&mut self, scope: &Scope, make: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.current, scope.0);
        let made = make(self);
        self.current = outer;
        made
    }

    /// Takes out all that a scope owns. Unions withdraw its values with the next batch; a handle of one of its
    /// collections leads nowhere from now on.
    pub fn close(&mut self, scope: Scope) {
        let Some(opened) = self.scopes.remove(&scope.0) else { return };
        self.observers.retain(|observer| observer.scope != scope.0);
        let owned = self.nodes.iter().filter(|(_, entry)| entry.scope == scope.0);
        let gone: BTreeSet<Id> = owned.map(|(id, _)| id).collect();
        self.nodes.remove(&gone);
        for (of, index) in opened.indexes {
            if let Some(node) = self.nodes.node_mut(of) {
                node.store_mut().drop_index(index);
            }
        }
    }

    /// Adds an index; `keys_of` lists the buckets of a value.
    pub fn index<I: Key, K: Key, V: Value>(
        &mut self,
        of: Collection<K, V>,
        keys_of: impl Fn(&K, &V) -> Vec<I> + Send + 'static,
    ) -> Index<I, K, V> {
        let guarded = Guarded::new(self.name(of), Box::new(keys_of) as _);
        Index::at(of, self.add_index(of, KeyedIndex::new(guarded)))
    }

    /// Adds an index by labels: [`Reads::select`] finds the values that carry all the labels of a selector.
    pub fn label_index<T: Key + Hash, K: Key, V: Value>(
        &mut self,
        of: Collection<K, V>,
        labels_of: impl Fn(&K, &V) -> Vec<T> + Send + 'static,
    ) -> LabelIndex<T, K, V> {
        let guarded = Guarded::new(self.name(of), Box::new(labels_of) as _);
        LabelIndex::at(of, self.add_index(of, Labelled::new(guarded)))
    }

    /// Adds an index by selectors: [`Reads::selecting`] finds the values whose selector is met by labels. A value
    /// without a selector selects nothing, one with an empty selector everything.
    pub fn selector_index<T: Key + Hash, K: Key, V: Value>(
        &mut self,
        of: Collection<K, V>,
        selector_of: impl Fn(&K, &V) -> Option<Vec<T>> + Send + 'static,
    ) -> SelectorIndex<T, K, V> {
        let guarded = Guarded::new(self.name(of), Box::new(selector_of) as _);
        SelectorIndex::at(of, self.add_index(of, Selecting::new(guarded)))
    }

    /// Calls `handler` with every value that is there, as if it had just come, and from then on with every change, in
    /// the order of keys, at the end of each batch. A handler that panics has not seen that change; the panic is a fault.
    pub fn on_change<K: Key, V: Value>(
        &mut self,
        of: Collection<K, V>,
        mut handler: impl FnMut(Change<'_, K, V>) + Send + 'static,
    ) {
        let name = self.name(of);
        for (key, value) in self.nodes.store(of).iter() {
            let change = Change { key, before: None, after: Some(value) };
            self.faults.extend(contain(name, key, || handler(change)).err());
        }
        let notify: Notify = Box::new(move |store, faults| {
            for change in typed::<K, V>(store).changes() {
                let key = change.key;
                faults.extend(contain(name, key, || handler(change)).err());
            }
        });
        self.observers.push(Observer { of: of.node, scope: self.current, notify });
    }

    /// Applies a batch and everything that follows from it. What changed is shown until the result is dropped.
    pub fn apply(&mut self, batch: Batch) -> Commit<'_> {
        self.batches += 1;
        let stamp = Stamp { batch: self.batches, at: batch.at };
        for write in batch.writes {
            write(&mut self.nodes);
        }
        for position in 0..self.nodes.order.len() {
            self.update(position, stamp);
        }
        for observer in &mut self.observers {
            if let Some(node) = self.nodes.node(observer.of) {
                (observer.notify)(node.store(), &mut self.faults);
            }
        }
        Commit { graph: self }
    }

    fn update(&mut self, position: usize, stamp: Stamp) {
        let id = self.nodes.order[position];
        let away = self.nodes.entries.get_mut(&id).and_then(|entry| entry.node.take());
        let Some(mut node) = away else { return };
        let (runs, faults) = (node.runs(), self.faults.len());
        node.update(self.nodes.before(position), &mut self.faults);
        self.faults.append(&mut node.store_mut().take_faults());
        let Some(entry) = self.nodes.entries.get_mut(&id) else { return };
        if node.runs() > runs {
            entry.last_run = Some(stamp);
        }
        if node.store().is_changed() {
            entry.last_change = Some(stamp);
        }
        entry.faults += u64::try_from(self.faults.len() - faults).unwrap_or(u64::MAX);
        entry.node = Some(node);
    }

    /// The value at a key.
    ///
    /// # Panics
    /// The collection has gone with its scope.
    pub fn get<K: Key, V: Value>(&self, from: Collection<K, V>, key: &K) -> Option<&Arc<V>> {
        self.nodes.store(from).get(key)
    }

    /// All values, in the order of their keys.
    ///
    /// # Panics
    /// The collection has gone with its scope.
    pub fn iter<K: Key, V: Value>(&self, from: Collection<K, V>) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.nodes.store(from).iter()
    }

    /// Figures on every collection.
    pub fn dump(&self) -> Dump {
        let scope = |id: &u64| self.scopes.get(id).map(|opened| opened.name.clone());
        let all = self.nodes.iter();
        let collections = all.filter_map(|(id, entry)| figures(id, entry, scope(&entry.scope)));
        Dump { batches: self.batches, collections: collections.collect() }
    }

    /// Explains the value of a key, down to inputs. The key is given in its debug form, without quotes if it is a text; a
    /// part of it will do where it fits one key only.
    ///
    /// # Errors
    /// No key fits, or several: keys that do.
    pub fn why(&self, collection: &str, key: &str) -> Result<Explanation, Vec<String>> {
        explain(&self.nodes, collection, key)
    }

    fn name<K, V>(&self, of: Collection<K, V>) -> &'static str {
        self.nodes.node(of.node).map_or("", Node::name)
    }

    fn add_index<K: Key, V: Value>(
        &mut self,
        of: Collection<K, V>,
        index: impl crate::index::Indexing<K, V> + 'static,
    ) -> usize {
        let store = self.nodes.store_mut(of);
        let at = store.add_index(index);
        self.faults.extend(AnyStore::take_faults(store));
        let owner = self.nodes.entries.get(&of.node).map(|entry| entry.scope);
        if owner != Some(self.current)
            && let Some(opened) = self.scopes.get_mut(&self.current)
        {
            opened.indexes.push((of.node, at));
        }
        at
    }

    /// Adds a node and computes it from what is already there.
    fn add<K: Key, V: Value>(&mut self, mut node: impl Node + 'static) -> Collection<K, V> {
        self.assert_may_use(&node);
        let position = self.place();
        node.update(self.nodes.before(position), &mut self.faults);
        node.store_mut().forget_changes();
        self.next_id += 1;
        self.nodes.insert(self.next_id, position, Box::new(node), self.current);
        Collection::at(self.next_id)
    }

    /// Where the next collection stands: last, or before the unions of its scope.
    fn place(&self) -> usize {
        let last = self.nodes.order.len();
        let Some(opened) = self.scopes.get(&self.current) else { return last };
        let unions = opened.before.iter().filter_map(|id| self.nodes.entries.get(id));
        unions.map(|entry| entry.position).min().unwrap_or(last)
    }

    /// What is made from a collection of a scope must go with it.
    fn assert_may_use(&self, node: &dyn Node) {
        for from in node.from() {
            let scope = self.nodes.entries.get(&from).map_or(0, |entry| entry.scope);
            assert!(
                scope == 0 || scope == self.current,
                "{}: a collection of a scope can be used outside of it only through a union",
                node.name()
            );
        }
    }
}

/// One write to an input.
type Write = Box<dyn FnOnce(&mut Nodes) + Send>;

/// Writes to inputs that take effect together. Of two writes to a key the later one counts. Writes to an input that has
/// gone with its scope have no effect.
#[derive(Default)]
pub struct Batch {
    writes: Vec<Write>,
    at: Option<Duration>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes when the batch is applied, since the Unix epoch, for [`Graph::dump`].
    #[must_use]
    pub fn at(self, time: Duration) -> Self {
        Self { at: Some(time), ..self }
    }

    /// Writes a value.
    pub fn set<K: Key, V: Value>(&mut self, to: Input<K, V>, key: K, value: Arc<V>) {
        self.write(to, key, Some(value));
    }

    /// Removes a value, if it is there.
    pub fn remove<K: Key, V: Value>(&mut self, from: Input<K, V>, key: K) {
        self.write(from, key, None);
    }

    fn write<K: Key, V: Value>(&mut self, to: Input<K, V>, key: K, value: Option<Arc<V>>) {
        self.writes.push(Box::new(move |nodes| {
            if nodes.node(to.0.node).is_some() {
                nodes.store_mut(to.0).set(&key, value);
            }
        }));
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
    ///
    /// # Panics
    /// The collection has gone with its scope.
    pub fn changes<K: Key, V: Value>(&self, of: Collection<K, V>) -> impl Iterator<Item = Change<'_, K, V>> {
        self.graph.nodes.store(of).changes()
    }

    /// The graph as it is now.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// Functions that panicked, also while collections were added before this batch.
    pub fn faults(&self) -> &[Fault] {
        &self.graph.faults
    }
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        for entry in self.graph.nodes.entries.values_mut() {
            if let Some(node) = &mut entry.node {
                node.store_mut().forget_changes();
            }
        }
        self.graph.faults.clear();
    }
}
