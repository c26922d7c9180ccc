//! The mesh configuration in force: what the sources say, or the last that was good (INV-03).
//!
//! The last good sources are kept in a ConfigMap of ours beside them, so that every replica and every restart has them.
//! Every replica writes it when the sources change; who finds it changed by somebody else makes it as it was.

mod kept;

pub use kept::kept_documents;

use crate::error::Error;
use crate::metrics::Metrics;
use ambit_api::core::v1::ConfigMap;
use ambit_kube::{EventRecorder, EventType, Informer, Informers, Next, Query, Queue};
use ambit_mesh::config::{Content, Decision, Document, MeshConfig, decide};
use ambit_runtime::{Blocker, Readiness, Shutdown};
use kept::{Contents, Kept, Sources};
use kube::Resource;
use kube::api::{Api, PatchParams, PostParams};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tracing::{error, info, warn};

/// Name of the ConfigMap of a mesh configuration, as the field has it.
const PRIMARY: &str = "istio";
/// Name of our ConfigMap with the last good sources.
const KEPT: &str = "ambit-mesh-config";
/// Keys of a source.
const KEYS: [(&str, Content); 2] = [("mesh", Content::Mesh), ("meshNetworks", Content::Networks)];
/// Faults that the status names.
const STATUS_FAULTS_MAX: usize = 20;
/// Faults that an event names, of which the first says most.
const EVENT_FAULTS_MAX: usize = 3;
/// Characters of an event's message. Source: the API server takes 1024 bytes; the text is ASCII, names aside.
const EVENT_CHARS_MAX: usize = 900;
/// Name of this part in events and in field ownership.
const COMPONENT: &str = "ambit-control-plane";

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

/// Name of a ConfigMap as a source.
fn source_of(map: &ConfigMap) -> String {
    let meta = &map.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn documents_of(map: &ConfigMap) -> Vec<Document> {
    let name = source_of(map);
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

/// What is in force while the sources have faults.
fn state_of(decision: &Decision) -> &'static str {
    match decision.config {
        Some(_) => "the last good configuration is in force, because the sources have faults:",
        None => {
            "no configuration is in force, because the sources have faults and there has been no good one:"
        }
    }
}

/// What people read in our ConfigMap.
fn status_text(decision: &Decision) -> String {
    if decision.faults.is_empty() {
        return "the sources are in force\n".to_owned();
    }
    let faults = decision.faults.iter().take(STATUS_FAULTS_MAX).map(String::as_str);
    std::iter::once(state_of(decision)).chain(faults).map(|line| format!("{line}\n")).collect()
}

/// What is to stand in our ConfigMap.
fn to_contents(decision: &Decision, good: Option<&Vec<Document>>) -> Contents {
    let status = status_text(decision);
    let Some(good) = good else { return kept::status_alone(&status) };
    kept::contents(&status, good).unwrap_or_else(|error| {
        error!(%error, "the last good mesh configuration will not outlive this process");
        kept::without_sources(&format!("{status}{error}\n"))
    })
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
    events: EventRecorder,
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
    /// The sources with which our ConfigMap was last brought up to date, and its version then.
    written: Option<(Vec<Document>, Option<String>)>,
}

impl State {
    /// The last good sources. Those of the cluster are the same for all replicas; our own stand in where they are lost,
    /// and where the newest could not be kept, so that nothing older comes back into force.
    fn last_good(&self, kept: &Sources) -> Option<Arc<Vec<Document>>> {
        match (kept, &self.good) {
            (Sources::Good(kept), good) if !self.unkept || good.is_none() => Some(Arc::new(kept.clone())),
            (_, good) => good.clone(),
        }
    }

    /// Whether our ConfigMap is to be written. What another replica wrote from older or newer sources is left to it, else
    /// two that see different ones would write in turns.
    fn is_due(&self, current: &[Document], kept: Option<&Kept>, has_good: bool) -> bool {
        let Some(kept) = kept else { return true };
        self.unkept
            || self.written.as_ref().is_none_or(|(written, _)| written != current)
            || !kept.is_status_intact
            || (kept.sources == Sources::Edited && has_good)
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
        // Read anew when it is needed: the view only tells that somebody changed it.
        let kept = follow(&sources.kept_name());
        let all = || shared.iter().chain([&primary, &kept]);
        let settings = metrics.queue("mesh-config").workers(1);
        let queue = Queue::with(settings.after(all().map(Informer::synced)));
        for informer in all() {
            let queue = queue.clone();
            informer.on_change(move |_| queue.add(()));
        }
        queue.add(());
        let client = informers.client().clone();
        let api = Api::namespaced(client.clone(), &sources.namespace);
        let events = EventRecorder::new(client, COMPONENT, None);
        let (in_force, state) = (watch::Sender::new(None), Mutex::default());
        Self { api, sources, shared, primary, events, queue, in_force, readiness, metrics, state }
    }

    pub(crate) fn watch(&self) -> MeshConfigWatch {
        MeshConfigWatch(self.in_force.subscribe())
    }

    /// Works until `shutdown`.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let this = &self;
        tokio::join!(this.queue.run(|()| this.sync(), &shutdown), this.events.run(&shutdown));
    }

    async fn sync(&self) -> Result<Next, Error> {
        let of =
            |informer: &Informer<ConfigMap>, name: &str| informer.get(Some(&self.sources.namespace), name);
        let shared = self.shared.as_ref().zip(self.sources.shared_name()).and_then(|(i, name)| of(i, name));
        let primary = of(&self.primary, &self.sources.primary_name());
        let current = self.sources.documents(shared.as_deref(), primary.as_deref());
        let name = self.sources.kept_name();
        let map = self.api.get_opt(&name).await.map_err(Error::MeshConfigKept)?;
        if let Some(map) = &map
            && self.state().written.as_ref().is_some_and(|(sources, version)| {
                *sources == current && *version == map.metadata.resource_version
            })
        {
            return Ok(Next::Done);
        }
        let kept = map.as_ref().map(kept::read);
        let edited = kept.as_ref().is_some_and(|kept| kept.sources == Sources::Edited);
        let last_good = self.state().last_good(kept.as_ref().map_or(&Sources::None, |kept| &kept.sources));
        let mut decision = decide(&current, last_good.as_deref().map(Vec::as_slice));
        if decision.config.is_none() && edited {
            let fault =
                "somebody changed the last good configuration, and so it is not used: correct the sources";
            decision.faults.push(format!("{}/{name}: {fault}", self.sources.namespace));
        }
        if self.publish(&decision) {
            self.tell(&decision, [shared, primary]);
        }
        let good = if decision.faults.is_empty() { Some(Arc::new(current.clone())) } else { last_good };
        let good = good.filter(|_| decision.config.is_some());
        let due = {
            let mut state = self.state();
            let due = state.is_due(&current, kept.as_ref(), good.is_some());
            state.unkept |= due && decision.faults.is_empty();
            state.good = good.clone().or(state.good.take());
            due
        };
        let version = match due {
            true => self.keep(map.as_ref(), &to_contents(&decision, good.as_deref())).await?,
            false => map.and_then(|map| map.metadata.resource_version),
        };
        let mut state = self.state();
        state.unkept &= !due;
        state.written = Some((current, version));
        Ok(Next::Done)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes our ConfigMap be like this; returns its version.
    async fn keep(&self, held: Option<&ConfigMap>, contents: &Contents) -> Result<Option<String>, Error> {
        let name = self.sources.kept_name();
        let params = Some(COMPONENT.to_owned());
        let (written, what) = match held {
            Some(held) if contents.are_in(held) => return Ok(held.metadata.resource_version.clone()),
            Some(held) => {
                let intact = kept::read(held);
                let edited = intact.sources == Sources::Edited || !intact.is_status_intact;
                let params = PatchParams { field_manager: params, ..PatchParams::default() };
                let written = self.api.patch(&name, &params, &contents.to_patch(held)).await;
                (written, edited.then_some("somebody changed it"))
            }
            None => {
                let params = PostParams { field_manager: params, ..PostParams::default() };
                let written = self.api.create(&params, &contents.to_map(&name)).await;
                (written, self.state().written.is_some().then_some("somebody deleted it"))
            }
        };
        let written = written.map_err(Error::MeshConfigKept)?;
        if let Some(what) = what {
            warn!(
                config_map = name,
                what, "restored the ConfigMap that keeps the last good mesh configuration"
            );
            let message = format!("{what}: it keeps the last good mesh configuration, and is as it was");
            self.events.record(&written.object_ref(&()), EventType::Warning, "MeshConfigRestored", message);
        }
        Ok(written.metadata.resource_version)
    }

    /// Tells the writers of the sources what became of them.
    fn tell(&self, decision: &Decision, maps: [Option<Arc<ConfigMap>>; 2]) {
        for map in maps.into_iter().flatten() {
            let source = source_of(&map);
            let about = map.object_ref(&());
            if decision.faults.is_empty() {
                let message = "the sources have no faults any more and are in force";
                self.events.record(&about, EventType::Normal, "MeshConfigAccepted", message);
                continue;
            }
            let is_of = |fault: &&String| {
                fault.strip_prefix(&source).is_some_and(|rest| rest.starts_with([':', '/']))
            };
            let faults: Vec<&String> = decision.faults.iter().filter(is_of).collect();
            if !faults.is_empty() {
                let shown: Vec<&str> =
                    faults.iter().take(EVENT_FAULTS_MAX).map(|fault| fault.as_str()).collect();
                let state = state_of(decision);
                let text = format!("{state} {} ({} in all)", shown.join("; "), faults.len());
                let text: String = text.chars().take(EVENT_CHARS_MAX).collect();
                self.events.record(&about, EventType::Warning, "MeshConfigInvalid", text);
            }
        }
    }

    /// Puts in force what is decided; returns whether the faults are others than before.
    fn publish(&self, decision: &Decision) -> bool {
        let mut state = self.state();
        self.metrics.mesh_config(decision.faults.len(), decision.config.is_some());
        let differs = state.faults != decision.faults;
        if differs {
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
            return differs;
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
        differs
    }
}
