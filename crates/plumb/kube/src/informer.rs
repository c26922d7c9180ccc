//! What an informer shows: a snapshot of its objects, and their changes.

use crate::content;
use kube::Resource;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use tokio::sync::watch;

/// Name of an object within its kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace; none for cluster-scoped objects.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of an object that the API server returned.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self { namespace: meta.namespace.clone(), name: meta.name.clone().unwrap_or_default() }
    }

    /// The key of `name` in `namespace`.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: None, name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// One object appeared (`old` is none), changed, or disappeared (`new` is none). An object that was replaced by
/// another of the same name is two changes: the old one disappears, then the new one appears.
#[derive(Debug)]
pub struct Change<K> {
    /// The object before.
    pub old: Option<Arc<K>>,
    /// The object now.
    pub new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The newest version there is: the object now, or its last state when it disappeared.
    ///
    /// # Panics
    /// Never for a change that an informer reports: it has at least one side.
    pub fn latest(&self) -> &Arc<K> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has at least one side")
    }
}

/// Tells when an informer has seen its first list. Every handler has been told of all of it by then.
#[derive(Debug, Clone)]
pub struct Synced {
    path: String,
    synced: watch::Receiver<bool>,
    health: Arc<RwLock<Health>>,
}

/// What is not as it should be with a view.
#[derive(Debug, Default)]
struct Health {
    /// Why the server's state could not be read at the last attempt.
    trouble: Option<String>,
    /// The server does not know the kind.
    is_absent: bool,
    /// Objects that cannot be decoded, with the reason. The view shows their last good version, if there was one.
    unreadable: BTreeMap<ObjectKey, String>,
}

impl Synced {
    /// Path of the resource.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the first list has been seen.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Why the last attempt to read the objects failed, if it did.
    pub fn trouble(&self) -> Option<String> {
        self.health.read().unwrap_or_else(PoisonError::into_inner).trouble.clone()
    }

    /// Whether the server did not know the kind when it was last asked.
    pub fn is_absent(&self) -> bool {
        self.health.read().unwrap_or_else(PoisonError::into_inner).is_absent
    }

    /// Objects that cannot be decoded, with the reason. Their last good version stays in force, if there was one.
    pub fn unreadable(&self) -> Vec<(ObjectKey, String)> {
        let health = self.health.read().unwrap_or_else(PoisonError::into_inner);
        health.unreadable.iter().map(|(key, cause)| (key.clone(), cause.clone())).collect()
    }

    /// One that is synced when the sender says so.
    #[cfg(test)]
    pub(crate) fn scripted() -> (Self, watch::Sender<bool>) {
        let sender = watch::Sender::new(false);
        let (path, synced) = ("/scripted".to_owned(), sender.subscribe());
        (Self { path, synced, health: Arc::default() }, sender)
    }

    /// Waits for it; for ever, if the informer has gone before. Cancel safe.
    pub async fn wait(&self) {
        if self.synced.clone().wait_for(|synced| *synced).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;
/// By namespace (empty for cluster-scoped), then by name.
type Objects<K> = BTreeMap<String, BTreeMap<String, Arc<K>>>;

/// A view of all objects of a query, kept up to date by a watch. Clones share one view.
pub struct Informer<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K> fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl<K: Resource + Send + Sync + 'static> Informer<K> {
    pub(crate) fn new(path: String) -> Self {
        Self::with(path, watch::Sender::new(false), Arc::default())
    }

    /// An empty view that has synced when this one has.
    pub(crate) fn beside(&self) -> Self {
        Self::with(self.shared.path.clone(), self.shared.synced.clone(), self.shared.health.clone())
    }

    fn with(path: String, synced: watch::Sender<bool>, health: Arc<RwLock<Health>>) -> Self {
        let (objects, handlers) = (RwLock::new(BTreeMap::new()), RwLock::new(Vec::new()));
        Self { shared: Arc::new(Shared { path, objects, handlers, synced, health }) }
    }

    /// The object of that name.
    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<Arc<K>> {
        let objects = self.shared.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(namespace.unwrap_or_default())?.get(name).cloned()
    }

    /// The object of that key.
    pub fn by_key(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.get(key.namespace.as_deref(), &key.name)
    }

    /// All objects, sorted by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        let objects = self.shared.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// All objects of a namespace, sorted by name.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        let objects = self.shared.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(namespace).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Whether the first list has been seen. A kind that the server does not know counts as synced and empty.
    pub fn has_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Whether and when the first list has been seen, without the type of the objects.
    pub fn synced(&self) -> Synced {
        Synced {
            path: self.shared.path.clone(),
            synced: self.shared.synced.subscribe(),
            health: self.shared.health.clone(),
        }
    }

    /// How many objects it shows.
    pub fn count(&self) -> usize {
        let objects = self.shared.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.values().map(BTreeMap::len).sum()
    }

    /// Whether both show one and the same view.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Calls `handler` on every change, after the view has changed, on the informer's own task: it must not block, and
    /// must not call this function. A view that already has objects reports each of them at once as appeared.
    pub fn on_change(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        // Holding the handlers keeps the informer's task from changing the view in between.
        let mut handlers = self.shared.handlers.write().unwrap_or_else(PoisonError::into_inner);
        for object in self.list() {
            handler(&Change { old: None, new: Some(object) });
        }
        handlers.push(Box::new(handler));
    }
}

/// What an informer and its task share.
pub(crate) struct Shared<K> {
    path: String,
    objects: RwLock<Objects<K>>,
    handlers: RwLock<Vec<Handler<K>>>,
    synced: watch::Sender<bool>,
    health: Arc<RwLock<Health>>,
}

/// The writing side of an informer, held by one task or under one lock: there are no two writers at a time.
pub(crate) struct Writer<K> {
    shared: Arc<Shared<K>>,
    /// Whether two objects of one UID and revision say the same.
    equal: fn(&K, &K) -> bool,
}

impl<K: Resource + Serialize + Send + Sync + 'static> Writer<K> {
    /// One that decodes each object it writes: a list brings anew what the view holds.
    pub(crate) fn of(informer: &Informer<K>) -> Self {
        Self { shared: informer.shared.clone(), equal: content::is_equal }
    }
}

impl<K: Resource + Send + Sync + 'static> Writer<K> {
    /// One that passes on what another view holds, which holds what has not changed.
    pub(crate) fn passing(informer: &Informer<K>) -> Self {
        Self { shared: informer.shared.clone(), equal: |_, _| false }
    }

    /// Path of the resource, for logs.
    pub(crate) fn path(&self) -> &str {
        &self.shared.path
    }

    /// Notes why the last attempt to read the objects failed, or that it did not.
    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        self.health().trouble = trouble;
    }

    /// Notes whether the server knows the kind.
    pub(crate) fn set_absent(&self, is_absent: bool) {
        self.health().is_absent = is_absent;
    }

    /// Takes a version of an object that cannot be decoded: the last good one stays.
    pub(crate) fn keep_unreadable(&self, key: ObjectKey, cause: String) {
        tracing::warn!(path = self.path(), object = %key, cause, "an object cannot be read, its last good version stays");
        self.health().unreadable.insert(key, cause);
    }

    fn health(&self) -> RwLockWriteGuard<'_, Health> {
        self.shared.health.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets that an object could not be read: it can, or has gone.
    fn forgive(&self, key: &ObjectKey) {
        let of_any = !self.shared.health.read().unwrap_or_else(PoisonError::into_inner).unreadable.is_empty();
        if of_any {
            self.health().unreadable.remove(key);
        }
    }

    pub(crate) fn has_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    pub(crate) fn mark_synced(&self) {
        self.shared.synced.send_replace(true);
    }

    /// Takes a new version of an object.
    pub(crate) fn apply(&self, object: K) {
        self.forgive(&ObjectKey::of(&object));
        self.show(Arc::new(object));
    }

    /// Like [`Writer::apply`], of an object that another view shows.
    pub(crate) fn show(&self, new: Arc<K>) {
        let key = ObjectKey::of(new.as_ref());
        let handlers = self.shared.handlers.read().unwrap_or_else(PoisonError::into_inner);
        let old = self.held(&key);
        // What has not changed is kept, so that views that pass it on see that.
        if old.as_ref().is_some_and(|old| self.is_repeated(old, &new)) {
            return;
        }
        {
            let mut objects = self.shared.objects.write().unwrap_or_else(PoisonError::into_inner);
            let of_namespace = objects.entry(key.namespace.unwrap_or_default()).or_default();
            of_namespace.insert(key.name, new.clone());
        }
        match old {
            Some(old) if old.meta().uid != new.meta().uid => {
                report(&handlers, Change { old: Some(old), new: None });
                report(&handlers, Change { old: None, new: Some(new) });
            }
            old => report(&handlers, Change { old, new: Some(new) }),
        }
    }

    fn held(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let objects = self.shared.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(key.namespace.as_deref().unwrap_or_default())?.get(&key.name).cloned()
    }

    /// Whether nothing changed: a list repeats what the watch has already told. UID and revision alone do not tell, as
    /// a server that was restored from a backup gives out revisions again.
    fn is_repeated(&self, old: &Arc<K>, new: &Arc<K>) -> bool {
        if Arc::ptr_eq(old, new) {
            return true;
        }
        let (of_old, of_new) = (old.meta(), new.meta());
        of_old.uid == of_new.uid
            && of_old.resource_version.is_some()
            && of_old.resource_version == of_new.resource_version
            && (self.equal)(old, new)
    }

    /// Takes the disappearance of this very object: another of its name that is shown by now stays.
    pub(crate) fn hide(&self, object: &K) {
        let key = ObjectKey::of(object);
        if self.held(&key).is_some_and(|held| held.meta().uid == object.meta().uid) {
            self.remove(&key);
        }
    }

    /// Takes the disappearance of an object, whether it could be read or not.
    pub(crate) fn delete(&self, key: &ObjectKey) {
        self.forgive(key);
        self.remove(key);
    }

    /// Shows an object no longer.
    pub(crate) fn remove(&self, key: &ObjectKey) {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let handlers = self.shared.handlers.read().unwrap_or_else(PoisonError::into_inner);
        let old = {
            let mut objects = self.shared.objects.write().unwrap_or_else(PoisonError::into_inner);
            let Some(of_namespace) = objects.get_mut(namespace) else { return };
            let old = of_namespace.remove(&key.name);
            if of_namespace.is_empty() {
                objects.remove(namespace);
            }
            old
        };
        if let Some(old) = old {
            report(&handlers, Change { old: Some(old), new: None });
        }
    }

    /// Takes the full state: what is neither among the objects nor unreadable is gone.
    pub(crate) fn replace(&self, objects: Vec<K>, unreadable: BTreeMap<ObjectKey, String>) {
        let mut gone: BTreeSet<ObjectKey> = {
            let held = self.shared.objects.read().unwrap_or_else(PoisonError::into_inner);
            held.values().flat_map(BTreeMap::values).map(|object| ObjectKey::of(object.as_ref())).collect()
        };
        for key in objects.iter().map(ObjectKey::of) {
            gone.remove(&key);
        }
        self.health().unreadable.clear();
        for (key, cause) in unreadable {
            gone.remove(&key);
            self.keep_unreadable(key, cause);
        }
        for key in gone {
            self.remove(&key);
        }
        for object in objects {
            self.apply(object);
        }
    }
}

fn report<K>(handlers: &[Handler<K>], change: Change<K>) {
    for handler in handlers {
        handler(&change);
    }
}
