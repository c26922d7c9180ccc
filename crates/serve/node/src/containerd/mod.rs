//! The node's own container runtime: containerd with files, sockets and state of its own.

mod cleanup;
mod config;
mod process;

#[cfg(test)]
pub(crate) use cleanup::cgroup_dirs;
pub(crate) use cleanup::{clean_up, remove_cgroup};
pub(crate) use process::Runtime;

use crate::error::Error;
use std::path::{Path, PathBuf};

/// The programs the runtime is made of.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) containerd: PathBuf,
    pub(crate) ctr: PathBuf,
    pub(crate) runc: PathBuf,
    /// Directory that holds containerd's shim, which containerd looks for in its `PATH`.
    pub(crate) shim_dir: PathBuf,
}

impl Programs {
    /// Finds them in the usual directories.
    ///
    /// # Errors
    /// One is missing; the error names its package.
    pub(crate) fn find() -> Result<Self, Error> {
        let containerd = find("containerd", "containerd")?;
        let shim = find("containerd-shim-runc-v2", "containerd")?;
        let shim_dir = shim.parent().map(Path::to_owned).unwrap_or_default();
        Ok(Self { containerd, ctr: find("ctr", "containerd")?, runc: find("runc", "runc")?, shim_dir })
    }
}

/// Where system programs are; the room reads no environment.
const PROGRAM_DIRS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

fn find(program: &str, package: &'static str) -> Result<PathBuf, Error> {
    let found = PROGRAM_DIRS.iter().map(|dir| Path::new(dir).join(program)).find(|path| path.is_file());
    found.ok_or_else(|| Error::MissingProgram {
        program: program.to_owned(),
        searched: PROGRAM_DIRS.join(":"),
        package,
    })
}

#[cfg(test)]
mod tests;
