//! A collection computed from another one.

use crate::contributions::Contributions;
use crate::node::{self, Collection, Fault, Node, Nodes};
use crate::reads::{Reads, Slot, Tables};
use crate::store::{Key, Store, Value};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// From one input value, and what it reads, to outputs by key.
pub(crate) type Transform<K, V, OK, OV> = Box<dyn Fn(&mut Reads<'_>, &K, &V) -> Vec<(OK, OV)> + Send>;

pub(crate) struct Derived<K, V, OK, OV> {
    name: &'static str,
    from: Collection<K, V>,
    transform: Transform<K, V, OK, OV>,
    store: Store<OK, OV>,
    offers: Contributions<K, OK, OV>,
    inputs: BTreeMap<K, Produced<OK>>,
    slots: HashMap<Slot, K>,
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

    fn dirty(&mut self, older: &Nodes) -> BTreeSet<K> {
        let from = node::store(older, self.from);
        if std::mem::take(&mut self.fresh) {
            return from.iter().map(|(key, _)| key.clone()).collect();
        }
        let mut dirty: BTreeSet<K> = from.changes().map(|change| change.key.clone()).collect();
        dirty.extend(self.tables.dirty(older).iter().filter_map(|slot| self.slots.get(slot).cloned()));
        dirty
    }

    fn remove(&mut self, key: &K) {
        let Some(produced) = self.inputs.remove(key) else { return };
        self.slots.remove(&produced.slot);
        self.tables.forget(produced.slot);
        for output in &produced.outputs {
            self.offers.offer(&mut self.store, output, key, None);
        }
    }

    fn run(&mut self, older: &Nodes, key: &K, value: &V) -> Result<(), Fault> {
        let slot = self.slot_of(key);
        self.tables.forget(slot);
        self.runs += 1;
        let mut reads = Reads::new(older, &mut self.tables, slot);
        // Unwind safety: a panic leaves only a shorter record of reads, which is what was read up to it.
        let outputs = catch_unwind(AssertUnwindSafe(|| (self.transform)(&mut reads, key, value)))
            .map_err(|panic| self.fault(key, panic.as_ref()))?;
        let mut keys = Vec::with_capacity(outputs.len());
        for (output, value) in outputs {
            if !keys.contains(&output) {
                self.offers.offer(&mut self.store, &output, key, Some(Arc::new(value)));
                keys.push(output);
            }
        }
        let Some(produced) = self.inputs.get_mut(key) else { return Ok(()) };
        for gone in std::mem::replace(&mut produced.outputs, keys.clone()) {
            if !keys.contains(&gone) {
                self.offers.offer(&mut self.store, &gone, key, None);
            }
        }
        Ok(())
    }

    fn slot_of(&mut self, key: &K) -> Slot {
        if let Some(produced) = self.inputs.get(key) {
            return produced.slot;
        }
        let slot = self.next_slot;
        self.next_slot += 1;
        self.slots.insert(slot, key.clone());
        self.inputs.insert(key.clone(), Produced { slot, outputs: Vec::new() });
        slot
    }

    fn fault(&self, key: &K, panic: &(dyn Any + Send)) -> Fault {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Fault { collection: self.name, key: format!("{key:?}"), message }
    }
}

impl<K: Key, V: Value, OK: Key, OV: Value> Node for Derived<K, V, OK, OV> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn store(&self) -> &dyn Any {
        &self.store
    }
    fn store_mut(&mut self) -> &mut dyn Any {
        &mut self.store
    }
    fn update(&mut self, older: &Nodes, faults: &mut Vec<Fault>) {
        let from = node::store(older, self.from);
        for key in self.dirty(older) {
            match from.get(&key) {
                Some(value) => faults.extend(self.run(older, &key, value).err()),
                None => self.remove(&key),
            }
        }
        self.store.settle();
    }
    fn clear_changes(&mut self) {
        self.store.clear_changes();
    }
    fn len(&self) -> usize {
        self.store.len()
    }
    fn runs(&self) -> u64 {
        self.runs
    }
    fn reads(&self) -> usize {
        self.tables.len()
    }
}
