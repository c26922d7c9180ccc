//! One request as handlers see it: who asks, for what, with which options and which body.

use crate::address::Query;
use crate::status::{Answer, Failure};
use ambit_schema::{
    FieldValidation, GroupVersionKind, Parsed, ProtobufError, ResourceType, decode_protobuf, parse_json,
    parse_yaml,
};
use ambit_store::Key;
use bytes::Bytes;
use http::{HeaderMap, Method, header};
use serde_json::Value;
use std::sync::Arc;

/// Length of a field manager's name at most. Source: metav1 FieldManagerMaxLength.
const FIELD_MANAGER_BYTES_MAX: usize = 128;

/// The group of administrators.
pub(crate) const MASTERS: &str = "system:masters";

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: Vec<(String, Vec<String>)>,
}

impl User {
    /// A user known by name and groups.
    pub(crate) fn new(name: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            name: name.into(),
            uid: String::new(),
            groups: groups.into_iter().map(Into::into).collect(),
            extra: Vec::new(),
        }
    }

    /// Whoever did not say who they are.
    pub(crate) fn anonymous() -> Self {
        Self::new("system:anonymous", ["system:unauthenticated"])
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == "system:anonymous"
    }

    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Whether this user may do all, whatever the bindings say: nobody can lock administrators out.
    pub(crate) fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }

    /// This user as bindings see it.
    pub(crate) fn subject(&self) -> ambit_access::User<'_> {
        ambit_access::User { name: &self.name, groups: &self.groups }
    }
}

/// A request, read completely.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) user: User,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Whether a write is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Write,
    /// Everything but the write (`dryRun=All`).
    DryRun,
}

impl Call {
    /// A header's text; empty when it is absent or not text.
    pub(crate) fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// The media type of the body, without parameters.
    pub(crate) fn content_type(&self) -> &str {
        self.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim()
    }

    /// The body as a value, by its media type. `expected` is the kind of a body that does not name its own.
    pub(crate) fn parsed_body(&self, expected: &GroupVersionKind) -> Answer<Parsed> {
        match self.content_type() {
            "" | "application/json" => {
                parse_json(&self.body).map_err(|e| Failure::bad_request(e.to_string()))
            }
            "application/yaml" | "application/x-yaml" | "text/yaml" => {
                let text = std::str::from_utf8(&self.body)
                    .map_err(|e| Failure::bad_request(format!("the body is not UTF-8: {e}")))?;
                parse_yaml(text).map_err(|e| Failure::bad_request(e.to_string()))
            }
            "application/vnd.kubernetes.protobuf" => match decode_protobuf(&self.body, expected) {
                Ok(value) => Ok(value.into()),
                Err(error @ ProtobufError::Kind(_)) => {
                    Err(Failure::unsupported_media_type(error.to_string()))
                }
                Err(error) => Err(Failure::bad_request(error.to_string())),
            },
            other => Err(Failure::unsupported_media_type(format!(
                "the body of the request was in an unknown format ({other}) - accepted media types include: \
                 application/json, application/yaml, application/vnd.kubernetes.protobuf"
            ))),
        }
    }

    /// The `dryRun` option.
    pub(crate) fn effect(&self) -> Answer<Effect> {
        let mut effect = Effect::Write;
        for value in self.query.values("dryRun").filter(|value| !value.is_empty()) {
            if value != "All" {
                let what = format!("Unsupported value: {value:?}: supported values: \"All\"");
                return Err(Failure::invalid_options("CreateOptions", "dryRun", &what));
            }
            effect = Effect::DryRun;
        }
        Ok(effect)
    }

    /// The `fieldValidation` option.
    pub(crate) fn field_validation(&self) -> Answer<FieldValidation> {
        let text = self.query.value("fieldValidation").unwrap_or_default();
        FieldValidation::parse(text).ok_or_else(|| {
            let what =
                format!("Unsupported value: {text:?}: supported values: \"Ignore\", \"Strict\", \"Warn\"");
            Failure::invalid_options("CreateOptions", "fieldValidation", &what)
        })
    }

    /// The name by which the client owns the fields it writes: the `fieldManager` option, or what its User-Agent begins
    /// with. Source: apiserver handlers managerOrUserAgent.
    pub(crate) fn field_manager(&self) -> Answer<String> {
        let manager = self.query.value("fieldManager").unwrap_or_default();
        if manager.len() > FIELD_MANAGER_BYTES_MAX || manager.chars().any(char::is_control) {
            let what = format!("must be at most {FIELD_MANAGER_BYTES_MAX} printable characters");
            return Err(Failure::invalid_options("CreateOptions", "fieldManager", &what));
        }
        if !manager.is_empty() {
            return Ok(manager.to_owned());
        }
        let agent = self.header(header::USER_AGENT).split('/').next().unwrap_or_default();
        // Header values that are text are printable ASCII, so that each character is a byte.
        Ok(agent.chars().filter(|c| !c.is_control()).take(FIELD_MANAGER_BYTES_MAX).collect())
    }
}

/// Which part of an object a write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The object, except its status.
    Main,
    /// Its status.
    Status,
    /// The finalizers in a namespace's specification.
    Finalize,
    /// All of it: for the server's own changes.
    Whole,
}

/// A collection or an object that a request is about.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) kind: Arc<ResourceType>,
    /// Empty: not namespaced, or all namespaces.
    pub(crate) namespace: String,
    /// Empty: the collection.
    pub(crate) name: String,
}

impl Target {
    /// An object.
    pub(crate) fn new(kind: &Arc<ResourceType>, namespace: &str, name: &str) -> Self {
        Self { kind: kind.clone(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Where the object is stored.
    pub(crate) fn key(&self) -> Key {
        Key::new(collection(&self.kind), self.namespace.as_str(), self.name.as_str())
    }
}

/// The collection that holds a resource's objects. Resources that share their objects share it.
pub(crate) fn collection(kind: &ResourceType) -> Arc<str> {
    if kind.stored_as.group.is_empty() {
        Arc::from(kind.stored_plural.as_str())
    } else {
        Arc::from(format!("{}/{}", kind.stored_as.group, kind.stored_plural))
    }
}

/// A text field by JSON pointer; empty when it is absent.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
