//! The pause process of a pod sandbox: it holds the pod's namespaces and reaps orphans.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// As process 1 of a namespace it gets no default signal handling, so it waits for the signals itself.
fn main() -> Result<(), nix::errno::Errno> {
    let signals = SigSet::from_iter([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => reap(),
            _ => return Ok(()),
        }
    }
}

/// Collects every child that has ended; signals of several children may have been merged into one.
fn reap() {
    while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {}
}
