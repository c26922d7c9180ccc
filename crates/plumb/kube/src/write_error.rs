//! Why something was not written, so that its writer can tell what to do.

use crate::error::{is_conflict, is_not_found};
use crate::leader::LeaseLost;
use std::fmt;

/// What is attempted on what.
pub(crate) struct Attempt<'a> {
    pub(crate) verb: Verb,
    pub(crate) object: &'a str,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Read,
    Apply,
    ApplyStatus,
    Delete,
}

impl Verb {
    /// For errors.
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Apply => "apply",
            Self::ApplyStatus => "write the status of",
            Self::Delete => "delete",
        }
    }

    /// For metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Apply => "apply",
            Self::ApplyStatus => "apply_status",
            Self::Delete => "delete",
        }
    }
}

/// Why something was not written. Each may be tried again by the caller's queue; only [`WriteError::Owned`] and
/// [`WriteError::Taken`] want a person or a decision first.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// What is wanted cannot be sent.
    #[error("cannot apply {object}: {fault}")]
    Unfit {
        /// What was to be written.
        object: String,
        /// What is wrong with it.
        fault: String,
    },
    /// Others own fields that are to have another value.
    #[error("cannot {action} {object}: {}", listed(.fields))]
    Owned {
        /// What was attempted.
        action: &'static str,
        /// On what.
        object: String,
        /// The fields and who owns them.
        fields: Vec<ForeignField>,
    },
    /// An object of that name exists and is not of the set.
    #[error("cannot apply {object}: an object of that name exists and is not of the set {set}")]
    Taken {
        /// What was to be written.
        object: String,
        /// The set that it is to be in.
        set: String,
    },
    /// The object has changed, or is another one of the same name.
    #[error("cannot {action} {object}: it has changed since it was looked at")]
    Stale {
        /// What was attempted.
        action: &'static str,
        /// On what.
        object: String,
        /// What the server says; none if the change was seen before anything was written.
        #[source]
        source: Option<Box<kube::Error>>,
    },
    /// The object, or its kind, is not there.
    #[error("cannot {action} {object}: it is not there")]
    Gone {
        /// What was attempted.
        action: &'static str,
        /// On what.
        object: String,
    },
    /// The lease of the writer is not held any more. It may be that a write that had begun is carried out.
    #[error("cannot {action} {object}: this replica does not lead any more")]
    LeaseLost {
        /// What was attempted.
        action: &'static str,
        /// On what.
        object: String,
        /// Which lease.
        #[source]
        source: Box<kube::Error>,
    },
    /// The server did not answer in time.
    #[error("cannot {action} {object}: the server does not answer")]
    NoAnswer {
        /// What was attempted.
        action: &'static str,
        /// On what.
        object: String,
    },
    /// The server refused, or could not be reached.
    #[error("cannot {action} {object}")]
    Refused {
        /// What was attempted.
        action: &'static str,
        /// On what.
        object: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

/// A field that somebody else owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignField {
    /// Path of the field, such as `.spec.replicas`.
    pub field: String,
    /// Name of its manager.
    pub manager: String,
}

impl fmt::Display for ForeignField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is owned by {:?}", self.field, self.manager)
    }
}

fn listed(fields: &[ForeignField]) -> String {
    fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl WriteError {
    /// What an answer of the server means.
    pub(crate) fn of(error: kube::Error, what: &Attempt<'_>) -> Self {
        let (action, object) = (what.verb.action(), what.object.to_owned());
        let fields = foreign_fields(&error);
        let source = Box::new(error);
        match source.as_ref() {
            _ if !fields.is_empty() => Self::Owned { action, object, fields },
            error if is_not_found(error) => Self::Gone { action, object },
            error if is_conflict(error) => Self::Stale { action, object, source: Some(source) },
            kube::Error::Service(cause) if cause.is::<LeaseLost>() => {
                Self::LeaseLost { action, object, source }
            }
            _ => Self::Refused { action, object, source },
        }
    }

    /// For metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Unfit { .. } => "unfit",
            Self::Owned { .. } => "owned",
            Self::Taken { .. } => "taken",
            Self::Stale { .. } => "stale",
            Self::Gone { .. } => "gone",
            Self::LeaseLost { .. } => "lease_lost",
            Self::NoAnswer { .. } => "no_answer",
            Self::Refused { .. } => "refused",
        }
    }
}

/// The fields that a conflict names. Source: apimachinery, `managedfields.NewConflictError`: each cause has the field, and
/// the manager in quotes in its message.
fn foreign_fields(error: &kube::Error) -> Vec<ForeignField> {
    let kube::Error::Api(status) = error else { return Vec::new() };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let conflicts = causes.filter(|cause| cause.reason == "FieldManagerConflict");
    let field = |cause: &kube::core::response::StatusCause| ForeignField {
        field: cause.field.clone(),
        manager: cause.message.split('"').nth(1).unwrap_or_default().to_owned(),
    };
    conflicts.map(field).collect()
}
