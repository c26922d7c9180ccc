//! Services for whoever is not captured by the mesh: pods outside it, and the host itself.
//!
//! The rules are those of [`ambit_rules::service`]; this module keeps them equal to the Services and EndpointSlices
//! of the cluster, one transaction a change, and prepares the host for them:
//!
//! - **The link `ambit-svc0`**, a bridge without ports, holds the address of cluster DNS and routes the service networks.
//!   So the host's own connections to a service have a route and a source address even where no default route is, and
//!   what matches no service is refused here and leaves on no wire.
//! - **`ip_forward`** lets packets pass between the pods' bridge and the outside.
//! - **`bridge-nf-call-iptables`** makes frames between two ports of the bridge visit the rules. A pod sends its request
//!   for a service to its gateway, where it is rewritten to an endpoint; but that endpoint's answer, if it is a pod of
//!   the same bridge, is addressed to the client's own link address and would go straight to it, with a source address
//!   that the client never spoke to. Visiting the rules, it is rewritten back. The other ways out cost more: hiding
//!   clients behind the gateway's address (policies and logs lose the source), or isolating the bridge's ports.
//!   A pod that reaches itself through a service needs its port in hairpin mode as well (`hairpinMode` of the bridge
//!   plugin). While someone watches the bridge itself (`tcpdump -i`), the kernel also hands the rewritten frames to the
//!   host, which routes them once more: datagrams to services then arrive twice.
//!
//! All three are put back as they were found when it ends. Connections that are already open are tracked by the kernel
//! and keep their endpoint.

mod host;
mod plan;

use ambit_api::core::v1::Service;
use ambit_api::discovery::v1::EndpointSlice;
use ambit_kube::{Informer, Informers, Query};
use ambit_rules::service::{ServiceRules, Surroundings};
use ambit_runtime::{Backoff, Blocker, Shutdown};
use host::Host;
use ipnet::IpNet;
use plan::Note;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

/// Name of the link that holds service addresses.
pub const LINK: &str = "ambit-svc0";
/// Delays between attempts to apply rules that the kernel refused.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Settings of service routing.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of this node, for services that only use endpoints of the client's node.
    pub node_name: String,
    /// Addresses of this node: the source of its own connections to services, one per family.
    pub node_addresses: Vec<IpAddr>,
    /// Networks that service addresses come from.
    pub service_networks: Vec<IpNet>,
    /// Networks of this node's pods.
    pub pod_networks: Vec<IpNet>,
    /// The bridge that pods are attached to.
    pub bridge: String,
    /// Service addresses that this node holds itself: those of cluster DNS.
    pub own_addresses: Vec<IpAddr>,
}

/// Why services are not routed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused rules, a link or a route.
    #[error("cannot route services")]
    Kernel(#[from] ambit_linux::Error),
    /// The kernel does not show bridged frames to packet rules.
    #[error(
        "{} does not exist, so answers of services on one bridge cannot be rewritten: load the module br_netfilter \
         (modprobe br_netfilter) or use a kernel with CONFIG_BRIDGE_NETFILTER",
        path.display()
    )]
    NoBridgeNetfilter {
        /// The setting that is missing.
        path: PathBuf,
    },
    /// A setting of the kernel cannot be changed.
    #[error("cannot set {} to {value}: run as root, with /proc/sys writable", path.display())]
    Setting {
        /// The setting.
        path: PathBuf,
        /// The wanted value.
        value: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Service routing, before it runs.
#[derive(Debug)]
pub struct Services {
    settings: Settings,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    changed: Arc<Notify>,
}

impl Services {
    /// Registers what it watches; no I/O. The informers are to be started before [`Services::run`].
    pub fn new(settings: Settings, informers: &Informers) -> Self {
        let services = informers.informer::<Service>(Query::all());
        let slices = informers.informer::<EndpointSlice>(Query::all());
        let changed = Arc::new(Notify::new());
        let signal = Arc::clone(&changed);
        services.on_change(move |_| signal.notify_one());
        let signal = Arc::clone(&changed);
        slices.on_change(move |_| signal.notify_one());
        Self { settings, services, slices, changed }
    }

    /// Routes services in the network namespace of this process until `shutdown`, then leaves it as it was.
    ///
    /// # Errors
    /// The kernel lacks something, or refuses the first rules. Later refusals are tried again.
    pub async fn run(self, blocker: Blocker, shutdown: Shutdown) -> Result<(), Error> {
        let host = Arc::new(Host::prepare(&self.settings).await?);
        let outcome = self.keep(&host, || drop(blocker), &shutdown).await;
        let restored = host.restore().await;
        outcome.and(restored)
    }

    async fn keep(&self, host: &Arc<Host>, ready: impl FnOnce(), shutdown: &Shutdown) -> Result<(), Error> {
        let mut delays = Backoff::new(RETRY_DELAYS.0, RETRY_DELAYS.1);
        let mut noted = BTreeSet::new();
        let mut applied = self.rules(&mut noted);
        host.apply(applied.replace()).await?;
        info!(ports = applied.ports(), "routed services");
        ready();
        let mut in_place = true;
        loop {
            let again = async {
                if in_place {
                    std::future::pending().await
                } else {
                    tokio::time::sleep(delays.next_delay()).await
                }
            };
            // Cancel safe: a notification that is not taken stays, and a shortened delay does no harm.
            tokio::select! {
                () = self.changed.notified() => {}
                () = again => {}
                () = shutdown.cancelled() => return Ok(()),
            }
            let wanted = self.rules(&mut noted);
            let batch = if in_place { wanted.update(&applied) } else { Some(wanted.replace()) };
            let Some(batch) = batch else { continue };
            match host.apply(batch).await {
                Ok(()) => {
                    debug!(ports = wanted.ports(), "changed service routing");
                    (applied, in_place) = (wanted, true);
                    delays.reset();
                }
                Err(error) => {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "could not change service routing, trying again"
                    );
                    in_place = false;
                }
            }
        }
    }

    /// The rules that the cluster asks for now. What of a service is left out is logged once.
    fn rules(&self, noted: &mut BTreeSet<Note>) -> ServiceRules {
        let (services, slices) = (self.services.list(), self.slices.list());
        let plan = plan::plan(
            services.iter().map(AsRef::as_ref),
            slices.iter().map(AsRef::as_ref),
            &self.settings.node_name,
        );
        for note in plan.notes.difference(noted) {
            warn!(service = %note.service, "{}", note.what);
        }
        *noted = plan.notes;
        ServiceRules::new(surroundings(&self.settings), plan.ports)
    }
}

fn surroundings(settings: &Settings) -> Surroundings {
    Surroundings {
        service_networks: settings.service_networks.clone(),
        own_addresses: settings.own_addresses.clone(),
        pod_networks: settings.pod_networks.clone(),
        bridge: settings.bridge.clone(),
    }
}

#[cfg(test)]
mod tests;
