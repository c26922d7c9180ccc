//! Starts the parts of the node in order, keeps them, and takes them down in reverse.

use crate::claim::Claim;
use crate::containerd::{self, Programs, Runtime};
use crate::context::{Capacity, Context};
use crate::cri::Cri;
use crate::error::Error;
use crate::images::{self, PAUSE_IMAGE};
use crate::layout::Layout;
use crate::pods::{self, Manager};
use crate::registration;
use crate::resolv::ResolvConf;
use crate::server::Server;
use crate::settings::Settings;
use crate::{cni, dns, services};
use ambit_api::core::v1::{Pod, Service};
use ambit_kube::{EventRecorder, Informers, Query};
use ambit_node_plan::pod::Addresses;
use ambit_runtime::{Clock, Readiness, Shutdown, TaskGroup};
use ipnet::IpNet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::{info, warn};

/// How long the first lists of the API server may take.
const SYNC_WAIT: Duration = Duration::from_secs(60);
/// How long the runtime's network may take to be ready after its start.
const NETWORK_WAIT: Duration = Duration::from_secs(20);
/// Between two looks at it.
const NETWORK_POLL: Duration = Duration::from_millis(20);

/// Runs the node until `shutdown`: its container runtime, its pods, its part of the cluster's network. On return nothing
/// of it is left on the machine but images and logs below the state directory.
///
/// # Errors
/// The machine lacks something, the API server refuses the node, or a part fails beyond repair.
pub async fn run(
    settings: Settings,
    client: kube::Client,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let blocker = readiness.block("node");
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let layout = Layout::new(&settings.state_dir)?;
    let programs = Programs::find()?;
    let bridge = settings.bridge.clone();
    let _claim = Claim::take(&settings.state_dir, &bridge)?;
    let outcome = start(settings, &layout, &programs, client, Outside { readiness, blocker, shutdown }).await;
    // Whatever failed, and wherever: nothing half-done is left.
    let cleaned = containerd::clean_up(&layout).await;
    let unlinked = ambit_linux::link::remove(&bridge).map_err(Error::Link);
    outcome.and(cleaned).and(unlinked)
}

/// Makes the bridge that the CNI plugin would make with the first pod: the node's own address may be on it, and
/// pods reach the API server by it.
fn add_bridge(settings: &Settings) -> Result<(), Error> {
    ambit_linux::link::add_bridge(&settings.bridge).map_err(Error::Link)?;
    for network in &settings.pod_cidrs {
        if let Some(gateway) = network.hosts().next() {
            let address = IpNet::new_assert(gateway, network.prefix_len());
            ambit_linux::link::add_address(&settings.bridge, address).map_err(Error::Link)?;
        }
    }
    Ok(())
}

/// What `run` was given to talk to the outside.
struct Outside {
    readiness: Readiness,
    blocker: ambit_runtime::Blocker,
    shutdown: Shutdown,
}

async fn start(
    settings: Settings,
    layout: &Layout,
    programs: &Programs,
    client: kube::Client,
    outside: Outside,
) -> Result<(), Error> {
    let run_dir = layout.run_dir();
    std::fs::create_dir_all(&run_dir).map_err(Error::file("make the directory", &run_dir))?;
    cni::install(&settings, layout)?;
    add_bridge(&settings)?;
    let cri = Cri::new(&layout.socket());
    let informers = Informers::new(client.clone());
    let changed = Arc::new(Notify::new());
    let context = Arc::new(context(settings, layout, client, cri, (&informers, &changed))?);
    let mut runtime = Runtime::start(layout.clone(), programs.clone(), PAUSE_IMAGE, &context.cri).await?;
    let stop = outside.shutdown.clone();
    let served = serve(&context, programs, &mut runtime, Parts { informers, changed, outside }).await;
    info!("ending the node's pods");
    pods::end_all(&context).await;
    runtime.stop().await;
    match served {
        // Told to stop while it was still starting.
        Err(Error::Informers(_)) if stop.is_cancelled() => Ok(()),
        served => served,
    }
}

struct Parts {
    informers: Informers,
    changed: Arc<Notify>,
    outside: Outside,
}

fn context(
    settings: Settings,
    layout: &Layout,
    client: kube::Client,
    cri: Cri,
    (informers, changed): (&Informers, &Arc<Notify>),
) -> Result<Context, Error> {
    let on_node = format!("spec.nodeName={}", settings.node_name);
    let pods = informers.informer::<Pod>(Query::all().fields(on_node));
    let signal = Arc::clone(changed);
    pods.on_change(move |_| signal.notify_one());
    let host = Some(settings.node_name.clone());
    let resolv = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    Ok(Context {
        events: EventRecorder::new(client.clone(), "kubelet", host),
        addresses: Addresses(settings.node_ips.clone()),
        services: informers.informer::<Service>(Query::all()),
        capacity: capacity()?,
        resolv: ResolvConf::parse(&resolv),
        layout: layout.clone(),
        clock: Clock,
        pods,
        client,
        cri,
        settings,
    })
}

fn capacity() -> Result<Capacity, Error> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Capacity { cpu_milli: cpus as u64 * 1000, memory_bytes: kib.unwrap_or(0_u64) * 1024 })
}

async fn serve(
    context: &Arc<Context>,
    programs: &Programs,
    runtime: &mut Runtime,
    parts: Parts,
) -> Result<(), Error> {
    let Parts { informers, changed, outside: Outside { readiness, blocker, shutdown } } = parts;
    let server = Server::bind(Arc::clone(context)).await?;
    import_images(context, programs).await?;
    wait_for_network(&context.cri).await?;
    let version = context.cri.version().await?.runtime_version;
    let cluster = cluster_services(context, &informers)?;
    let group_shutdown = shutdown.child_token();
    let synced = tokio::time::timeout(SYNC_WAIT, informers.run_and_wait(&group_shutdown)).await;
    synced.map_err(|_| Error::ApiDeadline {
        attempt: "list the pods".into(),
        seconds: SYNC_WAIT.as_secs(),
    })??;
    let node = registration::register(context, &version).await?;
    info!(node = %context.settings.node_name, containerd = %version, "registered the node");

    let mut tasks = TaskGroup::<Error>::new(group_shutdown.clone());
    let stop = || group_shutdown.clone();
    tasks.spawn("pods", Manager::new(Arc::clone(context), changed).run(stop()));
    tasks.spawn("server", server.run(stop()));
    let (shared, token) = (Arc::clone(context), stop());
    tasks.spawn("lease", async move {
        registration::keep_alive(&shared, &node, &version, &token).await;
        Ok(())
    });
    let (shared, token) = (Arc::clone(context), stop());
    tasks.spawn("events", async move {
        shared.events.run(&token).await;
        Ok(())
    });
    let (shared, token) = (Arc::clone(context), stop());
    tasks.spawn("log rotation", async move {
        pods::rotate_logs(&shared, &token).await;
        Ok(())
    });
    if let Some((dns, services)) = cluster {
        let (client, ready, token) = (context.client.clone(), readiness.block("cluster DNS"), stop());
        tasks.spawn("cluster DNS", async move { Ok(dns.run(client, ready, token).await?) });
        let (ready, token) = (readiness.block("service routing"), stop());
        tasks.spawn("service routing", async move { Ok(services.run(ready, token).await?) });
    }
    drop(blocker);
    // Joined together: a part that fails cancels the token, which ends the watch, and the other way round.
    let watch = async {
        let watched = runtime.watch(context.clock, &group_shutdown).await;
        group_shutdown.cancel();
        watched
    };
    let (watched, ended) = tokio::join!(watch, tasks.join());
    let ended = ended.map_err(|e| Error::Task(describe(&e)));
    if let Err(error) = informers.join().await {
        warn!(%error, "an informer failed");
    }
    ended.and(watched)
}

/// An error and its causes in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

fn cluster_services(
    context: &Context,
    informers: &Informers,
) -> Result<Option<(dns::Dns, services::Services)>, Error> {
    let settings = &context.settings;
    let Some(cluster) = &settings.cluster_services else { return Ok(None) };
    let networks = settings.pod_cidrs.iter().chain(&cluster.service_cidrs).copied().collect();
    let dns = dns::Settings {
        cluster_domain: settings.cluster_domain.clone(),
        listen: vec![SocketAddr::new(settings.cluster_dns, ambit_names::port::DNS)],
        networks,
        upstreams: cluster.dns_upstreams.clone(),
    };
    let routing = services::Settings {
        node_name: settings.node_name.clone(),
        node_addresses: settings.node_ips.clone(),
        service_networks: cluster.service_cidrs.clone(),
        pod_networks: settings.pod_cidrs.clone(),
        bridge: settings.bridge.clone(),
        own_addresses: vec![settings.cluster_dns],
    };
    Ok(Some((dns::Dns::new(dns, informers)?, services::Services::new(routing, informers))))
}

async fn import_images(context: &Context, programs: &Programs) -> Result<(), Error> {
    let socket = context.layout.socket();
    images::import_binary(programs, &socket, &context.settings.pause_binary, PAUSE_IMAGE).await?;
    images::wait_for_image(&context.cri, PAUSE_IMAGE).await?;
    for file in &context.settings.images {
        for name in images::import(programs, &socket, file).await? {
            images::wait_for_image(&context.cri, &name).await?;
        }
    }
    Ok(())
}

/// The runtime reads the network's configuration a moment after its start.
async fn wait_for_network(cri: &Cri) -> Result<(), Error> {
    let mut last = None;
    let ready = async {
        loop {
            match cri.not_ready().await {
                Ok(None) => return,
                Ok(Some(why)) => last = Some(why),
                Err(error) => last = Some(error.full_text()),
            }
            tokio::time::sleep(NETWORK_POLL).await;
        }
    };
    if tokio::time::timeout(NETWORK_WAIT, ready).await.is_ok() {
        return Ok(());
    }
    let why = last.unwrap_or_else(|| "it does not answer".to_owned());
    Err(Error::Task(format!("containerd is not ready after {} s: {why}", NETWORK_WAIT.as_secs())))
}
