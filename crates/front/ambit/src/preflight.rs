//! What a machine must have before anything is started. All faults are reported together.

use ambit_rules::{Batch, Command, TableName};
use anyhow::{Result, bail};
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// A program that must be found, and the Debian package that brings it.
const PROGRAMS: [(&str, &str); 3] = [("containerd", "containerd"), ("runc", "runc"), ("ctr", "containerd")];
/// Reference CNI plugins that must be found in one of the plugin folders.
const PLUGINS: [&str; 3] = ["bridge", "host-local", "loopback"];
/// Kernel features: a path that shows the feature, its name, and how to get it.
const FEATURES: [(&str, &str, &str); 2] = [
    ("/proc/sys/net/bridge", "bridge netfilter (CONFIG_BRIDGE_NETFILTER)", "modprobe br_netfilter"),
    ("/proc/self/ns/net", "network namespaces (CONFIG_NET_NS)", "use a kernel that has them"),
];

/// What is to be checked.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// Folders of the reference CNI plugins.
    pub(crate) cni_bin_dirs: &'a [PathBuf],
    /// Files that must exist, and how to get each.
    pub(crate) files: Vec<(PathBuf, String)>,
}

/// An address that must be free, what for, and the flag that changes it, if there is one.
pub(crate) type Port = (SocketAddr, &'static str, Option<&'static str>);

/// Checks that the ports can be bound.
///
/// # Errors
/// All faults, a line each, with the remedy.
pub(crate) fn check_ports(ports: &[Port]) -> Result<()> {
    report(ports.iter().filter_map(busy_port).collect())
}

/// Checks programs, plugins, kernel and files.
///
/// # Errors
/// All faults, a line each, with the remedy.
pub(crate) fn check_machine(wanted: &Wanted<'_>) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("ambit up needs root (containers, network namespaces, mounts): run it with sudo");
    }
    let mut faults = Vec::new();
    faults.extend(missing_programs());
    faults.extend(missing_plugins(wanted.cni_bin_dirs));
    faults.extend(missing_features());
    let absent = wanted.files.iter().filter(|(path, _)| !path.is_file());
    faults.extend(absent.map(|(path, remedy)| format!("{} is missing: {remedy}", path.display())));
    report(faults)
}

fn report(faults: Vec<String>) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let mut message = String::from("this machine is not ready, nothing was started:");
    for fault in faults {
        let _ = write!(message, "\n  {fault}");
    }
    bail!(message)
}

fn missing_programs() -> Vec<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    let absent = PROGRAMS.iter().filter(|(program, _)| !has(program));
    absent.map(|(program, package)| format!("{program} is not in PATH: apt-get install {package}")).collect()
}

fn missing_plugins(dirs: &[PathBuf]) -> Vec<String> {
    let absent = PLUGINS.iter().filter(|p| !dirs.iter().any(|d| d.join(p).is_file()));
    let places = dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", ");
    absent
        .map(|p| format!("CNI plugin {p} is in none of {places}: apt-get install containernetworking-plugins, or set --cni-bin-dirs"))
        .collect()
}

fn missing_features() -> Vec<String> {
    let absent = FEATURES.iter().filter(|(path, ..)| !Path::new(path).exists());
    let mut faults: Vec<String> =
        absent.map(|(_, feature, remedy)| format!("the kernel lacks {feature}: {remedy}")).collect();
    faults.extend(nf_tables_fault());
    faults
}

/// Makes and deletes a table in one transaction, which leaves nothing and shows whether the kernel takes it.
fn nf_tables_fault() -> Option<String> {
    let table = TableName::inet("ambit-preflight");
    let mut batch = Batch::default();
    batch.push(Command::AddTable(table.clone())).push(Command::DeleteTable(table));
    ambit_linux::nft::apply(&batch).err().map(|error| format!("{:#}", anyhow::Error::from(error)))
}

fn busy_port((address, what, flag): &Port) -> Option<String> {
    let error = TcpListener::bind(address).err()?;
    let remedy = flag.map_or_else(
        || "stop the process that listens there (ss -ltnp shows it)".to_owned(),
        |flag| format!("stop the process that listens there (ss -ltnp shows it), or set {flag}"),
    );
    Some(format!("{address}, wanted for {what}, cannot be bound ({error}): {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_port_is_named_with_the_flag() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let fault = busy_port(&(address, "the API server", Some("--listen"))).unwrap();
        assert!(fault.contains(&address.to_string()) && fault.contains("--listen"), "{fault}");
    }

    #[test]
    fn a_missing_plugin_names_the_package() {
        let faults = missing_plugins(&[PathBuf::from("/nonexistent")]);
        assert_eq!(faults.len(), PLUGINS.len());
        assert!(faults[0].contains("containernetworking-plugins"));
    }
}
