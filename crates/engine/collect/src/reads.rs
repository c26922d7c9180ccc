//! What a transformation may read besides its input.

use crate::dump::{Cause, How};
use crate::handle::{Collection, Id, Index, LabelIndex, SelectorIndex};
use crate::index::KeyedIndex;
use crate::label::{Labelled, Selecting, tokens};
use crate::node::{Older, typed};
use crate::track::{Changed, Slot, Source, Tables, Touched};
use crate::value::{Key, Value};
use std::fmt::Debug;
use std::hash::Hash;

/// Reads of a transformation, each of them recorded: a change to what was read runs it again.
pub struct Reads<'a> {
    older: Older<'a>,
    tables: &'a mut Tables,
    slot: Slot,
    /// How many reads were recorded.
    count: usize,
    /// What was read in words; only when somebody asks why.
    trace: Option<&'a mut Vec<Cause>>,
}

impl<'a> Reads<'a> {
    pub(crate) fn new(older: Older<'a>, tables: &'a mut Tables, slot: Slot) -> Self {
        Self { older, tables, slot, count: 0, trace: None }
    }

    pub(crate) fn traced(self, trace: &'a mut Vec<Cause>) -> Self {
        Self { trace: Some(trace), ..self }
    }

    /// The value at a key; that there is none is recorded as well.
    ///
    /// # Panics
    /// `from` does not stand before this collection.
    pub fn get<K: Key, V: Value>(&mut self, from: Collection<K, V>, key: &K) -> Option<&'a V> {
        let changed: Changed<K> = |store, _| Box::new(typed::<K, V>(store).changes().map(|c| c.key));
        let value = self.older.store(from).get(key).map(AsRef::as_ref);
        self.tables.record_key(Source::Key(from.node), changed, key, self.slot);
        self.note(from.node, How::Key, &key, || value.iter().map(|_| key).collect::<Vec<_>>());
        value
    }

    /// All values, in the order of their keys. Any change of the collection runs the transformation again.
    ///
    /// # Panics
    /// `from` does not stand before this collection.
    pub fn all<K: Key, V: Value>(
        &mut self,
        from: Collection<K, V>,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V> {
        let store = self.older.store(from);
        self.tables.record_all(from.node, self.slot);
        self.note(from.node, How::All, &"", || store.iter().map(|(key, _)| key).collect::<Vec<_>>());
        store.iter().map(|(key, value)| (key, value.as_ref()))
    }

    /// The values in one bucket of an index, in the order of their keys.
    ///
    /// # Panics
    /// `index` is not on a collection that stands before this one.
    pub fn find<I: Key, K: Key, V: Value>(
        &mut self,
        index: Index<I, K, V>,
        bucket: &I,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, I, K, V> {
        let touched: Changed<I> = |store, index| {
            Box::new(typed::<K, V>(store).index::<KeyedIndex<I, K, V>>(index.unwrap_or_default()).touched())
        };
        let store = self.older.store(index.of);
        let keys: Vec<&'a K> = store.index::<KeyedIndex<I, K, V>>(index.index).bucket(bucket).collect();
        self.tables.record_key(Source::Bucket(index.of.node, index.index), touched, bucket, self.slot);
        self.note(index.of.node, How::Index, bucket, || keys.clone());
        keys.into_iter().filter_map(move |key| store.get(key).map(|value| (key, value.as_ref())))
    }

    /// The values that carry all of these labels, in the order of their keys; all values if there are no labels.
    ///
    /// # Panics
    /// `index` is not on a collection that stands before this one.
    pub fn select<T: Key + Hash, K: Key, V: Value>(
        &mut self,
        index: LabelIndex<T, K, V>,
        selector: &[T],
    ) -> Vec<(&'a K, &'a V)> {
        if selector.is_empty() {
            return self.all(index.of).collect();
        }
        let touched: Touched =
            |store, index| typed::<K, V>(store).index::<Labelled<T, K, V>>(index).touched();
        let store = self.older.store(index.of);
        let labelled = store.index::<Labelled<T, K, V>>(index.index);
        let found: Vec<(&K, &V)> = labelled
            .candidates(selector)
            .filter_map(|key| store.get(key).map(|value| (key, value.as_ref())))
            .filter(|(key, value)| labelled.carries(key, value, selector))
            .collect();
        let source = Source::Labels(index.of.node, index.index);
        self.tables.record_labels(source, touched, tokens(selector), self.slot);
        self.note(index.of.node, How::Labels, &selector, || {
            found.iter().map(|(key, _)| key).collect::<Vec<_>>()
        });
        found
    }

    /// The values whose selector is met by these labels, in the order of their keys.
    ///
    /// # Panics
    /// `index` is not on a collection that stands before this one.
    pub fn selecting<T: Key + Hash, K: Key, V: Value>(
        &mut self,
        index: SelectorIndex<T, K, V>,
        labels: &[T],
    ) -> Vec<(&'a K, &'a V)> {
        let touched: Touched =
            |store, index| typed::<K, V>(store).index::<Selecting<T, K, V>>(index).touched();
        let store = self.older.store(index.of);
        let selecting = store.index::<Selecting<T, K, V>>(index.index);
        let found: Vec<(&K, &V)> = selecting
            .candidates(labels)
            .into_iter()
            .filter_map(|key| store.get(key).map(|value| (key, value.as_ref())))
            .filter(|(key, value)| selecting.selects(key, value, labels))
            .collect();
        let source = Source::Selectors(index.of.node, index.index);
        self.tables.record_labels(source, touched, tokens(labels), self.slot);
        self.note(index.of.node, How::Selectors, &labels, || {
            found.iter().map(|(key, _)| key).collect::<Vec<_>>()
        });
        found
    }

    /// Whether nothing was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn note<K: Debug>(&mut self, from: Id, how: How, asked: &dyn Debug, found: impl FnOnce() -> Vec<K>) {
        self.count += 1;
        let name = self.older.name(from);
        if let Some(trace) = &mut self.trace {
            trace.push(Cause::new(from, name, how, asked, &found()));
        }
    }
}
