//! Probe results: thresholds and verdicts.

use ambit_api::core::v1::{Container, Probe};
use std::time::Duration;

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// Holds back the other two until it has passed.
    Startup,
    /// A failing container is started again.
    Liveness,
    /// A failing container gets no traffic.
    Readiness,
}

impl ProbeKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// The container's probe of this kind.
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }

    /// The word in events: `Readiness probe failed: …`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// When a probe runs. Source: the API's defaults of `Probe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeTiming {
    /// From the container's start to the first run.
    pub initial_delay: Duration,
    /// Between two runs.
    pub period: Duration,
    /// One run at most.
    pub timeout: Duration,
}

impl ProbeTiming {
    /// The timing of a probe.
    pub fn of(probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, default: u64| {
            let value = value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0);
            Duration::from_secs(value.unwrap_or(default))
        };
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
        }
    }
}

/// What a probe's runs so far amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeVerdict {
    /// Too few runs.
    Undecided,
    /// Enough successes in a row.
    Passing,
    /// Enough failures in a row.
    Failing,
}

/// The runs of one probe of one container run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProbeTrack {
    pub(crate) verdict: ProbeVerdict,
    in_a_row: i32,
    last_passed: bool,
}

impl Default for ProbeTrack {
    fn default() -> Self {
        Self { verdict: ProbeVerdict::Undecided, in_a_row: 0, last_passed: false }
    }
}

impl ProbeTrack {
    /// Takes one more run into account.
    pub(crate) fn record(&mut self, probe: &Probe, passed: bool) {
        self.in_a_row = if passed == self.last_passed { self.in_a_row.saturating_add(1) } else { 1 };
        self.last_passed = passed;
        let (threshold, verdict) = if passed {
            (probe.success_threshold.unwrap_or(1), ProbeVerdict::Passing)
        } else {
            (probe.failure_threshold.unwrap_or(3), ProbeVerdict::Failing)
        };
        if self.in_a_row >= threshold.max(1) {
            self.verdict = verdict;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(success: i32, failure: i32, runs: &str, expected: &[ProbeVerdict]) {
        let probe =
            Probe { success_threshold: Some(success), failure_threshold: Some(failure), ..Probe::default() };
        let mut track = ProbeTrack::default();
        let verdicts: Vec<_> = runs
            .chars()
            .map(|c| {
                track.record(&probe, c == '+');
                track.verdict
            })
            .collect();
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn verdicts_need_runs_in_a_row() {
        use ProbeVerdict::{Failing as F, Passing as P, Undecided as U};
        check(1, 3, "+--+---+", &[P, P, P, P, P, P, F, P]);
        check(2, 1, "+-++", &[U, F, F, P]);
        check(1, 2, "--", &[U, F]);
        check(0, 0, "-+", &[F, P]);
    }

    #[test]
    fn timing_has_the_api_defaults_and_ignores_nonsense() {
        let s = Duration::from_secs;
        let timing = |i, p, t| {
            ProbeTiming::of(&Probe {
                initial_delay_seconds: i,
                period_seconds: p,
                timeout_seconds: t,
                ..Probe::default()
            })
        };
        let defaults = ProbeTiming { initial_delay: s(0), period: s(10), timeout: s(1) };
        assert_eq!(timing(None, None, None), defaults);
        assert_eq!(timing(Some(-1), Some(0), Some(-5)), defaults);
        let set = ProbeTiming { initial_delay: s(2), period: s(3), timeout: s(4) };
        assert_eq!(timing(Some(2), Some(3), Some(4)), set);
    }
}
