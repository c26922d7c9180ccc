//! Errors of this room.

use ambit_kube::{InformerError, LeaderError};
use ambit_runtime::tasks::TaskError;

/// Why controllers stopped, or why one piece of work has to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Metrics cannot be served.
    #[error("cannot serve metrics on {address}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Nobody can be elected.
    #[error("cannot stand for leader of the controllers")]
    Leader(#[source] LeaderError),
    /// The informers stopped.
    #[error("the controllers' view of the cluster stopped")]
    Informers(#[source] InformerError),
    /// A controller stopped.
    #[error("a controller stopped")]
    Controller(#[source] Box<TaskError<Error>>),
    /// The API server refused, or did not answer.
    #[error("cannot {action} {object}")]
    Api {
        /// What was attempted.
        action: &'static str,
        /// On what.
        object: String,
        /// Why not.
        #[source]
        source: kube::Error,
    },
    /// Another object has the name that this controller needs; the next attempt takes another one.
    #[error("the name {name} is taken by another object")]
    NameTaken {
        /// The name.
        name: String,
    },
}

/// Adds what was attempted to an API error.
pub(crate) trait Attempt<T> {
    fn attempt(self, action: &'static str, object: impl std::fmt::Display) -> Result<T, Error>;
}

impl<T> Attempt<T> for Result<T, kube::Error> {
    fn attempt(self, action: &'static str, object: impl std::fmt::Display) -> Result<T, Error> {
        self.map_err(|source| Error::Api { action, object: object.to_string(), source })
    }
}

/// Treats "it is not there" as an answer.
pub(crate) fn unless_gone<T>(answer: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if ambit_kube::is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Treats "another object has that name" as an answer.
pub(crate) fn unless_exists<T>(answer: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if ambit_kube::is_already_exists(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the namespace is on its way out and takes nothing new: no reason to complain or to retry.
pub(crate) fn is_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let caused = |details: &kube::core::response::StatusDetails| {
        details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
    };
    status.code == 403 && status.details.as_ref().is_some_and(caused)
}
