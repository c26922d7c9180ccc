//! What can go wrong in the agent.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A failure of the agent, or of one pod's enrollment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not enough rights.
    #[error(
        "the node agent needs root: it enters the network namespaces of pods and changes their packet rules"
    )]
    NotRoot,
    /// A right is missing without which no agent works.
    #[error(
        "the node agent lacks {capability}, which it needs for {reason}: give it to its container or process"
    )]
    Lacks {
        /// The right.
        capability: ambit_linux::capability::Capability,
        /// What for.
        reason: &'static str,
    },
    /// The kernel lacks something or refused something.
    #[error("cannot {attempt}")]
    Kernel {
        /// What was attempted, on what: completes "cannot …".
        attempt: String,
        /// The cause.
        #[source]
        source: ambit_linux::Error,
    },
    /// A socket cannot be listened on.
    #[error("cannot listen on {address} for {purpose}")]
    Listen {
        /// Path or address.
        address: String,
        /// What it is for.
        purpose: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A directory cannot be made.
    #[error("cannot make the directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The API server's objects cannot be watched.
    #[error("cannot watch pods and namespaces")]
    Watch(#[from] ambit_kube::InformerError),
    /// The pod is not known to the API server's watch yet, or belongs to another node.
    #[error("pod {pod} is not known on this node")]
    PodUnknown {
        /// `namespace/name`.
        pod: String,
    },
    /// The pod's namespace is not known yet.
    #[error("the namespace of pod {pod} is not known yet")]
    NamespaceUnknown {
        /// `namespace/name`.
        pod: String,
    },
    /// A foreign plugin asked for a pod that should not be captured.
    #[error("pod {pod} is not to be captured: {reason}")]
    NotEligible {
        /// `namespace/name`.
        pod: String,
        /// Why.
        reason: String,
    },
    /// The plugin's event has no address, so that nothing proves whose namespace it is.
    #[error("the event for pod {pod} names no address")]
    NoAddress {
        /// `namespace/name`.
        pod: String,
    },
    /// A namespace holds none of the pod's addresses.
    #[error("the network namespace found for pod {pod} holds none of its addresses {addresses:?}")]
    NotThePods {
        /// `namespace/name`.
        pod: String,
        /// The pod's addresses.
        addresses: Vec<IpAddr>,
    },
    /// No process of the pod runs.
    #[error("no process of pod {pod} was found below {}", proc_root.display())]
    NoProcess {
        /// `namespace/name`.
        pod: String,
        /// Where processes were looked for.
        proc_root: PathBuf,
    },
    /// Two namespaces could be the pod's.
    #[error(
        "processes of pod {pod} live in two network namespaces that hold its address, {} and {}: \
         end those that do not belong to it",
        namespaces[0], namespaces[1]
    )]
    TwoNamespaces {
        /// `namespace/name`.
        pod: String,
        /// The namespaces.
        namespaces: [String; 2],
    },
    /// The proxy did not take the pod over.
    #[error("pod {pod} was not handed over to the node proxy: {problem}")]
    HandOver {
        /// `namespace/name`.
        pod: String,
        /// Why.
        problem: String,
    },
    /// A pod that should be captured is not.
    #[error("pod {pod} is not captured: {problem}")]
    NotCaptured {
        /// `namespace/name`.
        pod: String,
        /// What is missing.
        problem: String,
    },
    /// The pod's annotation was not written.
    #[error("the capture state of pod {pod} cannot be written to its annotation")]
    Annotate {
        /// `namespace/name`.
        pod: String,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// Pods could not be released at the stop.
    #[error("pods are still captured: {}; delete them, or uninstall again", pods.join(", "))]
    StillCaptured {
        /// `namespace/name` of each.
        pods: Vec<String>,
    },
    /// A file of the CNI configuration or the plugin cannot be read or written.
    #[error("cannot {attempt} {}", path.display())]
    File {
        /// What was attempted: completes "cannot … PATH".
        attempt: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The runtime's configuration cannot be edited.
    #[error("cannot put the mesh's plugin into the CNI configuration in {}", directory.display())]
    Edit {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        #[source]
        source: ambit_cni_conf::ListError,
    },
    /// Something took too long.
    #[error("{what} took longer than {} s", limit.as_secs())]
    Deadline {
        /// What.
        what: String,
        /// How long it was allowed to take.
        limit: Duration,
    },
    /// The descriptors that are left are kept for the agent's sockets.
    #[error(
        "the node agent has {open} of {limit} files open and keeps the last {kept_free} free for its sockets: raise its limit \
         of open files (LimitNOFILE=, or the runtime's default ulimit), or run fewer pods on this node"
    )]
    Descriptors {
        /// Open files.
        open: u64,
        /// How many may be open.
        limit: u64,
        /// How many of them are kept free.
        kept_free: u64,
    },
    /// The agent has too much to do, or stops.
    #[error("the agent is {state} and takes no more work")]
    Unavailable {
        /// Why.
        state: &'static str,
    },
    /// A task of the agent ended.
    #[error("the agent stopped working")]
    Task(#[source] Box<ambit_runtime::tasks::TaskError<Error>>),
}

impl Error {
    pub(crate) fn file(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::File { attempt, path: path.to_owned(), source }
    }

    pub(crate) fn kernel(attempt: impl Into<String>) -> impl FnOnce(ambit_linux::Error) -> Error {
        let attempt = attempt.into();
        move |source| Error::Kernel { attempt, source }
    }
}

/// An error and its causes in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
