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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::merge_patch;

    #[track_caller]
    fn check(document: Value, patch: &Value, expected: &Value) {
        assert_eq!(&merge_patch(document, patch).unwrap(), expected);
    }

    /// Examples of RFC 7386, appendix A.
    #[test]
    fn examples() {
        check(json!({"a": "b"}), &json!({"a": "c"}), &json!({"a": "c"}));
        check(json!({"a": "b"}), &json!({"b": "c"}), &json!({"a": "b", "b": "c"}));
        check(json!({"a": "b"}), &json!({"a": null}), &json!({}));
        check(json!({"a": ["b"]}), &json!({"a": "c"}), &json!({"a": "c"}));
        check(json!({"a": {"b": "c"}}), &json!({"a": {"b": "d", "c": null}}), &json!({"a": {"b": "d"}}));
        check(json!({"a": [{"b": "c"}]}), &json!({"a": [1]}), &json!({"a": [1]}));
        check(json!({}), &json!({"a": {"bb": {"ccc": null}}}), &json!({"a": {"bb": {}}}));
        assert!(merge_patch(json!({"a": "b"}), &json!(["c"])).is_err());
    }
}
