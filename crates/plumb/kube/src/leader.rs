//! Leader election on a Lease, as the field's own components do it.
//!
//! Source: client-go, tools/leaderelection. Whether another's lease has run out is judged by when *we* last saw it change,
//! never by the times in it: clocks of machines differ.
//!
//! Two leaders must not work at once. A leader that cannot renew stops `lease - renew` before others may take over, and
//! work that has not ended by then is dropped; at shutdown the lease is renewed until the work has ended. What is left:
//! a request that is on its way to the server when the term ends, threads that the work does not join, and machines whose
//! clocks run at speeds that differ by more than `lease / renew`.

mod term;

pub use term::{LeaseLost, Term};

use crate::error::{is_already_exists, is_conflict};
use ambit_api::coordination::v1::{Lease, LeaseSpec};
use ambit_api::meta::MicroTime;
use ambit_runtime::{Clock, Entropy, Shutdown};
use futures::future::BoxFuture;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use rand::Rng as _;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

/// Attempts to become leader are up to so many times further apart than asked for, so that candidates spread.
const JITTER: f64 = 1.2;

/// What is stood for, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who stands, unlike every other candidate; a pod's name is one.
    pub identity: String,
    /// Time after which others may take over from a leader that is not heard of. Whole seconds, at least one.
    pub lease: Duration,
    /// Time after which a leader that cannot renew its lease stops to be one. Shorter than `lease`.
    pub renew: Duration,
    /// Time between attempts. Shorter than `renew`.
    pub retry: Duration,
}

impl LeaderSettings {
    /// The field's usual times: 15 s, 10 s and 2 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// Times between which no leader can be safe.
#[derive(Debug, thiserror::Error)]
#[error(
    "leader election needs lease > renew > {JITTER} × retry, and a lease of whole seconds: \
     they are {lease:?}, {renew:?} and {retry:?}"
)]
pub struct LeaderError {
    lease: Duration,
    renew: Duration,
    retry: Duration,
}

/// One candidate.
pub struct LeaderElection {
    api: Api<Lease>,
    settings: LeaderSettings,
    seen: Option<Seen>,
    leader: watch::Sender<Option<String>>,
}

/// A lease, and when it was seen to change.
struct Seen {
    spec: LeaseSpec,
    at: Instant,
}

/// The term in which the lease is held, and when it was last known to be ours: when the request that renewed it was sent.
struct Held {
    term: Term,
    since: Instant,
}

impl Held {
    fn renewed(&mut self, since: Instant, renew: Duration) {
        self.since = since;
        self.term.renewed(since + renew);
    }
}

/// How an attempt ended.
#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    Held,
    /// Another one holds the lease, or was quicker.
    Lost,
}

impl LeaderElection {
    /// A candidate. No I/O.
    ///
    /// # Errors
    /// The times do not fit each other.
    pub fn new(client: kube::Client, settings: LeaderSettings) -> Result<Self, LeaderError> {
        let LeaderSettings { lease, renew, retry, .. } = settings;
        let whole = lease.subsec_nanos() == 0 && !lease.is_zero();
        if !whole || lease <= renew || renew <= retry.mul_f64(JITTER) || retry.is_zero() {
            return Err(LeaderError { lease, renew, retry });
        }
        let api = Api::namespaced(client, &settings.namespace);
        Ok(Self { api, settings, seen: None, leader: watch::Sender::new(None) })
    }

    /// Who this candidate is.
    pub fn identity(&self) -> &str {
        &self.settings.identity
    }

    /// Who leads, as far as this candidate has seen.
    pub fn leader(&self) -> watch::Receiver<Option<String>> {
        self.leader.subscribe()
    }

    /// Stands until `shutdown`, and calls `work` each time it has become leader. The term that `work` gets tells it to stop
    /// when the lease is lost and at `shutdown`; only once `work` has ended is the lease given up or stood for again. Work
    /// that goes on until others may lead is dropped. Returns also when `work` ends by itself.
    pub async fn run<W, F>(mut self, mut work: W, shutdown: &Shutdown)
    where
        W: FnMut(Term) -> F,
        F: Future<Output = ()> + Send,
    {
        while let Some(since) = self.acquire(shutdown).await {
            info!(lease = self.settings.name, identity = self.settings.identity, "became leader");
            let term = Term::new(&self.settings.name, since + self.settings.renew, shutdown);
            let mut held = Held { term: term.clone(), since };
            let mut working: BoxFuture<'_, ()> = Box::pin(work(term));
            let ended = tokio::select! {
                () = &mut working => true,
                () = self.renew_until_lost(&mut held) => false,
                () = shutdown.cancelled() => false,
            };
            if !ended {
                self.wind_down(working, &mut held, shutdown).await;
            }
            held.term.end();
            if ended || shutdown.is_cancelled() {
                self.release().await;
                return;
            }
        }
    }

    /// Stands until it leads; tells since when. None at shutdown.
    async fn acquire(&mut self, shutdown: &Shutdown) -> Option<Instant> {
        loop {
            let since = Clock.now();
            tokio::select! {
                held = self.attempt_within(self.settings.renew) => if held { return Some(since) },
                () = shutdown.cancelled() => return None,
            }
            let factor = 1.0 + JITTER * Entropy.rng().random::<f64>();
            tokio::select! {
                () = tokio::time::sleep(self.settings.retry.mul_f64(factor)) => {}
                () = shutdown.cancelled() => return None,
            }
        }
    }

    /// Renews the lease; returns when another one has it, or when it could not be renewed in time.
    async fn renew_until_lost(&mut self, held: &mut Held) {
        loop {
            tokio::time::sleep(self.settings.retry).await;
            let now = Clock.now();
            let left = self.settings.renew.saturating_sub(now.saturating_duration_since(held.since));
            if left.is_zero() {
                return;
            }
            if self.attempt_within(left).await {
                held.renewed(now, self.settings.renew);
            } else if self.has_another_holder() {
                return;
            }
        }
    }

    /// Lets the work end. Meanwhile the lease is renewed, unless it is lost, so that nobody else begins.
    async fn wind_down(&mut self, mut working: BoxFuture<'_, ()>, held: &mut Held, shutdown: &Shutdown) {
        let lease = self.settings.name.clone();
        held.term.stop().cancel();
        if shutdown.is_cancelled() {
            // Dropping an attempt to renew is safe: at worst it is carried out.
            tokio::select! {
                () = &mut working => return,
                () = self.renew_until_lost(held) => {}
            }
        }
        warn!(lease, "is leader no more: the lease was taken, or could not be renewed in time");
        held.term.end();
        let runs_out = held.since + self.settings.lease;
        if tokio::time::timeout_at(runs_out.into(), working).await.is_err() {
            error!(lease, "dropped work that had not ended when the lease ran out");
        }
    }

    async fn attempt_within(&mut self, deadline: Duration) -> bool {
        let lease = self.settings.name.clone();
        match tokio::time::timeout(deadline, self.attempt()).await {
            Ok(Ok(attempt)) => attempt == Attempt::Held,
            Ok(Err(error)) => {
                debug!(lease, %error, "cannot read or write the lease");
                false
            }
            Err(_) => {
                debug!(lease, "no answer in time");
                false
            }
        }
    }

    async fn attempt(&mut self) -> Result<Attempt, kube::Error> {
        let name = self.settings.name.clone();
        let Some(mut lease) = self.api.get_opt(&name).await? else {
            let metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.record(None)) };
            return self.written(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.take().unwrap_or_default();
        self.see(spec.clone());
        if self.is_held_by_another() {
            return Ok(Attempt::Lost);
        }
        lease.spec = Some(self.record(Some(&spec)));
        self.written(self.api.replace(&name, &PostParams::default(), &lease).await)
    }

    /// What the lease says once we hold it.
    fn record(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Clock.timestamp()));
        let ours = before.filter(|spec| spec.holder_identity.as_deref() == Some(&self.settings.identity));
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.settings.lease.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: ours.and_then(|spec| spec.acquire_time.clone()).or_else(|| now.clone()),
            renew_time: now,
            lease_transitions: Some(match (before, ours) {
                (Some(_), None) => transitions.saturating_add(1),
                _ => transitions,
            }),
            ..before.cloned().unwrap_or_default()
        }
    }

    fn written(&mut self, answer: Result<Lease, kube::Error>) -> Result<Attempt, kube::Error> {
        match answer {
            Ok(lease) => {
                self.see(lease.spec.unwrap_or_default());
                Ok(Attempt::Held)
            }
            Err(error) if is_conflict(&error) || is_already_exists(&error) => Ok(Attempt::Lost),
            Err(error) => Err(error),
        }
    }

    fn see(&mut self, spec: LeaseSpec) {
        if self.seen.as_ref().is_none_or(|seen| seen.spec != spec) {
            self.seen = Some(Seen { spec, at: Clock.now() });
        }
        let holder = self.holder().map(str::to_owned);
        self.leader.send_if_modified(|held| std::mem::replace(held, holder.clone()) != holder);
    }

    /// Who holds the lease, as it was last seen.
    fn holder(&self) -> Option<&str> {
        self.seen.as_ref()?.spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }

    fn has_another_holder(&self) -> bool {
        self.holder().is_some_and(|holder| holder != self.settings.identity)
    }

    fn is_held_by_another(&self) -> bool {
        let Some(seen) = &self.seen else { return false };
        let seconds = u64::try_from(seen.spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let runs = Clock.now().saturating_duration_since(seen.at) < Duration::from_secs(seconds);
        runs && self.has_another_holder()
    }

    /// Lets another one lead at once. Only if we still hold the lease.
    async fn release(&mut self) {
        let name = self.settings.name.clone();
        let release = async {
            let Some(mut lease) = self.api.get_opt(&name).await? else { return Ok(()) };
            let Some(spec) = &mut lease.spec else { return Ok(()) };
            if spec.holder_identity.as_deref() != Some(&self.settings.identity) {
                return Ok(());
            }
            let now = Some(MicroTime(Clock.timestamp()));
            spec.holder_identity = Some(String::new());
            (spec.renew_time, spec.acquire_time) = (now.clone(), now);
            spec.lease_duration_seconds = Some(1);
            self.api.replace(&name, &PostParams::default(), &lease).await.map(drop)
        };
        match tokio::time::timeout(self.settings.retry, release).await {
            Ok(Ok(())) => drop(self.leader.send_replace(None)),
            Ok(Err(error)) => {
                debug!(lease = name, %error, "could not give up the lease: it runs out by itself")
            }
            Err(_) => debug!(lease = name, "could not give up the lease in time: it runs out by itself"),
        }
    }
}
