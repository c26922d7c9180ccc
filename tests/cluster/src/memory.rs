//! Resident memory of a cluster's processes.

use std::fmt::Write as _;

/// A process and its resident memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    /// What it is.
    pub name: String,
    /// Unit: KiB.
    pub kib: u64,
}

/// The process and all below it that are part of the cluster: not the pods' own.
pub fn of_tree(root: u32) -> Vec<Resident> {
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned());
        let program = words.next().unwrap_or_default();
        let program = program.rsplit('/').next().unwrap_or_default().to_owned();
        let role = words.find(|w| !w.starts_with('-')).unwrap_or_default();
        let role = if program == "ambit" { format!(" {role}") } else { String::new() };
        if let Some(kib) = resident(pid) {
            found.push(Resident { name: format!("{program}{role}"), kib });
        }
        next.extend(crate::cluster::children_of(pid));
    }
    found
}

/// The processes in one line.
pub fn line(processes: &[Resident]) -> String {
    let mut text = String::new();
    for process in processes {
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}{} {:.1} MiB", process.name, process.kib as f64 / 1024.0);
    }
    text
}

fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    resident_of(&status)
}

fn resident_of(status: &str) -> Option<u64> {
    status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_line_is_read() {
        assert_eq!(resident_of("Name:\tambit\nVmRSS:\t   20480 kB\nThreads:\t3\n"), Some(20480));
        assert_eq!(resident_of("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn one_line_names_all() {
        let processes = [("ambit up", 51_200), ("containerd", 30_720)];
        let processes = processes.map(|(name, kib)| Resident { name: name.to_owned(), kib });
        assert_eq!(line(&processes), "ambit up 50.0 MiB, containerd 30.0 MiB");
    }
}
