//! One metadata watch per kind that the server has, following custom kinds as they come and go.

use super::{Kind, Metadata, SharedGraph};
use ambit_api::apiextensions::CustomResourceDefinition;
use ambit_kube::{Change, Informer, Informers, Query, Queue};
use ambit_runtime::{Backoff, Shutdown};
use ambit_workloads::garbage::Node;
use futures::future::join_all;
use kube::Client;
use kube::discovery::{ApiCapabilities, ApiGroup, ApiResource, Discovery, verbs};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often to look for kinds that came without a sign, such as those of an aggregated server.
const REFRESH: Duration = Duration::from_secs(60);
/// How long a new definition takes at most to show in discovery: looked for at growing intervals.
const SETTLE_TRIES: u32 = 5;
/// Time for all requests of one discovery.
const DISCOVERY_DEADLINE: Duration = Duration::from_secs(30);
/// First and longest delay after a failed discovery.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Group and plural name.
type KindName = (String, String);

struct Monitor {
    kind: Arc<Kind>,
    informer: Informer<Metadata>,
    informers: Informers,
    stop: Shutdown,
}

pub(super) struct Monitors {
    client: Client,
    graph: SharedGraph,
    queue: Queue<String>,
    running: Mutex<BTreeMap<KindName, Monitor>>,
}

impl Monitors {
    pub(super) fn new(client: Client, graph: SharedGraph, queue: Queue<String>) -> Self {
        Self { client, graph, queue, running: Mutex::default() }
    }

    /// The watched kind of that name in whatever version it is watched.
    pub(super) fn kind_of(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kinds = running.values().map(|monitor| &monitor.kind);
        kinds.find(|known| known.api.group == group && known.api.kind == kind).cloned()
    }

    /// Follows the server's kinds until `stop`; cancels `synced` when the first set of views is complete.
    pub(super) async fn run(&self, synced: &Shutdown, stop: &Shutdown) {
        let changed = Arc::new(Notify::new());
        let definitions = Informers::new(self.client.clone());
        definitions.informer::<CustomResourceDefinition>(Query::all()).on_change({
            let changed = changed.clone();
            move |_| changed.notify_one()
        });
        // Only shutdown keeps it from syncing, and then the loop below ends at once.
        let _ = definitions.run_and_wait(stop).await;
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut settling = 0_u32;
        while !stop.is_cancelled() {
            let delay = match self.refresh(stop).await {
                Ok(()) => {
                    synced.cancel();
                    let settled = settling == 0;
                    settling = settling.saturating_sub(1);
                    if settled { REFRESH } else { backoff.next_delay() }
                }
                Err(error) => {
                    tracing::warn!(error, "cannot discover the server's kinds, retrying");
                    backoff.next_delay()
                }
            };
            // Waiting for a notice is cancel safe.
            tokio::select! {
                () = stop.cancelled() => {}
                () = changed.notified() => (settling, backoff) = (SETTLE_TRIES, Backoff::new(RETRY.0, RETRY.1)),
                () = tokio::time::sleep(delay) => {}
            }
        }
        let running = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        join_all(running.into_values().map(|monitor| async move {
            monitor.stop.cancel();
            let _ = monitor.informers.join().await;
        }))
        .await;
        let _ = definitions.join().await;
    }

    /// Starts and stops watches so that they are those of the server's kinds.
    async fn refresh(&self, stop: &Shutdown) -> Result<(), String> {
        let discovery =
            tokio::time::timeout(DISCOVERY_DEADLINE, Discovery::new(self.client.clone()).run()).await;
        let discovery = discovery.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
        let wanted: BTreeMap<KindName, Kind> = discovery
            .groups()
            .flat_map(ApiGroup::recommended_resources)
            .filter(|(api, capabilities)| is_collected(api, capabilities))
            .map(|(api, capabilities)| {
                ((api.group.clone(), api.plural.clone()), Kind { api, scope: capabilities.scope })
            })
            .collect();
        let gone: Vec<Monitor> = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running
                .extract_if(.., |name, monitor| wanted.get(name) != Some(&*monitor.kind))
                .map(|(_, m)| m)
                .collect()
        };
        for monitor in gone {
            self.end(monitor).await;
        }
        let new: Vec<(KindName, Kind)> = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.into_iter().filter(|(name, _)| !running.contains_key(name)).collect()
        };
        // A refusal here means shutdown, which the caller looks for itself.
        join_all(new.into_iter().map(|(name, kind)| self.begin(name, Arc::new(kind), stop))).await;
        Ok(())
    }

    async fn begin(&self, name: KindName, kind: Arc<Kind>, stop: &Shutdown) {
        let informers = Informers::new(self.client.clone());
        let informer = informers.informer_of::<Metadata>(kind.api.clone(), Query::all());
        informer.on_change({
            let (graph, queue, kind) = (self.graph.clone(), self.queue.clone(), kind.clone());
            move |change: &Change<Metadata>| take(change, &graph, &queue, &kind)
        });
        let stop = stop.child_token();
        let monitor = Monitor { kind, informer, informers: informers.clone(), stop: stop.clone() };
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(name, monitor);
        let _ = informers.run_and_wait(&stop).await;
    }

    /// Stops a watch; the objects of a kind that has gone have gone with it.
    async fn end(&self, monitor: Monitor) {
        monitor.stop.cancel();
        let _ = monitor.informers.join().await;
        for object in monitor.informer.list() {
            take(&Change { old: Some(object), new: None }, &self.graph, &self.queue, &monitor.kind);
        }
    }
}

/// Kinds that can be watched and deleted. Events and leases have owners in name only and change all the time.
fn is_collected(api: &ApiResource, capabilities: &ApiCapabilities) -> bool {
    let noisy = matches!(
        (api.group.as_str(), api.plural.as_str()),
        ("" | "events.k8s.io", "events") | ("coordination.k8s.io", "leases")
    );
    !noisy
        && [verbs::LIST, verbs::WATCH, verbs::DELETE].iter().all(|verb| capabilities.supports_operation(verb))
}

fn take(change: &Change<Metadata>, graph: &SharedGraph, queue: &Queue<String>, kind: &Arc<Kind>) {
    let mut graph = graph.lock().unwrap_or_else(PoisonError::into_inner);
    let affected = match (&change.old, &change.new) {
        (_, Some(object)) => {
            let uid = object.metadata.uid.as_deref().unwrap_or_default();
            graph.observe(uid, Node::new(kind.clone(), &object.metadata))
        }
        (Some(object), None) => graph.forget(object.metadata.uid.as_deref().unwrap_or_default()),
        (None, None) => Vec::new(),
    };
    for uid in affected {
        queue.add(uid);
    }
}
