//! The L4 node proxy: per-pod listeners, HBONE, connection pool and telemetry.
//! It never decides who may talk: decide/traffic does.

mod admin;
mod ca;
mod certificates;
mod connections;
mod control;
mod discovery;
mod dump;
mod error;
mod handover;
mod inbound;
mod listeners;
mod metrics;
mod outbound;
mod plaintext;
mod pod;
mod pool;
mod relay;
mod settings;
mod store;
mod telemetry;
mod tunnel;

pub use ambit_linux::socket::{Keepalive, Transparency};
pub use error::Error;
pub use settings::{Endpoint, Settings, Windows};

use crate::admin::{Answer, Handler, text};
use crate::ca::CaClient;
use crate::certificates::Certificates;
use crate::discovery::Discovery;
use crate::handover::Handover;
use crate::metrics::Metrics;
use crate::pod::Shared;
use ambit_linux::socket::SocketThread;
use ambit_runtime::{Clock, Entropy, Readiness, Shutdown, TaskGroup};
use http::{Method, StatusCode};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tracing::info;

/// Runs the node proxy until shutdown, then drains open connections for at most [`Settings::drain`].
///
/// # Errors
/// A port of its own is taken, or the node agent breaks the hand-over protocol.
pub async fn run(settings: Settings, readiness: Readiness, shutdown: Shutdown) -> Result<(), Error> {
    let discovery_blocker = readiness.block("first answers of the control plane");
    let (clock, entropy, settings) = (Clock, Entropy, Arc::new(settings));
    let (metrics, registry) = Metrics::new();
    let (writer, store) = store::new();
    // Everything but the pods goes on until the pods have drained.
    let services = Shutdown::new();
    let certificates = Certificates::new(CaClient::new(settings.clone()), (clock, entropy), services.clone());
    let shared = Arc::new(Shared {
        network: settings.network.as_str().into(),
        store: store.clone(),
        certificates: certificates.clone(),
        sockets: SocketThread::start().map_err(Error::Thread)?,
        metrics: Arc::new(metrics),
        settings: settings.clone(),
        clock,
        entropy,
        pods: std::sync::Mutex::default(),
    });
    let endpoints = bind_endpoints(&shared, registry, &readiness, &shutdown).await?;
    let handover = Handover::new(shared.clone(), readiness);
    let discovery = Discovery::new(settings.clone(), writer, shared.metrics.clone(), discovery_blocker);
    let mut tasks = TaskGroup::<Error>::new(services.clone());
    for endpoint in endpoints {
        let stop = services.clone();
        tasks.spawn("endpoint", async move {
            endpoint.run(stop).await;
            Ok(())
        });
    }
    let stop = services.clone();
    tasks.spawn("discovery", async move {
        discovery.run(stop).await;
        Ok(())
    });
    let node = settings.node_name.clone();
    tasks.spawn("certificates", async move {
        certificates.prefetch(node, store).await;
        Ok(())
    });
    tasks.spawn("handover", async move {
        // A panic elsewhere cancels `services`: the pods must end then as well.
        let stop = shutdown.child_token();
        let watch = services.clone().drop_guard();
        let outcome = handover.run(stop).await;
        drop(watch);
        outcome
    });
    info!(node = %settings.node_name, "started the node proxy");
    tasks.join().await.map_err(|error| match error {
        ambit_runtime::tasks::TaskError::Failed { source, .. } => source,
        panicked @ ambit_runtime::tasks::TaskError::Panicked(_) => Error::Task(panicked.to_string()),
    })
}

async fn bind_endpoints(
    shared: &Arc<Shared>,
    registry: Registry,
    readiness: &Readiness,
    shutdown: &Shutdown,
) -> Result<[admin::Endpoint; 3], Error> {
    let settings = &shared.settings;
    let (admin_shared, quit) = (shared.clone(), shutdown.clone());
    let admin: Handler = Arc::new(move |method, path| match (method, path) {
        (_, "/config_dump") => (StatusCode::OK, "application/json", dump::config(&admin_shared)),
        (&Method::POST, "/quitquitquit") => {
            quit.cancel();
            text(StatusCode::OK, "shutting down\n")
        }
        (_, "/") => text(StatusCode::OK, "/config_dump\nPOST /quitquitquit\n"),
        _ => not_found(path),
    });
    let metrics: Handler = Arc::new(move |_, path| match path {
        "/metrics" | "/stats/prometheus" => encode(&registry),
        _ => not_found(path),
    });
    let readiness = readiness.clone();
    let ready: Handler = Arc::new(move |_, path| match (path, readiness.waiting_for()) {
        ("/healthz/ready", waiting) if waiting.is_empty() => text(StatusCode::OK, "ready\n"),
        ("/healthz/ready", waiting) => {
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("not ready: {}\n", waiting.join(", ")))
        }
        _ => not_found(path),
    });
    Ok([
        admin::Endpoint::bind("the admin endpoint", settings.admin, admin).await?,
        admin::Endpoint::bind("metrics", settings.metrics, metrics).await?,
        admin::Endpoint::bind("readiness", settings.ready, ready).await?,
    ])
}

fn not_found(path: &str) -> Answer {
    text(StatusCode::NOT_FOUND, format!("{path} is not served here\n"))
}

fn encode(registry: &Registry) -> Answer {
    let mut body = String::new();
    match prometheus_client::encoding::text::encode(&mut body, registry) {
        Ok(()) => (StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode metrics: {error}\n")),
    }
}
