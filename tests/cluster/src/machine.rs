//! What of the machine a cluster could leave behind.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Things on the machine, by kind and name, that belong to no one but a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed(BTreeSet<String>);

impl Observed {
    /// Looks at the machine as seen from the current namespaces.
    ///
    /// # Errors
    /// A program or file that shows the state cannot be used.
    pub fn now() -> Result<Self> {
        let mut all = BTreeSet::new();
        all.extend(lines(
            "mount",
            &std::fs::read_to_string("/proc/self/mounts").context("cannot read the mounts")?,
        ));
        all.extend(lines("link", &output("ip", &["-o", "link", "show"], link_name)?));
        all.extend(lines("rule", &output("ip", &["rule", "show"], str::to_owned)?));
        all.extend(lines("table", &output("nft", &["list", "tables"], str::to_owned)?));
        for dir in [
            "/var/run/netns",
            "/etc/cni/net.d",
            "/var/lib/cni",
            "/var/run/istio-cni",
            "/var/run/ztunnel",
            "/opt/cni/bin",
        ] {
            all.extend(files(dir));
        }
        for controller in subdirectories("/sys/fs/cgroup") {
            all.extend(subdirectories(&controller).into_iter().map(|d| format!("cgroup {d}")));
        }
        Ok(Self(all))
    }

    /// What is there now and was not in `before`.
    pub fn new_since(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }
}

/// Processes whose command line, program or working directory names `dir`.
///
/// # Errors
/// /proc cannot be read.
pub fn processes_of(dir: &Path) -> Result<Vec<String>> {
    let mark = dir.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<u32>().is_err() || name == std::process::id().to_string() {
            continue;
        }
        let line = String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).unwrap_or_default())
            .replace('\0', " ");
        let links =
            ["exe", "cwd", "root"].map(|l| std::fs::read_link(entry.path().join(l)).unwrap_or_default());
        if line.contains(&mark) || links.iter().any(|l| l.starts_with(dir)) {
            found.push(format!("process {name}: {line}"));
        }
    }
    Ok(found)
}

fn lines(kind: &str, text: &str) -> Vec<String> {
    text.lines().map(|l| format!("{kind} {l}")).collect()
}

fn output(program: &str, args: &[&str], map: impl Fn(&str) -> String) -> Result<String> {
    let out = Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    Ok(String::from_utf8_lossy(&out.stdout).lines().map(map).collect::<Vec<_>>().join("\n"))
}

/// `3: ambit0: <…>` names `ambit0`; the counters behind it change and say nothing.
fn link_name(line: &str) -> String {
    line.split(": ").nth(1).unwrap_or(line).to_owned()
}

fn files(dir: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path.to_string_lossy()));
        }
        found.push(format!("file {}", path.display()));
    }
    found
}

fn subdirectories(dir: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path().to_string_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_links_leave_the_counters_out() {
        assert_eq!(link_name("3: ambit0: <BROADCAST,UP> mtu 1500 qdisc noqueue"), "ambit0");
    }

    #[test]
    fn a_new_file_is_a_difference() {
        let before = Observed(BTreeSet::from(["link lo".to_owned()]));
        let after = Observed(BTreeSet::from(["link lo".to_owned(), "link ambit0".to_owned()]));
        assert_eq!(after.new_since(&before), ["link ambit0"]);
        assert!(before.new_since(&after).is_empty());
    }
}
