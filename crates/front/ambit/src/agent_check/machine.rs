//! The node around the agent: its processes, limits, settings of the kernel, other packet filters, and the agent's sockets.

use super::{Finding, Level, bad, chain, fine};
use crate::cli;
use ambit_linux::netns::NetNs;
use ambit_linux::{ownership, process};
use ambit_names::path;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Open files that an agent with 500 pods may have: two per pod (its namespace, and a copy on its way to the proxy), sockets,
/// and room for the plugins that call at once. Unit: descriptors.
const FILES_MIN: u64 = 4096;
/// Watches that an agent and other programs of the node make. Unit: instances of inotify per user.
const INOTIFY_INSTANCES_MIN: u64 = 64;
/// Share of the connection table above which it is about to be full. Unit: per cent.
const CONNECTIONS_PERCENT_MAX: u64 = 90;

/// Looks at the node. `proc` is this process's /proc, `node` the node's as the agent will see it.
pub(super) fn check(proc: &Path, node: &Path) -> Vec<Finding> {
    let mut findings = vec![processes(node), cgroups(proc)];
    findings.extend(["all", "default"].map(|of| reverse_path_filter(proc, of)).into_iter().flatten());
    findings.extend(
        [files(proc), forwarding(proc), inotify(proc), connections(proc), namespaces(proc)]
            .into_iter()
            .flatten(),
    );
    findings.push(legacy_tables(proc));
    findings
}

fn number(proc: &Path, name: &str) -> Option<u64> {
    std::fs::read_to_string(proc.join(name)).ok()?.trim().parse().ok()
}

/// Whether the processes of pods are there to be found.
fn processes(node: &Path) -> Finding {
    const SUBJECT: &str = "processes of the node";
    let remedy = "share the node's process ids (hostPID), or mount the node's /proc and name it with --proc-root; \
                  give CAP_SYS_PTRACE";
    if !node.join("1").exists() {
        let found = format!("{} shows no process 1", node.display());
        return bad(Level::Fail, SUBJECT, found, remedy);
    }
    let own = match NetNs::current() {
        Ok(own) => own.id(),
        Err(error) => return bad(Level::Fail, SUBJECT, chain(error), remedy),
    };
    // Where the first process may not be looked at, nothing is known of it.
    if NetNs::open(&process::netns_path(node, 1)).is_ok_and(|first| first.id() != own) {
        let found = "this process is in another network namespace than the node's first";
        return bad(Level::Fail, SUBJECT, found, "run the agent on the node's network (hostNetwork)");
    }
    match process::pod_processes(node, own) {
        Ok(found) => {
            let pods: std::collections::BTreeSet<_> = found.iter().map(|process| &process.pod_uid).collect();
            fine(
                SUBJECT,
                format!("{} processes of {} pods below {}", found.len(), pods.len(), node.display()),
            )
        }
        Err(error) => bad(Level::Fail, SUBJECT, chain(error), remedy),
    }
}

fn cgroups(proc: &Path) -> Finding {
    match std::fs::read_to_string(proc.join("self/cgroup")) {
        Ok(text) if text.lines().any(|line| line.starts_with("0::")) => fine("cgroups", "version 2, or both"),
        Ok(text) if !text.trim().is_empty() => fine("cgroups", "version 1"),
        _ => bad(
            Level::Fail,
            "cgroups",
            "/proc/self/cgroup names none",
            "use a kernel with CONFIG_CGROUPS, mount /proc",
        ),
    }
}

fn reverse_path_filter(proc: &Path, of: &str) -> Option<Finding> {
    let value = number(proc, &format!("sys/net/ipv4/conf/{of}/rp_filter"))?;
    let found = format!("net.ipv4.conf.{of}.rp_filter is {value}");
    Some(match value {
        1 => {
            let remedy =
                format!("answers to probes may be dropped: sysctl -w net.ipv4.conf.{of}.rp_filter=2");
            bad(Level::Warn, "reverse path filter", found, remedy)
        }
        _ => fine("reverse path filter", found),
    })
}

fn files(proc: &Path) -> Option<Finding> {
    let limits = std::fs::read_to_string(proc.join("self/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let hard = line.split_ascii_whitespace().nth(1)?;
    let found = format!("at most {hard}");
    match hard.parse::<u64>() {
        Ok(hard) if hard < FILES_MIN => {
            let remedy = format!(
                "raise the limit of the agent's process to {FILES_MIN} or more (LimitNOFILE, ulimit -Hn)"
            );
            Some(bad(Level::Warn, "open files", found, remedy))
        }
        _ => Some(fine("open files", found)),
    }
}

fn forwarding(proc: &Path) -> Option<Finding> {
    let value = number(proc, "sys/net/ipv4/ip_forward")?;
    let found = format!("net.ipv4.ip_forward is {value}");
    Some(match value {
        0 => bad(
            Level::Warn,
            "forwarding",
            found,
            "pods of most networks reach nobody: sysctl -w net.ipv4.ip_forward=1, unless the network needs none",
        ),
        _ => fine("forwarding", found),
    })
}

fn inotify(proc: &Path) -> Option<Finding> {
    let value = number(proc, "sys/fs/inotify/max_user_instances")?;
    let found = format!("fs.inotify.max_user_instances is {value}");
    Some(if value < INOTIFY_INSTANCES_MIN {
        let remedy =
            "changes of the CNI configuration may be seen late: sysctl -w fs.inotify.max_user_instances=512";
        bad(Level::Warn, "notices of changes", found, remedy)
    } else {
        fine("notices of changes", found)
    })
}

/// Nothing where the kernel tracks no connections yet.
fn connections(proc: &Path) -> Option<Finding> {
    let max = number(proc, "sys/net/netfilter/nf_conntrack_max")?;
    let count = number(proc, "sys/net/netfilter/nf_conntrack_count")?;
    let found = format!("{count} of {max}");
    Some(if count.saturating_mul(100) > max.saturating_mul(CONNECTIONS_PERCENT_MAX) {
        let remedy = "new connections are about to be dropped: raise net.netfilter.nf_conntrack_max";
        bad(Level::Warn, "tracked connections", found, remedy)
    } else {
        fine("tracked connections", found)
    })
}

fn namespaces(proc: &Path) -> Option<Finding> {
    let value = number(proc, "sys/user/max_net_namespaces")?;
    let found = format!("user.max_net_namespaces is {value}");
    (value == 0).then(|| {
        bad(
            Level::Fail,
            "network namespaces",
            found,
            "pods cannot be made: sysctl -w user.max_net_namespaces=65536",
        )
    })
}

/// Tables of the older packet filter, which works beside nf_tables and sees packets in an order that nobody chose.
fn legacy_tables(proc: &Path) -> Finding {
    const SUBJECT: &str = "iptables";
    let tables: Vec<String> = ["ip_tables_names", "ip6_tables_names"]
        .iter()
        .filter_map(|name| std::fs::read_to_string(proc.join("net").join(name)).ok().map(|text| (name, text)))
        .flat_map(|(name, text)| {
            let family = if name.starts_with("ip6") { "ip6" } else { "ip" };
            text.lines().map(|table| format!("{family} {table}")).collect::<Vec<_>>()
        })
        .collect();
    if tables.is_empty() {
        return fine(SUBJECT, "no tables of iptables-legacy");
    }
    let found = format!("tables of iptables-legacy are in use: {}", tables.join(", "));
    let remedy = "where both rewrite an address, the one that was set up first wins: let the pod network and kube-proxy use iptables-nft \
                  (update-alternatives --set iptables /usr/sbin/iptables-nft), or check their nat tables";
    bad(Level::Warn, SUBJECT, found, remedy)
}

/// The places of the agent's sockets.
pub(super) fn sockets(args: &cli::Agent) -> Vec<Finding> {
    let plugin = args.run_dir.join(path::PLUGIN_EVENT_SOCKET);
    let places =
        [("socket of the plugin", plugin.as_path()), ("socket of the hand-over", &args.handover_socket)];
    places.into_iter().map(|(subject, socket)| free(subject, socket)).collect()
}

fn free(subject: &'static str, socket: &Path) -> Finding {
    let found = socket.display().to_string();
    let in_use = match UnixStream::connect(socket) {
        Ok(_) => true,
        // A socket of another kind, which somebody listens on all the same.
        Err(e) => e.raw_os_error() == Some(nix::libc::EPROTOTYPE),
    };
    if in_use {
        let remedy = "an agent runs already: stop it before another one starts";
        return bad(Level::Warn, subject, format!("{found} is in use"), remedy);
    }
    if !socket.parent().is_some_and(Path::exists) {
        return fine(subject, format!("{found} is free; its directory will be made"));
    }
    match ownership::check_place(socket) {
        Ok(()) => fine(subject, format!("{found} is free")),
        Err(error) => bad(Level::Fail, subject, chain(error), "the agent does not start like this"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Files below a directory that stands for /proc.
    #[track_caller]
    fn check_finds(files: &[(&str, &str)], subject: &str, level: Option<Level>, text: &str) {
        let proc = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let file = proc.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        let findings = check(proc.path(), "/proc".as_ref());
        let found = findings.iter().find(|finding| finding.subject == subject);
        assert_eq!(found.map(|finding| finding.level), level, "{findings:#?}");
        if let Some(found) = found {
            assert!(super::super::line(found).contains(text), "{found:?}");
        }
    }

    #[test]
    fn settings_of_the_kernel_are_judged() {
        let rp_filter = "sys/net/ipv4/conf/all/rp_filter";
        check_finds(&[(rp_filter, "1\n")], "reverse path filter", Some(Level::Warn), "rp_filter=2");
        check_finds(&[(rp_filter, "2\n")], "reverse path filter", Some(Level::Ok), "is 2");
        check_finds(&[(rp_filter, "x")], "reverse path filter", None, "");
        let forward = "sys/net/ipv4/ip_forward";
        check_finds(&[(forward, "0")], "forwarding", Some(Level::Warn), "ip_forward=1");
        check_finds(&[(forward, "1")], "forwarding", Some(Level::Ok), "");
        let instances = "sys/fs/inotify/max_user_instances";
        check_finds(&[(instances, "8")], "notices of changes", Some(Level::Warn), "=512");
        check_finds(&[(instances, "128")], "notices of changes", Some(Level::Ok), "");
        let (max, count) = ("sys/net/netfilter/nf_conntrack_max", "sys/net/netfilter/nf_conntrack_count");
        check_finds(&[(max, "100"), (count, "91")], "tracked connections", Some(Level::Warn), "91 of 100");
        check_finds(&[(max, "100"), (count, "90")], "tracked connections", Some(Level::Ok), "90 of 100");
        check_finds(&[(max, "100")], "tracked connections", None, "");
        let namespaces = "sys/user/max_net_namespaces";
        check_finds(&[(namespaces, "0")], "network namespaces", Some(Level::Fail), "pods cannot be made");
        check_finds(&[(namespaces, "1")], "network namespaces", None, "");
    }

    #[test]
    fn limits_cgroups_and_older_tables_are_judged() {
        let files =
            |hard: &str| format!("Limit  Soft  Hard  Units\nMax open files            1024  {hard}  files\n");
        check_finds(&[("self/limits", &files("1024"))], "open files", Some(Level::Warn), "at most 1024");
        check_finds(&[("self/limits", &files("20000"))], "open files", Some(Level::Ok), "");
        check_finds(&[("self/limits", &files("unlimited"))], "open files", Some(Level::Ok), "");
        check_finds(&[("self/cgroup", "0::/x\n")], "cgroups", Some(Level::Ok), "version 2");
        check_finds(&[("self/cgroup", "1:cpu:/x\n")], "cgroups", Some(Level::Ok), "version 1");
        check_finds(&[], "cgroups", Some(Level::Fail), "CONFIG_CGROUPS");
        check_finds(&[("net/ip_tables_names", "")], "iptables", Some(Level::Ok), "");
        let both = [("net/ip_tables_names", "nat\nfilter\n"), ("net/ip6_tables_names", "nat\n")];
        check_finds(&both, "iptables", Some(Level::Warn), "ip nat, ip filter, ip6 nat");
    }

    #[test]
    fn a_proc_that_is_not_the_node_s_is_told() {
        let empty = tempfile::tempdir().unwrap();
        let finding = processes(empty.path());
        assert_eq!(finding.level, Level::Fail);
        assert!(finding.remedy.contains("--proc-root"), "{finding:?}");
        assert_eq!(processes("/proc".as_ref()).level, Level::Ok);
    }

    #[test]
    fn a_place_for_a_socket_that_others_can_change_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(free("s", &dir.path().join("none/socket")).level, Level::Ok);
        assert_eq!(free("s", &dir.path().join("socket")).level, Level::Ok);
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let finding = free("s", &dir.path().join("socket"));
        assert!(finding.level == Level::Fail && finding.found.contains("everyone can write"), "{finding:?}");
    }
}
