//! Which of several sources of one key is seen.

use crate::value::{Key, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values offered for each key, by their source, the smallest source first.
pub(crate) struct Contributions<S, K, V>(BTreeMap<K, Offers<S, V>>);

type Offer<S, V> = (S, Arc<V>);

/// Almost every key has one source, which takes no memory of its own.
enum Offers<S, V> {
    One(Offer<S, V>),
    Several(Vec<Offer<S, V>>),
}

impl<S, V> Offers<S, V> {
    fn as_slice(&self) -> &[Offer<S, V>] {
        match self {
            Self::One(offer) => std::slice::from_ref(offer),
            Self::Several(offers) => offers,
        }
    }

    fn into_vec(self) -> Vec<Offer<S, V>> {
        match self {
            Self::One(offer) => vec![offer],
            Self::Several(offers) => offers,
        }
    }
}

impl<S, V> Default for Offers<S, V> {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl<S: Ord + Clone, K: Key, V: Value> Contributions<S, K, V> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Takes up, replaces or (without a value) withdraws what `source` offers for `key`.
    pub(crate) fn offer(&mut self, key: &K, source: &S, value: Option<Arc<V>>) {
        let Some(offers) = self.0.get_mut(key) else {
            if let Some(value) = value {
                self.0.insert(key.clone(), Offers::One((source.clone(), value)));
            }
            return;
        };
        let at = offers.as_slice().binary_search_by(|(other, _)| other.cmp(source));
        if let (Ok(at), Some(value)) = (at, &value)
            && *offers.as_slice()[at].1 == **value
        {
            // An equal value leaves the old one in place, so that it is held only once.
            return;
        }
        let mut all = std::mem::take(offers).into_vec();
        match (at, value) {
            (Ok(at), Some(value)) => all[at].1 = value,
            (Ok(at), None) => drop(all.remove(at)),
            (Err(at), Some(value)) => all.insert(at, (source.clone(), value)),
            (Err(_), None) => {}
        }
        match <[Offer<S, V>; 1]>::try_from(all) {
            Ok([only]) => *offers = Offers::One(only),
            Err(none) if none.is_empty() => drop(self.0.remove(key)),
            Err(several) => *offers = Offers::Several(several),
        }
    }

    /// What is offered for `key`, the smallest source first.
    pub(crate) fn of(&self, key: &K) -> &[Offer<S, V>] {
        self.0.get(key).map_or(&[], Offers::as_slice)
    }

    /// The keys for which a source offers something.
    pub(crate) fn keys_of(&self, source: &S) -> Vec<K> {
        let offers = |offers: &Offers<S, V>| offers.as_slice().iter().any(|(other, _)| other == source);
        self.0.iter().filter(|(_, all)| offers(all)).map(|(key, _)| key.clone()).collect()
    }

    /// Number of offers, over all keys.
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(|offers| offers.as_slice().len()).sum()
    }
}
