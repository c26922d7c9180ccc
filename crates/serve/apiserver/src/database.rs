//! The store together with its durability: a write is answered, and seen by readers, only once it is persisted.

use crate::disk::{Disk, DiskError};
use crate::object::{Event, EventCache, Object, Stored};
use ambit_store::{Compacted, Conflict, Expect, Key, Page, Range, Revision, Store};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, watch};

/// Writes that may wait for the disk at once; more wait for a place before they take effect.
const WRITES_WAITING_MAX: usize = 1024;
/// Writes that stay readable as history at most, whatever their age: bounds memory.
const HISTORY_EVENTS_MAX: usize = 20_000;

type Objects = Store<Arc<Object>, EventCache>;

/// The objects of the cluster. Shared by all requests.
pub(crate) struct Database {
    shared: Arc<Shared>,
    /// `None`: nothing is persisted.
    writer: Option<Writer>,
}

struct Shared {
    store: RwLock<Objects>,
    visible: watch::Sender<Revision>,
    /// Wakes the watchers of a collection.
    collections: Mutex<HashMap<Arc<str>, watch::Sender<Revision>>>,
    failure: OnceLock<String>,
}

struct Writer {
    queue: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Write(Arc<Event>),
    Compact(Revision),
}

/// A write did not happen, or cannot be said to have happened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The object is not what was expected.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// Nothing can be written any more.
    #[error("the store failed and takes no more writes: {0}")]
    Failed(String),
}

impl Database {
    /// An empty database that lives as long as the process.
    pub(crate) fn in_memory() -> Self {
        Self::new(Store::new(HISTORY_EVENTS_MAX), None)
    }

    /// Opens or creates a database file.
    pub(crate) fn open(path: &Path) -> Result<Self, DiskError> {
        let (disk, saved) = Disk::open(path)?;
        let store = Store::restore(HISTORY_EVENTS_MAX, saved)
            .map_err(|source| DiskError::Contradiction { path: path.to_owned(), source })?;
        Ok(Self::new(store, Some(disk)))
    }

    fn new(store: Objects, disk: Option<Disk>) -> Self {
        let shared = Arc::new(Shared {
            visible: watch::Sender::new(store.revision()),
            store: RwLock::new(store),
            collections: Mutex::default(),
            failure: OnceLock::new(),
        });
        let writer = disk.map(|disk| Writer::start(disk, shared.clone()));
        Self { shared, writer }
    }

    /// The newest revision readers see.
    pub(crate) fn revision(&self) -> Revision {
        self.shared.read(|store| store.revision())
    }

    /// The newest state of an object that readers see.
    pub(crate) fn get(&self, key: &Key) -> Option<Stored> {
        self.shared.read(|store| store.get(key))
    }

    /// The newest state of an object for a writer. Whoever answers with it must await [`Database::durable`] first.
    pub(crate) fn head(&self, key: &Key) -> Option<Stored> {
        self.shared.read(|store| store.head(key))
    }

    /// The objects of a range.
    pub(crate) fn list(&self, range: &Range, at: Option<Revision>) -> Result<Page<Arc<Object>>, Compacted> {
        self.shared.read(|store| store.list(range, at))
    }

    /// Writes to a collection after a revision, at most `max`, and the revision up to which they are complete.
    pub(crate) fn events(
        &self,
        collection: &str,
        after: Revision,
        max: usize,
    ) -> Result<(Vec<Arc<Event>>, Revision), Compacted> {
        self.shared.read(|store| {
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
        let mut collections = self.shared.collections.lock().unwrap_or_else(PoisonError::into_inner);
        collections.entry(collection.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe()
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
        self.write(|store| store.put(key, expect, make)).await
    }

    /// Deletes an object; returns once that is durable and visible. Cancel safety: as [`Database::put`].
    pub(crate) async fn delete(&self, key: Key, expect: Expect) -> Result<Arc<Event>, WriteError> {
        self.write(|store| store.delete(key, expect)).await
    }

    async fn write(
        &self,
        change: impl FnOnce(&mut Objects) -> Result<Arc<Event>, Conflict>,
    ) -> Result<Arc<Event>, WriteError> {
        self.healthy()?;
        let event = match self.queue() {
            Some(queue) => {
                // A place in the queue comes first: a write that has taken effect must reach the disk.
                let place = queue.reserve().await.map_err(|_| self.stopped())?;
                let mut store = self.shared.store.write().unwrap_or_else(PoisonError::into_inner);
                let event = change(&mut store)?;
                // Queued under the lock, so that the disk sees the order of revisions.
                place.send(Job::Write(event.clone()));
                event
            }
            None => self.write_to_memory(change)?,
        };
        self.durable(event.revision).await?;
        Ok(event)
    }

    fn write_to_memory(
        &self,
        change: impl FnOnce(&mut Objects) -> Result<Arc<Event>, Conflict>,
    ) -> Result<Arc<Event>, WriteError> {
        let mut store = self.shared.store.write().unwrap_or_else(PoisonError::into_inner);
        let event = change(&mut store)?;
        store.publish(event.revision);
        drop(store);
        self.shared.announce(std::slice::from_ref(&event));
        Ok(event)
    }

    fn queue(&self) -> Option<&mpsc::Sender<Job>> {
        self.writer.as_ref().and_then(|writer| writer.queue.as_ref())
    }

    fn stopped(&self) -> WriteError {
        let reason = self.shared.failure.get().cloned();
        WriteError::Failed(reason.unwrap_or_else(|| "the writer has stopped".into()))
    }

    /// Returns once a revision is durable and visible.
    pub(crate) async fn durable(&self, revision: Revision) -> Result<(), WriteError> {
        let mut visible = self.shared.visible.subscribe();
        let reached =
            visible.wait_for(|visible| *visible >= revision || self.shared.failure.get().is_some()).await;
        reached.map_err(|e| WriteError::Failed(e.to_string()))?;
        self.healthy()
    }

    /// Whether writes are still possible.
    pub(crate) fn healthy(&self) -> Result<(), WriteError> {
        match self.shared.failure.get() {
            Some(failure) => Err(WriteError::Failed(failure.clone())),
            None => Ok(()),
        }
    }

    /// Returns when the store has failed, with the reason.
    pub(crate) async fn failed(&self) -> String {
        let mut visible = self.shared.visible.subscribe();
        loop {
            if let Some(failure) = self.shared.failure.get() {
                return failure.clone();
            }
            if visible.changed().await.is_err() {
                return "the store was closed".into();
            }
        }
    }

    /// Forgets history before a revision.
    pub(crate) fn compact(&self, revision: Revision) {
        self.shared.store.write().unwrap_or_else(PoisonError::into_inner).compact(revision);
        if let Some(queue) = self.queue() {
            // A full queue means busy times: the next round of compaction covers this one.
            let _ = queue.try_send(Job::Compact(revision));
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(writer) = &mut self.writer {
            drop(writer.queue.take());
            if let Some(thread) = writer.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn read<T>(&self, read: impl FnOnce(&Objects) -> T) -> T {
        read(&self.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes persisted writes visible and wakes who waits for them.
    fn publish(&self, events: &[Arc<Event>]) {
        if let Some(last) = events.last() {
            self.store.write().unwrap_or_else(PoisonError::into_inner).publish(last.revision);
            self.announce(events);
        }
    }

    fn announce(&self, events: &[Arc<Event>]) {
        for event in events {
            let collections = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(collection) = collections.get(&event.key.collection) {
                collection.send_replace(event.revision);
            }
        }
        if let Some(last) = events.last() {
            // In memory, two writers may announce in either order: never step back.
            self.visible.send_if_modified(|visible| {
                let newer = *visible < last.revision;
                *visible = last.revision.max(*visible);
                newer
            });
        }
    }

    fn fail(&self, error: &DiskError) {
        tracing::error!(error = %error, source = ?std::error::Error::source(error), "store failed, refusing all further writes");
        let _ = self.failure.set(error.to_string());
        self.visible.send_modify(|_| {});
    }
}

impl Writer {
    fn start(disk: Disk, shared: Arc<Shared>) -> Self {
        let (queue, jobs) = mpsc::channel(WRITES_WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || write_all(&disk, jobs, &shared))
            .expect("the system can start one more thread at start-up");
        Self { queue: Some(queue), thread: Some(thread) }
    }
}

/// Persists what is queued, as one commit for all that has come in since the last one, until the queue is closed.
fn write_all(disk: &Disk, mut jobs: mpsc::Receiver<Job>, shared: &Shared) {
    while let Some(first) = jobs.blocking_recv() {
        let (mut events, mut compact) = (Vec::new(), None);
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Write(event) => events.push(event),
                Job::Compact(revision) => compact = Some(revision),
            }
            next = if events.len() < WRITES_WAITING_MAX { jobs.try_recv().ok() } else { None };
        }
        if let Err(error) = disk.commit(&events, compact) {
            shared.fail(&error);
            return;
        }
        shared.publish(&events);
    }
}
