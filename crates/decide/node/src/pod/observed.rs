//! What the container runtime shows of one pod.

use ambit_api::core::v1::{ContainerStatus, Pod};
use jiff::Timestamp;
use std::net::IpAddr;

/// Exit code of a container that nobody can tell about any more. Source: kubelet, `ContainerStatusUnknown`.
const EXIT_UNKNOWN: i32 = 137;

/// Everything the runtime has of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Containers of all sandboxes, newest first.
    pub containers: Vec<Container>,
}

/// A sandbox: the network namespace and the pause process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Id in the runtime.
    pub id: String,
    /// How many came before it.
    pub attempt: u32,
    /// Whether its process and network are there.
    pub ready: bool,
    /// Addresses; none with the node's own network.
    pub ips: Vec<IpAddr>,
}

/// One run of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Id in the runtime.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// How many runs came before it.
    pub attempt: u32,
    /// Id of its sandbox.
    pub sandbox: String,
    /// Image as the pod names it.
    pub image: String,
    /// Image by digest.
    pub image_id: String,
    /// How far it is.
    pub state: ContainerState,
}

/// How far a run of a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// Made, not started.
    Created,
    /// Running.
    Running {
        /// Since when.
        started: Timestamp,
    },
    /// Ended.
    Exited {
        /// When it started.
        started: Option<Timestamp>,
        /// When it ended.
        finished: Timestamp,
        /// With which code.
        code: i32,
        /// The runtime's one-word reason.
        reason: String,
        /// Text the container or the runtime left.
        message: String,
    },
}

impl Container {
    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. })
    }

    /// Its exit code, if it ended.
    pub fn exit_code(&self) -> Option<i32> {
        match self.state {
            ContainerState::Exited { code, .. } => Some(code),
            _ => None,
        }
    }
}

impl Observed {
    /// The sandbox that the pod's containers run in.
    pub fn current(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    /// The newest run of a container.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// All runs of a container, newest first.
    pub fn runs<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Container> {
        self.containers.iter().filter(move |c| c.name == name)
    }

    /// Whether anything still runs.
    pub fn has_running(&self) -> bool {
        self.containers.iter().any(Container::is_running)
    }

    /// Adds the runs that only the stored status knows: the runtime has lost them, with its sandbox or at a reboot.
    pub fn with_remembered(mut self, pod: &Pod, now: Timestamp) -> Self {
        let status = pod.status.as_ref();
        let app = status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
        let init = status.and_then(|s| s.init_container_statuses.as_ref()).into_iter().flatten();
        let lost: Vec<_> = app
            .chain(init)
            .filter(|s| self.newest(&s.name).is_none())
            .filter_map(|s| remember(s, now))
            .collect();
        self.containers.extend(lost);
        self
    }
}

/// The run that a stored container status speaks of, as ended.
fn remember(status: &ContainerStatus, now: Timestamp) -> Option<Container> {
    let state = status.state.as_ref()?;
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    let ended = state.terminated.as_ref().or(last.filter(|_| state.running.is_none()));
    let exited = match (ended, &state.running) {
        (Some(t), _) => ContainerState::Exited {
            started: t.started_at.as_ref().map(|t| t.0),
            finished: t.finished_at.as_ref().map_or(now, |t| t.0),
            code: t.exit_code,
            reason: t.reason.clone().unwrap_or_default(),
            message: t.message.clone().unwrap_or_default(),
        },
        (None, Some(running)) => ContainerState::Exited {
            started: running.started_at.as_ref().map(|t| t.0),
            finished: now,
            code: EXIT_UNKNOWN,
            reason: "ContainerStatusUnknown".to_owned(),
            message: "The container could not be located when the pod was terminated".to_owned(),
        },
        (None, None) => return None,
    };
    let id = ended.and_then(|t| t.container_id.as_ref()).or(status.container_id.as_ref())?;
    Some(Container {
        id: id.rsplit("://").next().unwrap_or(id).to_owned(),
        name: status.name.clone(),
        attempt: u32::try_from(status.restart_count).unwrap_or_default(),
        sandbox: String::new(),
        image: status.image.clone(),
        image_id: status.image_id.clone(),
        state: exited,
    })
}
