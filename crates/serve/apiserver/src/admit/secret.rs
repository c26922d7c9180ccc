//! Secrets: the write-only text form of their data.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Moves `stringData` into `data`, over what is there.
pub(super) fn fold_string_data(value: &mut Value) {
    let Some(texts) = value.as_object_mut().and_then(|o| o.remove("stringData")) else { return };
    let Some(texts) = texts.as_object().filter(|texts| !texts.is_empty()) else { return };
    if !value["data"].is_object() {
        value["data"] = json!({});
    }
    for (key, text) in texts {
        value["data"][key] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
    }
}
