//! OpenAPI v3 documents, as kubectl needs them for apply, create and explain.

use serde_json::{Value, json};

use crate::catalog::Catalog;

/// The index of documents: `{"paths": {"api/v1": {"serverRelativeURL": …}, …}}`.
#[must_use]
pub fn openapi_v3_index(catalog: &Catalog) -> Value {
    let _ = catalog;
    json!({"paths": {}})
}

/// The document of a group and version, named as in the index: `api/v1`, `apis/apps/v1`.
#[must_use]
pub fn openapi_v3(catalog: &Catalog, group_version: &str) -> Option<Value> {
    let _ = (catalog, group_version);
    None
}
