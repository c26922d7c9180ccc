//! Which configuration of a directory the container runtime uses, and what to write so that the mesh's plugin is in it.
//!
//! Source of the order and of what counts as valid: libcni `conf.go`, containerd's go-cni `opts.go`.

use crate::list::{self, Entry, ListError};
use serde_json::Value;

/// Endings of the files that runtimes look at.
pub const ENDINGS: [&str; 3] = [".conf", ".conflist", ".json"];
/// Largest file looked at. Real ones have a few kilobytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file of the configuration directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name, without the directory.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Where the entry goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Into the configuration that the runtime uses.
    Primary,
    /// Into a file of this name that is made from the runtime's, which stays as it is.
    OwnFile(String),
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The entry.
    pub entry: Entry,
    /// Where it goes.
    pub place: Place,
    /// Name of the configuration to use; by default the one that the runtime uses.
    pub name: Option<String>,
}

/// A file that does not count, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// Its name.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// There is no configuration yet.
    Wait,
    /// The entry is where it should be.
    Rest,
    /// The file is to be written, and the other one, if any, removed after it.
    Write {
        /// Name of the file.
        name: String,
        /// Its new content.
        text: String,
        /// The file that the new one replaces.
        replaces: Option<String>,
    },
}

/// The plan for a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The configuration that the entry is for.
    pub primary: Option<String>,
    /// What to do.
    pub step: Step,
    /// Files that the runtime cannot use and that sort before the primary one.
    pub ignored: Vec<Ignored>,
    /// A file that sorts before the one with the entry, so that the runtime uses it.
    pub preempted_by: Option<String>,
}

/// Whether runtimes look at a file of this name.
pub fn is_candidate(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// A file that a runtime can use.
enum Valid<'a> {
    List(&'a str),
    Single(&'a str),
}

fn validate(file: &File) -> Result<Valid<'_>, String> {
    let text = std::str::from_utf8(&file.bytes).map_err(|e| e.to_string())?;
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if file.name.ends_with(".conflist") {
        check_list(&value)?;
        return Ok(Valid::List(text));
    }
    // A list in a file of another ending is not read as one.
    check_plugin(&value)?;
    Ok(Valid::Single(text))
}

fn check_list(list: &Value) -> Result<(), String> {
    match list.get("name") {
        Some(Value::String(name)) if !name.is_empty() => {}
        _ => return Err("it has no \"name\"".to_owned()),
    }
    if !matches!(list.get("cniVersion"), None | Some(Value::String(_))) {
        return Err("\"cniVersion\" is not a text".to_owned());
    }
    match list.get("plugins") {
        Some(Value::Array(plugins)) if !plugins.is_empty() => plugins.iter().try_for_each(check_plugin),
        _ => Err("it has no list \"plugins\" with at least one plugin".to_owned()),
    }
}

fn check_plugin(plugin: &Value) -> Result<(), String> {
    match plugin.get("type") {
        Some(Value::String(kind)) if !kind.is_empty() => Ok(()),
        _ => Err("a plugin has no \"type\"".to_owned()),
    }
}

/// Plans for the files of a directory; those with other endings are not looked at.
///
/// # Errors
/// The runtime's configuration can be used by it, but not edited.
pub fn plan(files: &[File], wanted: &Wanted) -> Result<Plan, ListError> {
    let own = match &wanted.place {
        Place::Primary => None,
        Place::OwnFile(name) => Some(name.as_str()),
    };
    let mut candidates: Vec<&File> =
        files.iter().filter(|file| is_candidate(&file.name) && Some(file.name.as_str()) != own).collect();
    // The order of bytes, in which runtimes sort too.
    candidates.sort_by(|a, b| a.name.cmp(&b.name));
    let (mut ignored, mut first, mut chosen) = (Vec::new(), None, None);
    for file in candidates {
        match validate(file) {
            Ok(valid) => {
                first.get_or_insert(file.name.as_str());
                if wanted.name.as_deref().is_none_or(|name| is_named(&file.name, name)) {
                    chosen = Some((file, valid));
                    break;
                }
            }
            Err(problem) => ignored.push(Ignored { name: file.name.clone(), problem }),
        }
    }
    let Some((primary, valid)) = chosen else {
        return Ok(Plan { primary: None, step: Step::Wait, ignored, preempted_by: None });
    };
    let target = match (own, &valid) {
        (Some(own), _) => own.to_owned(),
        (None, Valid::List(_)) => primary.name.clone(),
        (None, Valid::Single(_)) => free_list_name(files, &primary.name),
    };
    let text = match valid {
        Valid::List(text) => list::insert(text, &wanted.entry)?,
        Valid::Single(text) => list::insert(&list::from_single(text, &primary.name)?, &wanted.entry)?,
    };
    let there = files.iter().find(|file| file.name == target);
    let replaces = (own.is_none() && target != primary.name).then(|| primary.name.clone());
    let step = match there {
        // A list that was derived from the single plugin is there, but the plugin's file came back: it counts.
        Some(file) if file.bytes == text.as_bytes() && replaces.is_none() => Step::Rest,
        _ => Step::Write { name: target.clone(), text, replaces },
    };
    let preempted_by = first.filter(|first| *first < target.as_str() && *first != primary.name);
    let preempted_by = preempted_by.or((own.is_some() && primary.name < target).then_some(&primary.name));
    Ok(Plan {
        primary: Some(primary.name.clone()),
        step,
        ignored,
        preempted_by: preempted_by.map(str::to_owned),
    })
}

/// A configured name also means the list that the file was turned into.
fn is_named(file: &str, name: &str) -> bool {
    file == name
        || file == list_name(name)
        || list_name(file) == name
        || file.strip_suffix(".conflist").is_some_and(|converted| converted == name)
}

/// The name of the list for a single plugin's file. A foreign list that has it already is not overwritten: the other name
/// sorts between the two.
fn free_list_name(files: &[File], single: &str) -> String {
    let name = list_name(single);
    let made_from = |file: &File| {
        let made = std::str::from_utf8(&file.bytes).ok().and_then(list::to_single);
        made.is_some_and(|(from, _)| from == single)
    };
    match files.iter().find(|file| file.name == name) {
        Some(file) if !made_from(file) => format!("{single}.conflist"),
        _ => name,
    }
}

/// The name of the list that a file of a single plugin becomes. It sorts where the file did.
fn list_name(single: &str) -> String {
    let stem = single.strip_suffix(".conf").or_else(|| single.strip_suffix(".json")).unwrap_or(single);
    let stem = stem.strip_suffix(".conflist").unwrap_or(stem);
    format!("{stem}.conflist")
}

/// What undoes the edit of a file: nothing if it has no entry of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// The file gets this content.
    Write(String),
    /// The file is replaced by the single plugin that it was made from.
    Restore {
        /// Name of the file of the single plugin.
        name: String,
        /// Its content.
        text: String,
    },
    /// The file was derived and goes.
    Delete,
}

/// Plans the removal of our entry from a file.
pub fn plan_undo(file: &File, place: &Place) -> Option<Undo> {
    let text = std::str::from_utf8(&file.bytes).ok()?;
    if !list::has_entry(text) {
        return None;
    }
    if matches!(place, Place::OwnFile(own) if *own == file.name) {
        return Some(Undo::Delete);
    }
    if let Some((name, text)) = list::to_single(text) {
        return Some(Undo::Restore { name, text });
    }
    match list::remove(text) {
        Ok(text) => Some(Undo::Write(text)),
        // Only entries of ours: nothing that a runtime could use is left.
        Err(_) => Some(Undo::Delete),
    }
}

#[cfg(test)]
mod tests;
