//! A collection computed from another one.

use crate::contributions::Contributions;
use crate::dump::{Cause, How, Kind};
use crate::fault::{Fault, contain};
use crate::handle::{Collection, Id};
use crate::node::{Node, Older};
use crate::reads::Reads;
use crate::store::{AnyStore, Store};
use crate::track::{Slot, Tables};
use crate::value::{Key, Value};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// From one input value, and what it reads, to outputs by key.
pub(crate) type Transform<K, V, OK, OV> = Box<dyn Fn(&mut Reads<'_>, &K, &V) -> Vec<(OK, OV)> + Send>;

pub(crate) struct Derived<K, V, OK, OV> {
    name: &'static str,
    from: Collection<K, V>,
    transform: Transform<K, V, OK, OV>,
    store: Store<OK, OV>,
    offers: Contributions<Arc<K>, OK, OV>,
    inputs: BTreeMap<Arc<K>, Produced<OK>>,
    slots: HashMap<Slot, Arc<K>>,
    next_slot: Slot,
    tables: Tables,
    runs: u64,
    /// Nothing has been computed yet: all inputs count as changed.
    fresh: bool,
}

/// What one input led to.
struct Produced<OK> {
    slot: Slot,
    outputs: Vec<OK>,
}

impl<K: Key, V: Value, OK: Key, OV: Value> Derived<K, V, OK, OV> {
    pub(crate) fn new(
        name: &'static str,
        from: Collection<K, V>,
        transform: Transform<K, V, OK, OV>,
    ) -> Self {
        Self {
            name,
            from,
            transform,
            store: Store::new(),
            offers: Contributions::new(),
            inputs: BTreeMap::new(),
            slots: HashMap::new(),
            next_slot: 0,
            tables: Tables::default(),
            runs: 0,
            fresh: true,
        }
    }

    fn dirty(&mut self, older: Older<'_>) -> BTreeSet<K> {
        let from = older.store(self.from);
        if std::mem::take(&mut self.fresh) {
            return from.iter().map(|(key, _)| key.clone()).collect();
        }
        let mut dirty: BTreeSet<K> = from.changes().map(|change| change.key.clone()).collect();
        let readers = self.tables.dirty(older);
        dirty.extend(readers.iter().filter_map(|slot| self.slots.get(slot)).map(|key| K::clone(key)));
        dirty
    }

    fn offer(&mut self, output: &OK, key: &Arc<K>, value: Option<OV>) {
        self.offers.offer(output, key, value.map(Arc::new));
        self.store.set(output, self.offers.of(output).first().map(|(_, value)| value.clone()));
    }

    fn remove(&mut self, key: &K) {
        let Some((key, produced)) = self.inputs.remove_entry(key) else { return };
        self.slots.remove(&produced.slot);
        self.tables.forget(produced.slot);
        for output in &produced.outputs {
            self.offer(output, &key, None);
        }
    }

    fn run(&mut self, older: Older<'_>, key: &K, value: &V) -> Result<(), Fault> {
        let (key, slot) = self.slot_of(key);
        self.tables.forget(slot);
        self.runs += 1;
        let mut reads = Reads::new(older, &mut self.tables, slot);
        // A panic leaves only a shorter record of reads, which is what was read up to it.
        let outputs = contain(self.name, &key, || (self.transform)(&mut reads, &key, value))?;
        let read_nothing = reads.is_empty();
        let mut keys = Vec::with_capacity(outputs.len());
        for (output, value) in outputs {
            if !keys.contains(&output) {
                self.offer(&output, &key, Some(value));
                keys.push(output);
            }
        }
        let Some(produced) = self.inputs.get_mut(&key) else { return Ok(()) };
        let gone = std::mem::take(&mut produced.outputs);
        for gone in gone.iter().filter(|gone| !keys.contains(gone)) {
            self.offer(gone, &key, None);
        }
        match self.inputs.get_mut(&key) {
            Some(produced) if !keys.is_empty() => produced.outputs = keys,
            // Where nothing came of it and nothing can change that, there is nothing to remember.
            _ if read_nothing => {
                self.inputs.remove(&key);
                self.slots.remove(&slot);
            }
            _ => {}
        }
        Ok(())
    }

    fn slot_of(&mut self, key: &K) -> (Arc<K>, Slot) {
        if let Some((key, produced)) = self.inputs.get_key_value(key) {
            return (key.clone(), produced.slot);
        }
        let (key, slot) = (Arc::new(key.clone()), self.next_slot);
        self.next_slot += 1;
        self.slots.insert(slot, key.clone());
        self.inputs.insert(key.clone(), Produced { slot, outputs: Vec::new() });
        (key, slot)
    }
}

impl<K: Key, V: Value, OK: Key, OV: Value> Node for Derived<K, V, OK, OV> {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
    fn name(&self) -> &'static str {
        self.name
    }
    fn kind(&self) -> Kind {
        Kind::Derived
    }
    fn store(&self) -> &dyn AnyStore {
        &self.store
    }
    fn store_mut(&mut self) -> &mut dyn AnyStore {
        &mut self.store
    }
    fn update(&mut self, older: Older<'_>, faults: &mut Vec<Fault>) {
        let from = older.store(self.from);
        for key in self.dirty(older) {
            match from.get(&key) {
                Some(value) => faults.extend(self.run(older, &key, value).err()),
                None => self.remove(&key),
            }
        }
        self.tables.shrink();
        self.store.settle();
    }
    fn from(&self) -> Vec<Id> {
        vec![self.from.node]
    }
    fn runs(&self) -> u64 {
        self.runs
    }
    fn reads(&self) -> usize {
        self.tables.len()
    }
    fn bookkeeping(&self) -> usize {
        self.inputs.len() + self.slots.len() + self.offers.len()
    }
    fn read_from(&self) -> BTreeSet<Id> {
        self.tables.sources()
    }
    /// Runs the transformation once more, which changes nothing, and writes down what it reads.
    fn causes(&self, key: &str, older: Older<'_>) -> Vec<Cause> {
        let Some((output, _)) = self.store.iter().find(|(output, _)| format!("{output:?}") == key) else {
            return Vec::new();
        };
        let Some((input, _)) = self.offers.of(output).first() else { return Vec::new() };
        let from = older.store(self.from);
        let mut causes =
            vec![Cause::new(self.from.node, older.name(self.from.node), How::Input, &"", &[input.as_ref()])];
        if let Some(value) = from.get(input) {
            let (mut scratch, mut read) = (Tables::default(), Vec::new());
            let mut reads = Reads::new(older, &mut scratch, 0).traced(&mut read);
            // What panics now has panicked before, and has been reported.
            let _ = contain(self.name, input, || (self.transform)(&mut reads, input, value));
            causes.append(&mut read);
        }
        causes
    }
}
