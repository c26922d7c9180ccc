//! `cargo xtask tidy`: the rules of the house that no lint knows. Prints `FILE:LINE: what is wrong, what to do`.
//!
//! Each check is a pure function from the tree's texts to findings, so that its tests are small trees.

mod code;
mod cycles;
mod dead;
mod effects;
mod floors;
mod heads;
mod manifest;
mod sizes;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The texts that the checks look at, by path relative to the root, with `/` between folders.
#[derive(Debug, Default)]
struct Tree {
    files: BTreeMap<String, String>,
}

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Endings of the files that some check reads.
const READ: [&str; 3] = [".rs", ".md", "Cargo.toml"];
/// Folders that hold nothing of ours. Hidden folders are left out as well.
const SKIPPED: [&str; 1] = ["target"];

/// Checks the tree that this task was built from.
pub(crate) fn run() -> anyhow::Result<()> {
    let findings = findings(&Tree::read(&root())?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    anyhow::ensure!(findings.is_empty(), "tidy: {} finding(s)", findings.len());
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

fn findings(tree: &Tree) -> Vec<Finding> {
    let checks: [fn(&Tree) -> Vec<Finding>; 7] =
        [floors::check, effects::check, dead::check, cycles::check, sizes::check, heads::check, words::check];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(tree)).collect();
    findings.sort();
    findings
}

impl Tree {
    /// Reads all files of interest below `root`.
    fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    fn read_folder(&mut self, root: &Path, folder: &str) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(root.join(folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                self.read_folder(root, &path)?;
            } else if kind.is_file() && (READ.iter().any(|e| name.ends_with(e)) || path == sizes::EXCEPTIONS)
            {
                self.files.insert(path, std::fs::read_to_string(entry.path())?);
            }
        }
        Ok(())
    }

    /// All files with that ending.
    fn ending<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files
            .iter()
            .filter(move |(path, _)| path.ends_with(ending))
            .map(|(p, t)| (p.as_str(), t.as_str()))
    }
}

/// Line number, counted from one, of a byte offset.
fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count() + 1
}

#[cfg(test)]
mod tests;
