//! One captured pod: what its connections share.

use crate::certificates::{Certificates, Held};
use crate::connections::{Connections, Guard};
use crate::error::ConnectionError;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::settings::Settings;
use crate::store::Store;
use ambit_linux::netns::NetNs;
use ambit_linux::socket::{self, SocketThread};
use ambit_runtime::{Clock, Entropy, Shutdown};
use ambit_traffic::{Denial, Identity, LocalName, NetworkAddress, Peer, Workload};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

/// Source: the field's node proxy.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// What all pods share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Arc<Settings>,
    pub(crate) network: Arc<str>,
    pub(crate) store: Store,
    pub(crate) certificates: Certificates,
    pub(crate) sockets: SocketThread,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    /// The pods being served, for the admin endpoint.
    pub(crate) pods: Mutex<BTreeMap<String, Weak<Pod>>>,
}

impl Shared {
    /// The pods being served.
    pub(crate) fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Weak<Pod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) name: LocalName,
    pub(crate) namespace: Arc<NetNs>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Pool,
    pub(crate) connections: Arc<Connections>,
    /// Whether source addresses are kept.
    pub(crate) spoofs: bool,
    /// No new connections.
    pub(crate) drain: Shutdown,
    /// No connections at all.
    pub(crate) kill: Shutdown,
    pub(crate) tasks: TaskTracker,
}

impl Pod {
    /// Does `work` unless the pod ends before.
    pub(crate) async fn while_alive<T>(
        &self,
        work: impl Future<Output = Result<T, ConnectionError>>,
    ) -> Result<T, ConnectionError> {
        tokio::select! {
            outcome = work => outcome,
            () = self.kill.cancelled() => Err(ConnectionError::Closing),
        }
    }

    /// The pod's own workload, waiting for it for a while.
    pub(crate) async fn workload(&self) -> Result<Arc<Workload>, ConnectionError> {
        let found = self.shared.store.local_workload(&self.name).await;
        found.ok_or_else(|| {
            ConnectionError::UnknownWorkload(format!("{}/{}", self.name.namespace, self.name.name))
        })
    }

    /// The workload at an address of our network, if known.
    pub(crate) fn workload_at(&self, address: IpAddr) -> Option<Arc<Workload>> {
        let at = NetworkAddress { network: self.shared.network.clone(), address };
        self.shared.store.now().workload_at(&at).cloned()
    }

    /// A valid certificate of `identity`.
    pub(crate) async fn certificate(&self, identity: &Identity) -> Result<Arc<Held>, ConnectionError> {
        let held = self.shared.certificates.valid(identity).await;
        held.map_err(|detail| ConnectionError::Certificate { identity: identity.clone(), detail })
    }

    /// Connects from inside the pod, on behalf of `source` if that is possible and given.
    pub(crate) async fn connect(
        &self,
        to: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<TcpStream, ConnectionError> {
        let failed = |source| ConnectionError::Connect { to, source };
        let (mark, keepalive) = (self.shared.settings.mark, self.shared.settings.keepalive);
        // An address cannot connect to itself, and families cannot be mixed.
        let source = source.filter(|ip| self.spoofs && *ip != to.ip() && ip.is_ipv4() == to.is_ipv4());
        let make = move || {
            let made = socket::outgoing(to, mark, keepalive)?;
            let spoofed = source.map_or(Ok(()), |source| socket::spoof_source(&made, source));
            Ok((made, spoofed))
        };
        let (made, spoofed) = self.shared.sockets.run(&self.namespace, make).await.map_err(failed)?;
        if let Err(error) = spoofed {
            warn!(pod = %self.uid, ?source, %error, "source address not kept");
        }
        match tokio::time::timeout(CONNECT_DEADLINE, TcpSocket::from_std_stream(made).connect(to)).await {
            Ok(connected) => connected.map_err(failed),
            Err(_) => Err(ConnectionError::ConnectTimeout { to, seconds: CONNECT_DEADLINE.as_secs() }),
        }
    }

    /// Tracks and authorises an inbound connection. A workload or policy that is on its way is waited for.
    pub(crate) async fn admit(&self, peer: &Peer) -> Result<Guard, ConnectionError> {
        let guard = self.connections.track(peer.clone());
        let evaluate = |state: &ambit_traffic::State| {
            let workload = state.local_workload(&self.name)?;
            let verdict = state.authorize(workload, peer);
            for (policy, action) in &verdict.dry_run {
                info!(%policy, ?action, ?peer, "dry-run policy matched");
            }
            if let Some(policy) = &verdict.allowed_by {
                debug!(%policy, ?peer, "policy allowed the connection");
            }
            match verdict.denial {
                Some(Denial::PolicyMissing { .. }) => None,
                settled => Some(settled),
            }
        };
        match self.shared.store.wait_for(evaluate).await {
            Some(None) => Ok(guard),
            Some(Some(denial)) => Err(ConnectionError::Denied(denial)),
            None => {
                let state = self.shared.store.now();
                let workload = self.workload().await?;
                let denial = state.authorize(&workload, peer).denial;
                denial.map_or(Ok(guard), |denial| Err(ConnectionError::Denied(denial)))
            }
        }
    }

    /// Evaluates open connections again after every change, until the pod ends.
    pub(crate) async fn enforce(self: Arc<Self>) {
        let mut store = self.shared.store.clone();
        // A workload that has gone from discovery keeps its last policies while its pod shuts down.
        let mut last: Option<Arc<Workload>> = None;
        loop {
            let state = store.now();
            last = state.local_workload(&self.name).cloned().or(last);
            let due = last.as_ref().and_then(|own| self.connections.evaluate(&state, own, self.shared.clock));
            let again = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                more = store.changed() => if !more { return },
                () = again => {}
                () = self.kill.cancelled() => return,
            }
        }
    }
}
