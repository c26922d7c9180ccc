//! Which namespaces the mesh sees: `discoverySelectors` of the mesh configuration. Objects of other namespaces are as if
//! they were not there; a namespace whose labels change, or another configuration, makes them come and go.

use crate::mesh_config::MeshConfigWatch;
use ambit_api::core::v1::Namespace;
use ambit_kube::{Informer, Selection};
use ambit_mesh::config::MeshConfig;
use ambit_runtime::Shutdown;
use kube::Resource;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The choice of namespaces. Clones share it.
#[derive(Clone)]
pub(crate) struct Discovered(Arc<Shared>);

struct Shared {
    namespaces: Informer<Namespace>,
    /// Seen whatever the selectors say: policies of these hold for the whole mesh.
    always: [String; 2],
    config: Mutex<Arc<MeshConfig>>,
    /// What the configuration says of each namespace that there is.
    verdicts: RwLock<BTreeMap<String, bool>>,
    refresh: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

impl Discovered {
    /// Follows the namespaces from now on.
    pub(crate) fn new(namespaces: Informer<Namespace>, always: [String; 2], config: Arc<MeshConfig>) -> Self {
        let shared = Shared {
            namespaces: namespaces.clone(),
            always,
            config: Mutex::new(config),
            verdicts: RwLock::default(),
            refresh: Mutex::default(),
        };
        let this = Self(Arc::new(shared));
        let follower = this.clone();
        namespaces.on_change(move |change| {
            let config = follower.lock();
            follower.judge(&config, std::slice::from_ref(change.latest()), change.new.is_some());
        });
        this
    }

    /// The objects of the namespaces that are seen.
    pub(crate) fn of<K: Resource + Send + Sync + 'static>(&self, all: &Informer<K>) -> Informer<K> {
        let shared = self.0.clone();
        let sees = move |object: &K| object.meta().namespace.as_deref().is_none_or(|name| shared.sees(name));
        let (part, selection): (_, Selection<K>) = all.select(sees);
        let refresh = Box::new(move || selection.refresh());
        self.0.refresh.lock().unwrap_or_else(PoisonError::into_inner).push(refresh);
        part
    }

    /// Follows the configuration until `shutdown`.
    pub(crate) async fn run(self, mut in_force: MeshConfigWatch, shutdown: Shutdown) {
        while let Some(config) = in_force.next(&shutdown).await {
            let mut held = self.lock();
            *held = config;
            self.judge(&held, &self.0.namespaces.list(), true);
        }
    }

    /// Held while verdicts are made, so that none is made by an old configuration or for a namespace that has gone.
    fn lock(&self) -> MutexGuard<'_, Arc<MeshConfig>> {
        self.0.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges namespaces, and shows or hides their objects where the verdict has changed.
    fn judge(&self, config: &MeshConfig, namespaces: &[Arc<Namespace>], exist: bool) {
        let mut changed = false;
        {
            let mut verdicts = self.0.verdicts.write().unwrap_or_else(PoisonError::into_inner);
            for namespace in namespaces {
                let name = namespace.metadata.name.clone().unwrap_or_default();
                let verdict = exist && config.sees(namespace.metadata.labels.as_ref());
                let before = if exist { verdicts.insert(name, verdict) } else { verdicts.remove(&name) };
                changed |= before.unwrap_or(false) != verdict;
            }
        }
        if changed {
            self.0
                .refresh
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .for_each(|refresh| refresh());
        }
    }
}

impl Shared {
    fn sees(&self, namespace: &str) -> bool {
        let verdicts = self.verdicts.read().unwrap_or_else(PoisonError::into_inner);
        self.always.iter().any(|always| always == namespace)
            || verdicts.get(namespace).copied().unwrap_or(false)
    }
}
