//! Processes of pods, found through /proc and their cgroups.

mod cgroup;

use crate::Error;
use crate::netns::NetNsId;
use cgroup::pod_uid;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A process that runs in a pod, in a network namespace other than the node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodProcess {
    /// Its id, as seen under the /proc it was found in.
    pub pid: u32,
    /// UID of the pod its cgroup belongs to, with dashes.
    pub pod_uid: String,
    /// Its network namespace.
    pub netns: NetNsId,
    /// When it started, in clock ticks since the machine did.
    pub started_ticks: u64,
}

/// The user id of root.
pub const ROOT: u32 = 0;

/// Whether this process has root's rights.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Path of a process's network namespace.
pub fn netns_path(proc_root: &Path, pid: u32) -> PathBuf {
    proc_root.join(pid.to_string()).join("ns/net")
}

/// All processes of pods, oldest first, but those in the network namespace `node`. Processes that end meanwhile are
/// left out, and so are those whose cgroups contradict each other.
///
/// # Errors
/// `proc_root` is not a mounted /proc.
pub fn pod_processes(proc_root: &Path, node: NetNsId) -> Result<Vec<PodProcess>, Error> {
    let failed = |e| Error::system(format!("list the processes in {}", proc_root.display()), e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc_root).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let pid = name.to_str().filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
        if let Some(pid) = pid.and_then(|name| name.parse().ok())
            && let Ok(Some(process)) = inspect(proc_root, pid, node)
        {
            found.push(process);
        }
    }
    found.sort_by_key(|process| (process.started_ticks, process.pid));
    Ok(found)
}

/// One process; none if it is not a pod's.
fn inspect(proc_root: &Path, pid: u32, node: NetNsId) -> io::Result<Option<PodProcess>> {
    let directory = proc_root.join(pid.to_string());
    let meta = std::fs::metadata(directory.join("ns/net"))?;
    let netns = NetNsId { device: meta.dev(), inode: meta.ino() };
    if netns == node {
        return Ok(None);
    }
    let cgroups = std::fs::read_to_string(directory.join("cgroup"))?;
    let Ok(Some(pod_uid)) = pod_uid(&cgroups) else { return Ok(None) };
    let stat = std::fs::read(directory.join("stat"))?;
    let started_ticks = started_ticks(&String::from_utf8_lossy(&stat)).unwrap_or(u64::MAX);
    Ok(Some(PodProcess { pid, pod_uid, netns, started_ticks }))
}

/// The start time in `/proc/PID/stat`: the 20th field after the last parenthesis, since a program's name may hold any.
fn started_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;

    const UID: &str = "3b1f1ca4-1f0b-4a3e-9d53-0b0a4d9c8e71";
    const ID: &str = "7c5d4c8e5b6f4a1e9c0d3b2a1f0e9d8c7b6a5f4e3d2c1b0a9f8e7d6c5b4a3f2e";

    #[test]
    fn the_start_time_is_read_behind_any_program_name() {
        let stat = "42 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(started_ticks(stat), Some(4711));
        assert_eq!(started_ticks("42 (a)"), None);
        assert_eq!(started_ticks(""), None);
    }

    /// A directory that looks like /proc, with processes of pods in this process's network namespace.
    fn proc_with(processes: &[(u32, u64, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (pid, started, cgroup) in processes {
            let directory = root.path().join(pid.to_string());
            std::fs::create_dir_all(directory.join("ns")).unwrap();
            std::os::unix::fs::symlink("/proc/self/ns/net", directory.join("ns/net")).unwrap();
            std::fs::write(directory.join("cgroup"), cgroup).unwrap();
            let fields = "0 ".repeat(18);
            std::fs::write(directory.join("stat"), format!("{pid} (x) S {fields}{started} 0")).unwrap();
        }
        std::fs::write(root.path().join("uptime"), "1").unwrap();
        std::fs::create_dir(root.path().join("77")).unwrap();
        root
    }

    #[test]
    fn processes_are_listed_oldest_first_and_the_node_s_left_out() {
        let cgroup = format!("0::/kubepods/pod{UID}/{ID}");
        let root = proc_with(&[(10, 300, &cgroup), (11, 200, &cgroup), (12, 100, "0::/")]);
        let here = NetNs::current().unwrap().id();
        let elsewhere = NetNsId { inode: 0, ..here };
        let found = pod_processes(root.path(), elsewhere).unwrap();
        assert_eq!(
            found.iter().map(|p| (p.pid, p.pod_uid.as_str())).collect::<Vec<_>>(),
            [(11, UID), (10, UID)]
        );
        assert!(found.iter().all(|p| p.netns == here));
        assert!(pod_processes(root.path(), here).unwrap().is_empty());
        let error = pod_processes(Path::new("/nowhere"), here).unwrap_err();
        assert_eq!(error.to_string(), "cannot list the processes in /nowhere");
    }
}
