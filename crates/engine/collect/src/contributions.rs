//! Which of several sources of one key is seen.

use crate::store::{Key, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values offered for each key, by their source, the smallest source first.
pub(crate) struct Contributions<S, K, V>(BTreeMap<K, Vec<(S, Arc<V>)>>);

impl<S: Ord + Clone, K: Key, V: Value> Contributions<S, K, V> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Takes up, replaces or (without a value) withdraws what `source` offers for `key`.
    pub(crate) fn offer(&mut self, key: &K, source: &S, value: Option<Arc<V>>) {
        if !self.0.contains_key(key) {
            if let Some(value) = value {
                // Almost every key has one source.
                self.0.insert(key.clone(), vec![(source.clone(), value)]);
            }
            return;
        }
        let Some(offers) = self.0.get_mut(key) else { return };
        match (offers.binary_search_by(|(s, _)| s.cmp(source)), value) {
            // An equal value leaves the old one in place, so that it is held only once.
            (Ok(at), Some(value)) if *offers[at].1 == *value => {}
            (Ok(at), Some(value)) => offers[at].1 = value,
            (Ok(at), None) => drop(offers.remove(at)),
            (Err(at), Some(value)) => offers.insert(at, (source.clone(), value)),
            (Err(_), None) => {}
        }
        if offers.is_empty() {
            self.0.remove(key);
        }
    }

    /// What is offered for `key`, the smallest source first.
    pub(crate) fn of(&self, key: &K) -> &[(S, Arc<V>)] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// The keys for which a source offers something.
    pub(crate) fn keys_of(&self, source: &S) -> Vec<K> {
        let offers = |offers: &[(S, Arc<V>)]| offers.iter().any(|(s, _)| s == source);
        self.0.iter().filter(|(_, all)| offers(all)).map(|(key, _)| key.clone()).collect()
    }

    /// Number of offers, over all keys.
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}
