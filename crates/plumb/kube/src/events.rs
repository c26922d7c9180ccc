//! Writes events: what happened to an object, for people to read. Never waited for, never load-bearing.

use crate::error::is_not_found;
use ambit_api::core::v1::{Event, EventSource, ObjectReference};
use ambit_api::meta::{MicroTime, ObjectMeta, Time};
use ambit_runtime::{Clock, Shutdown};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Events that may wait to be written; more are dropped, since an event only informs.
const WAITING_MAX: usize = 1024;
/// Events remembered so that a repetition counts up instead of adding an object.
const REMEMBERED_MAX: usize = 4096;
/// A repetition within this time is only counted, and written with the next one after it.
const REPEAT_INTERVAL_SECONDS: i64 = 1;
/// Time for one write.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Whether an event is ordinary or asks for attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Things go their way.
    Normal,
    /// Something is wrong.
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Records events on behalf of one component. Clones share one stream.
#[derive(Clone)]
pub struct EventRecorder {
    inner: Arc<Inner>,
}

struct Inner {
    component: String,
    host: Option<String>,
    client: Client,
    sender: mpsc::Sender<Occurrence>,
    receiver: Mutex<Option<mpsc::Receiver<Occurrence>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Occurrence {
    object: Subject,
    kind: EventType,
    reason: String,
    message: String,
}

/// An object reference that can be compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Subject {
    api_version: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    field_path: Option<String>,
}

impl fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventRecorder").field("component", &self.inner.component).finish_non_exhaustive()
    }
}

impl EventRecorder {
    /// A recorder for `component` (such as `deployment-controller`), on `host` for components of a node. No I/O.
    pub fn new(client: Client, component: impl Into<String>, host: Option<String>) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let receiver = Mutex::new(Some(receiver));
        Self { inner: Arc::new(Inner { component: component.into(), host, client, sender, receiver }) }
    }

    /// Records that something happened to `object`. Returns at once; drops the event when too many wait.
    pub fn record(
        &self,
        object: &ObjectReference,
        kind: EventType,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) {
        let object = Subject {
            api_version: object.api_version.clone(),
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            uid: object.uid.clone(),
            field_path: object.field_path.clone(),
        };
        let occurrence = Occurrence { object, kind, reason: reason.into(), message: message.into() };
        if let Err(error) = self.inner.sender.try_send(occurrence) {
            tracing::debug!(%error, "dropped an event");
        }
    }

    /// Writes what is recorded until `shutdown`. Call it once; a second call returns at once.
    pub async fn run(&self, shutdown: &Shutdown) {
        let receiver = self.inner.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut receiver) = receiver else { return };
        let mut known = HashMap::new();
        loop {
            // Receiving is cancel safe.
            let occurrence = tokio::select! {
                () = shutdown.cancelled() => return,
                occurrence = receiver.recv() => occurrence,
            };
            let Some(occurrence) = occurrence else { return };
            let write = tokio::time::timeout(WRITE_DEADLINE, self.write(&mut known, occurrence));
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return,
                outcome = write => outcome,
            };
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "cannot write an event"),
                Err(_) => tracing::debug!("no answer when writing an event"),
            }
        }
    }

    async fn write(
        &self,
        known: &mut HashMap<Occurrence, Known>,
        what: Occurrence,
    ) -> Result<(), kube::Error> {
        let now = Clock.timestamp();
        // Events about cluster-scoped objects live in `default`, as upstream's do.
        let namespace = what.object.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(self.inner.client.clone(), &namespace);
        if let Some(seen) = known.get_mut(&what) {
            seen.count = seen.count.saturating_add(1);
            if now.as_second() - seen.written.as_second() < REPEAT_INTERVAL_SECONDS {
                return Ok(());
            }
            seen.written = now;
            let patch = serde_json::json!({ "count": seen.count, "lastTimestamp": Time(now) });
            match api.patch(&seen.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Err(error) if is_not_found(&error) => {}
                other => return other.map(drop),
            }
        }
        let name = format!("{}.{:x}", what.object.name.as_deref().unwrap_or("unnamed"), now.as_nanosecond());
        let event = self.to_event(&what, namespace, name.clone());
        api.create(&PostParams::default(), &event).await?;
        if known.len() >= REMEMBERED_MAX {
            forget_oldest(known);
        }
        known.insert(what, Known { name, count: 1, written: now });
        Ok(())
    }

    fn to_event(&self, what: &Occurrence, namespace: String, name: String) -> Event {
        let now = Clock.timestamp();
        let object = what.object.clone();
        Event {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() },
            involved_object: ObjectReference {
                api_version: object.api_version,
                kind: object.kind,
                namespace: object.namespace,
                name: object.name,
                uid: object.uid,
                field_path: object.field_path,
                resource_version: None,
            },
            type_: Some(what.kind.as_str().to_owned()),
            reason: Some(what.reason.clone()),
            message: Some(what.message.clone()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            event_time: None::<MicroTime>,
            source: Some(EventSource {
                component: Some(self.inner.component.clone()),
                host: self.inner.host.clone(),
            }),
            reporting_component: Some(self.inner.component.clone()),
            reporting_instance: self.inner.host.clone(),
            ..Event::default()
        }
    }
}

/// An event that was written.
struct Known {
    name: String,
    count: i32,
    written: jiff::Timestamp,
}

/// Forgets the older half; a repetition of those becomes an object of its own.
fn forget_oldest(known: &mut HashMap<Occurrence, Known>) {
    let mut times: Vec<jiff::Timestamp> = known.values().map(|known| known.written).collect();
    times.sort_unstable();
    let limit = times[times.len() / 2];
    known.retain(|_, known| known.written > limit);
}
