//! The store: a chain of versions per object, and one log of writes per collection.

use crate::{Event, Key, Page, Place, Range, Revision, Version};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Objects with their recent history, in memory.
///
/// A write takes effect in two steps: [`Store::put`] and [`Store::delete`] append it (later writes see it and
/// conflict with it), and [`Store::publish`] shows it to readers once whoever persists it has made it durable.
/// Thus no reader ever sees a revision that a crash could take back.
#[derive(Debug)]
pub struct Store<V, C = ()> {
    collections: HashMap<Arc<str>, Collection<V, C>>,
    /// All writes of the window, oldest first: bounds the window over all collections.
    order: VecDeque<(Revision, Key)>,
    history_max: usize,
    head: Revision,
    visible: Revision,
    compacted: Revision,
}

#[derive(Debug)]
struct Collection<V, C> {
    /// Oldest version first; only the last one of each object, except within the window.
    objects: BTreeMap<Place, Vec<Slot<V>>>,
    log: VecDeque<Arc<Event<V, C>>>,
}

/// A version, or the fact that the object was deleted at this revision.
#[derive(Debug, Clone)]
struct Slot<V> {
    revision: Revision,
    value: Option<V>,
}

/// What must hold for a write to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The object does not exist.
    Absent,
    /// The object exists and this revision wrote it.
    Revision(Revision),
    /// The object exists.
    Present,
}

/// The object is not what the writer expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// It exists already.
    #[error("{key} exists already")]
    Exists {
        /// The object.
        key: Key,
    },
    /// It does not exist.
    #[error("{key} does not exist")]
    Missing {
        /// The object.
        key: Key,
    },
    /// Another write came first.
    #[error("{key} was written at revision {found}, not at {expected}")]
    Changed {
        /// The object.
        key: Key,
        /// The revision the writer had seen.
        expected: Revision,
        /// The revision that wrote it.
        found: Revision,
    },
}

/// The wanted revision is no longer in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("revision {wanted} is too old: history begins at {oldest}")]
pub struct Compacted {
    /// The revision asked for.
    pub wanted: Revision,
    /// The oldest revision that can be read.
    pub oldest: Revision,
}

/// One step back in history, as it is persisted: what a write replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undo<V> {
    /// The write.
    pub revision: Revision,
    /// The object.
    pub key: Key,
    /// What was there before; `None` when the write created the object.
    pub old: Option<Version<V>>,
}

/// Everything that was persisted.
#[derive(Debug, Clone)]
pub struct Saved<V> {
    /// The last revision.
    pub revision: Revision,
    /// The oldest revision that can be read.
    pub compacted: Revision,
    /// The objects as of `revision`, in any order.
    pub objects: Vec<(Key, Version<V>)>,
    /// The writes after `compacted`, oldest first.
    pub history: Vec<Undo<V>>,
}

/// The persisted parts contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// An object is newer than the store.
    #[error("{key} was written at revision {found}, after the last revision {last}")]
    FromTheFuture {
        /// The object.
        key: Key,
        /// Its revision.
        found: Revision,
        /// The store's revision.
        last: Revision,
    },
    /// History misses a write or holds one twice.
    #[error("history has revision {found} where {expected} belongs")]
    Gap {
        /// The revision that should be there.
        expected: Revision,
        /// The revision that is there.
        found: Revision,
    },
}

impl<V: Clone, C: Default> Store<V, C> {
    /// An empty store that keeps the last `history_max` writes readable.
    pub fn new(history_max: usize) -> Self {
        Self {
            collections: HashMap::new(),
            order: VecDeque::new(),
            history_max,
            head: 0,
            visible: 0,
            compacted: 0,
        }
    }

    /// The store as it was when `saved` was persisted, with all of its history.
    ///
    /// # Errors
    /// The parts of `saved` contradict each other.
    pub fn restore(history_max: usize, saved: Saved<V>) -> Result<Self, RestoreError> {
        let mut store = Self::new(history_max);
        (store.head, store.visible, store.compacted) = (saved.revision, saved.revision, saved.compacted);
        let mut expected = saved.compacted + 1;
        let end = saved.revision + 1;
        for found in saved.history.iter().map(|undo| undo.revision).chain([end]) {
            if found != expected {
                return Err(RestoreError::Gap { expected, found });
            }
            expected = expected.saturating_add(1);
        }
        for (key, version) in saved.objects {
            if version.revision > saved.revision {
                let (found, last) = (version.revision, saved.revision);
                return Err(RestoreError::FromTheFuture { key, found, last });
            }
            store.slots(&key).push(Slot { revision: version.revision, value: Some(version.value) });
        }
        for undo in saved.history.into_iter().rev() {
            store.rewind(undo);
        }
        Ok(store)
    }

    /// Puts one older write in front of the history.
    fn rewind(&mut self, undo: Undo<V>) {
        let slots = self.slots(&undo.key);
        // The first slot is what the writes seen so far began with: this write's outcome. An object that is not
        // there any more was deleted by this very write.
        if slots.first().is_none_or(|first| first.revision != undo.revision) {
            slots.insert(0, Slot { revision: undo.revision, value: None });
        }
        let new = slots[0].value.clone();
        if let Some(old) = &undo.old {
            slots.insert(0, Slot { revision: old.revision, value: Some(old.value.clone()) });
        }
        let Undo { revision, key, old } = undo;
        self.order.push_front((revision, key.clone()));
        let event = Arc::new(Event { revision, key, old, new, cache: C::default() });
        self.collection(&event.key.collection.clone()).log.push_front(event);
    }

    /// The newest revision readers see.
    pub fn revision(&self) -> Revision {
        self.visible
    }

    /// The newest revision written, published or not.
    pub fn head_revision(&self) -> Revision {
        self.head
    }

    /// The oldest revision that lists and watches can start from.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// The newest state of an object for a writer: includes writes that are not published yet.
    pub fn head(&self, key: &Key) -> Option<Version<V>> {
        self.at(key, self.head)
    }

    /// The newest published state of an object.
    pub fn get(&self, key: &Key) -> Option<Version<V>> {
        self.at(key, self.visible)
    }

    /// Objects of a range, at the newest published revision or at an older one.
    ///
    /// # Errors
    /// `at` is before the window.
    pub fn list(&self, range: &Range, at: Option<Revision>) -> Result<Page<V>, Compacted> {
        let mut items = Vec::new();
        let revision = self.scan(range, at, |place, version| {
            items.push((place.clone(), version));
            true
        })?;
        Ok(Page { revision, items })
    }

    /// Hands the objects of a range to `visit`, in order, until it answers false. Answers the revision read at.
    ///
    /// # Errors
    /// `at` is before the window.
    pub fn scan(
        &self,
        range: &Range,
        at: Option<Revision>,
        mut visit: impl FnMut(&Place, Version<V>) -> bool,
    ) -> Result<Revision, Compacted> {
        let revision = at.unwrap_or(self.visible).min(self.visible);
        if revision < self.compacted {
            return Err(Compacted { wanted: revision, oldest: self.compacted });
        }
        let Some(collection) = self.collections.get(&range.collection) else { return Ok(revision) };
        let empty: Arc<str> = Arc::from("");
        let start = match (&range.after, &range.namespace) {
            (Some(after), _) => Bound::Excluded(after.clone()),
            (None, Some(namespace)) => Bound::Included((namespace.clone(), empty)),
            (None, None) => Bound::Unbounded,
        };
        for (place, slots) in collection.objects.range((start, Bound::Unbounded)) {
            if range.namespace.as_ref().is_some_and(|namespace| *namespace != place.0) {
                break;
            }
            if let Some(version) = newest(slots, revision)
                && !visit(place, version)
            {
                break;
            }
        }
        Ok(revision)
    }

    /// Writes a value made from the revision it gets. Not visible to readers before [`Store::publish`].
    ///
    /// # Errors
    /// The object is not what `expect` says.
    pub fn put(
        &mut self,
        key: Key,
        expect: Expect,
        make: impl FnOnce(Revision) -> V,
    ) -> Result<Arc<Event<V, C>>, Conflict> {
        let old = self.expected(&key, expect)?;
        let value = make(self.head + 1);
        Ok(self.append(self.head + 1, key, old, Some(value)))
    }

    /// Removes an object. Not visible to readers before [`Store::publish`].
    ///
    /// # Errors
    /// The object is not what `expect` says; an absent object cannot be removed.
    pub fn delete(&mut self, key: Key, expect: Expect) -> Result<Arc<Event<V, C>>, Conflict> {
        match self.expected(&key, expect)? {
            Some(old) => Ok(self.append(self.head + 1, key, Some(old), None)),
            None => Err(Conflict::Missing { key }),
        }
    }

    /// Takes up a write that has happened elsewhere, at its revision: visible at once. `None` when it changes nothing, as
    /// the deletion of an absent object, or is not newer than the store.
    pub fn follow(&mut self, revision: Revision, key: Key, value: Option<V>) -> Option<Arc<Event<V, C>>> {
        if revision <= self.head {
            return None;
        }
        let old = self.head(&key);
        if old.is_none() && value.is_none() {
            return None;
        }
        let event = self.append(revision, key, old, value);
        self.publish(revision);
        Some(event)
    }

    /// Shows all writes up to `revision` to readers. Lower than before: no effect.
    pub fn publish(&mut self, revision: Revision) {
        self.visible = self.visible.max(revision.min(self.head));
    }

    /// The published writes to a collection after a revision, oldest first, at most `max`.
    ///
    /// # Errors
    /// Writes after `after` are no longer all in the window.
    pub fn events(
        &self,
        collection: &str,
        after: Revision,
        max: usize,
    ) -> Result<Vec<Arc<Event<V, C>>>, Compacted> {
        if after < self.compacted {
            return Err(Compacted { wanted: after, oldest: self.compacted });
        }
        let Some(collection) = self.collections.get(collection) else { return Ok(Vec::new()) };
        let start = collection.log.partition_point(|event| event.revision <= after);
        let published = collection.log.range(start..).take_while(|event| event.revision <= self.visible);
        Ok(published.take(max).cloned().collect())
    }

    /// Forgets history before `revision`: lists and watches can start from it, but from nothing older.
    pub fn compact(&mut self, revision: Revision) {
        let revision = revision.min(self.visible);
        while let Some((oldest, key)) = self.order.front() {
            if *oldest > revision {
                break;
            }
            let key = key.clone();
            self.order.pop_front();
            self.forget(&key, revision);
        }
        self.compacted = self.compacted.max(revision);
    }

    fn forget(&mut self, key: &Key, upto: Revision) {
        let Some(collection) = self.collections.get_mut(&key.collection) else { return };
        while collection.log.front().is_some_and(|event| event.revision <= upto) {
            collection.log.pop_front();
        }
        let place = (key.namespace.clone(), key.name.clone());
        let Some(slots) = collection.objects.get_mut(&place) else { return };
        let replaced = slots.partition_point(|slot| slot.revision <= upto).saturating_sub(1);
        slots.drain(..replaced);
        if slots.len() == 1 && slots[0].value.is_none() && slots[0].revision <= upto {
            collection.objects.remove(&place);
        }
    }

    fn append(
        &mut self,
        revision: Revision,
        key: Key,
        old: Option<Version<V>>,
        new: Option<V>,
    ) -> Arc<Event<V, C>> {
        self.head = revision;
        self.slots(&key).push(Slot { revision, value: new.clone() });
        self.order.push_back((revision, key.clone()));
        let event = Arc::new(Event { revision, key, old, new, cache: C::default() });
        self.collection(&event.key.collection.clone()).log.push_back(event.clone());
        if self.order.len() > self.history_max {
            // Dropping a tenth at a time spares the work of a compaction per write.
            let cut = self.order.len() - self.history_max + self.history_max / 10;
            let upto = self.order[cut.min(self.order.len() - 1)].0;
            self.compact(upto);
        }
        event
    }

    /// The newest state of an object for a writer who expects something of it.
    ///
    /// # Errors
    /// The object is not what `expect` says.
    pub fn expected(&self, key: &Key, expect: Expect) -> Result<Option<Version<V>>, Conflict> {
        match (self.head(key), expect) {
            (None, Expect::Absent) => Ok(None),
            (Some(_), Expect::Absent) => Err(Conflict::Exists { key: key.clone() }),
            (None, _) => Err(Conflict::Missing { key: key.clone() }),
            (Some(old), Expect::Revision(expected)) if old.revision != expected => {
                Err(Conflict::Changed { key: key.clone(), expected, found: old.revision })
            }
            (Some(old), _) => Ok(Some(old)),
        }
    }

    fn at(&self, key: &Key, revision: Revision) -> Option<Version<V>> {
        let collection = self.collections.get(&key.collection)?;
        let slots = collection.objects.get(&(key.namespace.clone(), key.name.clone()))?;
        newest(slots, revision)
    }

    fn slots(&mut self, key: &Key) -> &mut Vec<Slot<V>> {
        let place = (key.namespace.clone(), key.name.clone());
        self.collection(&key.collection.clone()).objects.entry(place).or_default()
    }

    fn collection(&mut self, name: &Arc<str>) -> &mut Collection<V, C> {
        self.collections
            .entry(name.clone())
            .or_insert_with(|| Collection { objects: BTreeMap::new(), log: VecDeque::new() })
    }
}

fn newest<V: Clone>(slots: &[Slot<V>], revision: Revision) -> Option<Version<V>> {
    let slot = slots.iter().rev().find(|slot| slot.revision <= revision)?;
    Some(Version { revision: slot.revision, value: slot.value.clone()? })
}

#[cfg(test)]
mod tests;
