//! Start, work and stop of the agent.

use crate::discovery::Finder;
use crate::enroll::{self, Enroller, OnStop};
use crate::headroom::Headroom;
use crate::http::Listener;
use crate::install::{Installer, Seen};
use crate::metrics::Metrics;
use crate::pod_set::PodSet;
use crate::status::{Board, PODS_PATH};
use crate::work::{Context, policy_of};
use crate::{Error, Settings, events, handover, plugin_log};
use ambit_api::core::v1::{Namespace, Pod};
use ambit_cni_conf::Entry;
use ambit_kube::{Change, EventRecorder, Informer, Informers, Next, ObjectKey, Query, Queue};
use ambit_linux::netns::NetNs;
use ambit_linux::{Error as LinuxError, nft, seqpacket};
use ambit_names::path;
use ambit_runtime::endpoint::{self, Handler};
use ambit_runtime::{Readiness, Shutdown, TaskGroup};
use http::StatusCode;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// Mode of the directories of sockets: only root and its group can enter.
pub(crate) const SOCKET_DIRECTORY_MODE: u32 = 0o750;
/// Running pods that are captured or released at once: most of the time of each is the kernel's, and waits of many overlap.
const ENROLLED_AT_ONCE: usize = 32;
/// Refusals of proxies waiting to be looked at.
const REFUSED_MAX: usize = 256;

/// Runs the node agent until `shutdown`.
///
/// # Errors
/// The machine or its user lacks what the agent needs, a socket is in use, or the API server cannot be watched.
pub async fn run(
    settings: Settings,
    client: kube::Client,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let starting = readiness.block("node agent");
    let host = check_machine(&settings.host_netns)?;
    let (metrics, registry) = Metrics::new();
    let Sockets { events, proxies, health, metrics_at, log } = Sockets::bind(&settings).await?;
    let installer = installer_of(&settings, &readiness, &metrics);
    // A failing task stops the agent's own tasks; what the caller runs beside it is the caller's.
    let stop = shutdown.child_token();
    let mut tasks = TaskGroup::<Error>::new(stop.clone());
    tasks.spawn("plugin log", log_of(log, stop.clone()));
    let headroom = spawn_headroom(&mut tasks, &readiness, &metrics)?;
    let board = spawn_board(&mut tasks, &client, &settings.node_name, &metrics);
    serve_endpoint(&mut tasks, "health", health, health_of(&readiness, &board, &settings.node_name));
    serve_endpoint(&mut tasks, "metrics", metrics_at, endpoint::metrics(registry));

    let policy = Arc::new(policy_of(&settings));
    let probes = PodSet::install_probes(&host, settings.probe_uid, policy.families)?;
    let informers = Informers::new(client.clone());
    let (pods, namespaces) = watched(&informers, &settings.node_name);
    let changes = watch_changes(&pods, &namespaces);
    let (refused_sender, refused) = mpsc::channel(REFUSED_MAX);
    let (handover, proxies_owner) = handover::new(refused_sender, metrics.clone());
    // The hand-over outlives the other tasks: pods that are released at the stop are taken back from the proxies.
    let (gate, last) = (handover::Gate::default(), Shutdown::new());
    tasks.spawn("hand-over", proxies_owner.run(proxies, handover.clone(), gate.clone(), last.clone()));
    let mut context = Context {
        client,
        pods: pods.clone(),
        namespaces: namespaces.clone(),
        changes,
        policy,
        finder: Finder::new(&settings.proc_root, host.id(), settings.mounts.clone()),
        handover,
        probes: probes.clone(),
        quarantine: None,
        board,
        headroom,
    };
    let started = async {
        informers.run_and_wait(&stop).await?;
        context.take_up(&host, settings.uncaptured, &readiness).await
    };
    let outcome = match started.await {
        Ok(restored) => {
            let queue = Queue::with_workers("enroll pods", ENROLLED_AT_ONCE);
            let (enroller, owner) = enroll::new(context, restored, refused, queue.clone(), metrics.clone());
            feed(&queue, &pods, &namespaces, &metrics);
            let at_stop = settings.clone();
            let on_stop = move || if at_stop.releases() { OnStop::Release } else { OnStop::Keep };
            spawn_owner(&mut tasks, owner, on_stop, last.clone());
            spawn_work(&mut tasks, enroller, queue, events, metrics);
            gate.open();
            // Last: from here on runtimes call the plugin, which needs answers.
            let installing = installer.map(|installer| installer.run(tasks.shutdown().clone()));
            installing.into_iter().for_each(|task| tasks.spawn("CNI configuration", task));
            drop(starting);
            tracing::info!(node = %settings.node_name, "the node agent is ready");
            Ok(())
        }
        Err(error) => {
            let stopped = stop.is_cancelled();
            stop.cancel();
            last.cancel();
            if settings.releases() {
                withdraw(&probes, &host).await?;
            }
            if stopped { Ok(()) } else { Err(error) }
        }
    };
    let ended = tasks.join().await.map_err(|error| Error::Task(Box::new(error)));
    stop.cancel();
    informers.join().await?;
    outcome.and(ended)
}

/// Writes what plugins have to say into the agent's own log.
async fn log_of(socket: Listener, stop: Shutdown) -> Result<(), Error> {
    socket.serve(plugin_log::handle, stop).await;
    Ok(())
}

/// The node's pods, and all namespaces.
fn watched(informers: &Informers, node: &str) -> (Informer<Pod>, Informer<Namespace>) {
    let on_node = Query::all().fields(format!("spec.nodeName={node}"));
    (informers.informer(on_node), informers.informer(Query::all()))
}

/// The owner of enrolled pods; `last` is cancelled when it has ended.
fn spawn_owner(
    tasks: &mut TaskGroup<Error>,
    owner: enroll::Owner,
    on_stop: impl FnOnce() -> OnStop + Send + 'static,
    last: Shutdown,
) {
    let stop = tasks.shutdown().clone();
    tasks.spawn("enrolled pods", async move {
        let _last = last.drop_guard();
        owner.run(on_stop, stop).await
    });
}

/// Removes what is in the host's namespace.
async fn withdraw(probes: &PodSet, host: &NetNs) -> Result<(), Error> {
    probes.uninstall().await?;
    PodSet::remove_quarantine(host)
}

/// The board of capture states, whose events are written until the stop.
fn spawn_board(tasks: &mut TaskGroup<Error>, client: &kube::Client, node: &str, metrics: &Metrics) -> Board {
    let recorder = EventRecorder::new(client.clone(), "ambit-agent", Some(node.to_owned()));
    let (events, stop) = (recorder.clone(), tasks.shutdown().clone());
    tasks.spawn("events on pods", async move {
        events.run(&stop).await;
        Ok(())
    });
    Board::new(recorder, metrics.clone())
}

/// The watch over free descriptors.
fn spawn_headroom(
    tasks: &mut TaskGroup<Error>,
    readiness: &Readiness,
    metrics: &Metrics,
) -> Result<Headroom, Error> {
    let headroom = Headroom::new(readiness.clone(), metrics.clone())?;
    tasks.spawn("descriptors", headroom.clone().watch(tasks.shutdown().clone()));
    Ok(headroom)
}

/// Blocks the readiness until the plugin and its entry are in place.
fn installer_of(settings: &Settings, readiness: &Readiness, metrics: &Metrics) -> Option<Installer> {
    let entry = Entry {
        run_dir: settings.run_dir.display().to_string(),
        exclude_namespaces: settings.excluded_namespaces.clone(),
        pod_namespace: settings.system_namespace.clone(),
    };
    let Some(install) = settings.install.clone() else {
        // Nothing of what this agent has to install is missing.
        metrics.set_installed(true);
        return None;
    };
    let seen = Seen { readiness: readiness.clone(), metrics: metrics.clone() };
    Some(Installer::new(install, entry, settings.mounts.clone(), seen))
}

/// What the agent cannot work without: root, the node's namespace, nf_tables.
fn check_machine(host_netns: &Path) -> Result<NetNs, Error> {
    if !ambit_linux::process::is_root() {
        return Err(Error::NotRoot);
    }
    let failed = || Error::kernel("use the node's network namespace");
    let host = NetNs::open(host_netns).map_err(failed())?;
    host.run(nft::tables).map_err(failed())?.map_err(Error::kernel("use nf_tables"))?;
    Ok(host)
}

/// All sockets, made first: what is in use is reported before anything is changed.
struct Sockets {
    events: Listener,
    proxies: seqpacket::Listener,
    health: TcpListener,
    metrics_at: TcpListener,
    log: Listener,
}

impl Sockets {
    async fn bind(settings: &Settings) -> Result<Self, Error> {
        let event_socket = settings.run_dir.join(path::PLUGIN_EVENT_SOCKET);
        for directory in
            [Some(settings.run_dir.as_path()), settings.handover_socket.parent()].into_iter().flatten()
        {
            make_directory(directory, SOCKET_DIRECTORY_MODE)?;
        }
        let listen = |path: &Path, purpose, error| listen_error(path.display().to_string(), purpose, error);
        let events =
            Listener::bind(&event_socket).map_err(|e| listen(&event_socket, "events of the plugin", e))?;
        let proxies = seqpacket::Listener::bind(&settings.handover_socket)
            .map_err(|e| listen(&settings.handover_socket, "the hand-over to proxies", e))?;
        let health = tcp(settings.health, "health").await?;
        let metrics_at = tcp(settings.metrics, "metrics").await?;
        let log_socket = settings.run_dir.join(path::PLUGIN_LOG_SOCKET);
        let log = Listener::bind(&log_socket).map_err(|e| listen(&log_socket, "the plugin's log", e))?;
        Ok(Self { events, proxies, health, metrics_at, log })
    }
}

fn listen_error(address: String, purpose: &'static str, error: LinuxError) -> Error {
    Error::Listen { address, purpose, source: io::Error::other(error) }
}

async fn tcp(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, Error> {
    let failed = |source| Error::Listen { address: address.to_string(), purpose, source };
    endpoint::listen(address).await.map_err(failed)
}

/// Makes a directory. One that is there is left as it is.
pub(crate) fn make_directory(directory: &Path, mode: u32) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(mode).create(directory);
    made.map_err(|source| Error::Directory { path: directory.to_owned(), source })
}

/// A number that changes with every change of a pod or namespace.
fn watch_changes(pods: &Informer<Pod>, namespaces: &Informer<Namespace>) -> watch::Receiver<u64> {
    let (sender, receiver) = watch::channel(0);
    let sender = Arc::new(sender);
    let counter = Arc::new(AtomicU64::new(0));
    let bump = move || {
        sender.send_replace(counter.fetch_add(1, Ordering::Relaxed) + 1);
    };
    let also = bump.clone();
    pods.on_change(move |_| bump());
    namespaces.on_change(move |_| also());
    receiver
}

/// Fills the queue with pods that changed, and with all pods of a namespace whose labels changed. The informers report
/// all objects that are there already, so that every pod is looked at once at the start.
fn feed(queue: &Queue<ObjectKey>, pods: &Informer<Pod>, namespaces: &Informer<Namespace>, metrics: &Metrics) {
    let (to_queue, counted) = (queue.clone(), metrics.clone());
    pods.on_change(move |change: &Change<Pod>| {
        counted.count_event(match (&change.old, &change.new) {
            (None, _) => "add",
            (Some(_), Some(_)) => "update",
            (Some(_), None) => "delete",
        });
        to_queue.add(ObjectKey::of(&**change.latest()));
    });
    let (to_queue, pods) = (queue.clone(), pods.clone());
    namespaces.on_change(move |change: &Change<Namespace>| {
        let labels = |namespace: &Option<Arc<Namespace>>| {
            namespace.as_ref().map(|n| n.metadata.labels.clone().unwrap_or_default())
        };
        if labels(&change.old) == labels(&change.new) {
            return;
        }
        let name = change.latest().metadata.name.clone().unwrap_or_default();
        pods.list_in(&name).iter().for_each(|pod| to_queue.add(ObjectKey::of(&**pod)));
    });
}

fn spawn_work(
    tasks: &mut TaskGroup<Error>,
    enroller: Enroller,
    queue: Queue<ObjectKey>,
    events: Listener,
    metrics: Metrics,
) {
    let stop = tasks.shutdown().clone();
    let (worker, until) = (enroller.clone(), stop.clone());
    tasks.spawn("reconcile", async move {
        let handler = |key: ObjectKey| {
            let enroller = worker.clone();
            async move { enroller.reconcile(key).await.map(|()| Next::Done) }
        };
        queue.run(handler, &until).await;
        Ok(())
    });
    tasks.spawn("plugin events", async move {
        let handler = move |request| events::handle(request, enroller.clone(), metrics.clone());
        events.serve(handler, stop).await;
        Ok(())
    });
}

fn serve_endpoint(tasks: &mut TaskGroup<Error>, name: &'static str, listener: TcpListener, handler: Handler) {
    let stop = tasks.shutdown().clone();
    tasks.spawn(name, async move {
        endpoint::serve(listener, handler, stop).await;
        Ok(())
    });
}

/// `/healthz`: the process works; `/readyz`: nothing blocks its readiness; `/debug/pods`: every pod's capture state.
fn health_of(readiness: &Readiness, board: &Board, node: &str) -> Handler {
    let (readiness, board, node) = (readiness.clone(), board.clone(), node.to_owned());
    Arc::new(move |_, path| match (path, readiness.waiting_for()) {
        ("/healthz", _) => endpoint::text(StatusCode::OK, "ok\n"),
        ("/readyz", waiting) if waiting.is_empty() => endpoint::text(StatusCode::OK, "ok\n"),
        ("/readyz", waiting) => {
            let text = format!("waiting for: {}\n", waiting.join(", "));
            endpoint::text(StatusCode::SERVICE_UNAVAILABLE, text)
        }
        (PODS_PATH, _) => board.answer(&node),
        _ => endpoint::text(StatusCode::NOT_FOUND, "there are /healthz, /readyz and /debug/pods\n"),
    })
}

#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;
