//! Failures as the API reports them: a `Status` with code, reason, message and details.

use crate::memory::WriteError;
use ambit_schema::{FieldFault, ResourceType};
use ambit_store::{Compacted, Conflict, Revision};
use http::StatusCode;
use serde_json::{Value, json};

/// A request that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Value>,
    retry_after_seconds: Option<u32>,
}

/// A handler's answer.
pub(crate) type Answer<T> = Result<T, Failure>;

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, retry_after_seconds: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// No such object.
    pub(crate) fn not_found(kind: &ResourceType, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{} {name:?} not found", kind.group_resource()))
            .about(kind, name)
    }

    /// No such address below /api or /apis.
    pub(crate) fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: Some(json!({})), ..Self::new(StatusCode::NOT_FOUND, "NotFound", message) }
    }

    pub(crate) fn method_not_allowed(kind: &ResourceType, method: &str) -> Self {
        let message = format!("{method} is not supported on resources of kind {:?}", kind.group_resource());
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn not_acceptable(known: &str) -> Self {
        let message = format!("only the following media types are accepted: {known}");
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub(crate) fn already_exists(kind: &ResourceType, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.group_resource());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(kind, name)
    }

    pub(crate) fn conflict(kind: &ResourceType, name: &str, why: &str) -> Self {
        let resource = kind.group_resource();
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(kind, name)
    }

    /// The answer to a write that was based on an older state.
    pub(crate) fn modified(kind: &ResourceType, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// The list or watch starts before the history that is kept.
    pub(crate) fn expired(compacted: Compacted) -> Self {
        let Compacted { wanted, oldest } = compacted;
        Self::new(StatusCode::GONE, "Expired", format!("too old resource version: {wanted} ({oldest})"))
    }

    /// A continue token whose revision is gone.
    pub(crate) fn expired_continue() -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. \
            You must start a new list without the continue parameter.";
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// The client has seen a revision that this server has not.
    pub(crate) fn revision_too_large(wanted: Revision, newest: Revision) -> Self {
        let message = format!("Too large resource version: {wanted}, current: {newest}");
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        Self {
            details: Some(json!({"causes": [cause], "retryAfterSeconds": 1})),
            retry_after_seconds: Some(1),
            ..Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
        }
    }

    pub(crate) fn timeout() -> Self {
        let message = "the request could not be answered in time";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    pub(crate) fn too_large(bytes_max: usize) -> Self {
        let message = format!("Request entity too large: limit is {bytes_max}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub(crate) fn patch_too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// Fields of an object are wrong.
    pub(crate) fn invalid(kind: &ResourceType, name: &str, faults: &[FieldFault]) -> Self {
        let subject =
            if kind.group.is_empty() { kind.kind.clone() } else { format!("{}.{}", kind.kind, kind.group) };
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let text = match &texts[..] {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let cause =
            |f: &FieldFault| json!({"reason": f.kind.reason(), "message": f.body(), "field": f.path.clone()});
        let causes: Vec<Value> = faults.iter().map(cause).collect();
        let details = json!({"name": name, "group": kind.group, "kind": kind.kind, "causes": causes});
        let message = format!("{subject} {name:?} is invalid: {text}");
        Self { details: Some(details), ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message) }
    }

    /// Parameters of a list, watch or delete are wrong.
    pub(crate) fn invalid_options(kind: &str, field: &str, what: &str) -> Self {
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {field}: {what}");
        let cause = json!({"reason": "FieldValueInvalid", "message": what, "field": field});
        Self {
            details: Some(json!({"group": "meta.k8s.io", "kind": kind, "causes": [cause]})),
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
        }
    }

    /// A patch that cannot be applied to the object.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    /// Others own fields that an apply would change.
    pub(crate) fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        let details = Some(json!({"causes": causes}));
        Self { details, ..Self::new(StatusCode::CONFLICT, "Conflict", message) }
    }

    /// Something upstream has that is not here; says what.
    pub(crate) fn not_implemented(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let details = json!({"causes": [{"message": message.clone()}]});
        Self {
            details: Some(details),
            ..Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                format!("Internal error occurred: {message}"),
            )
        }
    }

    /// An eviction that a budget does not allow now.
    pub(crate) fn disruption(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    pub(crate) fn too_many_requests() -> Self {
        let message = "too many requests are being answered, please try again later";
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
        }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
        }
    }

    /// The answer for an outcome of the store.
    pub(crate) fn of_write(kind: &ResourceType, name: &str, error: WriteError) -> Self {
        match error {
            WriteError::Conflict(Conflict::Exists { .. }) => Self::already_exists(kind, name),
            WriteError::Conflict(Conflict::Missing { .. }) => Self::not_found(kind, name),
            WriteError::Conflict(Conflict::Changed { .. }) => Self::modified(kind, name),
            error => Self::of_store(error),
        }
    }

    /// The answer when the store does not do its work.
    pub(crate) fn of_store(error: WriteError) -> Self {
        let message = error.to_string();
        match error {
            WriteError::Full(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage", message)
            }
            WriteError::Uncertain(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message),
            WriteError::TooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
            }
            WriteError::Conflict(_) | WriteError::Failed(_) => Self::internal(message),
            WriteError::Unreachable(_) | WriteError::Overtaken(_) => Self::unavailable(message),
        }
    }

    /// Names the object the failure is about.
    pub(crate) fn about(mut self, kind: &ResourceType, name: &str) -> Self {
        self.details = Some(json!({"name": name, "group": kind.group, "kind": kind.plural}));
        self
    }

    /// Adds a cause to the details.
    pub(crate) fn cause(mut self, reason: &str, message: &str) -> Self {
        let details = self.details.get_or_insert_with(|| json!({}));
        details["causes"] = json!([{"reason": reason, "message": message}]);
        self
    }

    /// Tells the client when to try again.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self.details.get_or_insert_with(|| json!({}))["retryAfterSeconds"] = seconds.into();
        self
    }

    /// The word for what is wrong, by which clients tell failures apart.
    pub(crate) fn reason(&self) -> &'static str {
        self.reason
    }

    pub(crate) fn retry_after_seconds(&self) -> Option<u32> {
        self.retry_after_seconds
    }

    /// The failure as an object.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}
