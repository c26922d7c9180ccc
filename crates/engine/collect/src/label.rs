//! Indexes by labels and by selectors: a value matches a selector that asks for a subset of its labels.
//!
//! A label is any value, typically a name and what it is set to. Labels are kept as hashes; what they find is compared
//! for real, so that a collision costs a comparison and nothing else.

use crate::fault::Fault;
use crate::index::{Guarded, Indexing, KeysOf};
use crate::value::{Key, Value};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// Hash of a label.
pub(crate) type Token = u64;
/// The same in every run: nothing here may depend on chance.
pub(crate) type Steady = BuildHasherDefault<DefaultHasher>;

pub(crate) fn token(label: &impl Hash) -> Token {
    let mut hasher = DefaultHasher::new();
    label.hash(&mut hasher);
    hasher.finish()
}

/// Hashes of labels, sorted, without duplicates.
pub(crate) fn tokens<T: Hash>(labels: &[T]) -> Box<[Token]> {
    let mut all: Vec<Token> = labels.iter().map(token).collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

/// Whether all of `few` are in `many`; both are sorted.
pub(crate) fn is_subset(few: &[Token], many: &[Token]) -> bool {
    few.len() <= many.len() && few.iter().all(|token| many.binary_search(token).is_ok())
}

/// Values by the labels they carry.
pub(crate) struct Labelled<T, K, V> {
    labels_of: Guarded<KeysOf<T, K, V>>,
    carriers: HashMap<Token, BTreeSet<K>, Steady>,
    /// Label sets that came, went or changed with their value.
    touched: Vec<Box<[Token]>>,
}

impl<T: Key + Hash, K: Key, V: Value> Labelled<T, K, V> {
    pub(crate) fn new(labels_of: Guarded<KeysOf<T, K, V>>) -> Self {
        Self { labels_of, carriers: HashMap::default(), touched: Vec::new() }
    }

    /// Keys of the values that may carry all of `wanted` (at least one): those with its rarest label.
    pub(crate) fn candidates(&self, wanted: &[T]) -> impl Iterator<Item = &K> {
        let rarest = wanted
            .iter()
            .map(|label| self.carriers.get(&token(label)))
            .min_by_key(|c| c.map_or(0, BTreeSet::len));
        rarest.flatten().into_iter().flatten()
    }

    /// Whether a value carries all of `wanted`.
    pub(crate) fn carries(&self, key: &K, value: &V, wanted: &[T]) -> bool {
        let labels = (self.labels_of.function())(key, value);
        wanted.iter().all(|label| labels.contains(label))
    }

    pub(crate) fn touched(&self) -> &[Box<[Token]>] {
        &self.touched
    }
}

impl<T: Key + Hash, K: Key, V: Value> Indexing<K, V> for Labelled<T, K, V> {
    fn update(&mut self, key: &K, old: Option<&V>, new: Option<&V>) {
        if let Some(old) = old {
            let labels = tokens(&self.labels_of.rerun(key, |f| f(key, old)));
            for token in &labels {
                if let Some(keys) = self.carriers.get_mut(token) {
                    keys.remove(key);
                    if keys.is_empty() {
                        self.carriers.remove(token);
                    }
                }
            }
            self.touched.push(labels);
        }
        if let Some(new) = new {
            let labels = tokens(&self.labels_of.run(key, |f| f(key, new)));
            for token in &labels {
                self.carriers.entry(*token).or_default().insert(key.clone());
            }
            self.touched.push(labels);
        }
    }

    fn clear_touched(&mut self) {
        self.touched = Vec::new();
    }

    fn take_faults(&mut self) -> Vec<Fault> {
        self.labels_of.take_faults()
    }

    fn len(&self) -> usize {
        self.carriers.values().map(BTreeSet::len).sum()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Computes the labels a value selects; none: it selects nothing, an empty list: it selects everything.
pub(crate) type SelectorOf<T, K, V> = Box<dyn Fn(&K, &V) -> Option<Vec<T>> + Send>;

/// Values by the labels they select.
pub(crate) struct Selecting<T, K, V> {
    selector_of: Guarded<SelectorOf<T, K, V>>,
    /// Each selector waits under one of its labels, the one with the fewest others at that moment.
    by_anchor: HashMap<Token, BTreeSet<K>, Steady>,
    anchors: BTreeMap<K, Option<Token>>,
    /// Those that select everything.
    all: BTreeSet<K>,
    touched: Vec<Box<[Token]>>,
}

impl<T: Key + Hash, K: Key, V: Value> Selecting<T, K, V> {
    pub(crate) fn new(selector_of: Guarded<SelectorOf<T, K, V>>) -> Self {
        Self {
            selector_of,
            by_anchor: HashMap::default(),
            anchors: BTreeMap::new(),
            all: BTreeSet::new(),
            touched: Vec::new(),
        }
    }

    /// Keys of the values that may select something with these labels, in their order.
    pub(crate) fn candidates(&self, labels: &[T]) -> BTreeSet<&K> {
        let by_label = labels.iter().filter_map(|label| self.by_anchor.get(&token(label))).flatten();
        by_label.chain(&self.all).collect()
    }

    /// Whether a value selects something with these labels.
    pub(crate) fn selects(&self, key: &K, value: &V, labels: &[T]) -> bool {
        (self.selector_of.function())(key, value)
            .is_some_and(|wanted| wanted.iter().all(|label| labels.contains(label)))
    }

    pub(crate) fn touched(&self) -> &[Box<[Token]>] {
        &self.touched
    }

    fn remove(&mut self, key: &K) {
        match self.anchors.remove(key) {
            Some(Some(anchor)) => {
                if let Some(keys) = self.by_anchor.get_mut(&anchor) {
                    keys.remove(key);
                    if keys.is_empty() {
                        self.by_anchor.remove(&anchor);
                    }
                }
            }
            Some(None) => drop(self.all.remove(key)),
            None => {}
        }
    }
}

impl<T: Key + Hash, K: Key, V: Value> Indexing<K, V> for Selecting<T, K, V> {
    fn update(&mut self, key: &K, old: Option<&V>, new: Option<&V>) {
        if let Some(selector) = old.and_then(|old| self.selector_of.rerun(key, |f| f(key, old))) {
            self.remove(key);
            self.touched.push(tokens(&selector));
        }
        if let Some(selector) = new.and_then(|new| self.selector_of.run(key, |f| f(key, new))) {
            let selector = tokens(&selector);
            let waiting = |token: &&Token| self.by_anchor.get(token).map_or(0, BTreeSet::len);
            let anchor = selector.iter().min_by_key(waiting).copied();
            match anchor {
                Some(anchor) => drop(self.by_anchor.entry(anchor).or_default().insert(key.clone())),
                None => drop(self.all.insert(key.clone())),
            }
            self.anchors.insert(key.clone(), anchor);
            self.touched.push(selector);
        }
    }

    fn clear_touched(&mut self) {
        self.touched = Vec::new();
    }

    fn take_faults(&mut self) -> Vec<Fault> {
        self.selector_of.take_faults()
    }

    fn len(&self) -> usize {
        self.anchors.len()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
