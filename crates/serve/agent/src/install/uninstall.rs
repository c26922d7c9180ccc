//! Takes the entry and the plugin away.

use super::{Settings, files};
use crate::Error;
use ambit_cni_conf::list::PLUGIN_TYPE;
use ambit_cni_conf::{Undo, plan_undo};
use base64::Engine as _;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// What was taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Configurations without our entry now.
    pub configurations: Vec<PathBuf>,
    /// Why the plugin's binary was left: sandboxes that will be deleted with it. None when it is gone.
    pub binary_kept_for: Option<String>,
}

/// Takes our entry out of every configuration and then removes the plugin, in this order, so that no runtime looks for a
/// plugin that is gone. Pods must be released before. The binary stays while a runtime has recorded a sandbox that was
/// made with it: it is asked to delete that one, which it always does, with or without an agent.
///
/// # Errors
/// A file cannot be read, written or removed. What is done stays done, and the next call goes on.
pub fn uninstall(settings: &Settings) -> Result<Removed, Error> {
    let mut configurations = Vec::new();
    if settings.conf_dir.exists() {
        files::sweep(&settings.conf_dir)?;
        for file in files::read_all(&settings.conf_dir)? {
            let path = settings.conf_dir.join(&file.name);
            match plan_undo(&file, &settings.place) {
                None => continue,
                Some(Undo::Write(text)) => files::write(&path, text.as_bytes(), settings.mode_if_new())?,
                Some(Undo::Restore { name, text }) => {
                    let mode = super::mode_of(&path).unwrap_or(settings.mode_if_new());
                    files::write(&settings.conf_dir.join(name), text.as_bytes(), mode)?;
                    files::remove(&path)?;
                }
                Some(Undo::Delete) => files::remove(&path)?,
            }
            configurations.push(path);
        }
    }
    files::sweep(&settings.bin_dir)?;
    let binary_kept_for = sandboxes(&settings.results_dir)?;
    if binary_kept_for.is_none() {
        files::remove(&settings.bin_dir.join(PLUGIN_TYPE))?;
    }
    Ok(Removed { configurations, binary_kept_for })
}

/// The first recorded result of a sandbox that was made with the plugin. A record that cannot be read counts as one.
fn sandboxes(results: &Path) -> Result<Option<String>, Error> {
    let entries = match std::fs::read_dir(results) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::file("read the directory", results)(e)),
    };
    for entry in entries {
        let path = entry.map_err(Error::file("read the directory", results))?.path();
        match std::fs::read(&path) {
            Ok(record) if is_without_us(&record) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            _ => return Ok(Some(path.display().to_string())),
        }
    }
    Ok(None)
}

/// The records of libcni hold the configuration in base64.
fn is_without_us(record: &[u8]) -> bool {
    let config = serde_json::from_slice::<Value>(record).ok();
    let config = config.as_ref().and_then(|record| record.get("config")).and_then(Value::as_str);
    let config = config.and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    let text = config.and_then(|bytes| String::from_utf8(bytes).ok());
    text.is_some_and(|text| !ambit_cni_conf::list::has_entry(&text))
}
