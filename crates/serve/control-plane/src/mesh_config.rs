//! The mesh configuration in force: what the sources say, or the last that was good (INV-03).
//!
//! The last good sources are kept in a ConfigMap of ours beside them, so that every replica and every restart has them.

use crate::metrics::Metrics;
use ambit_api::core::v1::ConfigMap;
use ambit_kube::{Informer, Informers, Next, Query, Queue};
use ambit_mesh::config::{Content, Decision, Document, MeshConfig, decide};
use ambit_runtime::{Blocker, Readiness, Shutdown};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tracing::{error, info, warn};

/// Name of the ConfigMap of a mesh configuration, as the field has it.
const PRIMARY: &str = "istio";
/// Name of our ConfigMap with the last good sources.
const KEPT: &str = "ambit-mesh-config";
/// Keys of a source.
const KEYS: [(&str, Content); 2] = [("mesh", Content::Mesh), ("meshNetworks", Content::Networks)];
/// Key of the kept sources, and of what people read of their state.
const SOURCES: &str = "sources";
const STATUS: &str = "status";
/// Faults that the status names.
const STATUS_FAULTS_MAX: usize = 20;

/// Where a mesh configuration comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshConfigSources {
    /// Namespace of the ConfigMaps.
    pub namespace: String,
    /// Revision of the control plane, whose ConfigMap is `istio-REVISION`.
    pub revision: Option<String>,
    /// Name of a ConfigMap that is applied first.
    pub shared: Option<String>,
    /// Name and content of a file that stands for the primary ConfigMap.
    pub file: Option<(String, Vec<u8>)>,
}

impl MeshConfigSources {
    /// Name of the shared ConfigMap, if there is to be one.
    pub fn shared_name(&self) -> Option<&str> {
        self.shared.as_deref().filter(|name| !name.is_empty())
    }

    /// Name of the primary ConfigMap.
    pub fn primary_name(&self) -> String {
        self.with_revision(PRIMARY)
    }

    /// Name of the ConfigMap with the last good sources.
    pub fn kept_name(&self) -> String {
        self.with_revision(KEPT)
    }

    fn with_revision(&self, name: &str) -> String {
        match self.revision.as_deref() {
            None | Some("" | "default") => name.to_owned(),
            Some(revision) => format!("{name}-{revision}"),
        }
    }

    /// The documents of these ConfigMaps, in the order in which they are layered. Of networks the first is used.
    pub fn documents(&self, shared: Option<&ConfigMap>, primary: Option<&ConfigMap>) -> Vec<Document> {
        let mut all: Vec<Document> = shared.map(documents_of).unwrap_or_default();
        match &self.file {
            Some((source, text)) => {
                all.push(Document { source: source.clone(), content: Content::Mesh, text: text.clone() });
            }
            None => all.extend(primary.map(documents_of).unwrap_or_default()),
        }
        let mut has_networks = false;
        all.retain(|one| one.content == Content::Mesh || !std::mem::replace(&mut has_networks, true));
        all
    }
}

fn documents_of(map: &ConfigMap) -> Vec<Document> {
    let meta = &map.metadata;
    let name = format!(
        "{}/{}",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default()
    );
    let text = |key: &str| {
        let text = map.data.as_ref().and_then(|data| data.get(key)).map(|text| text.as_bytes().to_vec());
        // What is not UTF-8 is kept as binary data.
        text.or_else(|| map.binary_data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone()))
    };
    let document = |(key, content): (&str, Content)| {
        let source = if content == Content::Mesh { name.clone() } else { format!("{name}/{key}") };
        Some(Document { source, content, text: text(key)? })
    };
    KEYS.into_iter().filter_map(document).collect()
}

/// The last good sources that our ConfigMap holds; none if it holds none that can be read.
pub fn kept_documents(map: &ConfigMap) -> Option<Vec<Document>> {
    let text = map.data.as_ref()?.get(SOURCES)?;
    let list: Vec<(String, String, String)> = serde_json::from_str(text).ok()?;
    let document = |(source, key, text): (String, String, String)| {
        let (_, content) = KEYS.into_iter().find(|(known, _)| *known == key)?;
        Some(Document { source, content, text: text.into_bytes() })
    };
    list.into_iter().map(document).collect()
}

fn kept_text(documents: &[Document]) -> String {
    let key = |content| KEYS.into_iter().find(|(_, known)| *known == content).map_or("", |(key, _)| key);
    let list: Vec<(&str, &str, std::borrow::Cow<'_, str>)> = documents
        .iter()
        .map(|one| (one.source.as_str(), key(one.content), String::from_utf8_lossy(&one.text)))
        .collect();
    json!(list).to_string()
}

/// What people read in our ConfigMap.
fn status_text(decision: &Decision) -> String {
    if decision.faults.is_empty() {
        return "the sources are in force\n".to_owned();
    }
    let state = match decision.config {
        Some(_) => "the last good configuration is in force, because the sources have faults:",
        None => {
            "no configuration is in force, because the sources have faults and there has been no good one:"
        }
    };
    let faults = decision.faults.iter().take(STATUS_FAULTS_MAX).map(String::as_str);
    std::iter::once(state).chain(faults).map(|line| format!("{line}\n")).collect()
}

/// The configuration in force.
pub(crate) struct MeshConfigWatch(watch::Receiver<Option<Arc<MeshConfig>>>);

impl MeshConfigWatch {
    /// The configuration in force, as soon as there is one; none when `shutdown` comes first.
    pub(crate) async fn first(&mut self, shutdown: &Shutdown) -> Option<Arc<MeshConfig>> {
        tokio::select! {
            config = self.0.wait_for(Option::is_some) => config.ok()?.clone(),
            () = shutdown.cancelled() => None,
        }
    }

    /// The configuration in force after the next change; none at `shutdown`.
    pub(crate) async fn next(&mut self, shutdown: &Shutdown) -> Option<Arc<MeshConfig>> {
        tokio::select! {
            changed = self.0.changed() => changed.ok()?,
            () = shutdown.cancelled() => return None,
        }
        self.0.borrow_and_update().clone()
    }
}

/// Keeps the configuration in force, and the last good one in the cluster.
pub(crate) struct MeshConfigKeeper {
    api: Api<ConfigMap>,
    sources: MeshConfigSources,
    shared: Option<Informer<ConfigMap>>,
    primary: Informer<ConfigMap>,
    queue: Queue<()>,
    in_force: watch::Sender<Option<Arc<MeshConfig>>>,
    readiness: Readiness,
    metrics: Metrics,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Not ready while there is no good configuration.
    blocker: Option<Blocker>,
    /// Faults that have been logged.
    faults: Vec<String>,
    /// The sources of what is in force.
    good: Option<Arc<Vec<Document>>>,
    /// `good` is not kept in the cluster yet, or cannot be.
    unkept: bool,
}

impl State {
    /// The last good sources. Those of the cluster are the same for all replicas; our own stand in where they are lost,
    /// and where the newest could not be kept, so that nothing older comes back into force.
    fn last_good(&self, kept: Option<Vec<Document>>) -> Option<Arc<Vec<Document>>> {
        match (kept, &self.good) {
            (Some(kept), good) if !self.unkept || good.is_none() => Some(Arc::new(kept)),
            (_, good) => good.clone(),
        }
    }
}

impl MeshConfigKeeper {
    /// Follows the sources from now on.
    pub(crate) fn new(
        informers: &Informers,
        sources: MeshConfigSources,
        readiness: Readiness,
        metrics: Metrics,
    ) -> Self {
        let follow = |name: &str| -> Informer<ConfigMap> {
            let query = Query::all().namespace(&sources.namespace);
            informers.informer(query.fields(format!("metadata.name={name}")))
        };
        let (shared, primary) = (sources.shared_name().map(follow), follow(&sources.primary_name()));
        let all = || shared.iter().chain([&primary]);
        let settings = metrics.queue("mesh-config").workers(1);
        let queue = Queue::with(settings.after(all().map(Informer::synced)));
        for informer in all() {
            let queue = queue.clone();
            informer.on_change(move |_| queue.add(()));
        }
        queue.add(());
        let api = Api::namespaced(informers.client().clone(), &sources.namespace);
        let (in_force, state) = (watch::Sender::new(None), Mutex::default());
        Self { api, sources, shared, primary, queue, in_force, readiness, metrics, state }
    }

    pub(crate) fn watch(&self) -> MeshConfigWatch {
        MeshConfigWatch(self.in_force.subscribe())
    }

    /// Works until `shutdown`.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let this = &self;
        this.queue.run(|()| this.sync(), &shutdown).await;
    }

    async fn sync(&self) -> Result<Next, kube::Error> {
        let of =
            |informer: &Informer<ConfigMap>, name: &str| informer.get(Some(&self.sources.namespace), name);
        let shared = self.shared.as_ref().zip(self.sources.shared_name()).and_then(|(i, name)| of(i, name));
        let primary = of(&self.primary, &self.sources.primary_name());
        let current = self.sources.documents(shared.as_deref(), primary.as_deref());
        let name = self.sources.kept_name();
        let kept = self.api.get_opt(&name).await?;
        let last_good = self.state().last_good(kept.as_ref().and_then(kept_documents));
        let decision = decide(&current, last_good.as_deref().map(Vec::as_slice));
        self.publish(&decision);
        let good = if decision.faults.is_empty() { Some(Arc::new(current)) } else { last_good };
        let mut data = BTreeMap::from([(STATUS.to_owned(), status_text(&decision))]);
        if let Some(good) = good.filter(|_| decision.config.is_some()) {
            data.insert(SOURCES.to_owned(), kept_text(&good));
            let mut state = self.state();
            state.unkept |= decision.faults.is_empty();
            state.good = Some(good);
        }
        self.keep(&name, kept.as_ref(), data).await?;
        self.state().unkept = false;
        Ok(Next::Done)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn keep(
        &self,
        name: &str,
        kept: Option<&ConfigMap>,
        data: BTreeMap<String, String>,
    ) -> Result<(), kube::Error> {
        let Some(kept) = kept else {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
            return self.api.create(&PostParams::default(), &map).await.map(drop);
        };
        let held = kept.data.clone().unwrap_or_default();
        if data.iter().all(|(key, value)| held.get(key) == Some(value)) {
            return Ok(());
        }
        let patch = json!({"metadata": {"resourceVersion": kept.metadata.resource_version}, "data": data});
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    fn publish(&self, decision: &Decision) {
        let mut state = self.state();
        self.metrics.mesh_config(decision.faults.len(), decision.config.is_some());
        if state.faults != decision.faults {
            for fault in &decision.faults {
                let last_good_in_force = decision.config.is_some();
                error!(fault, last_good_in_force, "the mesh configuration has a fault and is not used");
            }
            if decision.faults.is_empty() {
                info!("the mesh configuration has no faults any more");
            }
            state.faults.clone_from(&decision.faults);
        }
        let Some(config) = decision.config.clone() else {
            let first = decision.faults.first().map(String::as_str).unwrap_or_default();
            state.blocker = Some(self.readiness.block(format!("mesh configuration: {first}")));
            return;
        };
        state.blocker = None;
        let config = Arc::new(config);
        self.in_force.send_if_modified(|held| {
            if let Some(held) = held.as_ref().filter(|held| {
                (&held.trust_domain, &held.root_namespace) != (&config.trust_domain, &config.root_namespace)
            }) {
                warn!(
                    trust_domain = config.trust_domain,
                    root_namespace = config.root_namespace,
                    was_trust_domain = held.trust_domain,
                    was_root_namespace = held.root_namespace,
                    "trustDomain and rootNamespace are taken up at the next start of the control plane"
                );
            }
            let changed = held.as_deref() != Some(config.as_ref());
            *held = Some(config);
            changed
        });
    }
}
