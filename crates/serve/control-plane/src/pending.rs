//! Changes that wait for the owner of the collections: of each object only the last one.

use ambit_api::core::v1::{Namespace, Node, Service};
use ambit_api::discovery::v1::EndpointSlice;
use ambit_api::istio::{AuthorizationPolicy, PeerAuthentication};
use ambit_api::slim::Pod;
use ambit_collect::{Batch, Input};
use ambit_kube::{Change, Informer, ObjectKey};
use ambit_mesh::{Inputs, ObjectName};
use kube::Resource;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Last state of changed objects; bounded by the number of objects there are. Clones share one state.
#[derive(Clone, Default)]
pub(crate) struct Pending(Arc<Shared>);

#[derive(Default)]
struct Shared {
    changed: Mutex<Changed>,
    notify: Notify,
}

type Latest<K, V> = BTreeMap<K, Option<Arc<V>>>;

#[derive(Default)]
struct Changed {
    pods: Latest<ObjectName, Pod>,
    namespaces: Latest<String, Namespace>,
    nodes: Latest<String, Node>,
    services: Latest<ObjectName, Service>,
    slices: Latest<ObjectName, EndpointSlice>,
    authorization_policies: Latest<ObjectName, AuthorizationPolicy>,
    peer_authentications: Latest<ObjectName, PeerAuthentication>,
}

/// The informers of everything the collections are computed from.
pub(crate) struct Sources {
    pub(crate) pods: Informer<Pod>,
    pub(crate) namespaces: Informer<Namespace>,
    pub(crate) nodes: Informer<Node>,
    pub(crate) services: Informer<Service>,
    pub(crate) slices: Informer<EndpointSlice>,
    pub(crate) authorization_policies: Informer<AuthorizationPolicy>,
    pub(crate) peer_authentications: Informer<PeerAuthentication>,
}

impl Pending {
    /// Collects the changes of all sources from now on.
    pub(crate) fn follow(&self, sources: &Sources) {
        self.record(&sources.pods, object_name, |c| &mut c.pods);
        self.record(&sources.namespaces, |key| key.name, |c| &mut c.namespaces);
        self.record(&sources.nodes, |key| key.name, |c| &mut c.nodes);
        self.record(&sources.services, object_name, |c| &mut c.services);
        self.record(&sources.slices, object_name, |c| &mut c.slices);
        self.record(&sources.authorization_policies, object_name, |c| &mut c.authorization_policies);
        self.record(&sources.peer_authentications, object_name, |c| &mut c.peer_authentications);
    }

    fn record<K, V>(
        &self,
        informer: &Informer<V>,
        key_of: fn(ObjectKey) -> K,
        of: fn(&mut Changed) -> &mut Latest<K, V>,
    ) where
        K: Ord + 'static,
        V: Resource + Send + Sync + 'static,
    {
        let shared = self.0.clone();
        informer.on_change(move |change: &Change<V>| {
            let key = key_of(ObjectKey::of(change.latest().as_ref()));
            let mut changed = shared.changed.lock().unwrap_or_else(PoisonError::into_inner);
            of(&mut changed).insert(key, change.new.clone());
            shared.notify.notify_one();
        });
    }

    /// Returns when something has changed since the last call. Cancel safe.
    pub(crate) async fn wait(&self) {
        self.0.notify.notified().await;
    }

    /// Takes everything that has changed as one batch.
    pub(crate) fn take(&self, inputs: &Inputs) -> Batch {
        let changed = std::mem::take(&mut *self.0.changed.lock().unwrap_or_else(PoisonError::into_inner));
        let mut batch = Batch::new();
        add(&mut batch, inputs.pods, changed.pods);
        add(&mut batch, inputs.namespaces, changed.namespaces);
        add(&mut batch, inputs.nodes, changed.nodes);
        add(&mut batch, inputs.services, changed.services);
        add(&mut batch, inputs.slices, changed.slices);
        add(&mut batch, inputs.authorization_policies, changed.authorization_policies);
        add(&mut batch, inputs.peer_authentications, changed.peer_authentications);
        batch
    }
}

fn add<K, V>(batch: &mut Batch, input: Input<K, V>, changed: Latest<K, V>)
where
    K: ambit_collect::Key,
    V: ambit_collect::Value,
{
    for (key, value) in changed {
        match value {
            Some(value) => batch.set(input, key, value),
            None => batch.remove(input, key),
        }
    }
}

pub(crate) fn object_name(key: ObjectKey) -> ObjectName {
    ObjectName::new(key.namespace.unwrap_or_default(), key.name)
}
