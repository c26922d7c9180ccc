//! What a plan is made from and made of.

use super::observed::Observed;
use super::probe::ProbeKind;
use super::status::Addresses;
use ambit_api::core::v1::{Pod, PodStatus};
use jiff::Timestamp;
use std::time::Duration;

/// What the plan is made from.
#[derive(Debug)]
pub struct Input<'a> {
    /// The pod as stored, or as last seen.
    pub pod: &'a Pod,
    /// Whether the pod is no longer stored.
    pub gone: bool,
    /// What the runtime shows.
    pub observed: Observed,
    /// The node's addresses.
    pub addresses: &'a Addresses,
    /// Wall-clock time.
    pub now: Timestamp,
}

/// A step to carry out, in the order of the list; after a failure the rest is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Prepare the volumes and make the sandbox.
    CreateSandbox {
        /// How many came before it.
        attempt: u32,
    },
    /// End a sandbox's processes and release its network.
    StopSandbox {
        /// Its id.
        id: String,
    },
    /// Remove a sandbox and its containers.
    RemoveSandbox {
        /// Its id.
        id: String,
    },
    /// Make and start a container in the current sandbox.
    StartContainer {
        /// Name in the pod.
        name: String,
        /// How many runs came before it.
        attempt: u32,
        /// The sandbox.
        sandbox: String,
    },
    /// Ask a container to end, and end it after `grace`. Adjacent ones are carried out together.
    KillContainer {
        /// Its id.
        id: String,
        /// Name in the pod.
        name: String,
        /// From the stop signal to the kill.
        grace: Duration,
        /// Why.
        reason: KillReason,
    },
    /// Remove an ended run and its log.
    RemoveContainer {
        /// Its id.
        id: String,
        /// Name in the pod.
        name: String,
        /// Which run.
        attempt: u32,
    },
    /// Unmount and remove the pod's volumes, directories and control group.
    CleanUp,
    /// Delete the stored pod, now, if it still has this uid.
    DeletePod,
}

/// Why a container is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    /// The pod is deleted or has ended.
    PodEnds,
    /// Its liveness or startup probe fails.
    Probe(ProbeKind),
    /// Its sandbox is gone.
    SandboxChanged,
}

/// Something to tell about as an event of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Machine-readable reason.
    pub reason: &'static str,
    /// Text.
    pub message: String,
    /// The container it is about.
    pub container: Option<String>,
}

/// A probe that has to be running.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeTask {
    /// Name in the pod.
    pub container: String,
    /// Id of the run.
    pub run: String,
    /// Which probe.
    pub kind: ProbeKind,
    /// When the run started.
    pub started: Timestamp,
}

/// What to do now.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// The status to write first, if it differs from the stored one.
    pub status: Option<PodStatus>,
    /// Then the steps.
    pub effects: Vec<Effect>,
    /// Events to record.
    pub notes: Vec<Note>,
    /// Probes that have to be running; all others have to be stopped.
    pub probes: Vec<ProbeTask>,
    /// When to plan again even if nothing happens.
    pub wake_at: Option<Timestamp>,
    /// Nothing of the pod is left.
    pub finished: bool,
}

/// What kind of step failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The image is not there and may be pulled, which failed.
    ImagePull,
    /// The image is not there and may not be pulled.
    ImageNeverPull,
    /// Its configuration refers to something missing or not served.
    Config,
    /// The runtime refused to make it.
    Create,
    /// The runtime failed to start it.
    Run,
}

/// A failed start of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which step.
    pub kind: FailureKind,
    /// What went wrong.
    pub message: String,
}

/// What came of an effect or a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The sandbox runs.
    SandboxCreated,
    /// The sandbox could not be made.
    SandboxFailed,
    /// The sandbox's network is released.
    SandboxStopped {
        /// Its id.
        id: String,
    },
    /// The container was started for the `attempt`th time.
    Started {
        /// Name in the pod.
        name: String,
        /// How many runs came before it.
        attempt: u32,
    },
    /// The container was not started.
    StartFailed {
        /// Name in the pod.
        name: String,
        /// Why.
        failure: Failure,
    },
    /// A probe ran.
    Probed {
        /// The probe.
        task: ProbeTask,
        /// Whether it passed.
        passed: bool,
    },
    /// Volumes and directories are gone.
    CleanedUp,
    /// The stored pod was deleted, or only waits for finalizers.
    Deleted,
}
