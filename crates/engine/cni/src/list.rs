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

/// The list with the entry as its last plugin; entries of ours that were there before are replaced. A list that has just
/// this entry in its place already stays as it is, however it is written.
///
/// # Errors
/// The text is not a configuration list.
pub fn insert(text: &str, entry: &Entry) -> Result<String, ListError> {
    let there = plugins(text)?;
    let ours = there.iter().filter(|plugin| is_ours(plugin)).count();
    if ours == 1 && there.len() > 1 && there.last() == Some(&entry.to_value()) {
        return Ok(text.to_owned());
    }
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

/// Key of a list that was made from the file of a single plugin: the name of that file. Runtimes ignore it.
const MADE_FROM: &str = "ambit.io/made-from";
/// Version of a list made from a single plugin that names none: the first with chained plugins.
const CHAINING_SINCE: Version = Version::V0_3_1;
/// Name of a network that has none: lists need one, single plugins do not.
const UNNAMED: &str = "k8s-pod-network";

/// The list with the single plugin whose file is named `file`. Name and version stay what they were: plugins keep what
/// they have given out under the network's name.
///
/// # Errors
/// The text is not the configuration of a plugin.
pub fn from_single(text: &str, file: &str) -> Result<String, ListError> {
    let plugin: Value = serde_json::from_str(text).map_err(ListError::NotJson)?;
    let key = |key: &str| plugin.get(key).and_then(Value::as_str).filter(|value| !value.is_empty());
    if key("type").is_none() {
        return Err(ListError::NoPlugins);
    }
    let version = json!(key("cniVersion").unwrap_or(CHAINING_SINCE.text()));
    let (name, file) = (json!(key("name").unwrap_or(UNNAMED)), json!(file));
    Ok(format!(
        "{{\n  \"cniVersion\": {version},\n  \"name\": {name},\n  {}: {file},\n  \"plugins\": [{text}]\n}}\n",
        json!(MADE_FROM)
    ))
}

/// The single plugin's file name and text of a list that [`from_single`] made. None for any other list, and for one to
/// which others have added plugins since.
pub fn to_single(text: &str) -> Option<(String, String)> {
    let list: Value = serde_json::from_str(text).ok()?;
    let file = list.get(MADE_FROM)?.as_str().filter(|name| !name.is_empty() && !name.contains('/'))?;
    let without = remove(text).ok()?;
    let array = scan::array_in_object(&without, "plugins")?;
    if array.elements.len() != 1 {
        return None;
    }
    let single = without[array.opened..array.closed].to_owned();
    Some((file.to_owned(), single))
}

/// Whether an entry of ours is in the list; not in what is no list.
pub fn has_entry(text: &str) -> bool {
    plugins(text).is_ok_and(|plugins| plugins.iter().any(is_ours))
}

/// Types of the plugins of a list or of a single plugin's configuration, in order; none for anything else.
pub fn plugin_types(text: &str) -> Vec<String> {
    let kind = |plugin: &Value| plugin.get("type").and_then(Value::as_str).map(str::to_owned);
    match serde_json::from_str::<Value>(text) {
        Ok(value) => match value.get("plugins").and_then(Value::as_array) {
            Some(plugins) => plugins.iter().filter_map(kind).collect(),
            None => kind(&value).into_iter().collect(),
        },
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
