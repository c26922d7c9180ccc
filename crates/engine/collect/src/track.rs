//! The record of what was read, and who has to run again when it changes.

use crate::handle::Id;
use crate::label::{Steady, Token, is_subset};
use crate::node::Older;
use crate::store::AnyStore;
use crate::value::Key;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Stands for one input of a derived collection in the records of what was read.
pub(crate) type Slot = u64;
type Slots = HashSet<Slot, Steady>;

/// What was read: a collection in one of the ways there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Key(Id),
    All(Id),
    Bucket(Id, usize),
    Labels(Id, usize),
    Selectors(Id, usize),
}

impl Source {
    fn node(self) -> Id {
        match self {
            Self::Key(id)
            | Self::All(id)
            | Self::Bucket(id, _)
            | Self::Labels(id, _)
            | Self::Selectors(id, _) => id,
        }
    }

    fn index(self) -> Option<usize> {
        match self {
            Self::Key(_) | Self::All(_) => None,
            Self::Bucket(_, index) | Self::Labels(_, index) | Self::Selectors(_, index) => Some(index),
        }
    }
}

/// Lists the keys (or buckets) of a source that a batch touched.
pub(crate) type Changed<K> =
    for<'s> fn(&'s dyn AnyStore, Option<usize>) -> Box<dyn Iterator<Item = &'s K> + 's>;
/// Lists the label sets of a source that a batch touched.
pub(crate) type Touched = fn(&dyn AnyStore, usize) -> &[Box<[Token]>];

/// Who read what, for one derived collection.
#[derive(Default)]
pub(crate) struct Tables(BTreeMap<Source, Box<dyn Table>>);

impl Tables {
    /// Records that `slot` read a key, or a bucket of an index.
    pub(crate) fn record_key<K: Key>(&mut self, source: Source, changed: Changed<K>, key: &K, slot: Slot) {
        let table: &mut KeyTable<K> = self.table(source, || KeyTable::new(changed));
        table.record(key, slot);
    }

    /// Records that `slot` read a whole collection.
    pub(crate) fn record_all(&mut self, of: Id, slot: Slot) {
        self.table(Source::All(of), AllTable::default).0.insert(slot);
    }

    /// Records that `slot` read by labels: what carries, or is selected by, these.
    pub(crate) fn record_labels(
        &mut self,
        source: Source,
        touched: Touched,
        labels: Box<[Token]>,
        slot: Slot,
    ) {
        let table: &mut LabelTable = self.table(source, || LabelTable::new(source, touched));
        table.record(labels, slot);
    }

    fn table<T: Table + 'static>(&mut self, source: Source, new: impl FnOnce() -> T) -> &mut T {
        let table = self.0.entry(source).or_insert_with(|| Box::new(new()));
        table.as_any_mut().downcast_mut().expect("a source has one type of keys")
    }

    /// Slots that read something which a batch touched, or which has gone.
    pub(crate) fn dirty(&self, older: Older<'_>) -> BTreeSet<Slot> {
        let mut slots = BTreeSet::new();
        for (&source, table) in &self.0 {
            let store = older.find(source.node());
            match store.filter(|store| source.index().is_none_or(|index| store.has_index(index))) {
                Some(store) => table.add_dirty(store, source.index(), &mut slots),
                None => table.add_all(&mut slots),
            }
        }
        slots
    }

    pub(crate) fn forget(&mut self, slot: Slot) {
        self.0.values_mut().for_each(|table| table.forget(slot));
    }

    /// Drops the records of collections of which nothing is read any more.
    pub(crate) fn shrink(&mut self) {
        self.0.retain(|_, table| !table.is_empty());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.values().map(|table| table.len()).sum()
    }

    pub(crate) fn sources(&self) -> BTreeSet<Id> {
        self.0.iter().filter(|(_, table)| !table.is_empty()).map(|(source, _)| source.node()).collect()
    }
}

trait Table: Send {
    fn add_dirty(&self, store: &dyn AnyStore, index: Option<usize>, slots: &mut BTreeSet<Slot>);
    fn add_all(&self, slots: &mut BTreeSet<Slot>);
    fn forget(&mut self, slot: Slot);
    /// Number of reads, which is counted.
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// Reads by key. A key that many read is held once.
struct KeyTable<K> {
    changed: Changed<K>,
    readers: BTreeMap<Arc<K>, Slots>,
    read: HashMap<Slot, Vec<Arc<K>>, Steady>,
}

impl<K: Key> KeyTable<K> {
    fn new(changed: Changed<K>) -> Self {
        Self { changed, readers: BTreeMap::new(), read: HashMap::default() }
    }

    fn record(&mut self, key: &K, slot: Slot) {
        let known = self.readers.get_key_value(key).map(|(key, _)| key.clone());
        let key = known.unwrap_or_else(|| Arc::new(key.clone()));
        if self.readers.entry(key.clone()).or_default().insert(slot) {
            let read = self.read.entry(slot).or_default();
            // Most read one key of a collection.
            read.reserve_exact(1);
            read.push(key);
        }
    }
}

impl<K: Key> Table for KeyTable<K> {
    fn add_dirty(&self, store: &dyn AnyStore, index: Option<usize>, slots: &mut BTreeSet<Slot>) {
        for key in (self.changed)(store, index) {
            slots.extend(self.readers.get(key).into_iter().flatten());
        }
    }

    fn add_all(&self, slots: &mut BTreeSet<Slot>) {
        slots.extend(self.read.keys());
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
        self.read.values().map(Vec::len).sum()
    }

    fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Reads of everything.
#[derive(Default)]
struct AllTable(BTreeSet<Slot>);

impl Table for AllTable {
    fn add_dirty(&self, store: &dyn AnyStore, _index: Option<usize>, slots: &mut BTreeSet<Slot>) {
        if store.is_changed() {
            self.add_all(slots);
        }
    }

    fn add_all(&self, slots: &mut BTreeSet<Slot>) {
        slots.extend(&self.0);
    }

    fn forget(&mut self, slot: Slot) {
        self.0.remove(&slot);
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Reads by labels, in either direction.
struct LabelTable {
    source: Source,
    touched: Touched,
    read: HashMap<Slot, Vec<Labels>, Steady>,
    waiting: HashMap<Token, Slots, Steady>,
}

/// Labels that were asked for, and those of them under which the reader waits.
struct Labels {
    all: Box<[Token]>,
    anchor: Option<Token>,
}

impl Labels {
    fn anchors(&self) -> &[Token] {
        match &self.anchor {
            Some(anchor) => std::slice::from_ref(anchor),
            None => &self.all,
        }
    }
}

impl LabelTable {
    fn new(source: Source, touched: Touched) -> Self {
        Self { source, touched, read: HashMap::default(), waiting: HashMap::default() }
    }

    fn record(&mut self, all: Box<[Token]>, slot: Slot) {
        let crowd = |token: &&Token| self.waiting.get(token).map_or(0, Slots::len);
        // Who asks for what carries all labels waits under one of them; who asks what selects any of them, under each.
        let anchor = match self.source {
            Source::Labels(..) => all.iter().min_by_key(crowd).copied(),
            _ => None,
        };
        let labels = Labels { all, anchor };
        for token in labels.anchors() {
            self.waiting.entry(*token).or_default().insert(slot);
        }
        self.read.entry(slot).or_default().push(labels);
    }

    fn add_where(&self, token: Token, slots: &mut BTreeSet<Slot>, concerned: impl Fn(&[Token]) -> bool) {
        let waiting = self.waiting.get(&token).into_iter().flatten();
        let concerned = |slot: &&Slot| {
            self.read.get(slot).is_some_and(|reads| reads.iter().any(|labels| concerned(&labels.all)))
        };
        slots.extend(waiting.filter(concerned));
    }
}

impl Table for LabelTable {
    fn add_dirty(&self, store: &dyn AnyStore, index: Option<usize>, slots: &mut BTreeSet<Slot>) {
        for touched in (self.touched)(store, index.unwrap_or_default()) {
            match self.source {
                Source::Labels(..) => {
                    for token in touched {
                        self.add_where(*token, slots, |wanted| is_subset(wanted, touched));
                    }
                }
                _ => match touched.iter().min_by_key(|token| self.waiting.get(token).map_or(0, Slots::len)) {
                    Some(rarest) => self.add_where(*rarest, slots, |labels| is_subset(touched, labels)),
                    None => self.add_all(slots),
                },
            }
        }
    }

    fn add_all(&self, slots: &mut BTreeSet<Slot>) {
        slots.extend(self.read.keys());
    }

    fn forget(&mut self, slot: Slot) {
        for labels in self.read.remove(&slot).into_iter().flatten() {
            for token in labels.anchors() {
                if let Some(slots) = self.waiting.get_mut(token) {
                    slots.remove(&slot);
                    if slots.is_empty() {
                        self.waiting.remove(token);
                    }
                }
            }
        }
    }

    fn len(&self) -> usize {
        self.read.values().map(Vec::len).sum()
    }

    fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
