//! The values of one collection, their indexes, and what changed since the last commit.

use crate::fault::Fault;
use crate::index::Indexing;
use crate::value::{Key, Value};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The difference a batch made to one key; `before` and `after` are never equal.
#[derive(Debug, Clone, PartialEq)]
pub struct Change<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// Value before the batch.
    pub before: Option<&'a Arc<V>>,
    /// Value after the batch.
    pub after: Option<&'a Arc<V>>,
}

pub(crate) struct Store<K, V> {
    values: BTreeMap<K, Arc<V>>,
    indexes: BTreeMap<usize, Box<dyn Indexing<K, V>>>,
    next_index: usize,
    /// Values at the last commit, of the keys written since.
    before: BTreeMap<K, Option<Arc<V>>>,
}

impl<K: Key, V: Value> Store<K, V> {
    pub(crate) fn new() -> Self {
        Self { values: BTreeMap::new(), indexes: BTreeMap::new(), next_index: 0, before: BTreeMap::new() }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&Arc<V>> {
        self.values.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.values.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Writes or removes a value. Writing what is there already is no change.
    pub(crate) fn set(&mut self, key: &K, value: Option<Arc<V>>) {
        let old = self.values.get(key);
        if same(old, value.as_ref()) {
            return;
        }
        for index in self.indexes.values_mut() {
            index.update(key, old.map(AsRef::as_ref), value.as_deref());
        }
        let old = match value {
            Some(value) => self.values.insert(key.clone(), value),
            None => self.values.remove(key),
        };
        self.before.entry(key.clone()).or_insert(old);
    }

    /// Drops the record of keys that were written and got their old value back.
    pub(crate) fn settle(&mut self) {
        let values = &self.values;
        self.before.retain(|key, before| !same(before.as_ref(), values.get(key)));
    }

    /// Forgets what changed.
    pub(crate) fn clear_changes(&mut self) {
        self.before.clear();
        self.indexes.values_mut().for_each(|index| index.clear_touched());
    }

    pub(crate) fn has_changes(&self) -> bool {
        !self.before.is_empty()
    }

    pub(crate) fn changes(&self) -> impl Iterator<Item = Change<'_, K, V>> {
        self.before.iter().map(|(key, before)| Change {
            key,
            before: before.as_ref(),
            after: self.values.get(key),
        })
    }

    pub(crate) fn add_index(&mut self, mut index: impl Indexing<K, V> + 'static) -> usize {
        for (key, value) in &self.values {
            index.update(key, None, Some(value));
        }
        index.clear_touched();
        let at = self.next_index;
        self.next_index += 1;
        self.indexes.insert(at, Box::new(index));
        at
    }

    /// An index by its place, of this type.
    ///
    /// # Panics
    /// The index has gone with the scope that made it.
    pub(crate) fn index<X: 'static>(&self, at: usize) -> &X {
        let index = self.indexes.get(&at).expect("the index has gone with its scope");
        index.as_any().downcast_ref().expect("an index handle has its index's types")
    }
}

/// What does not depend on the types of a store.
pub(crate) trait AnyStore: Any + Send {
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn has_index(&self, at: usize) -> bool;
    fn drop_index(&mut self, at: usize);
    fn count(&self) -> usize;
    /// Entries of each index.
    fn index_sizes(&self) -> Vec<usize>;
    fn is_changed(&self) -> bool;
    fn forget_changes(&mut self);
    /// Panics of index functions since the last call.
    fn take_faults(&mut self) -> Vec<Fault>;
    /// Bytes of the values themselves, without what they point to.
    fn shallow_bytes(&self) -> usize;
    /// The keys as text, as far as `wanted` accepts them.
    fn keys_where(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<String>;
}

impl<K: Key, V: Value> AnyStore for Store<K, V> {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
    fn has_index(&self, at: usize) -> bool {
        self.indexes.contains_key(&at)
    }
    fn drop_index(&mut self, at: usize) {
        self.indexes.remove(&at);
    }
    fn count(&self) -> usize {
        self.len()
    }
    fn index_sizes(&self) -> Vec<usize> {
        self.indexes.values().map(|index| index.len()).collect()
    }
    fn is_changed(&self) -> bool {
        self.has_changes()
    }
    fn forget_changes(&mut self) {
        self.clear_changes();
    }
    fn take_faults(&mut self) -> Vec<Fault> {
        self.indexes.values_mut().flat_map(|index| index.take_faults()).collect()
    }
    fn shallow_bytes(&self) -> usize {
        // A reference counter's two words stand before each value.
        let reference = size_of::<K>() + size_of::<Arc<V>>() + 2 * size_of::<usize>();
        self.len() * (reference + size_of::<V>())
    }
    fn keys_where(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
        self.values.keys().map(|key| format!("{key:?}")).filter(|text| wanted(text)).collect()
    }
}

fn same<V: PartialEq>(a: Option<&Arc<V>>, b: Option<&Arc<V>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (None, None) => true,
        _ => false,
    }
}
