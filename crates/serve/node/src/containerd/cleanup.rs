//! Removes what a container runtime leaves behind: processes, sockets, mounts, control groups.

use crate::error::Error;
use crate::layout::Layout;
use ambit_linux::mount;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::{debug, warn};

/// How long a signalled process may take to end.
const END_WAIT: Duration = Duration::from_secs(5);
/// Between two looks at whether it has ended.
const END_POLL: Duration = Duration::from_millis(20);
/// Rounds of control group removal: processes that were killed may still be leaving.
const CGROUP_ROUNDS_MAX: usize = 100;

/// Ends the containerd that an earlier process of this node left running, if there is one.
pub(crate) async fn end_left_runtime(layout: &Layout) -> Result<(), Error> {
    let Ok(text) = std::fs::read_to_string(layout.runtime_pid()) else { return Ok(()) };
    let config = layout.runtime_config();
    let is_ours = |pid: u32| arguments(pid).iter().any(|argument| Path::new(argument) == config);
    if let Some(pid) = text.trim().parse().ok().filter(|pid| is_ours(*pid)) {
        debug!(pid, "ending the containerd of an earlier process");
        end(pid, Signal::SIGTERM).await;
    }
    Ok(())
}

/// Removes everything the runtime left once it has ended: shims and what they run, their sockets, mounts, control
/// groups and the run directory. Images and pods' logs stay.
///
/// # Errors
/// A mount or directory cannot be removed.
pub(crate) async fn clean_up(layout: &Layout) -> Result<(), Error> {
    let sockets = shim_sockets(layout);
    let results = cni_results(layout);
    for pid in shims(layout) {
        end(pid, Signal::SIGKILL).await;
    }
    kill_members(&layout.cgroup()).await;
    for file in sockets.into_iter().chain(results) {
        let _ = std::fs::remove_file(file);
    }
    mount::unmount_below(layout.state_dir())?;
    remove_cgroup(&layout.cgroup()).await;
    for dir in [layout.run_dir(), layout.pods()] {
        match std::fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(Error::file("remove the directory", dir)(e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Shims of this runtime: their command line names its socket.
fn shims(layout: &Layout) -> Vec<u32> {
    let socket = layout.socket();
    let is_ours = |pid: &u32| {
        let arguments = arguments(*pid);
        let name = arguments.first().and_then(|program| Path::new(program).file_name()?.to_str());
        name.is_some_and(|name| name.starts_with("containerd-shim"))
            && arguments.iter().any(|argument| Path::new(argument) == socket)
    };
    processes().into_iter().filter(is_ours).collect()
}

/// The sockets of this runtime's shims, which are outside its directories. Source: containerd 1.6 `runtime/v2/shim`:
/// each task's directory holds a file `address`.
fn shim_sockets(layout: &Layout) -> Vec<PathBuf> {
    let tasks = layout.runtime_state().join("io.containerd.runtime.v2.task/k8s.io");
    let Ok(entries) = std::fs::read_dir(tasks) else { return Vec::new() };
    let address = |dir: PathBuf| std::fs::read_to_string(dir.join("address")).ok();
    let paths = entries.flatten().filter_map(|entry| address(entry.path()));
    paths.filter_map(|text| Some(PathBuf::from(text.trim().strip_prefix("unix://")?))).collect()
}

/// The results that the network plugins' library keeps of sandboxes which were not stopped, `NETWORK-SANDBOX-INTERFACE`.
/// Their directory is fixed in containerd. Source: containernetworking/cni `libcni/api.go`.
fn cni_results(layout: &Layout) -> Vec<PathBuf> {
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let sandboxes = names(&layout.runtime_state().join("io.containerd.grpc.v1.cri/sandboxes"));
    let results = Path::new("/var/lib/cni/results");
    let is_ours = |name: &String| sandboxes.iter().any(|id| name.contains(id.as_str()));
    names(results).into_iter().filter(is_ours).map(|name| results.join(name)).collect()
}

fn processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn arguments(pid: u32) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Signals a process and waits until it is gone; one that ignores the signal is killed.
async fn end(pid: u32, signal: Signal) {
    let Ok(id) = i32::try_from(pid) else { return };
    for signal in [signal, Signal::SIGKILL] {
        if kill(Pid::from_raw(id), signal).is_err() {
            return;
        }
        let gone = async {
            while is_running(pid) {
                tokio::time::sleep(END_POLL).await;
            }
        };
        if tokio::time::timeout(END_WAIT, gone).await.is_ok() {
            return;
        }
    }
    warn!(pid, "a process of the container runtime does not end");
}

/// A process that has ended but was not waited for counts as gone.
fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    !state.is_some_and(|rest| rest.starts_with(['Z', 'X']))
}

/// The directories of a control group, one per hierarchy.
pub(crate) fn cgroup_dirs(cgroup: &str) -> Vec<PathBuf> {
    let relative = cgroup.trim_start_matches('/');
    let root = Path::new("/sys/fs/cgroup");
    let mut dirs = vec![root.join(relative)];
    let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten();
    dirs.extend(hierarchies.map(|entry| entry.path().join(relative)));
    dirs.retain(|dir| dir.is_dir());
    dirs
}

/// Kills what still runs in a control group and below it.
async fn kill_members(cgroup: &str) {
    let mut pids: Vec<u32> = Vec::new();
    for dir in cgroup_dirs(cgroup).iter().flat_map(|dir| with_children(dir)) {
        let text = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.trim().parse::<u32>().ok()).filter(|pid| *pid != 0));
    }
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        end(pid, Signal::SIGKILL).await;
    }
}

/// Removes a control group and everything below it, in every hierarchy; waits a little for processes to leave it.
pub(crate) async fn remove_cgroup(cgroup: &str) {
    for _ in 0..CGROUP_ROUNDS_MAX {
        let dirs = cgroup_dirs(cgroup);
        if dirs.is_empty() {
            return;
        }
        for dir in dirs.iter().flat_map(|dir| with_children(dir)) {
            // Removing is refused while a process is in it: the next round tries again.
            let _ = std::fs::remove_dir(dir);
        }
        tokio::time::sleep(END_POLL).await;
    }
    warn!(cgroup, "a control group cannot be removed");
}

/// A directory and all directories below it, deepest first.
fn with_children(dir: &Path) -> Vec<PathBuf> {
    let mut result = Vec::new();
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        result.extend(with_children(&entry.path()));
    }
    result.push(dir.to_owned());
    result
}
