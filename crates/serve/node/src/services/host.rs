//! What service routing needs of the host, and putting it back.

use super::{Error, LINK, Settings};
use ambit_linux::{link, nft};
use ambit_rules::Batch;
use ambit_rules::service::remove;
use ipnet::IpNet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

/// Time that loading a kernel module may take.
const MODULE_WAIT: Duration = Duration::from_secs(10);
/// The value of a setting that is on.
const ON: &str = "1";

/// A host that was prepared; to be put back with [`Host::restore`].
#[derive(Debug)]
pub(super) struct Host {
    /// Settings of the kernel that were changed, and their values before, in the order of the changes.
    changed: Vec<(PathBuf, String)>,
}

impl Host {
    /// Sets what has to be set, in the network namespace of the calling thread. On failure nothing stays changed.
    pub(super) async fn prepare(settings: &Settings) -> Result<Self, Error> {
        load_bridge_netfilter().await;
        let settings = settings.clone();
        blocking(move || {
            let mut host = Self { changed: Vec::new() };
            match host.change(&settings) {
                Ok(()) => Ok(host),
                Err(error) => {
                    if let Err(also) = host.put_back() {
                        warn!(error = %also, "could not put the host back");
                    }
                    Err(error)
                }
            }
        })
        .await
    }

    /// Applies rules.
    pub(super) async fn apply(&self, batch: Batch) -> Result<(), Error> {
        blocking(move || Ok(nft::apply(&batch)?)).await
    }

    /// Removes rules and link, and puts the kernel's settings back. Goes on after a failure and returns the first one.
    pub(super) async fn restore(&self) -> Result<(), Error> {
        let host = Self { changed: self.changed.clone() };
        blocking(move || {
            let rules = nft::apply(&remove()).map_err(Error::from);
            rules.and(host.put_back())
        })
        .await
    }

    fn change(&mut self, settings: &Settings) -> Result<(), Error> {
        for path in switches(settings) {
            self.switch_on(&path)?;
        }
        link::add_bridge(LINK)?;
        for address in &settings.own_addresses {
            link::add_address(LINK, IpNet::from(*address))?;
        }
        for network in &settings.service_networks {
            let same_family = |a: &&std::net::IpAddr| a.is_ipv4() == network.addr().is_ipv4();
            let source = settings.node_addresses.iter().find(same_family).copied();
            link::add_route(*network, LINK, source)?;
        }
        Ok(())
    }

    fn switch_on(&mut self, path: &Path) -> Result<(), Error> {
        let before = match std::fs::read_to_string(path) {
            Ok(before) => before,
            Err(e) if e.kind() == io::ErrorKind::NotFound && path.starts_with("/proc/sys/net/bridge") => {
                return Err(Error::NoBridgeNetfilter { path: path.to_owned() });
            }
            Err(source) => return Err(Error::Setting { path: path.to_owned(), value: ON, source }),
        };
        if before.trim() != ON {
            std::fs::write(path, ON).map_err(|source| Error::Setting {
                path: path.to_owned(),
                value: ON,
                source,
            })?;
            self.changed.push((path.to_owned(), before));
        }
        Ok(())
    }

    fn put_back(&self) -> Result<(), Error> {
        let mut outcome = link::remove(LINK).map_err(Error::from);
        for (path, before) in self.changed.iter().rev() {
            let written = std::fs::write(path, before);
            outcome = outcome.and(written.map_err(|source| Error::Setting {
                path: path.clone(),
                value: "0",
                source,
            }));
        }
        outcome
    }
}

/// Settings that have to be on, by the families that are in use. Their files show the calling thread's namespace.
fn switches(settings: &Settings) -> Vec<PathBuf> {
    let networks = || settings.service_networks.iter().chain(&settings.pod_networks);
    let mut switches = Vec::new();
    if networks().any(|network| network.addr().is_ipv4()) {
        switches.extend(["net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"]);
    }
    if networks().any(|network| network.addr().is_ipv6()) {
        switches.extend(["net/ipv6/conf/all/forwarding", "net/bridge/bridge-nf-call-ip6tables"]);
    }
    switches.into_iter().map(|switch| Path::new("/proc/sys").join(switch)).collect()
}

/// Loads the module where it is not built in. Whether that helped is seen by the settings it brings.
async fn load_bridge_netfilter() {
    if Path::new("/proc/sys/net/bridge").exists() {
        return;
    }
    let load = tokio::process::Command::new("modprobe").arg("br_netfilter").kill_on_drop(true).output();
    match tokio::time::timeout(MODULE_WAIT, load).await {
        Ok(Ok(output)) if output.status.success() => {}
        Ok(Ok(output)) => {
            let answer = String::from_utf8_lossy(&output.stderr);
            warn!(status = %output.status, answer = answer.trim(), "could not load the kernel module br_netfilter");
        }
        Ok(Err(error)) => warn!(%error, "could not run modprobe to load br_netfilter"),
        Err(_) => warn!("loading the kernel module br_netfilter took too long"),
    }
}

/// Runs work that blocks for one exchange with the kernel.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(ended) => {
                Err(Error::Kernel(ambit_linux::Error::system("run on a thread", io::Error::other(ended))))
            }
        },
    }
}
