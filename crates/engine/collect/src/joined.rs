//! Two collections by their common keys.

use crate::dump::{Cause, How, Kind};
use crate::fault::{Fault, contain};
use crate::handle::{Collection, Id};
use crate::node::{Node, Older};
use crate::store::{AnyStore, Store};
use crate::value::{Key, Value};
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

/// From the values at a key, at least one of them there, to at most one output.
pub(crate) type Combine<K, A, B, O> = Box<dyn Fn(&K, Option<&A>, Option<&B>) -> Option<O> + Send>;

pub(crate) struct Joined<K, A, B, O> {
    name: &'static str,
    left: Collection<K, A>,
    right: Collection<K, B>,
    combine: Combine<K, A, B, O>,
    store: Store<K, O>,
    runs: u64,
    fresh: bool,
}

impl<K: Key, A: Value, B: Value, O: Value> Joined<K, A, B, O> {
    pub(crate) fn new(
        name: &'static str,
        left: Collection<K, A>,
        right: Collection<K, B>,
        combine: Combine<K, A, B, O>,
    ) -> Self {
        Self { name, left, right, combine, store: Store::new(), runs: 0, fresh: true }
    }
}

impl<K: Key, A: Value, B: Value, O: Value> Node for Joined<K, A, B, O> {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
    fn name(&self) -> &'static str {
        self.name
    }
    fn kind(&self) -> Kind {
        Kind::Join
    }
    fn store(&self) -> &dyn AnyStore {
        &self.store
    }
    fn store_mut(&mut self) -> &mut dyn AnyStore {
        &mut self.store
    }
    fn update(&mut self, older: Older<'_>, faults: &mut Vec<Fault>) {
        let (left, right) = (older.store(self.left), older.store(self.right));
        let dirty: BTreeSet<&K> = if std::mem::take(&mut self.fresh) {
            left.iter().map(|(key, _)| key).chain(right.iter().map(|(key, _)| key)).collect()
        } else {
            left.changes().map(|c| c.key).chain(right.changes().map(|c| c.key)).collect()
        };
        for key in dirty {
            let (a, b) = (left.get(key).map(AsRef::as_ref), right.get(key).map(AsRef::as_ref));
            if a.is_none() && b.is_none() {
                self.store.set(key, None);
                continue;
            }
            self.runs += 1;
            match contain(self.name, key, || (self.combine)(key, a, b)) {
                Ok(output) => self.store.set(key, output.map(Arc::new)),
                Err(fault) => faults.push(fault),
            }
        }
        self.store.settle();
    }
    fn from(&self) -> Vec<Id> {
        vec![self.left.node, self.right.node]
    }
    fn runs(&self) -> u64 {
        self.runs
    }
    fn causes(&self, key: &str, older: Older<'_>) -> Vec<Cause> {
        let Some((key, _)) = self.store.iter().find(|(k, _)| format!("{k:?}") == key) else {
            return Vec::new();
        };
        let side = |id: Id, found: bool| {
            let found: &[&K] = if found { &[key] } else { &[] };
            Cause::new(id, older.name(id), How::Input, &"", found)
        };
        let (left, right) = (older.store(self.left), older.store(self.right));
        vec![side(self.left.node, left.get(key).is_some()), side(self.right.node, right.get(key).is_some())]
    }
}
