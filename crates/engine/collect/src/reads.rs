//! What a transformation may read besides its input, and the record of it.

use crate::node::{self, Collection, Index, Nodes, typed};
use crate::store::{Key, Value};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

/// Stands for one input of a derived collection in the records of what was read.
pub(crate) type Slot = u64;

/// Reads of a transformation, each of them recorded: a change to what was read runs it again.
pub struct Reads<'a> {
    older: &'a Nodes,
    tables: &'a mut Tables,
    slot: Slot,
}

impl<'a> Reads<'a> {
    pub(crate) fn new(older: &'a Nodes, tables: &'a mut Tables, slot: Slot) -> Self {
        Self { older, tables, slot }
    }

    /// The value at a key; that there is none is recorded as well.
    ///
    /// # Panics
    /// `from` is not an older collection of the same graph.
    pub fn get<K: Key, V: Value>(&mut self, from: Collection<K, V>, key: &K) -> Option<&'a V> {
        let changed: Changed<K> = |store, _| Box::new(typed::<K, V>(store).changes().map(|c| c.key));
        self.tables.record((from.node, None), changed, key, self.slot);
        node::store(self.older, from).get(key).map(AsRef::as_ref)
    }

    /// The values in one bucket of an index, in the order of their keys.
    ///
    /// # Panics
    /// `index` is not on an older collection of the same graph.
    pub fn find<I: Key, K: Key, V: Value>(
        &mut self,
        index: Index<I, K, V>,
        bucket: &I,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, I, K, V> {
        let touched: Changed<I> =
            |store, index| Box::new(typed::<K, V>(store).touched::<I>(index.unwrap_or_default()));
        self.tables.record((index.of.node, Some(index.index)), touched, bucket, self.slot);
        let store = node::store(self.older, index.of);
        let keys: Vec<&'a K> = store.bucket(index.index, bucket).collect();
        keys.into_iter().filter_map(move |key| store.get(key).map(|value| (key, value.as_ref())))
    }
}

/// What was read: a collection by key, or by one of its indexes.
type Source = (usize, Option<usize>);
/// Lists the keys (or buckets) of a source that a batch touched.
type Changed<K> = for<'s> fn(&'s dyn Any, Option<usize>) -> Box<dyn Iterator<Item = &'s K> + 's>;

/// Who read what, for one derived collection.
#[derive(Default)]
pub(crate) struct Tables(BTreeMap<Source, Box<dyn Table>>);

impl Tables {
    fn record<K: Key>(&mut self, source: Source, changed: Changed<K>, key: &K, slot: Slot) {
        let table = self.0.entry(source).or_insert_with(|| {
            Box::new(KeyTable { changed, readers: BTreeMap::new(), read: BTreeMap::new() })
        });
        let table: &mut KeyTable<K> =
            table.as_any_mut().downcast_mut().expect("a source has one type of keys");
        if table.read.entry(slot).or_default().insert(key.clone()) {
            table.readers.entry(key.clone()).or_default().insert(slot);
        }
    }

    /// Slots that read something which a batch touched.
    pub(crate) fn dirty(&self, older: &Nodes) -> BTreeSet<Slot> {
        let mut slots = BTreeSet::new();
        for (&(node, index), table) in &self.0 {
            table.add_dirty(older[node].store(), index, &mut slots);
        }
        slots
    }

    pub(crate) fn forget(&mut self, slot: Slot) {
        self.0.values_mut().for_each(|table| table.forget(slot));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.values().map(|table| table.len()).sum()
    }
}

trait Table: Send {
    fn add_dirty(&self, store: &dyn Any, index: Option<usize>, slots: &mut BTreeSet<Slot>);
    fn forget(&mut self, slot: Slot);
    fn len(&self) -> usize;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

struct KeyTable<K> {
    changed: Changed<K>,
    readers: BTreeMap<K, BTreeSet<Slot>>,
    read: BTreeMap<Slot, BTreeSet<K>>,
}

impl<K: Key> Table for KeyTable<K> {
    fn add_dirty(&self, store: &dyn Any, index: Option<usize>, slots: &mut BTreeSet<Slot>) {
        for key in (self.changed)(store, index) {
            slots.extend(self.readers.get(key).into_iter().flatten());
        }
    }

    fn forget(&mut self, slot: Slot) {
        for key in self.read.remove(&slot).into_iter().flatten() {
            if let Some(slots) = self.readers.get_mut(&key) {
                slots.remove(&slot);
                if slots.is_empty() {
                    self.readers.remove(&key);
                }
            }
        }
    }

    fn len(&self) -> usize {
        self.read.values().map(BTreeSet::len).sum()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
