//! Several collections seen as one.

use crate::contributions::Contributions;
use crate::dump::{Cause, How, Kind};
use crate::fault::{Fault, contain};
use crate::handle::{Collection, Id};
use crate::node::{Node, Older};
use crate::store::{AnyStore, Store};
use crate::value::{Key, Value};
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

/// From all values at a key, in the order of their sources, to the one that is seen.
pub(crate) type Choose<K, V> = Box<dyn Fn(&K, &[&V]) -> V + Send>;

pub(crate) struct Merged<K, V> {
    name: &'static str,
    kind: Kind,
    sources: Vec<Source<K, V>>,
    /// Sources that have gone and whose values are still to be withdrawn.
    leaving: Vec<Rank>,
    next: u64,
    /// Without it, the value of the first source is seen.
    choose: Option<Choose<K, V>>,
    store: Store<K, V>,
    offers: Contributions<Rank, K, V>,
    runs: u64,
}

/// Precedence of a source, then the order of connection.
type Rank = (u32, u64);

struct Source<K, V> {
    rank: Rank,
    of: Collection<K, V>,
    /// Nothing of it has been taken over yet.
    fresh: bool,
}

impl<K: Key, V: Value> Merged<K, V> {
    pub(crate) fn new(name: &'static str, kind: Kind, choose: Option<Choose<K, V>>) -> Self {
        Self {
            name,
            kind,
            sources: Vec::new(),
            leaving: Vec::new(),
            next: 0,
            choose,
            store: Store::new(),
            offers: Contributions::new(),
            runs: 0,
        }
    }

    pub(crate) fn connect(&mut self, of: Collection<K, V>, precedence: u32) {
        self.sources.push(Source { rank: (precedence, self.next), of, fresh: true });
        self.sources.sort_by_key(|source| source.rank);
        self.next += 1;
    }

    fn offer(&mut self, key: &K, rank: Rank, value: Option<Arc<V>>, faults: &mut Vec<Fault>) {
        self.offers.offer(key, &rank, value);
        let offers = self.offers.of(key);
        let seen = match (&self.choose, offers) {
            (_, []) => None,
            (Some(choose), offers) => {
                self.runs += 1;
                let values: Vec<&V> = offers.iter().map(|(_, value)| value.as_ref()).collect();
                match contain(self.name, key, || choose(key, &values)) {
                    Ok(value) => Some(Arc::new(value)),
                    Err(fault) => return faults.push(fault),
                }
            }
            (None, [(_, first), ..]) => Some(first.clone()),
        };
        self.store.set(key, seen);
    }
}

impl<K: Key, V: Value> Node for Merged<K, V> {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
    fn name(&self) -> &'static str {
        self.name
    }
    fn kind(&self) -> Kind {
        self.kind
    }
    fn store(&self) -> &dyn AnyStore {
        &self.store
    }
    fn store_mut(&mut self) -> &mut dyn AnyStore {
        &mut self.store
    }
    fn update(&mut self, older: Older<'_>, faults: &mut Vec<Fault>) {
        for rank in std::mem::take(&mut self.leaving) {
            for key in self.offers.keys_of(&rank) {
                self.offer(&key, rank, None, faults);
            }
        }
        for at in 0..self.sources.len() {
            let Source { rank, of, .. } = self.sources[at];
            let source = older.store(of);
            if std::mem::take(&mut self.sources[at].fresh) {
                for (key, value) in source.iter() {
                    self.offer(key, rank, Some(value.clone()), faults);
                }
            } else {
                for change in source.changes() {
                    self.offer(change.key, rank, change.after.cloned(), faults);
                }
            }
        }
        self.store.settle();
    }
    fn from(&self) -> Vec<Id> {
        self.sources.iter().map(|source| source.of.node).collect()
    }
    fn retire(&mut self, gone: &BTreeSet<Id>) {
        let leaving = self.sources.iter().filter(|source| gone.contains(&source.of.node));
        self.leaving.extend(leaving.map(|source| source.rank));
        self.sources.retain(|source| !gone.contains(&source.of.node));
    }
    fn runs(&self) -> u64 {
        self.runs
    }
    fn bookkeeping(&self) -> usize {
        self.offers.len()
    }
    fn causes(&self, key: &str, older: Older<'_>) -> Vec<Cause> {
        let Some((key, _)) = self.store.iter().find(|(k, _)| format!("{k:?}") == key) else {
            return Vec::new();
        };
        let seen = if self.choose.is_some() { usize::MAX } else { 1 };
        let ranks = self.offers.of(key).iter().take(seen).map(|(rank, _)| *rank);
        let sources = ranks.filter_map(|rank| self.sources.iter().find(|source| source.rank == rank));
        sources.map(|s| Cause::new(s.of.node, older.name(s.of.node), How::Input, &"", &[key])).collect()
    }
}
