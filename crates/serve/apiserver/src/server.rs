//! The API server as other rooms use it: open it, get clients of it, run it.

use crate::access;
use crate::bootstrap;
use crate::cluster::{Cluster, Options};
use crate::database::Database;
use crate::disk::DiskError;
use crate::etcd::{EtcdError, EtcdSettings};
use crate::listener::{ListenError, Listener};
use crate::request::User;
use crate::service::{Peer, Service};
use crate::tokens::Tokens;
use ambit_runtime::{Readiness, Shutdown};
use ambit_trust::pki::{self, ClusterPki};
use ipnet::IpNet;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// History older than this is forgotten. Source: apiserver etcd-compaction-interval.
const HISTORY_AGE: Duration = Duration::from_secs(300);
/// How often history is looked at.
const COMPACT_EVERY: Duration = Duration::from_secs(30);
/// Events of core/v1 live this long. Source: apiserver event-ttl.
const EVENT_AGE: Duration = Duration::from_secs(3600);
/// Validity of the certificate shown to nodes; it is made anew at each start.
const NODE_CLIENT_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// Name of the database file in the state directory.
const DATABASE_FILE: &str = "objects.redb";

/// Where objects are kept.
#[derive(Debug, Clone)]
pub enum Storage {
    /// As long as the process lives.
    Memory,
    /// In a file of this directory, which exists.
    Disk(PathBuf),
    /// In etcd, which several servers can share.
    Etcd(EtcdSettings),
}

/// How the API server runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where objects are kept.
    pub storage: Storage,
    /// Address of the TLS listener; `None`: in-process clients only. Port 0: any free one, see [`ApiServer::address`].
    pub listen: Option<SocketAddr>,
    /// Address behind the `kubernetes` service, as pods reach it; `None`: the service has no endpoint.
    pub advertise: Option<SocketAddr>,
    /// The cluster's key material.
    pub pki: ClusterPki,
    /// Addresses of services.
    pub service_cidr: IpNet,
    /// DNS domain of the cluster: part of the issuer of tokens.
    pub cluster_domain: String,
}

/// Why the API server cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Etcd cannot be used.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The key material cannot be used.
    #[error("the cluster's key material cannot be used")]
    Pki(#[from] pki::Error),
    /// The key that signs tokens cannot be used.
    #[error("the key that signs service account tokens cannot be used: {detail}")]
    TokenKey {
        /// What is wrong with it.
        detail: String,
    },
    /// The first objects cannot be created.
    #[error("the cluster's first objects cannot be created: {detail}")]
    Bootstrap {
        /// What was answered.
        detail: String,
    },
    /// The listener cannot be set up.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The store failed while running.
    #[error("the store failed: {reason}")]
    Store {
        /// Why.
        reason: String,
    },
}

/// An API server. [`ApiServer::client`] works from the start; [`ApiServer::run`] also serves over TLS.
///
/// The database stays open until the server and all of its clients are dropped.
pub struct ApiServer {
    service: Service,
    listener: Option<Listener>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Opens the store, binds the listener, and creates the objects that every cluster has.
    ///
    /// # Errors
    /// The store, the key material or the address cannot be used.
    pub async fn open(settings: Settings) -> Result<Self, Error> {
        let Settings { storage, listen, advertise, pki, service_cidr, cluster_domain } = settings;
        let issuer = format!("https://kubernetes.default.svc.{cluster_domain}");
        let tokens =
            Tokens::new(pki.account_key_pem(), issuer).map_err(|detail| Error::TokenKey { detail })?;
        let node_client =
            pki.issue_client("kube-apiserver-kubelet-client", &["system:masters"], NODE_CLIENT_VALIDITY)?;
        let options = Options { service_cidr, ca_pem: pki.ca_pem().to_owned(), node_client };
        // Bound before the database is touched: a second server on this address changes nothing.
        let listener = match listen {
            Some(address) => Some(Listener::bind(address, &pki).await?),
            None => None,
        };
        let db = match storage {
            Storage::Memory => Database::in_memory(),
            Storage::Disk(directory) => {
                let opened =
                    tokio::task::spawn_blocking(move || Database::open(&directory.join(DATABASE_FILE)));
                opened.await.map_err(|e| Error::Store { reason: e.to_string() })??
            }
            Storage::Etcd(settings) => Database::connect(&settings).await?,
        };
        let cluster = Arc::new(Cluster::new(db, tokens, options));
        bootstrap::bootstrap(&cluster, advertise).await.map_err(|failure| Error::Bootstrap {
            detail: failure.status()["message"].as_str().unwrap_or_default().to_owned(),
        })?;
        Ok(Self { service: Service { cluster, stopping: Shutdown::new() }, listener })
    }

    /// The address of the TLS listener.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(Listener::address)
    }

    /// A client in this process that speaks as `user`; requests take the same way as those over TLS.
    ///
    /// # Panics
    /// Outside of a tokio runtime: the client keeps a task there.
    pub fn client(&self, user: &str, groups: &[&str]) -> kube::Client {
        let agent = http::HeaderValue::from_str(user).ok();
        let user = access::authenticated(User::new(user, groups.iter().copied()));
        let service = self.service.clone();
        let serve = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
            // Who names no field manager owns what it writes by its own name.
            if let (Some(agent), None) = (&agent, request.headers().get(http::header::USER_AGENT)) {
                request.headers_mut().insert(http::header::USER_AGENT, agent.clone());
            }
            let (service, peer) = (service.clone(), Peer::InProcess(user.clone()));
            async move { Ok::<_, Infallible>(service.serve(peer, request).await) }
        });
        kube::Client::new(serve, "default")
    }

    /// Serves over TLS and keeps the store tidy until `shutdown`; watches end then.
    ///
    /// # Errors
    /// The store has failed: what was answered is safe, but nothing more can be written.
    pub async fn run(self, readiness: Readiness, shutdown: Shutdown) -> Result<(), Error> {
        let blocker = readiness.block("api server");
        let Self { service, listener } = self;
        if let Some(address) = listener.as_ref().and_then(Listener::address) {
            tracing::info!(%address, "serving the API");
        }
        drop(blocker);
        let stop = service.stopping.clone();
        let cluster = service.cluster.clone();
        let listen = async {
            match listener {
                Some(listener) => listener.serve(service, shutdown.clone()).await,
                None => shutdown.cancelled().await,
            }
        };
        let tidy = upkeep(&cluster, &shutdown);
        let ended = async {
            tokio::select! {
                () = shutdown.cancelled() => Ok(()),
                reason = cluster.db.failed() => Err(Error::Store { reason }),
            }
        };
        // Watches must end before connections can.
        let ended = async {
            let outcome = ended.await;
            shutdown.cancel();
            stop.cancel();
            outcome
        };
        let ((), (), outcome) = tokio::join!(listen, tidy, ended);
        outcome
    }
}

/// Forgets old history and old events.
async fn upkeep(cluster: &Arc<Cluster>, shutdown: &Shutdown) {
    let mut ticks: VecDeque<u64> = VecDeque::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(COMPACT_EVERY) => {}
            () = shutdown.cancelled() => return,
        }
        ticks.push_back(cluster.db.revision());
        if ticks.len() as u64 * COMPACT_EVERY.as_secs() > HISTORY_AGE.as_secs()
            && let Some(revision) = ticks.pop_front()
        {
            cluster.db.compact(revision);
        }
        crate::delete::expire_events(cluster, EVENT_AGE).await;
    }
}

#[cfg(test)]
mod tests;
