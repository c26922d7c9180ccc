//! How an informer gets to know the whole state: streamed at the beginning of a watch where the server can, so that
//! neither side holds a long list in one piece; else as a list.

use super::exchange::{self, Lines, within};
use super::{Known, Source, WATCH_START_DEADLINE};
use crate::decode::{self, Event};
use crate::error::WatchError;
use crate::informer::ObjectKey;
use crate::query::PAGE_OBJECTS;
use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for one page of a list.
const LIST_DEADLINE: Duration = Duration::from_secs(60);
/// Longest silence within a state that is streamed: the server has it at hand and sends it in one go. One that does not
/// know how to stream it goes on as a watch, and is quiet.
const STATE_SILENCE_MAX: Duration = Duration::from_secs(20);

/// How the state is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// As the beginning of a watch.
    Stream,
    /// As a list, since a stream has failed; the next time as a stream.
    ListOnce,
    /// As a list, since the server does not stream.
    List,
}

/// A state that is not complete yet.
struct Partial<K> {
    objects: BTreeMap<ObjectKey, K>,
    unreadable: BTreeMap<ObjectKey, String>,
}

impl<K> Default for Partial<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), unreadable: BTreeMap::new() }
    }
}

impl<K> Source<K>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// Takes the whole state; goes on watching if it was streamed.
    pub(super) async fn start(&mut self) -> Result<(), WatchError> {
        if self.start != Start::Stream {
            let revision = self.list().await?;
            self.known = Known::Upto(revision);
            if self.start == Start::ListOnce {
                self.start = Start::Stream;
            }
            return Ok(());
        }
        match self.streamed_state().await {
            Ok((revision, lines)) => self.watch(revision, Some(lines)).await,
            Err(error) => self.after_failed_stream(error),
        }
    }

    /// Takes the state from a stream; returns its revision and the stream, which goes on as a watch.
    async fn streamed_state(&self) -> Result<(String, Lines), WatchError> {
        let params = self.query.to_stream_params();
        // No revision: the newest state, as a list without one gives.
        let request = if K::metadata_api() {
            self.request.watch_metadata(&params, "")
        } else {
            self.request.watch(&params, "")
        };
        let request = request.map_err(WatchError::Request)?;
        let mut lines = Lines::open(&self.client, request, WATCH_START_DEADLINE).await?;
        let mut state = Partial::default();
        loop {
            let Some(line) = lines.next(STATE_SILENCE_MAX).await? else { return Err(WatchError::StateCut) };
            match decode::event::<K>(line, self.query.kept())? {
                Event::Bookmark { resource_version, ends_state: true } => {
                    self.accept(state.objects.into_values().collect(), state.unreadable);
                    return Ok((resource_version, lines));
                }
                Event::Bookmark { .. } => return Err(WatchError::NoStateEnd),
                Event::Failed(error) => return Err(error),
                event => state.take(event),
            }
        }
    }

    /// Decides how the state is asked for next, after a stream has not brought it. Peers: client-go's reflector lists
    /// whatever the reason, each time anew.
    fn after_failed_stream(&mut self, error: WatchError) -> Result<(), WatchError> {
        self.start = match (&error, error.code()) {
            (_, Some(404)) => return Err(self.found_absent()),
            // Servers that do not stream refuse a parameter or, of kinds that cannot be watched at all, the verb.
            (WatchError::NoStateEnd, _) | (_, Some(400 | 405 | 406 | 415 | 422 | 501)) => Start::List,
            // Nobody was there.
            (WatchError::Api(_), _) => Start::Stream,
            _ => Start::ListOnce,
        };
        if self.start == Start::List {
            tracing::debug!(path = self.writer.path(), %error, "the server does not stream its state, listing");
            return Ok(());
        }
        Err(error)
    }

    /// Takes the full list; returns the revision to watch from.
    async fn list(&self) -> Result<String, WatchError> {
        let (mut objects, mut unreadable) = (Vec::new(), BTreeMap::new());
        let (mut token, mut limit) = (None, Some(PAGE_OBJECTS));
        loop {
            let continued = token.is_some();
            let page = match self.page(limit, token).await {
                Ok(page) => decode::page::<K>(&page, self.query.kept())?,
                // The list took longer than the server keeps its revision: now all at once.
                Err(error) if continued && error.code() == Some(410) => {
                    (token, limit) = (None, None);
                    (objects, unreadable) = (Vec::new(), BTreeMap::new());
                    continue;
                }
                Err(error) if error.code() == Some(404) => return Err(self.found_absent()),
                Err(error) => return Err(error),
            };
            objects.extend(page.objects);
            unreadable.extend(page.unreadable);
            token = page.continue_token;
            if token.is_none() {
                let revision = page.resource_version.ok_or(WatchError::NoResourceVersion)?;
                self.accept(objects, unreadable);
                return Ok(revision);
            }
        }
    }

    /// One page of the list.
    async fn page(&self, limit: Option<u32>, token: Option<String>) -> Result<Vec<u8>, WatchError> {
        let params = self.query.to_list_params(limit, token);
        let request =
            if K::metadata_api() { self.request.list_metadata(&params) } else { self.request.list(&params) };
        let request = request.map_err(WatchError::Request)?;
        let read = async { exchange::read_all(exchange::open(&self.client, request).await?).await };
        within(LIST_DEADLINE, read).await
    }

    /// The revision that the server is at, by the smallest list there is.
    pub(super) async fn newest_revision(&self) -> Result<String, WatchError> {
        let bytes = self.page(Some(1), None).await?;
        decode::list_revision(&bytes)?.ok_or(WatchError::NoResourceVersion)
    }

    fn accept(&self, objects: Vec<K>, unreadable: BTreeMap<ObjectKey, String>) {
        self.writer.set_absent(false);
        self.writer.replace(objects, unreadable);
        self.writer.mark_synced();
    }

    /// The kind does not exist, or no longer: nothing of it exists.
    fn found_absent(&self) -> WatchError {
        if !self.writer.has_synced() {
            tracing::debug!(path = self.writer.path(), "the server does not know this kind yet");
        }
        self.accept(Vec::new(), BTreeMap::new());
        self.writer.set_absent(true);
        WatchError::Absent
    }
}

impl<K: Resource> Partial<K> {
    /// Takes an event of before the end of the state: the state may change while it is sent.
    fn take(&mut self, event: Event<K>) {
        match event {
            Event::Applied(object) => {
                let key = ObjectKey::of(&object);
                self.unreadable.remove(&key);
                self.objects.insert(key, object);
            }
            Event::Deleted { key, .. } => {
                self.unreadable.remove(&key);
                self.objects.remove(&key);
            }
            Event::Unreadable { key, cause, .. } => {
                self.objects.remove(&key);
                self.unreadable.insert(key, cause);
            }
            Event::Bookmark { .. } | Event::Failed(_) => {}
        }
    }
}
