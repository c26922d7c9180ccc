//! Where the node keeps what below its state directory.

use crate::error::Error;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Longest path of a unix socket in bytes. Source: `sun_path` in unix(7), less the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The paths of one node's state.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    state_dir: PathBuf,
    /// Eight characters that tell this node from others on the machine.
    id: String,
}

impl Layout {
    /// # Errors
    /// The directory cannot hold a runtime: its path is relative, not text, or too long for sockets.
    pub(crate) fn new(state_dir: &Path) -> Result<Self, Error> {
        let problem = |problem: String| Error::StateDir { dir: state_dir.to_owned(), problem };
        let text = state_dir.to_str().ok_or_else(|| problem("its path is not UTF-8".into()))?;
        if !state_dir.is_absolute() || text.contains(['"', '\\', '\n']) {
            return Err(problem("its path must be absolute, without quotes or backslashes".into()));
        }
        let digest = Sha256::digest(text.as_bytes());
        let id = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let layout = Self { state_dir: state_dir.to_owned(), id };
        // The longest socket of the runtime: it appends `.ttrpc` to its main one.
        let longest = layout.socket().as_os_str().len() + ".ttrpc".len();
        if longest > SOCKET_PATH_BYTES_MAX {
            return Err(problem(format!("its path is {} bytes too long", longest - SOCKET_PATH_BYTES_MAX)));
        }
        Ok(layout)
    }

    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The runtime's images and snapshots: kept between starts.
    pub(crate) fn runtime_root(&self) -> PathBuf {
        self.state_dir.join("containerd")
    }

    /// The runtime's sockets, mounts and running containers.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.state_dir.join("run")
    }

    pub(crate) fn runtime_state(&self) -> PathBuf {
        self.run_dir().join("containerd")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.run_dir().join("containerd.sock")
    }

    pub(crate) fn runtime_config(&self) -> PathBuf {
        self.run_dir().join("containerd.toml")
    }

    pub(crate) fn runtime_log(&self) -> PathBuf {
        self.state_dir.join("containerd.log")
    }

    pub(crate) fn runtime_pid(&self) -> PathBuf {
        self.run_dir().join("containerd.pid")
    }

    pub(crate) fn cni_bin(&self) -> PathBuf {
        self.run_dir().join("cni/bin")
    }

    pub(crate) fn cni_conf(&self) -> PathBuf {
        self.run_dir().join("cni/net.d")
    }

    pub(crate) fn cni_addresses(&self) -> PathBuf {
        self.run_dir().join("cni/addresses")
    }

    pub(crate) fn pods(&self) -> PathBuf {
        self.state_dir.join("pods")
    }

    pub(crate) fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.state_dir.join("logs")
    }

    pub(crate) fn pod_logs(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.logs().join(format!("{namespace}_{name}_{uid}"))
    }

    /// The control group that holds all pods, as the runtime names it.
    pub(crate) fn cgroup(&self) -> String {
        format!("/ambit-{}", self.id)
    }

    /// The control group of a pod. The part from `kubepods` on is laid out as kubelet lays it out, so that the pod of a
    /// process can be told from its control group.
    pub(crate) fn pod_cgroup(&self, qos: &str, uid: &str) -> String {
        let class = match qos {
            "BestEffort" => "/besteffort",
            "Burstable" => "/burstable",
            _ => "",
        };
        format!("{}/kubepods{class}/pod{uid}", self.cgroup())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(dir: &str, expected: Result<(), &str>) {
        let made = Layout::new(Path::new(dir)).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(made, expected.map_err(str::to_owned));
    }

    #[test]
    fn state_directories() {
        check("/var/lib/ambit", Ok(()));
        check(
            "ambit",
            Err(
                "the state directory ambit cannot be used: its path must be absolute, without quotes or backslashes: choose another one",
            ),
        );
        let long = format!("/{}", "x".repeat(90));
        let text = format!(
            "the state directory {long} cannot be used: its path is 10 bytes too long: choose another one"
        );
        check(&long, Err(&text));
    }

    #[test]
    fn control_groups_are_private_and_laid_out_as_kubelet_does() {
        let layout = Layout::new(Path::new("/var/lib/ambit")).unwrap();
        let other = Layout::new(Path::new("/var/lib/other")).unwrap();
        assert_ne!(layout.id, other.id);
        let uid = "0a1b2c3d-0000-1111-2222-333344445555";
        let expected = format!("/ambit-{}/kubepods/besteffort/pod{uid}", layout.id);
        assert_eq!(layout.pod_cgroup("BestEffort", uid), expected);
        assert_eq!(layout.pod_cgroup("Guaranteed", uid), format!("/ambit-{}/kubepods/pod{uid}", layout.id));
    }
}
