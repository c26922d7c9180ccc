//! Memory as a mirror of etcd: loaded at one revision, then kept up by a watch.

use super::call::{Calls, message, one};
use super::layout::Layout;
use super::{EtcdError, EtcdSettings, signed, unsigned};
use crate::memory::{HISTORY_EVENTS_MAX, Memory, Objects};
use crate::object::Object;
use ambit_proto::etcd::event::EventType;
use ambit_proto::etcd::{KeyValue, RangeRequest, WatchResponse};
use ambit_runtime::Backoff;
use ambit_store::{Key, RestoreError, Revision, Saved, Store, Version};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::{Code, Status};

/// Objects asked for at once.
const PAGE_OBJECTS: i64 = 500;
/// Waits before etcd is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Whether the watch is up.
#[derive(Debug, Clone, Default)]
pub(super) struct Link(Arc<Mutex<Option<String>>>);

impl Link {
    /// Why the watch is down.
    pub(super) fn trouble(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, trouble: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

/// Why the mirror cannot go on as it does.
pub(super) enum MirrorError {
    /// A call failed.
    Call(Status),
    /// Etcd has forgotten what the mirror has not seen; its history begins here.
    Compacted(Revision),
    /// A value is not ours.
    Foreign(String),
    /// Etcd contradicts itself.
    Contradiction(RestoreError),
}

impl MirrorError {
    /// The error with where it happened.
    pub(super) fn at(self, settings: &EtcdSettings) -> EtcdError {
        match self {
            Self::Foreign(key) => EtcdError::Foreign { key },
            other => EtcdError::Unreadable { members: settings.members.join(", "), detail: other.text() },
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Call(status) => message(status),
            Self::Compacted(oldest) => format!("its history begins at revision {oldest} only"),
            Self::Foreign(key) => format!("{key:?} holds no object"),
            Self::Contradiction(error) => error.to_string(),
        }
    }
}

impl From<Status> for MirrorError {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

/// What keeps memory up.
pub(super) struct Mirror {
    calls: Calls,
    layout: Arc<Layout>,
    memory: Arc<Memory>,
    link: Link,
    /// All that etcd did up to here has been seen.
    reached: Revision,
}

impl Mirror {
    /// Reads all objects as they were at the oldest revision that is still worth knowing.
    pub(super) async fn load(calls: Calls, layout: Arc<Layout>) -> Result<Self, MirrorError> {
        let objects = read_all(&calls, &layout).await?;
        let reached = objects.revision();
        Ok(Self { calls, layout, memory: Arc::new(Memory::new(objects)), link: Link::default(), reached })
    }

    pub(super) fn memory(&self) -> Arc<Memory> {
        self.memory.clone()
    }

    pub(super) fn link(&self) -> Link {
        self.link.clone()
    }

    /// Follows etcd, for ever.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            let before = self.reached;
            let Err(error) = self.follow().await else { continue };
            if self.reached > before {
                backoff.reset();
            }
            let outcome = match &error {
                MirrorError::Compacted(_) => self.reload().await,
                _ => Err(error),
            };
            if let Err(error) = outcome {
                let text = error.text();
                if self.link.trouble().is_none() {
                    tracing::warn!(error = %text, "etcd cannot be followed, trying again");
                }
                self.link.set(Some(text));
                tokio::time::sleep(backoff.next_delay()).await;
            }
        }
    }

    /// Takes up events until the watch ends.
    async fn follow(&mut self) -> Result<(), MirrorError> {
        let from = signed(self.reached) + 1;
        let mut stream = self.calls.watch(self.layout.all(), from).await?;
        while let Some(response) = stream.message().await? {
            if response.canceled {
                return Err(canceled(&response));
            }
            if self.link.trouble().is_some() {
                tracing::info!("etcd is followed again");
                self.link.set(None);
            }
            self.take_up(response);
        }
        Err(Status::unavailable("etcd ended the watch").into())
    }

    fn take_up(&mut self, response: WatchResponse) {
        // A response without events tells how far the watch has come, but for the one that only confirms it.
        let confirmed = response.header.as_ref().map_or(0, |header| unsigned(header.revision));
        if response.events.is_empty() && !response.created {
            self.reached = self.reached.max(confirmed);
        }
        let mut writes: Vec<(Revision, Key, Option<Arc<Object>>)> = Vec::new();
        for event in response.events {
            let deleted = event.r#type() == EventType::Delete;
            let Some(kv) = event.kv else { continue };
            self.reached = self.reached.max(unsigned(kv.mod_revision));
            let Some(key) = self.layout.parse(&kv.key) else { continue };
            let revision = unsigned(kv.mod_revision);
            if deleted {
                writes.push((revision, key, None));
                continue;
            }
            match decode(&kv) {
                Some(object) => writes.push((revision, key, Some(object))),
                None => {
                    tracing::error!(%key, revision, "etcd's value of this object is not an object, left out")
                }
            }
        }
        self.memory.follow(writes);
    }

    /// Reads all objects anew.
    async fn reload(&mut self) -> Result<(), MirrorError> {
        tracing::warn!(
            reached = self.reached,
            "etcd has forgotten writes not seen yet, reading all objects anew"
        );
        let objects = read_all(&self.calls, &self.layout).await?;
        self.reached = objects.revision();
        self.memory.replace(objects);
        Ok(())
    }
}

fn canceled(response: &WatchResponse) -> MirrorError {
    match unsigned(response.compact_revision) {
        0 => Status::unavailable(format!("etcd ended the watch: {}", response.cancel_reason)).into(),
        oldest => MirrorError::Compacted(oldest),
    }
}

/// The objects as of the start of the history that is kept.
async fn read_all(calls: &Calls, layout: &Layout) -> Result<Objects, MirrorError> {
    let now = calls.range(one(layout.marker())).await?;
    let now = now.header.map_or(0, |header| unsigned(header.revision));
    let mut revision = now.saturating_sub(HISTORY_EVENTS_MAX as Revision).max(1);
    let mut saved = Saved { revision, compacted: revision, objects: Vec::new(), history: Vec::new() };
    let (mut next, end) = layout.objects();
    loop {
        let page = RangeRequest {
            key: next.clone().into(),
            range_end: end.clone().into(),
            limit: PAGE_OBJECTS,
            revision: signed(revision),
            ..RangeRequest::default()
        };
        let page = match calls.range(page).await {
            Ok(page) => page,
            Err(status) if status.code() == Code::OutOfRange => {
                // Forgotten, perhaps only since the last page.
                revision = oldest(calls, layout, revision).await?;
                saved = Saved { revision, compacted: revision, objects: Vec::new(), history: Vec::new() };
                next = layout.objects().0;
                continue;
            }
            Err(status) => return Err(status.into()),
        };
        for kv in &page.kvs {
            let foreign = || MirrorError::Foreign(String::from_utf8_lossy(&kv.key).into_owned());
            let key = layout.parse(&kv.key).ok_or_else(foreign)?;
            let value = decode(kv).ok_or_else(foreign)?;
            saved.objects.push((key, Version { revision: unsigned(kv.mod_revision), value }));
        }
        match page.kvs.last() {
            Some(last) if page.more => next = [&last.key[..], b"\0"].concat(),
            _ => break,
        }
    }
    Store::restore(HISTORY_EVENTS_MAX, saved).map_err(MirrorError::Contradiction)
}

/// The oldest revision that etcd can read, given one that it cannot.
async fn oldest(calls: &Calls, layout: &Layout, forgotten: Revision) -> Result<Revision, MirrorError> {
    let mut stream = calls.watch(layout.all(), signed(forgotten)).await?;
    while let Some(response) = stream.message().await? {
        if response.canceled {
            return match canceled(&response) {
                MirrorError::Compacted(oldest) => Ok(oldest),
                other => Err(other),
            };
        }
        if !response.created {
            break;
        }
    }
    Err(Status::unavailable("etcd does not tell where its history begins").into())
}

/// The object of a value, with the revision that wrote it.
fn decode(kv: &KeyValue) -> Option<Arc<Object>> {
    let value: serde_json::Value = serde_json::from_slice(&kv.value).ok()?;
    value.get("metadata")?.as_object()?;
    Some(Object::written(value, unsigned(kv.mod_revision)))
}
