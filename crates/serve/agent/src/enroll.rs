//! The owner of all enrolled pods: one piece of work per pod at a time, in the order in which it was asked for.

pub(crate) use crate::work::Asker;

use crate::Error;
use crate::error::with_causes;
use crate::metrics::Metrics;
use crate::work::{Context, Entry};
use ambit_cni_conf::{Answer, Event};
use ambit_kube::{ObjectKey, Queue};
use ambit_node_plan::enroll::{Redirection, redirection};
use ambit_runtime::Shutdown;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Work waiting to be noticed by the owner.
const JOBS_MAX: usize = 1024;
/// Work waiting for earlier work on the same pod: runtimes ask again, so that more is of no use.
const WAITING_MAX: usize = 16;
/// Lists of live sandboxes waiting to be noticed: a runtime sends one in a while.
const COLLECTIONS_MAX: usize = 4;
/// Time for the release of all pods at a stop: shorter than what supervisors grant between SIGTERM and SIGKILL.
const RELEASE_DEADLINE: Duration = Duration::from_secs(4);

enum Job {
    Start { event: Box<Event>, asker: Asker, reply: oneshot::Sender<Result<Answer, Error>> },
    Reconcile { key: ObjectKey, reply: oneshot::Sender<Result<(), Error>> },
    Check { event: Box<Event>, reply: oneshot::Sender<Result<(), Error>> },
    Forget { key: ObjectKey, sandbox: String, reply: oneshot::Sender<Result<(), Error>> },
}

/// The runtime's list of the sandboxes that live.
struct Collection {
    live: HashSet<String>,
    /// Gets the pods whose sandboxes are gone, with those.
    reply: oneshot::Sender<Vec<(ObjectKey, String)>>,
}

impl Job {
    fn key(&self) -> ObjectKey {
        match self {
            Job::Start { event, .. } | Job::Check { event, .. } => {
                ObjectKey::namespaced(&event.pod_namespace, &event.pod_name)
            }
            Job::Reconcile { key, .. } | Job::Forget { key, .. } => key.clone(),
        }
    }
}

/// Sends work to the owner. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Enroller {
    jobs: mpsc::Sender<Job>,
    collections: mpsc::Sender<Collection>,
    queue: Queue<ObjectKey>,
}

/// What becomes of the pods when the agent stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnStop {
    /// They stay captured, for the agent that comes next.
    Keep,
    /// They are released.
    Release,
}

/// A pod with what is known of it after work, and how many entries (one or none) were lent to that work.
type Done = ((ObjectKey, Option<Entry>), usize);
type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

/// The owner before it runs.
pub(crate) struct Owner {
    context: Context,
    entries: HashMap<ObjectKey, Entry>,
    /// How many more there are with the pieces of work that run.
    lent: usize,
    /// Pods that are being worked on, each with what waits for it.
    waiting: HashMap<ObjectKey, VecDeque<Job>>,
    running: FuturesUnordered<Work>,
    jobs: mpsc::Receiver<Job>,
    collections: mpsc::Receiver<Collection>,
    refused: mpsc::Receiver<String>,
    queue: Queue<ObjectKey>,
    metrics: Metrics,
}

/// The owner and its handle. `refused` brings UIDs that a proxy has refused.
pub(crate) fn new(
    context: Context,
    restored: Vec<(ObjectKey, Entry)>,
    refused: mpsc::Receiver<String>,
    queue: Queue<ObjectKey>,
    metrics: Metrics,
) -> (Enroller, Owner) {
    let (sender, jobs) = mpsc::channel(JOBS_MAX);
    let (collect, collections) = mpsc::channel(COLLECTIONS_MAX);
    let owner = Owner {
        context,
        entries: restored.into_iter().collect(),
        lent: 0,
        waiting: HashMap::new(),
        running: FuturesUnordered::new(),
        jobs,
        collections,
        refused,
        queue: queue.clone(),
        metrics,
    };
    (Enroller { jobs: sender, collections: collect, queue }, owner)
}

impl Enroller {
    /// A pod whose network was just made: decides, and captures it if it should be.
    pub(crate) async fn event(&self, event: Event, asker: Asker) -> Result<Answer, Error> {
        self.ask(|reply| Job::Start { event: Box::new(event), asker, reply }).await
    }

    /// Makes what is true of a pod what the API server says.
    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Result<(), Error> {
        self.ask(|reply| Job::Reconcile { key, reply }).await
    }

    /// Whether a pod is captured as it should be.
    pub(crate) async fn check(&self, event: Event) -> Result<(), Error> {
        self.ask(|reply| Job::Check { event: Box::new(event), reply }).await
    }

    /// Forgets pods whose sandbox the runtime does not know any more.
    pub(crate) async fn collect(&self, live: HashSet<String>) -> Result<(), Error> {
        let stopping = || Error::Unavailable { state: "stopping" };
        let (reply, gone) = oneshot::channel();
        self.collections.send(Collection { live, reply }).await.map_err(|_| stopping())?;
        for (key, sandbox) in gone.await.map_err(|_| stopping())? {
            self.ask(|reply| Job::Forget { key: key.clone(), sandbox, reply }).await?;
            // One that the API server still has is looked at again.
            self.queue.add(key);
        }
        Ok(())
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Job) -> Result<T, Error> {
        let stopping = || Error::Unavailable { state: "stopping" };
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }
}

impl Owner {
    /// Works until `shutdown`, finishes what it has begun, and releases all pods if `on_stop` then says so.
    pub(crate) async fn run(
        mut self,
        on_stop: impl FnOnce() -> OnStop,
        shutdown: Shutdown,
    ) -> Result<(), Error> {
        while !shutdown.is_cancelled() {
            self.metrics.set_pods(self.entries.len() + self.lent);
            // All branches are cancel safe: finished work stays in `running`.
            tokio::select! {
                Some(((key, entry), lent)) = self.running.next() => self.finish(key, entry, lent),
                Some(job) = self.jobs.recv() => self.begin(job),
                Some(collection) = self.collections.recv() => self.collect(collection),
                Some(uid) = self.refused.recv() => self.look_again(&uid),
                () = shutdown.cancelled() => {}
            }
        }
        self.waiting.clear();
        while let Some(((key, entry), _)) = self.running.next().await {
            entry.into_iter().for_each(|entry| drop(self.entries.insert(key.clone(), entry)));
        }
        match on_stop() {
            OnStop::Keep => Ok(()),
            OnStop::Release => self.release_all().await,
        }
    }

    fn begin(&mut self, job: Job) {
        let key = job.key();
        match self.waiting.get_mut(&key) {
            // Dropping the job tells whoever asked.
            Some(waiting) if waiting.len() >= WAITING_MAX => {}
            Some(waiting) => waiting.push_back(job),
            None => {
                self.waiting.insert(key.clone(), VecDeque::new());
                self.start(key, job);
            }
        }
    }

    fn start(&mut self, key: ObjectKey, job: Job) {
        let (context, entry, started) = (self.context.clone(), self.entries.remove(&key), key.clone());
        let lent = usize::from(entry.is_some());
        self.lent += lent;
        self.running.push(Box::pin(async move {
            let entry = match job {
                Job::Start { event, asker, reply } => {
                    let (entry, answer) = context.start(&event, asker, entry).await;
                    // A pod that a foreign plugin should not have asked for is as it should be.
                    let problem = answer.as_ref().err().filter(|e| !matches!(e, Error::NotEligible { .. }));
                    let settled = context.settle(&started, entry.as_ref(), problem).await;
                    let _ = reply.send(answer.and_then(|answer| settled.map(|()| answer)));
                    entry
                }
                Job::Reconcile { key, reply } => {
                    let (entry, outcome) = context.reconcile(&key, entry).await;
                    let settled = context.settle(&key, entry.as_ref(), outcome.as_ref().err()).await;
                    let _ = reply.send(outcome.and(settled));
                    entry
                }
                Job::Check { event, reply } => {
                    let _ = reply.send(context.check(&event, entry.as_ref()).await);
                    entry
                }
                Job::Forget { key, sandbox, reply } => {
                    let (entry, outcome) = match entry {
                        // It may have got another sandbox meanwhile.
                        Some(entry) if entry.sandbox.as_ref() != Some(&sandbox) => (Some(entry), Ok(())),
                        Some(entry) => context.forget(&key, entry).await,
                        None => (None, Ok(())),
                    };
                    let _ = reply.send(outcome);
                    entry
                }
            };
            ((key, entry), lent)
        }));
    }

    fn finish(&mut self, key: ObjectKey, entry: Option<Entry>, lent: usize) {
        self.lent -= lent;
        if let Some(entry) = entry {
            self.entries.insert(key.clone(), entry);
        }
        let next = self.waiting.get_mut(&key).and_then(VecDeque::pop_front);
        match next {
            Some(job) => self.start(key, job),
            None => drop(self.waiting.remove(&key)),
        }
    }

    /// Names the pods whose sandboxes are gone. Those whose sandbox is not known (an earlier agent captured them), and those
    /// that are being worked on, are left to the API server's word.
    fn collect(&self, collection: Collection) {
        let gone = self.entries.iter().filter_map(|(key, entry)| {
            let sandbox = entry.sandbox.as_ref().filter(|id| !collection.live.contains(*id))?;
            Some((key.clone(), sandbox.clone()))
        });
        let gone = gone.collect();
        let _ = collection.reply.send(gone);
    }

    /// A proxy has refused a pod that counted as handed over.
    fn look_again(&mut self, uid: &str) {
        for (key, entry) in &mut self.entries {
            if entry.uid == uid {
                entry.handed_over = false;
                self.queue.add(key.clone());
            }
        }
    }

    /// The host first: it is the one thing that outlives the pods. Then all pods at once, also those that an agent before this
    /// one captured and this one has not found so far.
    async fn release_all(&mut self) -> Result<(), Error> {
        self.context.probes.uninstall().await?;
        if let Some(quarantine) = &self.context.quarantine {
            quarantine.uninstall().await?;
        }
        let context = &self.context;
        let mut entries = std::mem::take(&mut self.entries);
        let captured = context.pods.list().into_iter().filter_map(|pod| {
            let key = ObjectKey::of(&*pod);
            let entry = entries.remove(&key);
            let is_captured = entry.is_some() || redirection(&pod) != Redirection::None;
            is_captured.then_some((key, pod, entry))
        });
        let all: FuturesUnordered<_> = captured
            .map(|(key, pod, entry)| async move {
                let error = context.release_for_good(&pod, entry.as_ref()).await.err()?;
                tracing::warn!(pod = %key, error = %with_causes(&error), "could not release a pod");
                Some(key.to_string())
            })
            .collect();
        let pods = all.len();
        let ended = tokio::time::timeout(RELEASE_DEADLINE, all.collect::<Vec<_>>()).await;
        let ended = ended
            .map_err(|_| Error::Deadline { what: "releasing all pods".into(), limit: RELEASE_DEADLINE })?;
        let mut left: Vec<String> = ended.into_iter().flatten().collect();
        left.sort();
        tracing::info!(pods = pods - left.len(), "released all pods");
        if left.is_empty() { Ok(()) } else { Err(Error::StillCaptured { pods: left }) }
    }
}
