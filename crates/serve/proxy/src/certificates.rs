//! The certificates of the pods of this node: fetched ahead, renewed at half of their life, kept while valid.

use crate::ca::CaClient;
use crate::control::causes;
use crate::store::Store;
use ambit_runtime::{Backoff, Clock, Entropy, Shutdown};
use ambit_trust::certificate::WorkloadCertificate;
use ambit_trust::spiffe::Identity;
use ambit_trust::tls;
use rand::Rng as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

/// Fetches at once. Source: the field's node proxy.
const FETCHES_MAX: usize = 8;
/// Delays between failed fetches of one identity. Source: as above.
const DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(150));
/// Part of a delay by which it varies, so that many proxies do not ask in step.
const JITTER: f64 = 0.2;
/// Shortest time between two fetches of one identity, whatever the certificate says.
const REFRESH_MIN: Duration = Duration::from_secs(1);
/// How long a connection waits for the first certificate of its identity.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(10);

/// A certificate with what is made of it once.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) certificate: WorkloadCertificate,
    server: OnceLock<Arc<rustls::ServerConfig>>,
}

impl Held {
    /// TLS as the server of this identity.
    pub(crate) fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, rustls::Error> {
        if let Some(made) = self.server.get() {
            return Ok(made.clone());
        }
        let made = Arc::new(tls::server_config(&self.certificate)?);
        Ok(self.server.get_or_init(|| made).clone())
    }
}

/// What is known of one identity's certificate.
#[derive(Debug, Clone, Default)]
struct Status {
    held: Option<Arc<Held>>,
    /// The last attempt's failure.
    failure: Option<String>,
}

#[derive(Debug)]
struct Slot {
    status: watch::Receiver<Status>,
    stop: Shutdown,
}

/// Handle on all certificates. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Certificates(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: CaClient,
    slots: Mutex<BTreeMap<Identity, Slot>>,
    fetches: Semaphore,
    tasks: TaskTracker,
    shutdown: Shutdown,
    clock: Clock,
    entropy: Entropy,
}

impl Certificates {
    pub(crate) fn new(client: CaClient, (clock, entropy): (Clock, Entropy), shutdown: Shutdown) -> Self {
        Self(Arc::new(Shared {
            client,
            slots: Mutex::default(),
            fetches: Semaphore::new(FETCHES_MAX),
            tasks: TaskTracker::new(),
            shutdown,
            clock,
            entropy,
        }))
    }

    /// A valid certificate, waiting for the first attempt to end. Cancel safe.
    ///
    /// # Errors
    /// There is none, with the reason of the last failed attempt.
    pub(crate) async fn valid(&self, identity: &Identity) -> Result<Arc<Held>, String> {
        let mut status = self.ensure(identity);
        let settled = status.wait_for(|status| status.held.is_some() || status.failure.is_some());
        let status = match tokio::time::timeout(CERTIFICATE_WAIT, settled).await {
            Ok(Ok(status)) => status.clone(),
            Ok(Err(_)) => return Err("the identity is no longer on this node".into()),
            Err(_) => return Err(format!("none within {} s", CERTIFICATE_WAIT.as_secs())),
        };
        let now = self.0.clock.wall();
        match (status.held.filter(|held| held.certificate.valid_at(now)), status.failure) {
            (Some(held), _) => Ok(held),
            (None, Some(failure)) => Err(failure),
            (None, None) => Err("it has expired".into()),
        }
    }

    /// Starts to keep a certificate for the identity, if that is not done already.
    fn ensure(&self, identity: &Identity) -> watch::Receiver<Status> {
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(identity) {
            return slot.status.clone();
        }
        let (sender, status) = watch::channel(Status::default());
        let stop = self.0.shutdown.child_token();
        let task = self.0.clone().keep(identity.clone(), sender, stop.clone());
        self.0.tasks.spawn(task);
        slots.insert(identity.clone(), Slot { status: status.clone(), stop });
        status
    }

    fn forget(&self, identity: &Identity) {
        let slot = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner).remove(identity);
        if let Some(slot) = slot {
            debug!(%identity, "forgot certificate");
            slot.stop.cancel();
        }
    }

    /// Keeps certificates for the workloads of `node` ahead of their use, until shutdown.
    pub(crate) async fn prefetch(self, node: String, mut store: Store) {
        let mut wanted = BTreeSet::new();
        loop {
            let next = store.now().node_identities(&node);
            for identity in next.difference(&wanted) {
                self.ensure(identity);
            }
            for identity in wanted.difference(&next) {
                self.forget(identity);
            }
            wanted = next;
            tokio::select! {
                more = store.changed() => if !more { break },
                () = self.0.shutdown.cancelled() => break,
            }
        }
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Identity, state and certificate dates, for the admin endpoint.
    pub(crate) fn dump(&self) -> Vec<serde_json::Value> {
        let slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let time = |at| jiff::Timestamp::try_from(at).map_or_else(|_| String::new(), |t| t.to_string());
        let describe = |(identity, slot): (&Identity, &Slot)| {
            let status = slot.status.borrow().clone();
            let certificate = status.held.as_ref().map(|held| {
                serde_json::json!({
                    "serialNumber": held.certificate.serial(),
                    "validFrom": time(held.certificate.not_before()),
                    "expirationTime": time(held.certificate.not_after()),
                })
            });
            let state = match (&certificate, &status.failure) {
                (Some(_), _) => "Available",
                (None, Some(_)) => "Unavailable",
                (None, None) => "Initializing",
            };
            serde_json::json!({
                "identity": identity.to_string(),
                "state": state,
                "lastError": status.failure,
                "certChain": certificate,
            })
        };
        slots.iter().map(describe).collect()
    }
}

impl Shared {
    /// Fetches and renews one identity's certificate until told to stop.
    async fn keep(self: Arc<Self>, identity: Identity, sender: watch::Sender<Status>, stop: Shutdown) {
        let mut delays = Backoff::new(DELAYS.0, DELAYS.1);
        loop {
            let attempt = async {
                // The semaphore is never closed; were it, fetching without a permit would still be right.
                let _permit = self.fetches.acquire().await;
                self.client.fetch(&identity).await
            };
            let outcome = tokio::select! {
                outcome = attempt => outcome,
                () = stop.cancelled() => return,
            };
            let wait = match outcome {
                Ok(certificate) => {
                    delays.reset();
                    let refresh = certificate.refresh_at();
                    info!(%identity, serial = %certificate.serial(), "received certificate");
                    let held = Arc::new(Held { certificate, server: OnceLock::new() });
                    sender.send_replace(Status { held: Some(held), failure: None });
                    refresh.duration_since(self.clock.wall()).unwrap_or_default().max(REFRESH_MIN)
                }
                Err(error) => self.failed(&identity, &sender, causes(&error), &mut delays),
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Notes a failure; gives the time until the next attempt: by backoff, and at the latest when the held one ends.
    fn failed(
        &self,
        identity: &Identity,
        sender: &watch::Sender<Status>,
        failure: String,
        delays: &mut Backoff,
    ) -> Duration {
        let factor = 1.0 + self.entropy.rng().random_range(-JITTER..=JITTER);
        let delay = delays.next_delay().mul_f64(factor);
        warn!(%identity, error = %failure, retry_in = ?delay, "certificate not received");
        sender.send_modify(|status| status.failure = Some(failure));
        let left = sender
            .borrow()
            .held
            .as_ref()
            .and_then(|held| held.certificate.not_after().duration_since(self.clock.wall()).ok());
        left.map_or(delay, |left| delay.min(left.max(REFRESH_MIN)))
    }
}
