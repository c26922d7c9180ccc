//! Runs the controllers of decide/workloads on queues.
//! It never decides: it reads, asks a decider, writes.

mod claims;
mod cluster_roles;
mod deployments;
mod endpoint_slices;
mod error;
mod garbage;
mod ledger;
mod namespace_contents;
mod namespace_defaults;
mod namespaces;
mod nodes;
mod replica_sets;
mod scheduler;
mod views;

pub use ambit_kube::LeaderSettings;
pub use error::Error;

use ambit_kube::{EventRecorder, InformerMetrics, Informers, LeaderElection, QueueMetrics, Term};
use ambit_runtime::{Blocker, Readiness, Shutdown, TaskGroup, endpoint};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use views::Views;

/// What the controllers are told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Certificate of the authority that signed the API server's, published to every namespace. PEM.
    pub root_ca_pem: String,
    /// Objects of one controller worked on at once, 1 or more.
    pub workers: usize,
    /// Silence after which a node counts as gone. Upstream's default is 50 s, with a lease renewed every 10 s.
    pub node_grace: Duration,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The lease that is stood for, if there may be other replicas: one works, the others wait.
    pub leader: Option<LeaderSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            root_ca_pem: String::new(),
            workers: 8,
            node_grace: Duration::from_secs(50),
            metrics: None,
            leader: None,
        }
    }
}

/// Runs all controllers until `shutdown`. Ready once every view has synced and the queues are served, or another replica
/// leads.
///
/// # Errors
/// The address of metrics cannot be listened on, or the times of the election do not fit; or an informer or a controller
/// stopped by itself, which only a fault of this program causes: failing writes and an unreachable server are retried for
/// ever.
pub async fn run(
    settings: Settings,
    client: kube::Client,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let starting = readiness.block("controllers");
    let metrics = Metrics::default();
    let mut tasks = TaskGroup::new(shutdown.child_token());
    if let Some(address) = settings.metrics {
        serve_metrics(address, &metrics, &mut tasks).await?;
    }
    let stop = tasks.shutdown().clone();
    let outcome = match settings.leader.clone() {
        None => work(&settings, client, metrics, starting, &stop).await,
        Some(leader) => {
            let election = LeaderElection::new(client.clone(), leader).map_err(Error::Leader)?;
            let turns = Turns { settings, client, metrics, readiness };
            turns.take(election, starting, &stop).await
        }
    };
    stop.cancel();
    let served = tasks.join().await.map_err(|error| Error::Controller(Box::new(error)));
    outcome.and(served)
}

/// What the role counts. Clones share it.
#[derive(Clone, Default)]
struct Metrics {
    queues: QueueMetrics,
    informers: InformerMetrics,
}

/// Runs the controllers in the terms in which this replica leads.
struct Turns {
    settings: Settings,
    client: kube::Client,
    metrics: Metrics,
    readiness: Readiness,
}

impl Turns {
    async fn take(self, election: LeaderElection, starting: Blocker, stop: &Shutdown) -> Result<(), Error> {
        let mut leader = election.leader();
        let starting = Arc::new(Mutex::new(Some(starting)));
        let begin = || starting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ours = election.identity().to_owned();
        // A replica that waits for its turn is as ready as it can be.
        let waiting = async {
            // The sender goes with the election, when nobody waits any more.
            let _ = leader.wait_for(|holder| holder.as_ref().is_some_and(|holder| *holder != ours)).await;
            drop(begin());
        };
        let outcome = Mutex::new(Ok(()));
        let keep = |ended| *outcome.lock().unwrap_or_else(PoisonError::into_inner) = ended;
        let term = |term: Term| {
            let starting = begin().unwrap_or_else(|| self.readiness.block("controllers"));
            let (settings, metrics) = (&self.settings, self.metrics.clone());
            let client = term.client(self.client.clone());
            async move { keep(work(settings, client, metrics, starting, term.stop()).await) }
        };
        tokio::join!(election.run(term, stop), waiting);
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Works until `stop`.
async fn work(
    settings: &Settings,
    client: kube::Client,
    metrics: Metrics,
    starting: Blocker,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let mut tasks = TaskGroup::new(shutdown.child_token());
    let stop = tasks.shutdown().clone();
    let informers = Informers::new(client).measured_by(&metrics.informers);
    let views = Views::new(&informers, metrics.queues);
    start(settings, &views, &mut tasks);
    let garbage = garbage::Garbage::new(&views, settings.workers);
    match informers.run_and_wait(&stop).await {
        Ok(()) => {}
        // A failing controller says more than the informers that it stopped.
        Err(_) if stop.is_cancelled() => {}
        Err(error) => return Err(Error::Informers(error)),
    }
    tasks.spawn("garbage", {
        let stop = stop.clone();
        async move {
            garbage.run(starting, &stop).await;
            Ok(())
        }
    });
    let outcome = tasks.join().await.map_err(|error| Error::Controller(Box::new(error)));
    informers.join().await.map_err(Error::Informers)?;
    outcome
}

/// Starts every controller but the garbage collector; their queues wait until the views have synced.
fn start(settings: &Settings, views: &Views, tasks: &mut TaskGroup<Error>) {
    let workers = settings.workers;
    let recorder = |tasks: &mut TaskGroup<Error>, component: &str| {
        let recorder = EventRecorder::new(views.client.clone(), component, None);
        let (running, stop) = (recorder.clone(), tasks.shutdown().clone());
        tasks.spawn("events", async move {
            running.run(&stop).await;
            Ok(())
        });
        recorder
    };
    let events = recorder(tasks, "replicaset-controller");
    let replica_sets = replica_sets::ReplicaSets::new(views, workers, events);
    spawn(tasks, "replica sets", async move |stop| replica_sets.run(&stop).await);
    let events = recorder(tasks, "deployment-controller");
    let deployments = deployments::Deployments::new(views, workers, events);
    spawn(tasks, "deployments", async move |stop| deployments.run(&stop).await);
    let slices = endpoint_slices::EndpointSlices::new(views, workers);
    spawn(tasks, "endpoint slices", async move |stop| slices.run(&stop).await);
    let namespaces = namespaces::Namespaces::new(views, workers);
    spawn(tasks, "namespaces", async move |stop| namespaces.run(&stop).await);
    let defaults = namespace_defaults::NamespaceDefaults::new(views, workers, settings.root_ca_pem.clone());
    spawn(tasks, "namespace defaults", async move |stop| defaults.run(&stop).await);
    let roles = cluster_roles::ClusterRoles::new(views, workers);
    spawn(tasks, "cluster roles", async move |stop| roles.run(&stop).await);
    let events = recorder(tasks, "default-scheduler");
    let scheduler = scheduler::Scheduler::new(views, workers, events);
    spawn(tasks, "scheduler", async move |stop| scheduler.run(&stop).await);
    let events = recorder(tasks, "node-controller");
    let nodes = nodes::Nodes::new(views, workers, settings.node_grace, events);
    spawn(tasks, "nodes", async move |stop| nodes.run(&stop).await);
}

fn spawn<F, W>(tasks: &mut TaskGroup<Error>, name: &'static str, work: F)
where
    F: FnOnce(Shutdown) -> W + Send + 'static,
    W: Future<Output = ()> + Send,
{
    let stop = tasks.shutdown().clone();
    tasks.spawn(name, async move {
        work(stop).await;
        Ok(())
    });
}

async fn serve_metrics(
    address: SocketAddr,
    metrics: &Metrics,
    tasks: &mut TaskGroup<Error>,
) -> Result<(), Error> {
    let listener = endpoint::listen(address).await.map_err(|source| Error::Listen { address, source })?;
    let mut registry = Registry::default();
    metrics.queues.register(&mut registry);
    metrics.informers.register(&mut registry);
    spawn(tasks, "metrics", move |stop| endpoint::serve(listener, endpoint::metrics(registry), stop));
    Ok(())
}
