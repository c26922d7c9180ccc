//! The JSONPath of printer columns and selectable fields.

/// A compiled path.
#[derive(Clone, Debug)]
pub(crate) struct JsonPath;
