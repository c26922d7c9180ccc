//! The life of a pod: what is wanted and what the runtime shows → the next steps and the pod's status.

pub mod environment;
pub mod files;
mod life;
mod observed;
mod plan;
mod probe;
pub mod resources;
mod status;
mod support;
mod track;

pub use life::Life;
pub use observed::{Container, ContainerState, Observed, Sandbox};
pub use plan::{Effect, Failure, FailureKind, Input, KillReason, Note, Outcome, Plan, ProbeTask};
pub use probe::{ProbeKind, ProbeTiming, ProbeVerdict};
pub use status::{Addresses, truncate_to_second};
pub use support::unsupported;

use ambit_api::core::v1::{Container as Spec, Pod, PodSpec};
use std::time::Duration;

/// Grace of a pod that states none. Source: the API's default of `terminationGracePeriodSeconds`.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);

/// When a container that has ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whatever its exit code.
    Always,
    /// After a failure.
    OnFailure,
    /// Not at all.
    Never,
}

impl RestartPolicy {
    /// The pod's policy; `Always` unless stated.
    pub fn of(spec: &PodSpec) -> Self {
        match spec.restart_policy.as_deref() {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }

    /// Whether a container that ended with `exit_code` runs again.
    pub fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// The containers of a pod that run once, in order, before the others.
pub fn init_containers(spec: &PodSpec) -> &[Spec] {
    spec.init_containers.as_deref().unwrap_or_default()
}

/// The pod's specification, or an empty one.
pub(crate) fn spec_of(pod: &Pod) -> std::borrow::Cow<'_, PodSpec> {
    pod.spec.as_ref().map_or_else(Default::default, std::borrow::Cow::Borrowed)
}

/// How long the pod's containers may take to end once told to.
pub fn grace_of(pod: &Pod) -> Duration {
    let meta = pod.metadata.deletion_grace_period_seconds;
    let spec = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    meta.or(spec).map_or(GRACE_DEFAULT, |s| Duration::from_secs(s.max(0).unsigned_abs()))
}

/// Whether the pod shares the node's network.
pub fn is_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}

/// Whether the pod ended for good, as its stored status says.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
