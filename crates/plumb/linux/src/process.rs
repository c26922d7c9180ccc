//! Processes of pods, found through /proc and their cgroups.

use crate::Error;
use crate::netns::NetNsId;
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

/// The UID of the pod that a process belongs to, from the text of its `cgroup` file; none if it is no pod's.
///
/// # Errors
/// The lines name different pods, or a line is not `ID:CONTROLLERS:PATH`.
pub fn pod_uid(cgroups: &str) -> Result<Option<String>, String> {
    let mut found: Option<String> = None;
    for line in cgroups.lines().filter(|line| !line.is_empty()) {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(_), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!("the cgroup line {line:?} is not ID:CONTROLLERS:PATH"));
        };
        match (&found, uid_in_path(path)) {
            (Some(before), Some(uid)) if *before != uid => {
                return Err(format!("the cgroups name two pods, {before} and {uid}"));
            }
            (None, Some(uid)) => found = Some(uid),
            _ => {}
        }
    }
    Ok(found)
}

/// Finds `…<punctuation>pod<uid><punctuation>…<container id>` in a cgroup's path. Covers the layouts of cgroupfs and
/// systemd, of containerd, docker and cri-o, on cgroups v1 and v2.
fn uid_in_path(path: &str) -> Option<String> {
    let path = path.strip_suffix(".scope").unwrap_or(path);
    let is_mark = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_punctuation());
    let bytes = path.as_bytes();
    path.match_indices("pod").find_map(|(at, _)| {
        let preceded = at.checked_sub(1).is_some_and(|before| is_mark(bytes.get(before).copied()));
        let length = uid_length(bytes.get(at + 3..)?)?;
        let (uid, rest) = path[at + 3..].split_at(length);
        // A container's own cgroup follows the pod's: `/ID`, `.slice/RUNTIME-ID`, `.slice:RUNTIME:ID`.
        let container = is_mark(rest.bytes().next()) && !is_mark(rest.bytes().last());
        (preceded && container).then(|| {
            uid.chars().map(|c| if c.is_ascii_punctuation() { '-' } else { c.to_ascii_lowercase() }).collect()
        })
    })
}

/// Length of the UID at the start: groups of 8, 4, 4, 4 and 12 hexadecimal digits with a mark or nothing between them.
fn uid_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    for (index, digits) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 && bytes.get(at)?.is_ascii_punctuation() {
            at += 1;
        }
        bytes.get(at..at + digits)?.iter().all(u8::is_ascii_hexdigit).then_some(())?;
        at += digits;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;

    const UID: &str = "3b1f1ca4-1f0b-4a3e-9d53-0b0a4d9c8e71";
    const ID: &str = "7c5d4c8e5b6f4a1e9c0d3b2a1f0e9d8c7b6a5f4e3d2c1b0a9f8e7d6c5b4a3f2e";

    #[track_caller]
    fn check(cgroups: &str, expected: Option<&str>) {
        let text = cgroups
            .replace("UID_", &UID.replace('-', "_"))
            .replace("UID", UID)
            .replace("HEX", &UID.replace('-', ""))
            .replace("ID", ID);
        assert_eq!(pod_uid(&text).unwrap().as_deref(), expected, "{text}");
    }

    #[test]
    fn the_pod_is_found_in_every_layout() {
        // cgroups v1 and v2, written by the runtimes themselves.
        check("12:memory:/kubepods/besteffort/podUID/ID\n11:cpu:/kubepods/besteffort/podUID/ID\n", Some(UID));
        check("0::/kubepods/burstable/podUID/ID", Some(UID));
        check("0::/kubepods/podUID/ID", Some(UID));
        // systemd slices.
        check(
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID_.slice/cri-containerd-ID.scope",
            Some(UID),
        );
        check(
            "1:name=systemd:/system.slice/containerd.service/kubepods-podUID_.slice:cri-containerd:ID",
            Some(UID),
        );
        check("0::/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope", Some(UID));
        check("0::/kubepods.slice/kubepods-podUID_.slice/crio-conmon-ID.scope", Some(UID));
        // Nested in a container, and seen from within a cgroup namespace.
        check("9:pids:/docker/ID/kubelet/kubepods/besteffort/podUID/ID", Some(UID));
        check("0::/../../podUID/ID", Some(UID));
        check("0::/../../../kubepods-besteffort-podUID_.slice/cri-containerd-ID.scope", Some(UID));
        // A static pod's UID is a hash without dashes.
        check("0::/kubepods/podHEX/ID", Some(&UID.replace('-', "")));
        // Only some controllers are delegated.
        check("2:cpu:/\n1:memory:/kubepods/podUID/ID\n0::/\n", Some(UID));
    }

    #[test]
    fn other_processes_belong_to_no_pod() {
        check("0::/", None);
        check("", None);
        check("0::/user.slice/user-0.slice/session-1.scope", None);
        check("0::/docker/ID", None);
        check("0::/kubepods/besteffort/podUID", None);
        check("0::/kubepods/besteffort/podUID/", None);
        check("0::/kubepods/besteffort/xpodUID/ID", None);
        check("0::/machine.slice/crio-ID.scope", None);
        check("0::/kubepods/podnonsense/ID", None);
        check("0::/pod", None);
        check("0::/kubepods/pod\u{e9}1f1ca4/ID", None);
    }

    #[test]
    fn contradictions_and_broken_lines_are_errors() {
        let other = UID.replace('3', "4");
        assert!(pod_uid(&format!("1:a:/x/pod{UID}/c\n0::/x/pod{other}/c")).unwrap_err().contains("two pods"));
        assert!(pod_uid("1:a").unwrap_err().contains("not ID:CONTROLLERS:PATH"));
    }

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
