//! Writes under one name by server-side apply: only what differs, and what is not wanted any more goes.

mod applier;
mod memory;
mod object_set;
mod owned;
#[cfg(test)]
mod owned_laws;
#[cfg(test)]
mod tests;

pub use applier::Applier;
pub use object_set::{Kept, ObjectSet};

use crate::write_error::{Attempt, WriteError};
use crate::write_metrics::WriteMetrics;
use kube::{Client, Resource};
use memory::Memory;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Writes at once, unless set: enough to hide round trips, few enough to be kind to the server.
const WRITES_AT_ONCE: usize = 16;
/// Time for one request, its wait for a turn not included.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// What becomes of fields that somebody else owns and that are to have another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// Nothing is written; [`WriteError::Owned`] names the fields and their owners.
    Refuse,
    /// They are taken over.
    Force,
}

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Nothing: all was as wanted.
    Unchanged,
    /// The object was made, changed or deleted.
    Changed,
}

/// A name under which fields are owned, and what this process knows of them. Clones share it.
///
/// The same name may be used by one controller at a time only: two would take each other's fields away. Give it the
/// client of the [term](crate::Term::client) where a leader is elected.
#[derive(Clone)]
pub struct FieldManager {
    client: Client,
    name: Arc<str>,
    metrics: WriteMetrics,
    slots: Arc<Semaphore>,
    at_once: usize,
    memory: Arc<Mutex<Memory>>,
}

impl fmt::Debug for FieldManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FieldManager").field("name", &self.name).finish_non_exhaustive()
    }
}

impl FieldManager {
    /// The manager of that name. No I/O.
    pub fn new(client: Client, name: impl Into<Arc<str>>) -> Self {
        Self {
            client,
            name: name.into(),
            metrics: WriteMetrics::default(),
            slots: Arc::new(Semaphore::new(WRITES_AT_ONCE)),
            at_once: WRITES_AT_ONCE,
            memory: Arc::default(),
        }
    }

    /// Counts in these metrics.
    #[must_use]
    pub fn metrics(self, metrics: &WriteMetrics) -> Self {
        Self { metrics: metrics.clone(), ..self }
    }

    /// Does so many requests at once at most, and at least one.
    #[must_use]
    pub fn at_once(self, writes: usize) -> Self {
        let at_once = writes.clamp(1, Semaphore::MAX_PERMITS);
        Self { slots: Arc::new(Semaphore::new(at_once)), at_once, ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes objects of a kind known at compile time.
    pub fn applier<K>(&self) -> Applier<K>
    where
        K: Resource,
        K::DynamicType: Default,
    {
        self.applier_of(K::DynamicType::default())
    }

    /// Writes objects of a kind named at run time.
    pub fn applier_of<K: Resource>(&self, kind: K::DynamicType) -> Applier<K> {
        Applier::new(self.clone(), kind)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a request when it is its turn, within the deadline.
    async fn request(
        &self,
        what: &Attempt<'_>,
        request: http::Request<Vec<u8>>,
    ) -> Result<serde_json::Value, WriteError> {
        // The semaphore is never closed; were it, the request would only not be counted.
        let _turn = self.slots.acquire().await;
        let timer = self.metrics.begin(&self.name, what.verb);
        let answer = match tokio::time::timeout(REQUEST_DEADLINE, self.client.request(request)).await {
            Ok(answer) => answer.map_err(|error| WriteError::of(error, what)),
            Err(_) => {
                Err(WriteError::NoAnswer { action: what.verb.action(), object: what.object.to_owned() })
            }
        };
        timer.end(answer.as_ref().err());
        answer
    }
}
