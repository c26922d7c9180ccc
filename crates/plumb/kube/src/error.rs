//! Errors of this room, and the questions every writer asks of an API error.

use serde_json::Value;
use std::time::Duration;

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
    #[error("the server refused: {message} ({code})")]
    Refused {
        code: u16,
        message: String,
        /// What the server asked for.
        retry_after: Option<Duration>,
    },
    #[error(
        "the server's newest revision is {to}, though {from} has been seen: it has another history, as after a restore"
    )]
    WentBack { from: String, to: String },
    #[error("the server does not know this kind")]
    Absent,
    #[error("cannot read the answer")]
    Read(#[source] std::io::Error),
    #[error("the answer is longer than {limit} bytes")]
    TooLong { limit: u64 },
    #[error("the answer is not a Kubernetes document")]
    Decode(#[source] serde_json::Error),
    #[error("the answer has no metadata.resourceVersion to watch from")]
    NoResourceVersion,
    #[error("no answer within {seconds} s")]
    Silent { seconds: u64 },
    #[error("the stream ended before it had told the whole state")]
    StateCut,
    #[error(
        "the server has not marked the end of its state, as one does that does not know how to stream it"
    )]
    NoStateEnd,
    #[error("the server ended the watch at once")]
    EndedAtOnce,
}

impl WatchError {
    /// What a Status document says; `otherwise` where it has no message.
    pub(crate) fn of_status(status: &Value, otherwise: &str) -> Self {
        let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0);
        let message = status["message"].as_str().unwrap_or(otherwise).to_owned();
        let retry_after = status["details"]["retryAfterSeconds"].as_u64().map(Duration::from_secs);
        Self::Refused { code, message, retry_after }
    }

    /// The HTTP code of a refusal by the server.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// How long the server asked not to be asked again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
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
