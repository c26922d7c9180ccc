//! Configuration lists: rendering one, adding the mesh's plugin to a foreign one, and taking it out again.
//!
//! An edit changes no other byte of the list, so that taking the plugin out gives back the very file.

use crate::conf::Version;
use crate::scan;
use serde_json::{Value, json};

/// Name of the plugin's binary, and so the type of its entry.
pub const PLUGIN_TYPE: &str = "ambit-cni";

/// Why a list cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// Not JSON.
    #[error("the configuration list is not JSON")]
    NotJson(#[source] serde_json::Error),
    /// A configuration of a single plugin.
    #[error(
        "this is the configuration of a single plugin, not a list: put it into the \"plugins\" of a .conflist file"
    )]
    SinglePlugin,
    /// JSON of another shape.
    #[error("the configuration list has no list \"plugins\" with at least one plugin")]
    NoPlugins,
}

/// The mesh plugin's entry in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Directory with the agent's socket.
    pub run_dir: String,
    /// Pods of these namespaces are let through without asking the agent.
    pub exclude_namespaces: Vec<String>,
    /// Namespace of the mesh's own pods, which are let through as well.
    pub pod_namespace: String,
}

impl Entry {
    /// The entry as it stands in a list.
    pub fn to_value(&self) -> Value {
        json!({
            "type": PLUGIN_TYPE,
            "cni_agent_run_dir": self.run_dir,
            "exclude_namespaces": self.exclude_namespaces,
            "pod_namespace": self.pod_namespace,
        })
    }
}

/// A list of one's own.
pub fn render(name: &str, plugins: &[Value]) -> String {
    let list = json!({ "cniVersion": Version::V1_0_0.text(), "name": name, "plugins": plugins });
    format!("{list:#}\n")
}

fn plugins(text: &str) -> Result<Vec<Value>, ListError> {
    let list: Value = serde_json::from_str(text).map_err(ListError::NotJson)?;
    match list.get("plugins") {
        Some(Value::Array(plugins)) if !plugins.is_empty() => Ok(plugins.clone()),
        None if list.get("type").is_some() => Err(ListError::SinglePlugin),
        _ => Err(ListError::NoPlugins),
    }
}

fn is_ours(plugin: &Value) -> bool {
    plugin.get("type").and_then(Value::as_str) == Some(PLUGIN_TYPE)
}

/// The list with the entry as its last plugin; entries of ours that were there before are replaced.
///
/// # Errors
/// The text is not a configuration list.
pub fn insert(text: &str, entry: &Entry) -> Result<String, ListError> {
    let without = remove(text)?;
    let array = scan::array_in_object(&without, "plugins").ok_or(ListError::NoPlugins)?;
    let last = array.elements.last().ok_or(ListError::NoPlugins)?.end;
    Ok(format!("{},\n    {}{}", &without[..last], entry.to_value(), &without[last..]))
}

/// The list without entries of ours.
///
/// # Errors
/// The text is not a configuration list, or has no other plugin.
pub fn remove(text: &str) -> Result<String, ListError> {
    let plugins = plugins(text)?;
    let array = scan::array_in_object(text, "plugins").ok_or(ListError::NoPlugins)?;
    if plugins.iter().all(is_ours) || array.elements.len() != plugins.len() {
        return Err(ListError::NoPlugins);
    }
    let mut kept = text[..array.opened].to_owned();
    // The first plugin kept gets the space after the bracket; what stands between two goes with the later one.
    let mut before = array.elements.first().map(|first| array.opened..first.start);
    let mut end = array.opened;
    for (element, plugin) in array.elements.iter().zip(&plugins) {
        if !is_ours(plugin) {
            kept.push_str(&text[before.take().unwrap_or(end..element.start)]);
            kept.push_str(&text[element.clone()]);
        }
        end = element.end;
    }
    kept.push_str(&text[end..]);
    Ok(kept)
}

#[cfg(test)]
mod tests;
