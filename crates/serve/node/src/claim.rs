//! What only one node may use at a time: a state directory, and a bridge on this machine's network.

use crate::error::Error;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

/// Held as long as the node runs. Both parts end with the process, however it ends.
#[derive(Debug)]
pub(crate) struct Claim {
    _state: Flock<File>,
    /// Abstract names belong to the network namespace, as bridges do.
    _bridge: UnixListener,
}

impl Claim {
    /// Claims both, or tells who has them.
    ///
    /// # Errors
    /// Another node runs on the state directory or with the bridge, or the directory cannot be written to.
    pub(crate) fn take(state_dir: &Path, bridge: &str) -> Result<Self, Error> {
        std::fs::create_dir_all(state_dir).map_err(Error::file("make the directory", state_dir))?;
        let path = state_dir.join("node.lock");
        let file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(Error::file("open", &path))?;
        let state = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => {
                Error::Taken { what: format!("the state directory {}", state_dir.display()) }
            }
            other => Error::file("lock", &path)(other.into()),
        })?;
        let name = SocketAddr::from_abstract_name(format!("ambit-node/{bridge}"));
        let bound =
            name.and_then(|name| UnixListener::bind_addr(&name)).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => Error::Taken { what: format!("the bridge {bridge}") },
                _ => Error::file("claim the bridge", bridge)(source),
            })?;
        Ok(Self { _state: state, _bridge: bound })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_node_has_no_other_gets() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let check = |dir: &Path, bridge: &str, expected: &str| {
            let error = Claim::take(dir, bridge).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        let claim = Claim::take(one.path(), "test-bridge-1").unwrap();
        check(
            one.path(),
            "test-bridge-2",
            &format!("another node uses the state directory {}", one.path().display()),
        );
        check(two.path(), "test-bridge-1", "another node uses the bridge test-bridge-1");
        drop(claim);
        // A process that another test is just starting holds copies of all descriptors until it has been replaced.
        let freed = (0..1000).any(|_| {
            let taken = Claim::take(two.path(), "test-bridge-1").is_ok();
            if !taken {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            taken
        });
        assert!(freed, "the bridge is still claimed");
    }
}
