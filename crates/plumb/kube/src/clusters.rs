//! Several clusters: a set of clients, each with its own informers, that grows, shrinks and changes at run time.

use crate::error::InformerError;
use crate::informer::{Change, Informer, ObjectKey};
use crate::informers::Informers;
use crate::query::Query;
use ambit_runtime::Shutdown;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Name of a cluster, unique in the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(Arc<str>);

impl ClusterId {
    /// The cluster of that name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A cluster came or went. One that is replaced goes, then comes.
#[derive(Debug, Clone)]
pub enum ClusterChange {
    /// It is new; its informers have not started. Ask for what is needed.
    Joined(ClusterId, Informers),
    /// Its informers have ended.
    Left(ClusterId),
}

type Watcher = Box<dyn Fn(&ClusterChange) + Send + Sync>;

/// A set of clusters. Changing it does no I/O; [`Clusters::run`] makes it so. Clones share one set.
#[derive(Clone, Default)]
pub struct Clusters {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    wanted: Mutex<Wanted>,
    watchers: RwLock<Vec<Watcher>>,
    wake: Notify,
}

#[derive(Default)]
struct Wanted {
    /// Counts insertions.
    generation: u64,
    /// Clients, with the number that tells a replacement from the one before.
    clients: BTreeMap<ClusterId, (u64, Client)>,
}

impl fmt::Debug for Clusters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clusters").field("ids", &self.ids()).finish_non_exhaustive()
    }
}

impl Clusters {
    /// No clusters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a cluster, or replaces its client: what the old one showed goes, then what the new one shows comes.
    pub fn insert(&self, id: ClusterId, client: Client) {
        let mut wanted = self.inner.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.generation += 1;
        let generation = wanted.generation;
        wanted.clients.insert(id, (generation, client));
        drop(wanted);
        self.inner.wake.notify_one();
    }

    /// Removes a cluster with all that it brought.
    pub fn remove(&self, id: &ClusterId) {
        self.inner.wanted.lock().unwrap_or_else(PoisonError::into_inner).clients.remove(id);
        self.inner.wake.notify_one();
    }

    /// The clusters that are wanted, sorted.
    pub fn ids(&self) -> Vec<ClusterId> {
        let wanted = self.inner.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.clients.keys().cloned().collect()
    }

    /// Calls `watcher` on each cluster that comes or goes, on the task of [`Clusters::run`]: it must not block. Call it
    /// before `run`: what came before is not told.
    pub fn on_change(&self, watcher: impl Fn(&ClusterChange) + Send + Sync + 'static) {
        self.inner.watchers.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(watcher));
    }

    /// Follows a kind in every cluster, those to come included. `handler` is called as by [`Informer::on_change`], with
    /// the cluster; all objects of a cluster that goes disappear. Call it before [`Clusters::run`].
    pub fn follow<K>(
        &self,
        query: Query,
        handler: impl Fn(&ClusterId, &Change<K>) + Send + Sync + 'static,
    ) -> Everywhere<K>
    where
        K: Resource + Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Clone + Send + Sync,
    {
        let everywhere = Everywhere::<K> { views: Arc::default() };
        let (views, handler) = (everywhere.views.clone(), Arc::new(handler));
        self.on_change(move |change| match change {
            ClusterChange::Joined(id, informers) => {
                let informer = informers.informer::<K>(query.clone());
                views.write().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), informer.clone());
                let (id, handler) = (id.clone(), handler.clone());
                informer.on_change(move |change| handler(&id, change));
            }
            ClusterChange::Left(id) => {
                let view = views.write().unwrap_or_else(PoisonError::into_inner).remove(id);
                for object in view.iter().flat_map(Informer::list) {
                    handler(id, &Change { old: Some(object), new: None });
                }
            }
        });
        everywhere
    }

    /// Makes the set as it is wanted, until `shutdown`; then ends every cluster. A cluster that does not answer keeps
    /// no other from working. Call it once.
    ///
    /// # Errors
    /// An informer's task panicked. The others have been ended.
    pub async fn run(&self, shutdown: &Shutdown) -> Result<(), InformerError> {
        let mut running: BTreeMap<ClusterId, Running> = BTreeMap::new();
        let mut starting = JoinSet::new();
        let mut outcome = Ok(());
        while outcome.is_ok() && !shutdown.is_cancelled() {
            let wanted = self.inner.wanted.lock().unwrap_or_else(PoisonError::into_inner).clients.clone();
            let leaving: Vec<ClusterId> = running
                .iter()
                .filter(|(id, cluster)| wanted.get(*id).is_none_or(|(new, _)| *new != cluster.generation))
                .map(|(id, _)| id.clone())
                .collect();
            for id in leaving {
                if let Some(cluster) = running.remove(&id) {
                    outcome = outcome.and(self.end(id, cluster).await);
                }
            }
            for (id, (generation, client)) in wanted {
                if running.contains_key(&id) {
                    continue;
                }
                let cluster =
                    Running { generation, informers: Informers::new(client), stop: shutdown.child_token() };
                self.tell(&ClusterChange::Joined(id.clone(), cluster.informers.clone()));
                let (informers, stop) = (cluster.informers.clone(), cluster.stop.clone());
                running.insert(id.clone(), cluster);
                starting.spawn(async move {
                    if informers.run_and_wait(&stop).await.is_ok() {
                        tracing::info!(cluster = %id, "a cluster has synced");
                    } else {
                        tracing::debug!(cluster = %id, "a cluster went before it had synced");
                    }
                });
            }
            // Each branch is cancel safe: a notice is kept, and a task that has ended is not needed.
            tokio::select! {
                () = self.inner.wake.notified() => {}
                () = shutdown.cancelled() => {}
                Some(_) = starting.join_next() => {}
            }
        }
        for (id, cluster) in running {
            outcome = outcome.and(self.end(id, cluster).await);
        }
        while starting.join_next().await.is_some() {}
        outcome
    }

    async fn end(&self, id: ClusterId, cluster: Running) -> Result<(), InformerError> {
        cluster.stop.cancel();
        let outcome = cluster.informers.join().await;
        self.tell(&ClusterChange::Left(id));
        outcome
    }

    fn tell(&self, change: &ClusterChange) {
        for watcher in self.inner.watchers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            watcher(change);
        }
    }
}

/// A cluster whose informers run.
struct Running {
    generation: u64,
    informers: Informers,
    stop: Shutdown,
}

/// One kind in every cluster. Clones share one view.
pub struct Everywhere<K> {
    views: Arc<RwLock<BTreeMap<ClusterId, Informer<K>>>>,
}

impl<K> Clone for Everywhere<K> {
    fn clone(&self) -> Self {
        Self { views: self.views.clone() }
    }
}

impl<K> fmt::Debug for Everywhere<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Everywhere").finish_non_exhaustive()
    }
}

impl<K: Resource + Send + Sync + 'static> Everywhere<K> {
    /// The view of one cluster, if it is there.
    pub fn of(&self, id: &ClusterId) -> Option<Informer<K>> {
        self.views.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// An object of one cluster.
    pub fn get(&self, id: &ClusterId, key: &ObjectKey) -> Option<Arc<K>> {
        self.of(id)?.by_key(key)
    }

    /// All objects of all clusters, sorted by cluster, namespace and name.
    pub fn list(&self) -> Vec<(ClusterId, Arc<K>)> {
        let views = self.views.read().unwrap_or_else(PoisonError::into_inner).clone();
        let of = |(id, view): (ClusterId, Informer<K>)| view.list().into_iter().map(move |o| (id.clone(), o));
        views.into_iter().flat_map(of).collect()
    }

    /// Whether every cluster that is there has synced.
    pub fn has_synced(&self) -> bool {
        self.views.read().unwrap_or_else(PoisonError::into_inner).values().all(Informer::has_synced)
    }
}
