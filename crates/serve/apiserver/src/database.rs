//! The store together with its durability: a write is answered, and seen by readers, only once it is persisted.

use crate::disk::{Disk, DiskError, Writer};
use crate::etcd::{Etcd, EtcdError, EtcdSettings, Unchanged};
use crate::memory::{HISTORY_EVENTS_MAX, Memory, Objects, WriteError};
use crate::object::{Event, Object, Stored};
use ambit_store::{Compacted, Conflict, Expect, Key, Page, Range, Revision, Store};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

/// The objects of the cluster. Shared by all requests.
pub(crate) struct Database {
    memory: Arc<Memory>,
    kept: Kept,
}

/// Where objects are kept beside memory.
enum Kept {
    Nowhere,
    Disk(Writer),
    Etcd(Box<Etcd>),
}

impl Database {
    /// An empty database that lives as long as the process.
    pub(crate) fn in_memory() -> Self {
        Self { memory: Arc::new(Memory::new(Store::new(HISTORY_EVENTS_MAX))), kept: Kept::Nowhere }
    }

    /// Opens or creates a database file.
    pub(crate) fn open(path: &Path) -> Result<Self, DiskError> {
        let (disk, saved) = Disk::open(path)?;
        let store = Store::restore(HISTORY_EVENTS_MAX, saved)
            .map_err(|source| DiskError::Contradiction { path: path.to_owned(), source })?;
        let memory = Arc::new(Memory::new(store));
        let kept = Kept::Disk(Writer::start(disk, memory.clone()));
        Ok(Self { memory, kept })
    }

    /// Reads what etcd holds, and follows it.
    pub(crate) async fn connect(settings: &EtcdSettings) -> Result<Self, EtcdError> {
        let (etcd, memory) = Etcd::open(settings).await?;
        Ok(Self { memory, kept: Kept::Etcd(Box::new(etcd)) })
    }

    /// Returns once all that others have written before the call is visible. Only where others can write is there
    /// anything to wait for.
    pub(crate) async fn fresh(&self) -> Result<(), WriteError> {
        match &self.kept {
            Kept::Nowhere | Kept::Disk(_) => Ok(()),
            Kept::Etcd(etcd) => etcd.fresh().await,
        }
    }

    /// The newest revision readers see.
    pub(crate) fn revision(&self) -> Revision {
        self.memory.read(|store| store.revision())
    }

    /// The newest state of an object that readers see.
    pub(crate) fn get(&self, key: &Key) -> Option<Stored> {
        self.memory.read(|store| store.get(key))
    }

    /// The newest state of an object for a writer. Whoever answers with it must await [`Database::durable`] first.
    pub(crate) fn head(&self, key: &Key) -> Option<Stored> {
        self.memory.read(|store| store.head(key))
    }

    /// The objects of a range.
    pub(crate) fn list(&self, range: &Range, at: Option<Revision>) -> Result<Page<Arc<Object>>, Compacted> {
        self.memory.read(|store| store.list(range, at))
    }

    /// Writes to a collection after a revision, at most `max`, and the revision up to which they are complete.
    pub(crate) fn events(
        &self,
        collection: &str,
        after: Revision,
        max: usize,
    ) -> Result<(Vec<Arc<Event>>, Revision), Compacted> {
        self.memory.read(|store| {
            let events = store.events(collection, after, max)?;
            let upto = match events.last() {
                Some(last) if events.len() == max => last.revision,
                _ => store.revision().max(after),
            };
            Ok((events, upto))
        })
    }

    /// Changes whenever a write to the collection becomes visible.
    pub(crate) fn subscribe(&self, collection: &Arc<str>) -> watch::Receiver<Revision> {
        self.memory.subscribe(collection)
    }

    /// Writes a value; returns once it is durable and visible.
    ///
    /// Cancel safety: a dropped call may or may not have written.
    pub(crate) async fn put(
        &self,
        key: Key,
        expect: Expect,
        make: impl FnOnce(Revision) -> Arc<Object>,
    ) -> Result<Arc<Event>, WriteError> {
        match &self.kept {
            Kept::Nowhere => self.write_to_memory(|store| store.put(key, expect, make)),
            Kept::Disk(writer) => writer.write(|store| store.put(key, expect, make)).await,
            Kept::Etcd(etcd) => etcd.put(None, (key, expect), make).await,
        }
    }

    /// As [`Database::put`], if nothing of a collection has been written since the writer read it. Between writers of this
    /// process the caller sees to that with a lock.
    pub(crate) async fn put_while(
        &self,
        unchanged: &Unchanged,
        (key, expect): (Key, Expect),
        make: impl FnOnce(Revision) -> Arc<Object>,
    ) -> Result<Arc<Event>, WriteError> {
        match &self.kept {
            Kept::Nowhere | Kept::Disk(_) => self.put(key, expect, make).await,
            Kept::Etcd(etcd) => etcd.put(Some(unchanged), (key, expect), make).await,
        }
    }

    /// Deletes an object; returns once that is durable and visible. Cancel safety: as [`Database::put`].
    pub(crate) async fn delete(&self, key: Key, expect: Expect) -> Result<Arc<Event>, WriteError> {
        match &self.kept {
            Kept::Nowhere => self.write_to_memory(|store| store.delete(key, expect)),
            Kept::Disk(writer) => writer.write(|store| store.delete(key, expect)).await,
            Kept::Etcd(etcd) => etcd.delete(key, expect).await,
        }
    }

    fn write_to_memory(
        &self,
        change: impl FnOnce(&mut Objects) -> Result<Arc<Event>, Conflict>,
    ) -> Result<Arc<Event>, WriteError> {
        let mut store = self.memory.write();
        let event = change(&mut store)?;
        store.publish(event.revision);
        drop(store);
        self.memory.announce(std::slice::from_ref(&event));
        Ok(event)
    }

    /// Returns once a revision is durable and visible.
    pub(crate) async fn durable(&self, revision: Revision) -> Result<(), WriteError> {
        self.memory.reach(revision).await
    }

    /// Whether writes are possible now.
    pub(crate) fn healthy(&self) -> Result<(), WriteError> {
        self.memory.healthy()?;
        match &self.kept {
            Kept::Nowhere | Kept::Disk(_) => Ok(()),
            Kept::Etcd(etcd) => etcd.healthy(),
        }
    }

    /// Returns when the store has failed for good, with the reason.
    pub(crate) async fn failed(&self) -> String {
        self.memory.failed().await
    }

    /// Forgets history before a revision.
    pub(crate) fn compact(&self, revision: Revision) {
        self.memory.write().compact(revision);
        match &self.kept {
            Kept::Nowhere => {}
            Kept::Disk(writer) => writer.compact(revision),
            Kept::Etcd(etcd) => etcd.compact(revision),
        }
    }
}

#[cfg(test)]
mod tests;
