//! Errors of this room, and the questions every writer asks of an API error.

/// Why informers do not run.
#[derive(Debug, thiserror::Error)]
pub enum InformerError {
    /// Shutdown came before every informer had its first list.
    #[error("stopped while still waiting for the first list of {waiting_for}")]
    Stopped {
        /// Resource paths that had not synced.
        waiting_for: String,
    },
    /// The task of an informer panicked, most likely in a change handler.
    #[error("an informer task panicked: {0}")]
    Panicked(String),
}

/// Why one list or watch ended. Handled inside the room: logged, then retried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("cannot build the request")]
    Request(#[source] kube::core::request::Error),
    #[error("request failed")]
    Api(#[source] kube::Error),
    #[error("cannot read the answer")]
    Read(#[source] std::io::Error),
    #[error("the answer is longer than {limit} bytes")]
    TooLong { limit: u64 },
    #[error("the answer is not a Kubernetes document")]
    Decode(#[source] serde_json::Error),
    #[error("the answer has no metadata.resourceVersion to watch from")]
    NoResourceVersion,
    #[error("the server ended the watch: {message} ({code})")]
    Status { code: u16, message: String },
    #[error("no answer within {seconds} s")]
    Silent { seconds: u64 },
    #[error("the server ended the watch at once")]
    EndedAtOnce,
}

impl WatchError {
    /// The HTTP code of a refusal by the server.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Whether the object, or the resource itself, does not exist.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether the write lost against another one: a stale `resourceVersion` or a failed precondition.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
}

/// Whether an object of that name exists.
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}
