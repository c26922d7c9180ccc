//! Which objects of a kind an informer holds, and how much of them.

use crate::keep::Keep;
use kube::api::{ListParams, WatchParams};

/// Objects per page of a list, as client-go asks for: bounds what one answer makes the server encode.
pub(crate) const PAGE_OBJECTS: u32 = 500;

/// Seconds after which the server ends a watch by itself; its silence past this means a dead connection.
pub(crate) const WATCH_SECONDS: u32 = 290;

/// Which objects of a kind an informer holds, and which of their fields. Equal queries share one informer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Query {
    namespace: Option<String>,
    labels: Option<String>,
    fields: Option<String>,
    keep: Keep,
}

impl Query {
    /// Every object of the kind, in all namespaces.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only objects of this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only objects that this label selector takes, such as `a=b,c!=d`.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only objects that this field selector takes, such as `spec.nodeName=x`.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Holds only these fields of each object.
    #[must_use]
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// The fields that are held.
    pub(crate) fn kept(&self) -> &Keep {
        &self.keep
    }

    /// The namespace this is limited to.
    pub(crate) fn in_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// What it selects, for people.
    pub(crate) fn selector(&self) -> String {
        let parts = [&self.labels, &self.fields];
        parts.into_iter().flatten().cloned().collect::<Vec<_>>().join(";")
    }

    /// Parameters of one page of the list.
    pub(crate) fn to_list_params(&self, limit: Option<u32>, continue_token: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit,
            continue_token,
            ..ListParams::default()
        }
    }

    /// Parameters of a watch that begins with the state (KEP-3157).
    pub(crate) fn to_stream_params(&self) -> WatchParams {
        WatchParams { send_initial_events: true, ..self.to_watch_params() }
    }

    /// Parameters of the watch that follows the list.
    pub(crate) fn to_watch_params(&self) -> WatchParams {
        WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            ..WatchParams::default()
        }
    }
}
