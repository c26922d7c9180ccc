//! What can be wrong with an object, in the words that Kubernetes clients know.

use std::fmt;

use serde_json::Value;

use crate::path::Path;

/// The kind of a fault; maps to the reason of a cause in a `Status`. Source: apimachinery `field.ErrorType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A value that must be given is missing.
    Required,
    /// A value is malformed, out of range or may not change.
    Invalid,
    /// A value is none of the known ones.
    NotSupported,
    /// A field may not be set here.
    Forbidden,
    /// Two items that must differ are equal.
    Duplicate,
    /// A value is too long.
    TooLong,
    /// A list or map has too many items.
    TooMany,
    /// A value has the wrong JSON type.
    TypeInvalid,
    /// Something that the value names does not exist.
    NotFound,
}

impl FaultKind {
    /// The words that begin the message of such a fault.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            FaultKind::Required => "Required value",
            FaultKind::Invalid | FaultKind::TypeInvalid => "Invalid value",
            FaultKind::NotSupported => "Unsupported value",
            FaultKind::Forbidden => "Forbidden",
            FaultKind::Duplicate => "Duplicate value",
            FaultKind::TooLong => "Too long",
            FaultKind::TooMany => "Too many",
            FaultKind::NotFound => "Not found",
        }
    }

    /// The `reason` of the cause in a `Status`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            FaultKind::Required => "FieldValueRequired",
            FaultKind::Invalid => "FieldValueInvalid",
            FaultKind::NotSupported => "FieldValueNotSupported",
            FaultKind::Forbidden => "FieldValueForbidden",
            FaultKind::Duplicate => "FieldValueDuplicate",
            FaultKind::TooLong => "FieldValueTooLong",
            FaultKind::TooMany => "FieldValueTooMany",
            FaultKind::TypeInvalid => "FieldValueTypeInvalid",
            FaultKind::NotFound => "FieldValueNotFound",
        }
    }
}

/// One thing that is wrong with one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldFault {
    /// The field, as in `spec.containers[0].name`.
    pub path: String,
    /// What sort of fault it is.
    pub kind: FaultKind,
    /// What is wrong and what would be right; may be empty.
    pub message: String,
    /// The offending value, where showing it helps.
    pub bad_value: Option<Value>,
}

impl FieldFault {
    /// The fault without its path: the `message` of the cause in a `Status`.
    #[must_use]
    pub fn body(&self) -> String {
        let mut out = self.kind.text().to_owned();
        if let Some(value) = &self.bad_value {
            out.push_str(": ");
            out.push_str(&value.to_string());
        }
        if !self.message.is_empty() {
            out.push_str(": ");
            out.push_str(&self.message);
        }
        out
    }
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// Gathers faults while an object is walked.
#[derive(Default)]
pub(crate) struct Faults(Vec<FieldFault>);

impl Faults {
    /// Faults reported per object at most; the rest would help nobody and a hostile object could have millions.
    const COUNT_MAX: usize = 200;

    fn push(&mut self, path: &Path<'_>, kind: FaultKind, bad_value: Option<Value>, message: String) {
        if self.0.len() < Self::COUNT_MAX {
            self.0.push(FieldFault { path: path.to_string(), kind, message, bad_value });
        }
    }

    /// A fault at a path that is text already.
    pub(crate) fn at(&mut self, path: String, kind: FaultKind, message: String) {
        if self.0.len() < Self::COUNT_MAX {
            self.0.push(FieldFault { path, kind, message, bad_value: None });
        }
    }

    pub(crate) fn required(&mut self, path: &Path<'_>, message: impl Into<String>) {
        self.push(path, FaultKind::Required, None, message.into());
    }

    pub(crate) fn invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, message: impl Into<String>) {
        self.push(path, FaultKind::Invalid, Some(value.into()), message.into());
    }

    pub(crate) fn type_invalid(
        &mut self,
        path: &Path<'_>,
        value: impl Into<Value>,
        message: impl Into<String>,
    ) {
        self.push(path, FaultKind::TypeInvalid, Some(value.into()), message.into());
    }

    pub(crate) fn forbidden(&mut self, path: &Path<'_>, message: impl Into<String>) {
        self.push(path, FaultKind::Forbidden, None, message.into());
    }

    pub(crate) fn duplicate(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.push(path, FaultKind::Duplicate, Some(value.into()), String::new());
    }

    pub(crate) fn not_found(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.push(path, FaultKind::NotFound, Some(value.into()), String::new());
    }

    pub(crate) fn too_long(&mut self, path: &Path<'_>, bytes_max: usize) {
        self.push(path, FaultKind::TooLong, None, format!("may not be more than {bytes_max} bytes"));
    }

    pub(crate) fn too_many(&mut self, path: &Path<'_>, count: usize, count_max: usize) {
        let message = format!("must have at most {count_max} items");
        self.push(path, FaultKind::TooMany, Some(count.into()), message);
    }

    pub(crate) fn not_supported<'v>(
        &mut self,
        path: &Path<'_>,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = &'v Value>,
    ) {
        let mut supported: Vec<String> = supported.into_iter().map(Value::to_string).collect();
        supported.sort();
        let message = format!("supported values: {}", supported.join(", "));
        self.push(path, FaultKind::NotSupported, Some(value.into()), message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_vec(self) -> Vec<FieldFault> {
        self.0
    }
}
