//! Puts the parts together and runs them.

use crate::ads::Discovery;
use crate::authentication::Authenticator;
use crate::ca::CertificateService;
use crate::debug;
use crate::discovered::Discovered;
use crate::error::Error;
use crate::mesh_config::{MeshConfigKeeper, MeshConfigWatch};
use crate::metrics::Metrics;
use crate::owner::{Conditions, Owner};
use crate::pending::{Pending, Sources};
use crate::pod_index::PodIndex;
use crate::root;
use crate::root_publisher::RootPublisher;
use crate::server::{ServingCertificate, serve};
use crate::settings::Settings;
use crate::status::StatusWriter;
use ambit_kube::{Informers, Query, Queue};
use ambit_mesh::config::MeshConfig;
use ambit_runtime::tasks::TaskError;
use ambit_runtime::{Blocker, Clock, Readiness, Shutdown, TaskGroup, endpoint};
use ambit_trust::authority::Authority;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tracing::info;

/// Runs the control plane until `shutdown`. It is ready once it has seen the whole cluster and serves what follows.
///
/// # Errors
/// The address cannot be listened on, the kept root cannot be used, or a part of it failed.
pub async fn run(
    settings: Settings,
    client: kube::Client,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let blocker = readiness.block("control plane");
    // A part that fails stops the other parts, not the caller's.
    let shutdown = shutdown.child_token();
    let listener = listen("discovery and certificates", settings.listen).await?;
    let metrics_listener = match settings.metrics {
        Some(address) => Some(listen("metrics", address).await?),
        None => None,
    };
    let listeners = Listeners { main: listener, metrics: metrics_listener };
    let metrics = Metrics::default();
    let sources = metrics.informers(client.clone());
    let keeper = MeshConfigKeeper::new(&sources, settings.mesh_config.clone(), readiness, metrics.clone());
    let mut in_force = keeper.watch();
    let keeping = async {
        if sources.run_and_wait(&shutdown).await.is_ok() {
            keeper.run(shutdown.clone()).await;
        }
        join(&sources).await
    };
    let start = Start { settings, client, listeners, metrics, blocker };
    let serving = async {
        let outcome = match in_force.first(&shutdown).await {
            Some(config) => start.run(config, in_force, &shutdown).await,
            None => Ok(()),
        };
        shutdown.cancel();
        outcome
    };
    let (kept, outcome) = tokio::join!(keeping, serving);
    outcome.and(kept)
}

/// What the parts are made of once the mesh configuration is there.
struct Start {
    settings: Settings,
    client: kube::Client,
    listeners: Listeners,
    metrics: Metrics,
    blocker: Blocker,
}

impl Start {
    async fn run(
        mut self,
        config: Arc<MeshConfig>,
        in_force: MeshConfigWatch,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let mesh = &mut self.settings.mesh;
        let trust_domain = self.settings.trust_domain.as_ref().unwrap_or(&config.trust_domain);
        mesh.trust_domain.clone_from(trust_domain);
        mesh.root_namespace.clone_from(&config.root_namespace);
        let obtained =
            root::obtain(&self.client, &mesh.system_namespace, &mesh.trust_domain, shutdown).await?;
        let Some(authority) = obtained.map(Arc::new) else { return Ok(()) };
        let certificate = ServingCertificate::new(
            authority.clone(),
            self.settings.server_names.clone(),
            self.settings.server_lifetime,
            Clock,
        )?;
        let informers = self.metrics.informers(self.client);
        let always = [mesh.system_namespace.clone(), mesh.root_namespace.clone()];
        let discovered = Discovered::new(informers.informer(Query::all()), always, config);
        let parts = Parts::new(&self.settings, &informers, authority, self.metrics, &discovered);
        match informers.run_and_wait(shutdown).await {
            Ok(()) => {}
            Err(_) if shutdown.is_cancelled() => return join(&informers).await,
            Err(error) => return Err(Error::Informers(error)),
        }
        let (address, blocker) = (self.settings.listen, self.blocker);
        let serving = parts.run(self.listeners, certificate, shutdown.clone(), || {
            info!(%address, "serving discovery and certificates");
            drop(blocker);
        });
        let serving = async {
            let outcome = serving.await;
            shutdown.cancel();
            outcome
        };
        let ((), outcome) = tokio::join!(discovered.run(in_force, shutdown.clone()), serving);
        join(&informers).await?;
        outcome
    }
}

/// What is listened on.
struct Listeners {
    main: TcpListener,
    metrics: Option<TcpListener>,
}

async fn listen(what: &'static str, address: SocketAddr) -> Result<TcpListener, Error> {
    endpoint::listen(address).await.map_err(|source| Error::Listen { what, address, source })
}

async fn join(informers: &Informers) -> Result<(), Error> {
    informers.join().await.map_err(Error::Informers)
}

/// Everything that hangs on the informers.
struct Parts {
    owner: Owner,
    pods: PodIndex,
    publisher: RootPublisher,
    status: StatusWriter,
    authority: Arc<Authority>,
    authenticator: Authenticator,
    metrics: Metrics,
    settings: Settings,
}

impl Parts {
    fn new(
        settings: &Settings,
        informers: &Informers,
        authority: Arc<Authority>,
        metrics: Metrics,
        discovered: &Discovered,
    ) -> Self {
        let all = Query::all;
        let sources = Sources {
            pods: discovered.of(&informers.informer(all())),
            namespaces: informers.informer(all()),
            nodes: informers.informer(all()),
            services: discovered.of(&informers.informer(all())),
            slices: discovered.of(&informers.informer(all())),
            authorization_policies: discovered.of(&informers.informer(all())),
            peer_authentications: discovered.of(&informers.informer(all())),
        };
        let pending = Pending::default();
        pending.follow(&sources);
        let (conditions, queue) = (Conditions::default(), Queue::with(metrics.queue("policy-status")));
        let adds = queue.clone();
        let on_condition = move |policy: &_| adds.add(ambit_mesh::ObjectName::clone(policy));
        Self {
            owner: Owner::new(
                settings.mesh.clone(),
                pending,
                conditions.clone(),
                metrics.clone(),
                on_condition,
            ),
            pods: PodIndex::follow(sources.pods),
            publisher: RootPublisher::new(informers, sources.namespaces, &metrics),
            status: StatusWriter {
                client: informers.client().clone(),
                policies: sources.authorization_policies,
                conditions,
                queue,
                clock: Clock,
            },
            authority,
            authenticator: Authenticator::new(
                informers.client().clone(),
                settings.token_audiences.clone(),
                settings.mesh.cluster_id.clone(),
            ),
            metrics,
            settings: settings.clone(),
        }
    }

    /// Runs until `shutdown` or until a part fails; `on_ready` is called when clients can be served.
    async fn run(
        mut self,
        listeners: Listeners,
        certificate: ServingCertificate,
        shutdown: Shutdown,
        on_ready: impl FnOnce(),
    ) -> Result<(), Error> {
        // Everything has been seen: the first snapshot is the whole cluster.
        self.owner.step();
        let mut tasks = TaskGroup::new(shutdown.clone());
        let discovery = Discovery::new(
            self.owner.snapshots(),
            self.authenticator.clone(),
            self.metrics.clone(),
            shutdown.clone(),
        );
        let certificates = CertificateService {
            authority: self.authority.clone(),
            authenticator: self.authenticator,
            pods: self.pods,
            trust_domain: self.settings.mesh.trust_domain,
            trusted_node_accounts: self.settings.trusted_node_accounts,
            lifetimes: self.settings.workload_lifetimes,
            clock: Clock,
            metrics: self.metrics.clone(),
        };
        if let Some(listener) = listeners.metrics {
            let mut registry = Registry::default();
            self.metrics.register(&mut registry);
            let handler = debug::beside(endpoint::metrics(registry), self.owner.mesh());
            let stop = shutdown.clone();
            tasks.spawn("metrics", async move {
                endpoint::serve(listener, handler, stop).await;
                Ok(())
            });
        }
        tasks.spawn("server", serve(listeners.main, certificate, discovery, certificates, shutdown.clone()));
        let root_pem = self.authority.root_pem().to_owned();
        let (owner, publisher, status) = (self.owner, self.publisher, self.status);
        let stop = shutdown.clone();
        tasks.spawn("collections", async move {
            owner.run(stop).await;
            Ok(())
        });
        let stop = shutdown.clone();
        tasks.spawn("root publisher", async move {
            publisher.run(root_pem, stop).await;
            Ok(())
        });
        tasks.spawn("policy status", async move {
            status.run(shutdown).await;
            Ok(())
        });
        on_ready();
        tasks.join().await.map_err(|error| match error {
            TaskError::Failed { source, .. } => source,
            TaskError::Panicked(message) => Error::Task(message),
        })
    }
}
