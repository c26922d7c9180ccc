//! Several collections seen as one.

use crate::contributions::Contributions;
use crate::node::{self, Collection, Fault, Node, Nodes};
use crate::store::{Key, Store, Value};
use std::any::Any;

pub(crate) struct Merged<K, V> {
    name: &'static str,
    sources: Vec<Collection<K, V>>,
    store: Store<K, V>,
    offers: Contributions<usize, K, V>,
    fresh: bool,
}

impl<K: Key, V: Value> Merged<K, V> {
    pub(crate) fn new(name: &'static str, sources: Vec<Collection<K, V>>) -> Self {
        Self { name, sources, store: Store::new(), offers: Contributions::new(), fresh: true }
    }
}

impl<K: Key, V: Value> Node for Merged<K, V> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn store(&self) -> &dyn Any {
        &self.store
    }
    fn store_mut(&mut self) -> &mut dyn Any {
        &mut self.store
    }
    fn update(&mut self, older: &Nodes, _faults: &mut Vec<Fault>) {
        let fresh = std::mem::take(&mut self.fresh);
        for (rank, &source) in self.sources.iter().enumerate() {
            let source = node::store(older, source);
            if fresh {
                for (key, value) in source.iter() {
                    self.offers.offer(&mut self.store, key, &rank, Some(value.clone()));
                }
            } else {
                for change in source.changes() {
                    self.offers.offer(&mut self.store, change.key, &rank, change.after.cloned());
                }
            }
        }
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
