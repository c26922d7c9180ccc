//! Values by something else than their key.

use crate::fault::{Fault, contain};
use crate::value::{Key, Value};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

/// An index of a store, whatever its types.
pub(crate) trait Indexing<K, V>: Send {
    fn update(&mut self, key: &K, old: Option<&V>, new: Option<&V>);
    fn clear_touched(&mut self);
    /// Panics of its function since the last call.
    fn take_faults(&mut self) -> Vec<Fault>;
    /// Number of entries.
    fn len(&self) -> usize;
    fn as_any(&self) -> &dyn Any;
}

/// Computes the buckets a value belongs to.
pub(crate) type KeysOf<I, K, V> = Box<dyn Fn(&K, &V) -> Vec<I> + Send>;

/// A function of an index, whose panics are kept as faults: the value is then in no bucket.
pub(crate) struct Guarded<F> {
    function: F,
    collection: &'static str,
    faults: Vec<Fault>,
}

impl<F> Guarded<F> {
    pub(crate) fn new(collection: &'static str, function: F) -> Self {
        Self { function, collection, faults: Vec::new() }
    }

    pub(crate) fn run<K: Key, T: Default>(&mut self, key: &K, call: impl FnOnce(&F) -> T) -> T {
        contain(self.collection, key, || call(&self.function)).unwrap_or_else(|fault| {
            self.faults.push(fault);
            T::default()
        })
    }

    /// Like [`Guarded::run`], for a value that has been there before: its panic has been reported.
    pub(crate) fn rerun<K: Key, T: Default>(&self, key: &K, call: impl FnOnce(&F) -> T) -> T {
        contain(self.collection, key, || call(&self.function)).unwrap_or_default()
    }

    pub(crate) fn function(&self) -> &F {
        &self.function
    }

    pub(crate) fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }
}

/// Buckets of keys.
pub(crate) struct KeyedIndex<I, K, V> {
    keys_of: Guarded<KeysOf<I, K, V>>,
    buckets: BTreeMap<I, BTreeSet<K>>,
    touched: BTreeSet<I>,
}

impl<I: Key, K: Key, V: Value> KeyedIndex<I, K, V> {
    pub(crate) fn new(keys_of: Guarded<KeysOf<I, K, V>>) -> Self {
        Self { keys_of, buckets: BTreeMap::new(), touched: BTreeSet::new() }
    }

    /// The keys of the values in one bucket.
    pub(crate) fn bucket(&self, of: &I) -> impl Iterator<Item = &K> {
        self.buckets.get(of).into_iter().flatten()
    }

    /// Buckets in which a value came, went or changed.
    pub(crate) fn touched(&self) -> impl Iterator<Item = &I> {
        self.touched.iter()
    }
}

impl<I: Key, K: Key, V: Value> Indexing<K, V> for KeyedIndex<I, K, V> {
    fn update(&mut self, key: &K, old: Option<&V>, new: Option<&V>) {
        for bucket in old.map(|v| self.keys_of.rerun(key, |f| f(key, v))).unwrap_or_default() {
            if let Some(keys) = self.buckets.get_mut(&bucket) {
                keys.remove(key);
                if keys.is_empty() {
                    self.buckets.remove(&bucket);
                }
            }
            self.touched.insert(bucket);
        }
        for bucket in new.map(|v| self.keys_of.run(key, |f| f(key, v))).unwrap_or_default() {
            self.buckets.entry(bucket.clone()).or_default().insert(key.clone());
            self.touched.insert(bucket);
        }
    }

    fn clear_touched(&mut self) {
        self.touched.clear();
    }

    fn take_faults(&mut self) -> Vec<Fault> {
        self.keys_of.take_faults()
    }

    fn len(&self) -> usize {
        self.buckets.values().map(BTreeSet::len).sum()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
