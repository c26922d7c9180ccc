//! The values of one collection, their indexes, and what changed since the last commit.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

/// What keys must be capable of.
pub trait Key: Ord + Clone + Debug + Send + 'static {}
impl<T: Ord + Clone + Debug + Send + 'static> Key for T {}

/// What values must be capable of.
pub trait Value: PartialEq + Send + Sync + 'static {}
impl<T: PartialEq + Send + Sync + 'static> Value for T {}

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
    indexes: Vec<Box<dyn Indexing<K, V>>>,
    /// Values at the last commit, of the keys written since.
    before: BTreeMap<K, Option<Arc<V>>>,
}

impl<K: Key, V: Value> Store<K, V> {
    pub(crate) fn new() -> Self {
        Self { values: BTreeMap::new(), indexes: Vec::new(), before: BTreeMap::new() }
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
        for index in &mut self.indexes {
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
        self.indexes.iter_mut().for_each(|index| index.clear_touched());
    }

    pub(crate) fn changes(&self) -> impl Iterator<Item = Change<'_, K, V>> {
        self.before.iter().map(|(key, before)| Change {
            key,
            before: before.as_ref(),
            after: self.values.get(key),
        })
    }

    pub(crate) fn add_index<I: Key>(&mut self, keys_of: impl Fn(&K, &V) -> Vec<I> + Send + 'static) -> usize {
        let mut index =
            KeyedIndex { keys_of: Box::new(keys_of), buckets: BTreeMap::new(), touched: BTreeSet::new() };
        for (key, value) in &self.values {
            index.update(key, None, Some(value));
        }
        index.touched.clear();
        self.indexes.push(Box::new(index));
        self.indexes.len() - 1
    }

    /// The keys of the values in one bucket of an index.
    pub(crate) fn bucket<I: Key>(&self, index: usize, of: &I) -> impl Iterator<Item = &K> {
        self.index::<I>(index).buckets.get(of).into_iter().flatten()
    }

    /// Buckets of an index in which a value came, went or changed.
    pub(crate) fn touched<I: Key>(&self, index: usize) -> impl Iterator<Item = &I> {
        self.index::<I>(index).touched.iter()
    }

    fn index<I: Key>(&self, index: usize) -> &KeyedIndex<I, K, V> {
        self.indexes[index].as_any().downcast_ref().expect("an index handle has its index's types")
    }
}

fn same<V: PartialEq>(a: Option<&Arc<V>>, b: Option<&Arc<V>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (None, None) => true,
        _ => false,
    }
}

trait Indexing<K, V>: Send {
    fn update(&mut self, key: &K, old: Option<&V>, new: Option<&V>);
    fn clear_touched(&mut self);
    fn as_any(&self) -> &dyn Any;
}

/// Computes the buckets a value belongs to.
type KeysOf<I, K, V> = Box<dyn Fn(&K, &V) -> Vec<I> + Send>;

struct KeyedIndex<I, K, V> {
    keys_of: KeysOf<I, K, V>,
    buckets: BTreeMap<I, BTreeSet<K>>,
    touched: BTreeSet<I>,
}

impl<I: Key, K: Key, V: Value> Indexing<K, V> for KeyedIndex<I, K, V> {
    fn update(&mut self, key: &K, old: Option<&V>, new: Option<&V>) {
        for bucket in old.map(|v| (self.keys_of)(key, v)).unwrap_or_default() {
            if let Some(keys) = self.buckets.get_mut(&bucket) {
                keys.remove(key);
                if keys.is_empty() {
                    self.buckets.remove(&bucket);
                }
            }
            self.touched.insert(bucket);
        }
        for bucket in new.map(|v| (self.keys_of)(key, v)).unwrap_or_default() {
            self.buckets.entry(bucket.clone()).or_default().insert(key.clone());
            self.touched.insert(bucket);
        }
    }

    fn clear_touched(&mut self) {
        self.touched.clear();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
