//! A network and mount namespace of its own, so that nothing of the machine's is touched.

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::process::Command;

/// Moves the calling thread, and all that it starts from now on, into new network and mount namespaces with the
/// loopback interface up. Call before the async runtime starts.
///
/// # Errors
/// The process is not root, or a namespace cannot be made.
pub fn enter() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the cluster needs root (namespaces, mounts, containerd): run it with sudo");
    }
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).context("cannot make namespaces")?;
    // Mounts of the cluster must not show outside, nor keep anything outside busy.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("cannot make the mounts private")?;
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()
        .context("cannot run ip (Debian package iproute2)")?;
    if !up.success() {
        bail!("cannot bring the loopback interface up: {up}");
    }
    Ok(())
}
