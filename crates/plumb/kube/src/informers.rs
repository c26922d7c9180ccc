//! The registry that shares informers and starts them in one place.

use crate::definitions::{Definitions, Metadata};
use crate::error::InformerError;
use crate::informer::{Informer, Synced, Writer};
use crate::informer_metrics::InformerMetrics;
use crate::query::Query;
use crate::roll::{Listed, Roll};
use crate::watch::{Importance, Source};
use ambit_runtime::Shutdown;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// Time between two log lines on what is still waited for.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// All informers of a process or role. Constructing and asking does no I/O; clones share one registry.
#[derive(Clone)]
pub struct Informers {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    definitions: Arc<Definitions>,
    roll: Arc<Roll>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shared: HashMap<(TypeId, String, Query), Box<dyn Any + Send>>,
    waiting: Vec<Starter>,
    tasks: JoinSet<()>,
}

type Starter = Box<dyn FnOnce(Shutdown) -> BoxFuture<'static, ()> + Send>;

impl fmt::Debug for Informers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informers").finish_non_exhaustive()
    }
}

impl Informers {
    /// An empty registry on this client.
    pub fn new(client: Client) -> Self {
        let definitions = Arc::new(Definitions::new());
        let (of_follower, followed) = (client.clone(), definitions.clone());
        let starter: Starter = Box::new(|shutdown| Box::pin(follow(of_follower, followed, shutdown)));
        let state = State { waiting: vec![starter], ..State::default() };
        let roll = Arc::default();
        Self { inner: Arc::new(Inner { client, definitions, roll, state: Mutex::new(state) }) }
    }

    /// Shows all that are asked for in these metrics.
    #[must_use]
    pub fn measured_by(self, metrics: &InformerMetrics) -> Self {
        metrics.watch(Arc::downgrade(&self.inner.roll));
        self
    }

    /// The client that the informers use.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The informer of a kind known at compile time; the same one when asked twice. It starts with the next
    /// [`Informers::run_and_wait`]. With `PartialObjectMeta<K>` only metadata is asked for.
    pub fn informer<K>(&self, query: Query) -> Informer<K>
    where
        K: Resource + Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Clone + Send + Sync,
    {
        self.informer_of(K::DynamicType::default(), query)
    }

    /// Like [`Informers::informer`], of a kind named at run time.
    ///
    /// # Panics
    /// Never: the registry's key holds the type.
    pub fn informer_of<K>(&self, kind: K::DynamicType, query: Query) -> Informer<K>
    where
        K: Resource + Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Clone + Send + Sync,
    {
        let path = K::url_path(&kind, query.in_namespace());
        let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (TypeId::of::<K>(), path.clone(), query.clone());
        if let Some(known) = state.shared.get(&key) {
            return known.downcast_ref::<Informer<K>>().expect("the key holds the type").clone();
        }
        let informer = Informer::<K>::new(path.clone());
        let writer = Writer::of(&informer);
        let counted = informer.clone();
        let count = Box::new(move || counted.count());
        self.inner.roll.add(Listed { synced: informer.synced(), selector: query.selector(), count });
        let source = Source::new(self.inner.client.clone(), path, query, writer)
            .defined_by(self.inner.definitions.of::<K>(&kind));
        state.waiting.push(Box::new(move |shutdown| Box::pin(source.run(shutdown))));
        state.shared.insert(key, Box::new(informer.clone()));
        informer
    }

    /// Starts every informer that has not started yet, and returns once all have synced. Their tasks go on until
    /// `shutdown`. An unreachable server is waited for: bound the wait with a timeout or with `shutdown`.
    ///
    /// # Errors
    /// `shutdown` came first, or an informer's task has panicked.
    pub async fn run_and_wait(&self, shutdown: &Shutdown) -> Result<(), InformerError> {
        {
            let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
            for start in std::mem::take(&mut state.waiting) {
                state.tasks.spawn(stop_on_panic(start(shutdown.clone()), shutdown.clone()));
            }
        }
        let synced = self.inner.roll.synced();
        let mut complaints = tokio::time::interval(COMPLAINT_INTERVAL);
        complaints.tick().await;
        for one in &synced {
            loop {
                tokio::select! {
                    () = one.wait() => break,
                    _ = complaints.tick() => tracing::warn!(waiting_for = self.missing_text(), "still waiting for lists"),
                    () = shutdown.cancelled() => {
                        return Err(InformerError::Stopped { waiting_for: self.missing_text() });
                    }
                }
            }
        }
        Ok(())
    }

    /// The informers that have not synced yet; each tells why, if it knows.
    pub fn missing(&self) -> Vec<Synced> {
        self.inner.roll.synced().into_iter().filter(|one| !one.is_synced()).collect()
    }

    fn missing_text(&self) -> String {
        let shown = |one: &Synced| match one.trouble() {
            Some(trouble) => format!("{} ({trouble})", one.path()),
            None => one.path().to_owned(),
        };
        self.missing().iter().map(shown).collect::<Vec<_>>().join(", ")
    }

    /// Waits until all informer tasks have ended, which they do at shutdown.
    ///
    /// # Errors
    /// A task has panicked.
    pub async fn join(&self) -> Result<(), InformerError> {
        let mut tasks = {
            let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut state.tasks)
        };
        let mut outcome = Ok(());
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                outcome = Err(InformerError::Panicked(error.to_string()));
            }
        }
        outcome
    }
}

/// Follows the definitions of custom kinds until shutdown, once an informer needs them.
async fn follow(client: Client, definitions: Arc<Definitions>, shutdown: Shutdown) {
    // Cancel safe: a notice is kept.
    tokio::select! {
        () = definitions.needed() => {}
        () = shutdown.cancelled() => return,
    }
    let path = Metadata::url_path(&(), None);
    let source = Source::new(client, path, Query::all(), definitions.writer()).of(Importance::Aid);
    source.run(shutdown).await;
}

/// A view that no longer moves is worse than a stopped process: a panic in a handler stops everything.
async fn stop_on_panic(task: BoxFuture<'static, ()>, shutdown: Shutdown) {
    // Nothing is used after the panic: it goes on once the others have been told.
    if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
        tracing::error!("an informer task panicked, stopping");
        shutdown.cancel();
        std::panic::resume_unwind(panic);
    }
}
