//! The objects in memory, where all reads are served from, and who waits for them to change.

use crate::object::{Event, EventCache, Object};
use ambit_store::{Conflict, Key, Revision, Store};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use tokio::sync::watch;

/// Writes that stay readable as history at most, whatever their age: bounds memory.
pub(crate) const HISTORY_EVENTS_MAX: usize = 20_000;

/// The store of objects.
pub(crate) type Objects = Store<Arc<Object>, EventCache>;

/// A write did not happen, or cannot be said to have happened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The object is not what was expected.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// Something that the write relies on has changed; made anew, it may succeed.
    #[error("{0} were written meanwhile, please try again")]
    Overtaken(Arc<str>),
    /// Nothing can be written until the server is started again.
    #[error("the store failed and takes no more writes: {0}")]
    Failed(String),
    /// There is no room left where objects are kept; writes are taken again when there is.
    #[error("no space is left to store objects: {0}")]
    Full(String),
    /// The store cannot be reached now.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store did not say whether it took the write.
    #[error("the write may or may not have taken effect: {0}")]
    Uncertain(String),
    /// The store takes no objects of this size.
    #[error("the object is too large for the store: {0}")]
    TooLarge(String),
}

/// The objects, with those who wait for news of them.
pub(crate) struct Memory {
    store: RwLock<Objects>,
    visible: watch::Sender<Revision>,
    /// Wakes the watchers of a collection.
    collections: Mutex<HashMap<Arc<str>, watch::Sender<Revision>>>,
    failure: OnceLock<String>,
    /// Why nothing can be persisted for now.
    full: Mutex<Option<String>>,
}

impl Memory {
    pub(crate) fn new(store: Objects) -> Self {
        Self {
            visible: watch::Sender::new(store.revision()),
            store: RwLock::new(store),
            collections: Mutex::default(),
            failure: OnceLock::new(),
            full: Mutex::default(),
        }
    }

    /// Looks at the objects.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Objects) -> T) -> T {
        read(&self.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The objects, to change them. What is changed is seen by readers once it is published.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Objects> {
        self.store.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes persisted writes visible and wakes who waits for them.
    pub(crate) fn publish(&self, events: &[Arc<Event>]) {
        if let Some(last) = events.last() {
            self.write().publish(last.revision);
            self.announce(events);
        }
    }

    /// Takes up writes that others have done, oldest first, and wakes who waits for them.
    pub(crate) fn follow(&self, writes: Vec<(Revision, Key, Option<Arc<Object>>)>) {
        let mut store = self.write();
        let taken =
            writes.into_iter().filter_map(|(revision, key, value)| store.follow(revision, key, value));
        let events: Vec<_> = taken.collect();
        drop(store);
        self.announce(&events);
    }

    /// Puts other objects into the place of all, and wakes everybody: who is behind finds its history gone.
    pub(crate) fn replace(&self, objects: Objects) {
        let revision = objects.revision();
        *self.write() = objects;
        for collection in self.collections.lock().unwrap_or_else(PoisonError::into_inner).values() {
            collection.send_replace(revision);
        }
        self.reached(revision);
    }

    /// Wakes who waits for published writes.
    pub(crate) fn announce(&self, events: &[Arc<Event>]) {
        for event in events {
            let collections = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(collection) = collections.get(&event.key.collection) {
                collection.send_replace(event.revision);
            }
        }
        if let Some(last) = events.last() {
            self.reached(last.revision);
        }
    }

    fn reached(&self, revision: Revision) {
        // In memory, two writers may announce in either order: never step back.
        self.visible.send_if_modified(|visible| {
            let newer = *visible < revision;
            *visible = revision.max(*visible);
            newer
        });
    }

    /// Changes whenever a write to the collection becomes visible.
    pub(crate) fn subscribe(&self, collection: &Arc<str>) -> watch::Receiver<Revision> {
        let mut collections = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
        collections.entry(collection.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Returns once a revision is visible.
    ///
    /// # Errors
    /// It cannot become visible, or not before somebody makes room for it.
    pub(crate) async fn reach(&self, revision: Revision) -> Result<(), WriteError> {
        let mut visible = self.visible.subscribe();
        let reached =
            visible.wait_for(|visible| *visible >= revision || self.healthy().is_err()).await.map(|v| *v);
        match reached {
            Ok(reached) if reached >= revision => Ok(()),
            Ok(_) => self.healthy(),
            Err(closed) => Err(WriteError::Failed(closed.to_string())),
        }
    }

    /// Ends writing until there is room again; `None`: there is.
    pub(crate) fn full(&self, reason: Option<String>) {
        *self.full.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        self.visible.send_modify(|_| {});
    }

    /// Ends all writing, for good.
    pub(crate) fn fail(&self, reason: String) {
        let _ = self.failure.set(reason);
        self.visible.send_modify(|_| {});
    }

    /// Whether writes are taken.
    pub(crate) fn healthy(&self) -> Result<(), WriteError> {
        if let Some(failure) = self.failure.get() {
            return Err(WriteError::Failed(failure.clone()));
        }
        match &*self.full.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(WriteError::Full(reason.clone())),
            None => Ok(()),
        }
    }

    /// Returns when writing has ended for good, with the reason.
    pub(crate) async fn failed(&self) -> String {
        let mut visible = self.visible.subscribe();
        loop {
            if let Some(failure) = self.failure.get() {
                return failure.clone();
            }
            if visible.changed().await.is_err() {
                return "the store was closed".into();
            }
        }
    }
}
