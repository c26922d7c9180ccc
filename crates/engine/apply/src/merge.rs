//! JSON merge patches, RFC 7386.

use serde_json::Value;

use crate::error::PatchError;

/// Merges the patch into the document: objects merge, null deletes, everything else replaces.
///
/// # Errors
/// When the patch is not an object: an API object can become nothing else.
pub fn merge_patch(mut document: Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed("a merge patch of an object must be an object".to_owned()));
    }
    json_patch::merge(&mut document, patch);
    Ok(document)
}
