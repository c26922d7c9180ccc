//! Watches: a stream of the writes to a collection, from any revision of the window.
//!
//! A watcher holds no queue: it remembers the revision it has reached and takes the next writes from the store when
//! its client has room. A client that is slower than the window costs nobody anything, and is told so (410) at the end.

use crate::answer::{Body, BodyError, View, metadata_of, table};
use crate::cluster::Cluster;
use crate::negotiate::{Encoding, Form};
use crate::object::{Event, Object, Stored, encode, set_revision};
use crate::read;
use crate::request::{Call, Target, collection};
use crate::selector::Selector;
use crate::status::{Answer, Failure};
use ambit_runtime::{Entropy, Shutdown};
use ambit_schema::encode_protobuf_event;
use ambit_store::{Key, Revision};
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use rand::Rng as _;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

/// Events put into one chunk at most: bounds what a watcher encodes ahead of its client.
const BATCH_EVENTS_MAX: usize = 64;
/// Time between bookmarks of a quiet watch.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A watch without timeoutSeconds ends after a random time in this range, so that clients spread out.
const LIFETIME_SECONDS: std::ops::Range<u64> = 1800..3600;

/// A type of watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Added,
    Modified,
    Deleted,
}

/// What a watch begins with.
enum Start {
    /// The current state, then what follows.
    State { mark_end: bool },
    /// What follows a revision.
    After(Revision),
}

struct Watcher {
    cluster: Arc<Cluster>,
    target: Target,
    collection: Arc<str>,
    selector: Selector,
    view: View,
    /// All writes up to here have been sent.
    reached: Revision,
    /// State that is still to be sent.
    initial: std::vec::IntoIter<Stored>,
    /// The end of the initial state is still to be marked.
    mark_end: bool,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    news: Receiver<Revision>,
    stopping: Shutdown,
    columns_sent: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Ended,
}

/// Answers a stream of events.
pub(crate) async fn watch(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    stopping: &Shutdown,
) -> Answer<Response<Body>> {
    let start = start(call)?;
    let mut view = View::of(call, &target.kind, cluster.clock.timestamp())?;
    if view.encoding == Encoding::Yaml {
        // No framing is defined for a stream of YAML documents.
        view.encoding = Encoding::Json;
    }
    if let Start::After(revision) = start {
        read::reach(cluster, revision).await?;
    } else if let Some(at_least) = read::revision(call.query.value("resourceVersion"))? {
        read::reach(cluster, at_least).await?;
    }
    let encoding = view.encoding;
    let watcher = Watcher::new(cluster.clone(), call, target, (view, start, stopping.clone()))?;
    let stream = futures::stream::unfold(watcher, |mut watcher| async move {
        let chunk = watcher.next().await?;
        Some((Ok::<_, BodyError>(Frame::data(chunk)), watcher))
    });
    let mut response = Response::new(StreamBody::new(stream).boxed_unsync());
    let media_type = match encoding {
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Encoding::Json | Encoding::Yaml => "application/json",
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    Ok(response)
}

fn start(call: &Call) -> Answer<Start> {
    let query = &call.query;
    let how = query.value("resourceVersionMatch").unwrap_or_default();
    let invalid = |field: &str, what: &str| Failure::invalid_options("ListOptions", field, what);
    if query.value("sendInitialEvents").is_none() {
        if !how.is_empty() {
            let what =
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(invalid("resourceVersionMatch", what));
        }
        let revision = read::revision(query.value("resourceVersion"))?;
        return Ok(revision.map_or(Start::State { mark_end: false }, Start::After));
    }
    if how != "NotOlderThan" {
        let what = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(invalid("resourceVersionMatch", what));
    }
    if query.on("sendInitialEvents") {
        return Ok(Start::State { mark_end: query.on("allowWatchBookmarks") });
    }
    let revision = read::revision(query.value("resourceVersion"))?;
    Ok(revision.map_or(Start::State { mark_end: false }, Start::After))
}

impl Watcher {
    fn new(
        cluster: Arc<Cluster>,
        call: &Call,
        target: &Target,
        (view, start, stopping): (View, Start, Shutdown),
    ) -> Answer<Self> {
        let kind = &target.kind;
        let field_selector = call.query.value("fieldSelector").unwrap_or_default();
        let mut selector = Selector::parse(kind, call.query.value("labelSelector"), Some(field_selector))?;
        if !target.name.is_empty() {
            // The legacy form that watches one object by its path.
            selector = Selector::parse(kind, None, Some(&format!("metadata.name={}", target.name)))?;
        }
        let collection = collection(kind);
        // Subscribed before the state is read, so that no write falls between.
        let news = cluster.db.subscribe(&collection);
        let (reached, initial, mark_end) = match start {
            Start::After(revision) => (revision, Vec::new(), false),
            Start::State { mark_end } => {
                let page = cluster.db.list(&Cluster::range(target), None).map_err(Failure::expired)?;
                let selected = page.items.into_iter().filter(|((namespace, name), v)| {
                    let key = Key::new(collection.clone(), namespace.clone(), name.clone());
                    read::matches(&selector, kind, &key, &v.value)
                });
                (page.revision, selected.map(|(_, v)| v).collect(), mark_end)
            }
        };
        let now = Instant::from_std(cluster.clock.now());
        let lifetime = match call.query.value("timeoutSeconds").map(str::parse::<u64>) {
            Some(Ok(seconds)) if seconds > 0 => seconds.min(LIFETIME_SECONDS.end),
            _ => Entropy.rng().random_range(LIFETIME_SECONDS),
        };
        Ok(Self {
            target: target.clone(),
            collection,
            selector,
            view,
            reached,
            initial: initial.into_iter(),
            mark_end,
            bookmarks: call.query.on("allowWatchBookmarks"),
            next_bookmark: now + BOOKMARK_EVERY,
            deadline: now + Duration::from_secs(lifetime),
            news,
            stopping,
            columns_sent: false,
            state: State::Running,
            cluster,
        })
    }

    /// The next chunk of the stream; `None` at its end. Cancel safe: nothing is taken before it is returned.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            // A busy watch never waits below: it ends here.
            let late = self.cluster.clock.now() >= self.deadline.into_std();
            if late || self.state == State::Ended || self.stopping.is_cancelled() {
                return None;
            }
            if let Some(chunk) = self.initial_chunk() {
                return Some(chunk);
            }
            // Marked as seen before reading, so that a write in between wakes the wait below.
            self.news.mark_unchanged();
            match self.cluster.db.events(&self.collection, self.reached, BATCH_EVENTS_MAX) {
                Err(compacted) => {
                    self.state = State::Ended;
                    return Some(self.line("ERROR", &encode(&Failure::expired(compacted).status())));
                }
                Ok((events, upto)) => {
                    self.reached = upto;
                    let mut chunk = BytesMut::new();
                    for event in &events {
                        if let Some(line) = self.line_of(event) {
                            chunk.put_slice(&line);
                        }
                    }
                    if !chunk.is_empty() {
                        return Some(chunk.freeze());
                    }
                    if events.len() == BATCH_EVENTS_MAX {
                        continue;
                    }
                }
            }
            if let Some(last) = self.wait().await {
                return Some(last);
            }
        }
    }

    /// Waits for news, for the time of a bookmark or for the end. Answers a bookmark when one is due.
    async fn wait(&mut self) -> Option<Bytes> {
        // Every arm is cancel safe: a cancelled wait loses nothing.
        tokio::select! {
            changed = self.news.changed() => {
                if changed.is_err() {
                    self.state = State::Ended;
                }
                None
            }
            () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => {
                self.next_bookmark += BOOKMARK_EVERY;
                Some(self.bookmark(None))
            }
            () = tokio::time::sleep_until(self.deadline) => {
                self.state = State::Ended;
                self.bookmarks.then(|| self.bookmark(None))
            }
            () = self.stopping.cancelled() => {
                self.state = State::Ended;
                None
            }
        }
    }

    fn initial_chunk(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::new();
        for _ in 0..BATCH_EVENTS_MAX {
            let Some(stored) = self.initial.next() else { break };
            let object = self.show(Some(&stored.value), || stored.value.value_as(&self.target.kind));
            self.columns_sent = true;
            chunk.put_slice(&self.line("ADDED", &object));
        }
        if self.mark_end && self.initial.len() == 0 {
            self.mark_end = false;
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            chunk.put_slice(&self.bookmark(Some(annotations)));
        }
        (!chunk.is_empty()).then(|| chunk.freeze())
    }

    /// The event as this watcher sees it; `None` when it does not concern it.
    fn line_of(&mut self, event: &Event) -> Option<Bytes> {
        if !self.target.namespace.is_empty() && *event.key.namespace != *self.target.namespace {
            return None;
        }
        let kind = &self.target.kind;
        let old = event.old.as_ref().map(|old| &old.value);
        let new = event.new.as_ref();
        // Watchers of the version that the object is stored in share what they are sent.
        let shared = old.is_none_or(|old| old.is_of(kind)) && new.is_none_or(|new| new.is_of(kind));
        let before = old.is_some_and(|old| self.selects(event, old, || event.cache.old_value(old)));
        let after = new.is_some_and(|new| self.selects(event, new, || event.cache.new_value(new)));
        let change = match (before, after) {
            (false, true) => Change::Added,
            (true, true) => Change::Modified,
            (true, false) => Change::Deleted,
            (false, false) => return None,
        };
        let made = match (self.view.form, shared) {
            (Form::Whole, true) if self.view.encoding == Encoding::Protobuf => {
                event.cache.line(6 + change as usize, || self.encode(event, change))
            }
            (Form::Whole, true) => event.cache.line(change as usize, || self.encode(event, change)),
            (Form::Metadata("v1"), true) => {
                event.cache.line(3 + change as usize, || self.encode(event, change))
            }
            _ => self.encode(event, change),
        };
        self.columns_sent = true;
        Some(made)
    }

    /// Whether a state of the event's object is selected; `cached` are its fields as stored, shared by all watchers.
    fn selects<'a>(&self, event: &Event, object: &'a Object, cached: impl FnOnce() -> &'a Value) -> bool {
        let kind = &self.target.kind;
        self.selector.matches(kind, &event.key, object, || match object.is_of(kind) {
            true => Cow::Borrowed(cached()),
            false => Cow::Owned(object.value_as(kind)),
        })
    }

    fn encode(&self, event: &Event, change: Change) -> Bytes {
        let kind = &self.target.kind;
        let (name, object) = match (change, &event.new, &event.old) {
            (Change::Deleted, _, Some(old)) | (_, None, Some(old)) => {
                // The last state the watcher knew, at the revision of its disappearance.
                let mut value = old.value.value_as(kind);
                set_revision(&mut value, event.revision);
                ("DELETED", self.show(None, || value))
            }
            (_, Some(new), _) => {
                let name = if change == Change::Added { "ADDED" } else { "MODIFIED" };
                (name, self.show(Some(new), || new.value_as(kind)))
            }
            (_, None, None) => ("DELETED", Bytes::from_static(b"{}")),
        };
        self.line(name, &object)
    }

    /// An object in the watcher's form; `stored` when it is exactly as stored.
    fn show(&self, stored: Option<&Object>, value: impl FnOnce() -> Value) -> Bytes {
        let kind = &self.target.kind;
        match (self.view.form, stored) {
            (Form::Whole, Some(stored)) => stored.json_as(kind),
            (Form::Table(version), _) => {
                let value = value();
                let metadata = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                let now = View { now: self.cluster.clock.timestamp(), ..self.view.clone() };
                let columns = (!self.columns_sent).then_some(&**kind);
                encode(&table(version, &metadata, columns, vec![now.row(kind, &value, version)]))
            }
            _ => self.view.value(kind, &value()),
        }
    }

    fn bookmark(&self, annotations: Option<Value>) -> Bytes {
        let kind = &self.target.kind;
        let mut object = json!({
            "kind": kind.kind, "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": self.reached.to_string(), "creationTimestamp": null},
        });
        if let Some(annotations) = annotations {
            object["metadata"]["annotations"] = annotations;
        }
        let object = match self.view.form {
            Form::Whole => object,
            Form::Metadata(version) => metadata_of(&object, version),
            Form::Table(version) => {
                let row = json!({"cells": [], "object": metadata_of(&object, version)});
                table(version, &json!({"resourceVersion": self.reached.to_string()}), None, vec![row])
            }
        };
        self.line("BOOKMARK", &encode(&object))
    }

    /// One event of the stream, in its encoding.
    fn line(&self, change: &str, object: &[u8]) -> Bytes {
        if self.view.encoding != Encoding::Protobuf {
            return line(change, object);
        }
        let value = serde_json::from_slice::<Value>(object).ok();
        let frame = value.and_then(|value| encode_protobuf_event(change, &value));
        // What is stored of a kind with this form has it.
        frame.unwrap_or_default().into()
    }
}

/// One event of the stream.
fn line(change: &str, object: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(object.len() + 40);
    line.put_slice(b"{\"type\":\"");
    line.put_slice(change.as_bytes());
    line.put_slice(b"\",\"object\":");
    line.put_slice(object);
    line.put_slice(b"}\n");
    line.freeze()
}
