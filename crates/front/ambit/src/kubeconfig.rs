//! Kubeconfigs: connections by an ordinary one, and files that only their owner reads.

use ambit_kube::Liveness;
use anyhow::{Context as _, Result, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// A client for the cluster of the kubeconfig; without one, the in-cluster configuration or the usual places.
///
/// # Errors
/// The file cannot be read, or names no usable cluster and user.
pub(crate) async fn connect(file: Option<&Path>) -> Result<kube::Client> {
    let config = match file {
        Some(path) => {
            let read = Kubeconfig::read_from(path)
                .with_context(|| format!("cannot use kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("cannot use kubeconfig {}", path.display()))?
        }
        // The places that were tried say nothing that the remedy does not.
        None => kube::Config::infer()
            .await
            .map_err(|_| anyhow!("found no cluster: pass --kubeconfig FILE or set KUBECONFIG"))?,
    };
    ambit_kube::connect(config, Liveness::default()).context("cannot make a client of the kubeconfig")
}

/// An address under which a listener on `ip` is reached from this machine.
pub(crate) fn local(ip: IpAddr) -> IpAddr {
    match ip {
        _ if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Writes a file that only its owner reads, never showing half of it.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_private(file: &Path, content: &[u8]) -> Result<()> {
    let fresh = file.with_extension("new");
    let write = || {
        std::fs::write(&fresh, content)?;
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&fresh, file)
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        for content in ["one", "two"] {
            write_private(&file, content.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
        }
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
