//! Validation of objects as a whole.

use serde_json::Value;

use crate::catalog::ResourceType;
use crate::fault::FieldFault;

impl ResourceType {
    /// What is wrong with a new object.
    #[must_use]
    pub fn validate_create(&self, object: &Value) -> Vec<FieldFault> {
        let _ = object;
        Vec::new()
    }

    /// What is wrong with an object that replaces another.
    #[must_use]
    pub fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldFault> {
        let _ = (new, old);
        Vec::new()
    }
}
