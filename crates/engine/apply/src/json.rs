//! JSON patches, RFC 6902, within bounds.

use json_patch::{PatchErrorKind, PatchOperation};
use serde_json::Value;

use crate::error::PatchError;

/// Operations per patch. Source: apiserver `maxJSONPatchOperations`.
const OPERATIONS_MAX: usize = 10_000;
/// Bytes that the `copy` and `move` operations of one patch may bring about in all. Source: the API server's limit on
/// request bodies.
const COPIED_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Levels of nesting of the patched document; deeper ones could exhaust a stack.
const DEPTH_MAX: usize = 256;

/// Applies the operations of a patch one after the other.
///
/// # Errors
/// When the patch is no list of operations, breaks a bound, does not fit the document, or when one of its tests fails.
pub fn json_patch(mut document: Value, patch: Value) -> Result<Value, PatchError> {
    if let Some(count) = patch.as_array().map(Vec::len).filter(|count| *count > OPERATIONS_MAX) {
        return Err(PatchError::TooManyOperations { count, max: OPERATIONS_MAX });
    }
    let operations: Vec<PatchOperation> =
        serde_json::from_value(patch).map_err(|error| PatchError::Malformed(error.to_string()))?;
    let mut copied_bytes = 0;
    for (index, operation) in operations.iter().enumerate() {
        check_growth(&document, operation, &mut copied_bytes)
            .map_err(|what| PatchError::TooLarge { index, what })?;
        json_patch::patch_unsafe(&mut document, std::slice::from_ref(operation))
            .map_err(|error| explain(index, operation, &error))?;
    }
    Ok(document)
}

fn check_growth(
    document: &Value,
    operation: &PatchOperation,
    copied_bytes: &mut usize,
) -> Result<(), &'static str> {
    let moved = match operation {
        PatchOperation::Copy(copy) => Some(&copy.from),
        PatchOperation::Move(moved) => Some(&moved.from),
        _ => None,
    };
    let size = match operation {
        PatchOperation::Add(add) => measure(&add.value),
        PatchOperation::Replace(replace) => measure(&replace.value),
        _ => moved.and_then(|from| document.pointer(from.as_str())).map(measure).unwrap_or_default(),
    };
    if operation.path().as_str().matches('/').count() + size.depth > DEPTH_MAX {
        return Err("more than 256 levels of nesting");
    }
    if moved.is_some() {
        *copied_bytes = copied_bytes.saturating_add(size.bytes);
    }
    if *copied_bytes > COPIED_BYTES_MAX { Err("more than 3 MiB copied or moved") } else { Ok(()) }
}

#[derive(Default)]
struct Size {
    bytes: usize,
    depth: usize,
}

/// About how long the value is as text, and how many levels it has.
fn measure(value: &Value) -> Size {
    match value {
        Value::Null | Value::Bool(_) => Size { bytes: 5, depth: 0 },
        Value::Number(_) => Size { bytes: 8, depth: 0 },
        Value::String(text) => Size { bytes: text.len() + 2, depth: 0 },
        Value::Array(items) => enclose(items.iter().map(|item| (0, measure(item)))),
        Value::Object(map) => enclose(map.iter().map(|(key, value)| (key.len() + 3, measure(value)))),
    }
}

fn enclose(parts: impl Iterator<Item = (usize, Size)>) -> Size {
    parts.fold(Size { bytes: 2, depth: 1 }, |whole, (key_bytes, part)| Size {
        bytes: whole.bytes + key_bytes + part.bytes + 1,
        depth: whole.depth.max(part.depth + 1),
    })
}

fn explain(index: usize, operation: &PatchOperation, error: &json_patch::PatchError) -> PatchError {
    let path = operation.path().to_string();
    match error.kind {
        PatchErrorKind::TestFailed => PatchError::TestFailed { index, path },
        _ => PatchError::Unfitting { index, path, what: error.kind.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{OPERATIONS_MAX, json_patch};

    #[track_caller]
    fn check(document: Value, patch: Value, expected: &Result<Value, &str>) {
        let outcome = json_patch(document, patch).map_err(|error| error.to_string());
        assert_eq!(outcome, expected.clone().map_err(str::to_owned));
    }

    #[test]
    fn operations() {
        check(
            json!({"a": [1, 2], "b": {"c": 1}}),
            json!([
                {"op": "test", "path": "/b/c", "value": 1},
                {"op": "add", "path": "/a/-", "value": 3},
                {"op": "remove", "path": "/a/0"},
                {"op": "replace", "path": "/b/c", "value": 2},
                {"op": "copy", "from": "/b", "path": "/d"},
                {"op": "move", "from": "/b/c", "path": "/e~1f"},
            ]),
            &Ok(json!({"a": [2, 3], "b": {}, "d": {"c": 2}, "e/f": 2})),
        );
    }

    #[test]
    fn misfits() {
        check(
            json!({"a": 1}),
            json!([{"op": "test", "path": "/a", "value": 2}]),
            &Err("operation 0 of the patch, a test of \"/a\", failed: the value is a different one"),
        );
        check(
            json!({"a": 1}),
            json!([{"op": "add", "path": "/b", "value": 2}, {"op": "remove", "path": "/c"}]),
            &Err("operation 1 of the patch does not fit the object at \"/c\": path is invalid"),
        );
        check(
            json!({}),
            json!({"op": "add"}),
            &Err("the patch is malformed: invalid type: map, expected a sequence"),
        );
        let unknown = json_patch(json!({}), json!([{"op": "invent", "path": "/a"}])).unwrap_err().to_string();
        assert!(unknown.starts_with("the patch is malformed: unknown variant `invent`"), "{unknown}");
    }

    #[test]
    fn bounds() {
        let operation = json!({"op": "test", "path": "/a", "value": 1});
        let many = vec![operation.clone(); OPERATIONS_MAX + 1];
        let too_many = "the allowed maximum operations in a JSON patch is 10000, got 10001";
        check(json!({"a": 1}), many.into(), &Err(too_many));
        check(json!({"a": 1}), vec![operation; OPERATIONS_MAX].into(), &Ok(json!({"a": 1})));
        // Each copy of the whole into a part that is not the one before doubles it.
        let doubling: Vec<_> = (0..40)
            .map(|index| json!({"op": "copy", "from": "", "path": if index % 2 == 0 { "/a" } else { "/b" }}))
            .collect();
        let outcome =
            json_patch(json!({"a": "x".repeat(1000), "b": 1}), doubling.into()).unwrap_err().to_string();
        assert!(outcome.contains("would make the object too large"), "{outcome}");
        // Nesting one deep value in another again and again.
        let deep = (0..100).fold(json!(1), |inner, _| json!({"a": inner}));
        let step = "/a".repeat(100);
        let operations: Vec<_> =
            (1..5).map(|times| json!({"op": "add", "path": step.repeat(times), "value": deep})).collect();
        let outcome = json_patch(deep.clone(), operations.into()).unwrap_err().to_string();
        assert!(outcome.contains("more than 256 levels of nesting"), "{outcome}");
    }
}
