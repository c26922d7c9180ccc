//! The pods of this node: one worker each, woken by changes of the stored pod and of the runtime.

mod atomic_dir;
mod container_config;
mod effects;
mod host_files;
mod log_rotation;
mod materials;
mod observe;
mod probes;
mod sandbox_config;
mod status_patch;
mod volumes;
mod worker;

pub(crate) use log_rotation::rotate_logs;

use crate::context::{Context, identity};
use crate::cri::label;
use crate::error::Error;
use ambit_api::core::v1::Pod;
use ambit_names::annotation;
use ambit_runtime::Shutdown;
use futures::StreamExt;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};
use worker::{Wanted, Worker};

/// Between two looks at what the runtime runs.
const RUNTIME_POLL: Duration = Duration::from_millis(500);
/// Sandboxes that are ended at once when the node stops.
const STOP_AT_ONCE: usize = 16;
/// How long the pods may take to end when the node stops.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// What the runtime shows of one pod, as far as it tells that something changed.
type Fingerprint = Vec<(String, i32)>;

struct Handle {
    wanted: watch::Sender<Wanted>,
    poke: Arc<Notify>,
    seen: Fingerprint,
}

/// Starts, wakes and ends the workers.
pub(crate) struct Manager {
    context: Arc<Context>,
    changed: Arc<Notify>,
    workers: HashMap<String, Handle>,
    tasks: JoinSet<String>,
}

impl Manager {
    /// `changed` is notified whenever a stored pod changes.
    pub(crate) fn new(context: Arc<Context>, changed: Arc<Notify>) -> Self {
        Self { context, changed, workers: HashMap::new(), tasks: JoinSet::new() }
    }

    /// Runs the pods until `shutdown`. Pods that the runtime already runs, from before a restart, are taken over; those
    /// that are no longer stored are ended.
    pub(crate) async fn run(mut self, shutdown: Shutdown) -> Result<(), Error> {
        self.follow_stored(&shutdown);
        self.follow_runtime(&shutdown).await;
        let mut poll = tokio::time::interval(RUNTIME_POLL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // All arms are cancel safe: a notification that is not taken stays.
            tokio::select! {
                () = self.changed.notified() => self.follow_stored(&shutdown),
                _ = poll.tick() => self.follow_runtime(&shutdown).await,
                Some(ended) = self.tasks.join_next() => self.forget(ended)?,
                () = shutdown.cancelled() => break,
            }
        }
        while let Some(ended) = self.tasks.join_next().await {
            self.forget(ended)?;
        }
        Ok(())
    }

    fn forget(&mut self, ended: Result<String, tokio::task::JoinError>) -> Result<(), Error> {
        let uid = ended.map_err(|e| Error::Task(format!("a pod's worker panicked: {e}")))?;
        self.workers.remove(&uid);
        Ok(())
    }

    fn follow_stored(&mut self, shutdown: &Shutdown) {
        let stored: BTreeMap<String, Arc<Pod>> = self
            .context
            .pods
            .list()
            .into_iter()
            .filter(|pod| is_ours(pod))
            .filter_map(|pod| Some((pod.metadata.uid.clone()?, pod)))
            .collect();
        for (uid, handle) in &self.workers {
            handle.wanted.send_if_modified(|wanted| wanted.update(stored.get(uid)));
        }
        for (uid, pod) in stored {
            if !self.workers.contains_key(&uid) {
                self.start(uid, Wanted::stored(pod), shutdown);
            }
        }
    }

    /// Wakes the workers of pods whose containers changed, and starts one for each pod that only the runtime knows.
    async fn follow_runtime(&mut self, shutdown: &Shutdown) {
        let prints = match fingerprints(&self.context).await {
            Ok(prints) => prints,
            Err(error) => return warn!(error = %error.full_text(), "cannot list what the runtime runs"),
        };
        for (uid, handle) in &mut self.workers {
            let print = prints.get(uid).map(|(_, print)| print.clone()).unwrap_or_default();
            if handle.seen != print {
                handle.seen = print;
                handle.poke.notify_one();
            }
        }
        for (uid, (pod, _)) in prints {
            if !self.workers.contains_key(&uid) {
                info!(pod = %uid, "ending a pod that is no longer stored");
                self.start(uid, Wanted::gone(pod), shutdown);
            }
        }
    }

    fn start(&mut self, uid: String, wanted: Wanted, shutdown: &Shutdown) {
        let (sender, receiver) = watch::channel(wanted);
        let poke = Arc::new(Notify::new());
        let worker = Worker::new(Arc::clone(&self.context), receiver, Arc::clone(&poke));
        let (stop, id) = (shutdown.clone(), uid.clone());
        self.tasks.spawn(async move {
            worker.run(stop).await;
            id
        });
        self.workers.insert(uid, Handle { wanted: sender, poke, seen: Vec::new() });
    }
}

/// Whether the node runs this pod: mirrors stand for processes that somebody else runs.
fn is_ours(pod: &Pod) -> bool {
    !pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(annotation::MIRROR))
}

async fn fingerprints(context: &Context) -> Result<BTreeMap<String, (Pod, Fingerprint)>, Error> {
    let mut prints: BTreeMap<String, (Pod, Fingerprint)> = BTreeMap::new();
    let mut add = |labels: &HashMap<String, String>, id: String, state: i32| {
        let Some(uid) = labels.get(label::POD_UID) else { return };
        let (_, print) = prints.entry(uid.clone()).or_insert_with(|| (labelled(labels), Vec::new()));
        print.push((id, state));
    };
    for sandbox in context.cri.sandboxes(None).await? {
        add(&sandbox.labels, sandbox.id, sandbox.state);
    }
    for container in context.cri.containers(None).await? {
        add(&container.labels, container.id, container.state);
    }
    prints.values_mut().for_each(|(_, print)| print.sort());
    Ok(prints)
}

/// As much of a pod as its sandbox's labels tell.
fn labelled(labels: &HashMap<String, String>) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = labels.get(label::POD_NAME).cloned();
    pod.metadata.namespace = labels.get(label::POD_NAMESPACE).cloned();
    pod.metadata.uid = labels.get(label::POD_UID).cloned();
    // What is no longer wanted need not be waited for.
    pod.metadata.deletion_grace_period_seconds = Some(0);
    pod
}

/// Ends every pod in the runtime, with its network, when the node stops.
pub(crate) async fn end_all(context: &Context) {
    let sandboxes = match context.cri.sandboxes(None).await {
        Ok(sandboxes) => sandboxes,
        Err(error) => return warn!(error = %error.full_text(), "cannot list the pods to end"),
    };
    let end = |id: String| async move {
        let ended = async {
            context.cri.stop_sandbox(&id).await?;
            context.cri.remove_sandbox(&id).await
        };
        if let Err(error) = ended.await {
            warn!(sandbox = %id, error = %error.full_text(), "cannot end a pod");
        }
    };
    let all =
        futures::stream::iter(sandboxes.into_iter().map(|s| s.id)).for_each_concurrent(STOP_AT_ONCE, end);
    if tokio::time::timeout(STOP_WAIT, all).await.is_err() {
        warn!("some pods did not end in {} s", STOP_WAIT.as_secs());
    }
}

/// Where a pod's logs are.
pub(crate) fn log_dir(context: &Context, pod: &Pod) -> std::path::PathBuf {
    let (namespace, name, uid) = identity(pod);
    context.layout.pod_logs(namespace, name, uid)
}
