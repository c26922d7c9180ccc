//! The `/etc/hosts` of a pod's containers. Source: kubelet's `ensureHostsFile`.

use crate::context::{Context, identity};
use crate::error::Error;
use ambit_api::core::v1::Pod;
use ambit_node_plan::pod::is_host_network;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;

/// Writes the file and returns its path.
pub(super) fn write(context: &Context, pod: &Pod, hostname: &str, ips: &[IpAddr]) -> Result<PathBuf, Error> {
    let (_, _, uid) = identity(pod);
    let dir = context.layout.pod(uid);
    std::fs::create_dir_all(&dir).map_err(Error::file("make the directory", &dir))?;
    let path = dir.join("etc-hosts");
    let text = if is_host_network(pod) {
        let own = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        format!("{own}{}", aliases(pod))
    } else {
        render(pod, hostname, &context.settings.cluster_domain, ips)
    };
    std::fs::write(&path, text).map_err(Error::file("write", &path))?;
    Ok(path)
}

fn render(pod: &Pod, hostname: &str, domain: &str, ips: &[IpAddr]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    let subdomain = pod.spec.as_ref().and_then(|s| s.subdomain.as_deref()).filter(|s| !s.is_empty());
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    for ip in ips {
        // Writing to a string does not fail.
        let _ = match subdomain {
            Some(sub) => {
                writeln!(text, "{ip}\t{hostname}.{sub}.{namespace}.svc.{domain}\t{hostname}")
            }
            None => writeln!(text, "{ip}\t{hostname}"),
        };
    }
    text + &aliases(pod)
}

fn aliases(pod: &Pod) -> String {
    let list = pod.spec.as_ref().and_then(|s| s.host_aliases.as_ref()).into_iter().flatten();
    let line = |ip: &str, names: &[String]| format!("{ip}\t{}\n", names.join("\t"));
    list.map(|alias| line(&alias.ip, alias.hostnames.as_deref().unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_and_aliases_are_in_the_file() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "namespace": "demo" },
            "spec": { "containers": [], "subdomain": "db",
                "hostAliases": [{ "ip": "192.0.2.9", "hostnames": ["a", "b"] }] },
        }))
        .unwrap();
        let text = render(&pod, "db-0", "cluster.local", &["10.0.0.2".parse().unwrap()]);
        let tail: Vec<_> = text.lines().skip(7).collect();
        assert_eq!(tail, ["10.0.0.2\tdb-0.db.demo.svc.cluster.local\tdb-0", "192.0.2.9\ta\tb"]);
        assert!(text.lines().any(|line| line == "127.0.0.1\tlocalhost"));
    }
}
