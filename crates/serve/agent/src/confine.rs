//! What the agent's process gives up at its start: rights that it never needs, and files that it never writes.

use crate::run::{SOCKET_DIRECTORY_MODE, make_directory};
use crate::{Error, Settings};
use ambit_linux::capability::{self, Capability};
use ambit_linux::own_mounts::OwnMounts;
use ambit_linux::process;
use std::path::PathBuf;
use std::sync::Arc;

/// Mode of CNI directories, as packages make them.
const CNI_DIRECTORY_MODE: u32 = 0o755;

/// A capability that is kept, and what for.
struct Need {
    capability: Capability,
    reason: &'static str,
    /// What its absence means.
    absence: Absence,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// Nothing works.
    Fatal,
    /// On some nodes something does not work, which then is told where it happens.
    Tolerable,
}

/// Everything that is kept. All else is given up.
fn needs(settings: &Settings) -> Vec<Need> {
    let need = |capability, absence, reason| Need { capability, reason, absence };
    let mut needs = vec![
        need(
            Capability::NetAdmin,
            Absence::Fatal,
            "packet rules, routes and sets in the network namespaces of pods and of the node",
        ),
        need(
            Capability::SysAdmin,
            Absence::Fatal,
            "entering the network namespaces of pods, and the read-only view of the node's files",
        ),
        need(
            Capability::SysPtrace,
            Absence::Tolerable,
            "finding the network namespaces of pods whose processes run as other users or with more rights",
        ),
    ];
    if settings.install.is_some() {
        // kubespray, for one, gives /opt/cni/bin to a user of its own.
        let reason = "writing CNI directories that do not belong to root";
        needs.push(need(Capability::DacOverride, Absence::Tolerable, reason));
    }
    needs
}

/// Directories that are written, each with its mode where it must be made: those of the sockets, and the CNI directories
/// where the agent keeps its plugin in place.
fn written(settings: &Settings) -> Vec<(PathBuf, u32)> {
    let sockets = [Some(settings.run_dir.as_path()), settings.handover_socket.parent()];
    let sockets = sockets.into_iter().flatten().map(|path| (path.to_owned(), SOCKET_DIRECTORY_MODE));
    let install = settings.install.iter().flat_map(|install| [&install.conf_dir, &install.bin_dir]);
    sockets.chain(install.map(|path| (path.clone(), CNI_DIRECTORY_MODE))).collect()
}

/// Confines this process to what an agent with these settings does: it keeps a handful of capabilities and gives up all
/// others for good, and can write only where it must. Directories that it writes and that are missing are made.
///
/// It holds for the calling thread and those that start later. Call it before any other thread runs.
///
/// The returned settings look past the process's own view of the files where they must.
///
/// # Errors
/// The process lacks a right without which no agent works, or a right cannot be given up. Where the kernel does not permit
/// a view of its own (in a container that may not mount), it is told, and the agent works without.
pub fn confine(settings: Settings) -> Result<Settings, Error> {
    if !process::is_root() {
        return Err(Error::NotRoot);
    }
    let needs = needs(&settings);
    let held = capability::held().map_err(Error::kernel("confine the agent"))?;
    for Need { capability, reason, absence } in needs.iter().filter(|need| !held.has(need.capability)) {
        match absence {
            Absence::Fatal => return Err(Error::Lacks { capability: *capability, reason }),
            Absence::Tolerable => tracing::warn!(%capability, reason, "the agent lacks a capability"),
        }
    }
    let written = written(&settings);
    written.iter().try_for_each(|(directory, mode)| make_directory(directory, *mode))?;
    let written: Vec<PathBuf> = written.into_iter().map(|(directory, _)| directory).collect();
    let mounts = match OwnMounts::enter(&written) {
        Ok(mounts) => Some(Arc::new(mounts)),
        Err(error) => {
            tracing::warn!(%error, "the node's files cannot be made read-only for the agent");
            None
        }
    };
    capability::keep_only(needs.iter().map(|need| need.capability).collect())
        .map_err(Error::kernel("confine the agent"))?;
    let kept: Vec<String> = needs.iter().map(|need| need.capability.to_string()).collect();
    tracing::info!(capabilities = kept.join(" "), read_only = mounts.is_some(), "confined the agent");
    Ok(Settings { mounts, ..settings })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install;
    use std::path::Path;

    #[track_caller]
    fn check(settings: &Settings, capabilities: &str, directories: &[&str]) {
        let kept: Vec<String> = needs(settings).iter().map(|need| need.capability.to_string()).collect();
        assert_eq!(kept.join(" "), capabilities);
        let written: Vec<PathBuf> = written(settings).into_iter().map(|(directory, _)| directory).collect();
        assert_eq!(written, directories.iter().map(Path::new).collect::<Vec<_>>());
    }

    #[test]
    fn only_who_installs_the_plugin_writes_where_others_do() {
        let settings = Settings::new("n1");
        let run = ["/var/run/istio-cni", "/var/run/ztunnel"];
        check(&settings, "CAP_NET_ADMIN CAP_SYS_ADMIN CAP_SYS_PTRACE", &run);
        let install = Some(install::Settings::new("/plugin"));
        let installing = Settings { install, ..settings };
        check(
            &installing,
            "CAP_NET_ADMIN CAP_SYS_ADMIN CAP_SYS_PTRACE CAP_DAC_OVERRIDE",
            &[run[0], run[1], "/etc/cni/net.d", "/opt/cni/bin"],
        );
    }
}
