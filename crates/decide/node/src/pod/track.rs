//! What is remembered of one container: its restarts, its last failed start, its probes.

use super::observed::{Container, ContainerState};
use super::plan::Failure;
use super::probe::{ProbeKind, ProbeTrack, ProbeVerdict};
use ambit_api::core::v1::Container as Spec;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Delay before the second restart of a container. Source: kubelet's crash-loop back-off.
pub(crate) const RESTART_DELAY: Duration = Duration::from_secs(10);
/// Longest delay between restarts.
pub(crate) const RESTART_DELAY_MAX: Duration = Duration::from_secs(300);
/// A container that was not restarted for this long starts over with the shortest delay.
const RESTART_FORGET: Duration = Duration::from_secs(600);
/// What is remembered of a container.
#[derive(Debug, Default)]
pub(crate) struct Track {
    pub(crate) run: String,
    pub(crate) probes: BTreeMap<ProbeKind, ProbeTrack>,
    delay: Option<(Duration, Timestamp)>,
    pub(crate) retry: Option<(Failure, Timestamp, u32)>,
    pub(crate) noted_attempt: Option<u32>,
}

impl Track {
    fn verdict(&self, kind: ProbeKind) -> ProbeVerdict {
        self.probes.get(&kind).map_or(ProbeVerdict::Undecided, |p| p.verdict)
    }

    /// Whether the startup probe, if any, has passed.
    pub(crate) fn has_started(&self, spec: &Spec) -> bool {
        spec.startup_probe.is_none() || self.verdict(ProbeKind::Startup) == ProbeVerdict::Passing
    }

    pub(crate) fn is_ready(&self, spec: &Spec) -> bool {
        let passing = self.verdict(ProbeKind::Readiness) == ProbeVerdict::Passing;
        self.has_started(spec) && (spec.readiness_probe.is_none() || passing)
    }

    /// The probe for whose sake the container has to be restarted.
    pub(crate) fn failing(&self, spec: &Spec) -> Option<ProbeKind> {
        [ProbeKind::Startup, ProbeKind::Liveness]
            .into_iter()
            .find(|kind| kind.of(spec).is_some() && self.verdict(*kind) == ProbeVerdict::Failing)
    }

    /// Until when an ended run is not followed by another.
    pub(crate) fn back_off_until(&self, run: &Container) -> Option<(Timestamp, Duration)> {
        let ContainerState::Exited { finished, .. } = run.state else { return None };
        self.delay.map(|(delay, _)| (finished + delay, delay))
    }

    pub(crate) fn count_restart(&mut self, now: Timestamp) {
        let expired = |since: Timestamp| now.duration_since(since).unsigned_abs() > RESTART_FORGET;
        let delay = match self.delay {
            Some((delay, since)) if !expired(since) => (delay * 2).min(RESTART_DELAY_MAX),
            _ => RESTART_DELAY,
        };
        self.delay = Some((delay, now));
    }
}
