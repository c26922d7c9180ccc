//! Writes events: what happened to an object, for people to read. Never waited for, never load-bearing.

mod correlate;

use crate::error::is_not_found;
use ambit_api::core::v1::{Event, EventSource, ObjectReference};
use ambit_api::meta::{MicroTime, ObjectMeta, Time};
use ambit_runtime::{Backoff, Clock, Shutdown};
use correlate::{Correlator, Verdict};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Events that may wait to be written; more are dropped, since an event only informs.
const WAITING_MAX: usize = 1024;
/// Time for one write.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Attempts at a write that got no answer. A refusal is final: it would be refused again.
const WRITE_ATTEMPTS: u32 = 3;
/// Wait before the second attempt, doubled before the third.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Time that events which wait at shutdown get to be written.
const FLUSH_DEADLINE: Duration = Duration::from_secs(2);

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

    /// Writes what is recorded until `shutdown`, and then what waits, within a bound. Repetitions are counted in one
    /// object, similar events are combined, and one object may not flood the server. Call it once; a second call
    /// returns at once.
    pub async fn run(&self, shutdown: &Shutdown) {
        let receiver = self.inner.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut receiver) = receiver else { return };
        let mut correlator = Correlator::new();
        let mut begun = None;
        // Receiving is cancel safe; a write that is broken off by shutdown is begun anew below.
        let working = async {
            while let Some(occurrence) = receiver.recv().await {
                let verdict = correlator.judge(occurrence, Clock.now());
                begun = Some(verdict.clone());
                self.carry_out(&mut correlator, &verdict).await;
                begun = None;
            }
        };
        tokio::select! {
            () = working => return,
            () = shutdown.cancelled() => {}
        }
        receiver.close();
        let flush = async {
            if let Some(verdict) = begun {
                self.carry_out(&mut correlator, &verdict).await;
            }
            while let Some(occurrence) = receiver.recv().await {
                let verdict = correlator.judge(occurrence, Clock.now());
                self.carry_out(&mut correlator, &verdict).await;
            }
        };
        if tokio::time::timeout(FLUSH_DEADLINE, flush).await.is_err() {
            tracing::debug!("dropped events that could not be written before the end");
        }
    }

    async fn carry_out(&self, correlator: &mut Correlator, verdict: &Verdict) {
        let mut retries = Backoff::new(RETRY_DELAY, RETRY_DELAY * 2);
        for _ in 0..WRITE_ATTEMPTS {
            match tokio::time::timeout(WRITE_DEADLINE, self.write(correlator, verdict)).await {
                Ok(Ok(())) => return,
                Ok(Err(error @ kube::Error::Api(_))) => {
                    tracing::debug!(%error, "an event was refused");
                    return;
                }
                Ok(Err(error)) => tracing::debug!(%error, "cannot write an event"),
                Err(_) => tracing::debug!("no answer when writing an event"),
            }
            tokio::time::sleep(retries.next_delay()).await;
        }
    }

    async fn write(&self, correlator: &mut Correlator, verdict: &Verdict) -> Result<(), kube::Error> {
        let (what, known) = match verdict {
            Verdict::Spam => return Ok(()),
            Verdict::New(what) => (what, None),
            Verdict::Again { name, count, what } => (what, Some((name, *count))),
        };
        let now = Clock.timestamp();
        // Events about cluster-scoped objects live in `default`, as upstream's do.
        let namespace = what.object.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(self.inner.client.clone(), &namespace);
        if let Some((name, count)) = known {
            let patch =
                serde_json::json!({ "count": count, "message": what.message, "lastTimestamp": Time(now) });
            match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                // The event has expired: it is told anew, with the count it had.
                Err(error) if is_not_found(&error) => {}
                other => return other.map(drop),
            }
        }
        let count = known.map_or(1, |(_, count)| count);
        let name = format!("{}.{:x}", what.object.name.as_deref().unwrap_or("unnamed"), now.as_nanosecond());
        let event = Event { count: Some(count), ..self.to_event(what, namespace, name.clone()) };
        api.create(&PostParams::default(), &event).await?;
        correlator.written(what, name, count);
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
