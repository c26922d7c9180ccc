//! One pod's worker: look, plan, carry out, wait.

use super::effects::{self, Scene};
use super::materials::Tokens;
use super::probes::{ProbeResult, Probes};
use super::{observe, status_patch, volumes};
use crate::context::{Context, Event, identity};
use crate::error::Error;
use ambit_api::core::v1::{Pod, PodStatus};
use ambit_node_plan::pod::{Effect, Input, Life, Observed, Outcome, Plan, is_host_network};
use ambit_runtime::Shutdown;
use jiff::Timestamp;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

/// Between two looks when nothing happens; also how soon changed ConfigMaps, Secrets and tokens reach their files.
const RESYNC: Duration = Duration::from_secs(30);
/// After a step failed that has no delay of its own.
const RETRY: Duration = Duration::from_secs(1);

/// What is wanted of a pod.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pod: Arc<Pod>,
    gone: bool,
}

impl Wanted {
    pub(super) fn stored(pod: Arc<Pod>) -> Self {
        Self { pod, gone: false }
    }

    pub(super) fn gone(pod: Pod) -> Self {
        Self { pod: Arc::new(pod), gone: true }
    }

    /// Takes what is stored now; whether that is a change.
    pub(super) fn update(&mut self, stored: Option<&Arc<Pod>>) -> bool {
        match stored {
            Some(pod) if !Arc::ptr_eq(pod, &self.pod) => *self = Self::stored(Arc::clone(pod)),
            None if !self.gone => self.gone = true,
            _ => return false,
        }
        true
    }
}

/// Runs one pod from its first appearance until nothing of it is left.
pub(super) struct Worker {
    context: Arc<Context>,
    wanted: watch::Receiver<Wanted>,
    poke: Arc<Notify>,
    pod: Arc<Pod>,
    life: Life,
    probes: Probes,
    tokens: Tokens,
    files_due: Option<Timestamp>,
}

/// What made the worker look again.
enum Woken {
    Change,
    Probe(ProbeResult),
    Shutdown,
}

impl Worker {
    pub(super) fn new(context: Arc<Context>, wanted: watch::Receiver<Wanted>, poke: Arc<Notify>) -> Self {
        let pod = Arc::clone(&wanted.borrow().pod);
        Self {
            context,
            wanted,
            poke,
            pod,
            life: Life::default(),
            probes: Probes::new(),
            tokens: Tokens::default(),
            files_due: None,
        }
    }

    /// Works until nothing of the pod is left, or until `shutdown`, which leaves the pod as it is.
    pub(super) async fn run(mut self, shutdown: Shutdown) {
        loop {
            let round = tokio::select! {
                // Every step is safe to be dropped: the next process looks at what the runtime has.
                round = self.round() => round,
                () = shutdown.cancelled() => return,
            };
            let wait = match round {
                Ok(Some(wait)) => wait,
                Ok(None) => return,
                Err(error) => {
                    let (namespace, name, _) = identity(&self.pod);
                    warn!(pod = %format!("{namespace}/{name}"), error = %error.full_text(), "a step of a pod failed");
                    RETRY
                }
            };
            match self.wait(wait, &shutdown).await {
                Woken::Change => {}
                Woken::Probe(result) => self.record_probe(result),
                Woken::Shutdown => return,
            }
        }
    }

    async fn wait(&mut self, at_most: Duration, shutdown: &Shutdown) -> Woken {
        // All arms are cancel safe.
        tokio::select! {
            () = self.poke.notified() => Woken::Change,
            // The sender lives in the manager, which joins this worker before it goes.
            _ = self.wanted.changed() => Woken::Change,
            result = self.probes.next() => Woken::Probe(result),
            () = tokio::time::sleep(at_most) => Woken::Change,
            () = shutdown.cancelled() => Woken::Shutdown,
        }
    }

    fn record_probe(&mut self, result: ProbeResult) {
        if let Err(message) = &result.outcome {
            let text = format!("{} probe failed: {message}", result.task.kind.word());
            self.context.event(&self.pod, Some(&result.task.container), Event::warning("Unhealthy", text));
        }
        let outcome = Outcome::Probed { task: result.task, passed: result.outcome.is_ok() };
        self.record(outcome);
    }

    fn record(&mut self, outcome: Outcome) {
        self.life.record(&self.pod, outcome, self.context.clock.timestamp());
    }

    /// One look and what follows from it; how long to wait, or `None` when nothing of the pod is left.
    async fn round(&mut self) -> Result<Option<Duration>, Error> {
        let wanted = self.wanted.borrow_and_update().clone();
        self.adopt(&wanted.pod);
        let observed = observe::observe(&self.context, &self.pod).await?;
        let now = self.context.clock.timestamp();
        let pod_ips = self.pod_ips(&observed);
        let plan = self.life.plan(Input {
            pod: &self.pod,
            gone: wanted.gone,
            observed,
            addresses: &self.context.addresses,
            now,
        });
        self.tell(&plan);
        if let Some(status) = &plan.status {
            self.write_status(status).await?;
        }
        self.probes.reconcile(&self.context, &self.pod, pod_ips.first().copied(), &plan.probes);
        if plan.finished {
            let (namespace, name, uid) = identity(&self.pod);
            info!(namespace, name, uid, "ended a pod");
            return Ok(None);
        }
        if !plan.effects.is_empty() {
            return self.carry_out(&plan.effects, &pod_ips).await.map(Some);
        }
        if !wanted.gone {
            self.refresh_files(now, &pod_ips).await;
        }
        let until = plan.wake_at.map(|at| at.duration_since(self.context.clock.timestamp()));
        let until = until.map(|d| Duration::try_from(d).unwrap_or_default());
        Ok(Some(until.unwrap_or(RESYNC).min(RESYNC)))
    }

    /// Takes the stored pod, unless the answer to the last write is newer than what the watch has told so far.
    fn adopt(&mut self, stored: &Arc<Pod>) {
        let revision = |pod: &Pod| pod.metadata.resource_version.as_ref()?.parse::<u64>().ok();
        if revision(stored) >= revision(&self.pod) || stored.metadata.resource_version.is_none() {
            self.pod = Arc::clone(stored);
        }
    }

    fn pod_ips(&self, observed: &Observed) -> Vec<IpAddr> {
        if is_host_network(&self.pod) {
            return self.context.addresses.0.clone();
        }
        observed.current().map(|sandbox| sandbox.ips.clone()).unwrap_or_default()
    }

    fn tell(&self, plan: &Plan) {
        for note in &plan.notes {
            let event = Event::warning(note.reason, note.message.clone());
            self.context.event(&self.pod, note.container.as_deref(), event);
        }
    }

    async fn write_status(&mut self, status: &PodStatus) -> Result<(), Error> {
        if let Some(stored) = status_patch::write(&self.context, &self.pod, status).await? {
            self.pod = Arc::new(stored);
        }
        Ok(())
    }

    /// Carries out the steps in order; how long to wait before the next look.
    async fn carry_out(&mut self, steps: &[Effect], pod_ips: &[IpAddr]) -> Result<Duration, Error> {
        let (kills, others): (Vec<_>, Vec<_>) =
            steps.iter().cloned().partition(|e| matches!(e, Effect::KillContainer { .. }));
        if !kills.is_empty() {
            let (context, pod) = (Arc::clone(&self.context), Arc::clone(&self.pod));
            tokio::select! {
                ended = effects::kill(&context, &pod, &kills) => ended?,
                // A deletion with a shorter grace plans the kills anew. Both arms are cancel safe.
                _ = self.wanted.wait_for(|wanted| hastens(wanted, &pod)) => {}
            }
        }
        for step in others {
            debug!(pod = %identity(&self.pod).1, ?step, "carrying out a step");
            let pod = Arc::clone(&self.pod);
            let context = Arc::clone(&self.context);
            let mut scene = Scene { context: &context, pod: &pod, pod_ips, tokens: &mut self.tokens };
            let outcome = scene.carry_out(&step).await?;
            if let Some(outcome) = outcome {
                self.record(outcome);
            }
        }
        Ok(Duration::ZERO)
    }

    /// Brings the files of volumes up to date when it is time.
    async fn refresh_files(&mut self, now: Timestamp, pod_ips: &[IpAddr]) {
        let period = jiff::SignedDuration::try_from(RESYNC).unwrap_or(jiff::SignedDuration::ZERO);
        let due = self.files_due.get_or_insert(now + period);
        if now < *due || pod_ips.is_empty() || !volumes::has_files(&self.pod) {
            return;
        }
        *due = now + period;
        if let Err(error) = volumes::prepare(&self.context, &self.pod, pod_ips, &mut self.tokens).await {
            self.context.event(&self.pod, None, Event::warning("FailedMount", error.to_string()));
        }
    }
}

/// Whether what is wanted now ends the pod sooner than `pod` said.
fn hastens(wanted: &Wanted, pod: &Pod) -> bool {
    let grace = |pod: &Pod| pod.metadata.deletion_grace_period_seconds.unwrap_or(i64::MAX);
    wanted.gone || grace(&wanted.pod) < grace(pod)
}
