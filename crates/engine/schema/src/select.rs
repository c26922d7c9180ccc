//! Field selectors: which fields of which kinds can be asked for.

use serde_json::Value;

use crate::catalog::ResourceType;

impl ResourceType {
    /// The value of a field for a field selector; `None` when the field is not selectable.
    #[must_use]
    pub fn field_for_selector(&self, object: &Value, path: &str) -> Option<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match path {
            "metadata.name" => Some(text(&object["metadata"]["name"])),
            "metadata.namespace" if self.is_namespaced() => Some(text(&object["metadata"]["namespace"])),
            _ => None,
        }
    }
}
