//! Which of several sources of one key is seen.

use crate::store::{Key, Store, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values offered for each key, by their source; the one of the smallest source is seen.
pub(crate) struct Contributions<S, K, V>(BTreeMap<K, Vec<(S, Arc<V>)>>);

impl<S: Ord + Clone, K: Key, V: Value> Contributions<S, K, V> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Takes up, replaces or (without a value) withdraws what `source` offers for `key`, and shows the winner in `store`.
    pub(crate) fn offer(&mut self, store: &mut Store<K, V>, key: &K, source: &S, value: Option<Arc<V>>) {
        let offers = self.0.entry(key.clone()).or_default();
        match (offers.binary_search_by(|(s, _)| s.cmp(source)), value) {
            // An equal value leaves the old one in place, so that it is held only once.
            (Ok(at), Some(value)) if *offers[at].1 == *value => {}
            (Ok(at), Some(value)) => offers[at].1 = value,
            (Ok(at), None) => drop(offers.remove(at)),
            (Err(at), Some(value)) => {
                // Almost every key has one source: growing by one keeps that case small.
                offers.reserve_exact(1);
                offers.insert(at, (source.clone(), value));
            }
            (Err(_), None) => {}
        }
        store.set(key, offers.first().map(|(_, value)| value.clone()));
        if offers.is_empty() {
            self.0.remove(key);
        }
    }
}
