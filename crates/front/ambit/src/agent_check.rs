//! `ambit agent check`: whether this node can run the mesh, and what to do where it cannot. It changes nothing: the
//! kernel is tried in a network namespace of the check's own.

use crate::cli;
use crate::roles::install_settings;
use ambit_agent::install::{self, Inspection};
use ambit_cni_conf::rivalry::suspect;
use ambit_cni_conf::{Entry, File, list};
use ambit_linux::netns::NetNs;
use ambit_linux::socket::{self, Transparency};
use ambit_linux::{nft, route};
use ambit_names::{mark, path};
use ambit_rules::pod::{Capture, Families, plan_capture, plan_routes};
use anyhow::{Result, bail};
use nix::unistd::{AccessFlags, access};
use serde::Serialize;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Where containerd's own configuration is.
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";
/// Type of the field's own plugin, which cannot serve the same pods.
const FIELD_PLUGIN: &str = "istio-cni";

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    subject: &'static str,
    found: String,
    /// What to do; empty when nothing is to be done.
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: String,
}

fn fine(subject: &'static str, found: impl Into<String>) -> Finding {
    Finding { level: Level::Ok, subject, found: found.into(), remedy: String::new() }
}

fn bad(level: Level, subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level, subject, found: found.into(), remedy: remedy.into() }
}

fn chain(error: impl std::error::Error + Send + Sync + 'static) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// Checks and prints.
///
/// # Errors
/// Something fails.
#[expect(clippy::print_stdout, reason = "the findings are what is asked for")]
pub(crate) fn run(args: &cli::Agent, output: cli::CheckOutput) -> Result<()> {
    let findings = check(args)?;
    match output {
        cli::CheckOutput::Json => println!("{}", serde_json::to_string_pretty(&findings)?),
        cli::CheckOutput::Text => findings.iter().for_each(|finding| println!("{}", line(finding))),
    }
    match findings.iter().filter(|finding| finding.level == Level::Fail).count() {
        0 => Ok(()),
        failed => bail!("this node cannot run the mesh yet: {failed} of {} checks failed", findings.len()),
    }
}

fn line(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Ok => "ok  ",
        Level::Warn => "warn",
        Level::Fail => "FAIL",
    };
    let remedy =
        if finding.remedy.is_empty() { String::new() } else { format!("\n      {}", finding.remedy) };
    format!("{level}  {}: {}{remedy}", finding.subject, finding.found)
}

fn check(args: &cli::Agent) -> Result<Vec<Finding>> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(vec![bad(Level::Fail, "user", "not root", "run the check and the agent as root")]);
    }
    let install = install_settings(&args.cni)?;
    let mut findings = vec![fine("user", "root")];
    findings.extend(kernel(args));
    findings.push(cgroups());
    findings.extend(["all", "default"].map(reverse_path_filter).into_iter().flatten());
    findings.push(writable("configuration directory", &install.conf_dir));
    findings.push(writable("plugin directory", &install.bin_dir));
    findings.push(plugin(&install.plugin));
    let entry = Entry {
        run_dir: args.run_dir.display().to_string(),
        exclude_namespaces: args.exclude_namespaces.clone(),
        pod_namespace: args.system_namespace.clone(),
    };
    findings.extend(configuration(&install, entry));
    findings.extend(
        std::fs::read_to_string(CONTAINERD_CONFIG).ok().and_then(|text| containerd(&text, &install.conf_dir)),
    );
    findings.push(free("socket of the plugin", &args.run_dir.join(path::PLUGIN_EVENT_SOCKET)));
    findings.push(free("socket of the hand-over", &args.handover_socket));
    Ok(findings)
}

/// What a pod's capture needs of the kernel, tried as a whole in a private network namespace.
fn kernel(args: &cli::Agent) -> Vec<Finding> {
    let needs = "use a kernel (5.10 or later) with CONFIG_NET_NS";
    let tried = NetNs::create_private().and_then(|netns| {
        netns.run(|| {
            // Without its loopback up a namespace takes no local routes.
            let up = route::set_up("lo").err().map(|e| bad(Level::Fail, "loopback", chain(e), needs));
            let mut findings: Vec<Finding> = up.into_iter().collect();
            findings.push(rules("packet rules", Families::V4, Level::Fail));
            if !args.no_ipv6 && !route::ipv6_on_loopback() {
                findings.push(bad(Level::Warn, "IPv6", "this machine has none", "set --no-ipv6"));
            } else if !args.no_ipv6 {
                findings.push(rules("packet rules for IPv6", Families::Dual, Level::Fail));
            }
            findings.push(marked_sockets());
            findings
        })
    });
    match tried {
        Ok(mut findings) => {
            findings.insert(0, fine("network namespaces", "can be made and entered"));
            findings
        }
        Err(error) => vec![bad(Level::Fail, "network namespaces", chain(error), needs)],
    }
}

fn rules(subject: &'static str, families: Families, level: Level) -> Finding {
    let modules = "load nf_tables, nft_redir, nft_ct, nft_nat and nf_conntrack (modprobe), or use a kernel with CONFIG_NF_TABLES_INET, \
                   CONFIG_NFT_NAT, CONFIG_NFT_REDIR, CONFIG_NFT_CT and CONFIG_IP_MULTIPLE_TABLES";
    let capture = Capture { families, ..Capture::default() };
    let applied = nft::apply(&plan_capture(&capture))
        .and_then(|()| plan_routes(families).iter().try_for_each(route::add_marked));
    match applied {
        Ok(()) => fine(subject, "nf_tables takes the rules of a captured pod, and marks choose routes"),
        Err(error) => bad(level, subject, chain(error), modules),
    }
}

/// The proxy's sockets carry a mark and keep the addresses of others.
fn marked_sockets() -> Finding {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    match socket::listen(address, mark::PROXY, Transparency::Required) {
        Ok(_) => fine("transparent sockets", "can be made and marked"),
        Err(error) => {
            let remedy = "give the proxy CAP_NET_ADMIN, on a kernel with CONFIG_NETFILTER_XT_TARGET_TPROXY or IP_TRANSPARENT";
            bad(Level::Fail, "transparent sockets", chain(error), remedy)
        }
    }
}

fn cgroups() -> Finding {
    match std::fs::read_to_string("/proc/self/cgroup") {
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

fn reverse_path_filter(of: &str) -> Option<Finding> {
    let file = format!("/proc/sys/net/ipv4/conf/{of}/rp_filter");
    let value = std::fs::read_to_string(&file).ok()?;
    let found = format!("net.ipv4.conf.{of}.rp_filter is {}", value.trim());
    Some(match value.trim() {
        "1" => {
            let remedy =
                format!("answers to probes may be dropped: sysctl -w net.ipv4.conf.{of}.rp_filter=2");
            bad(Level::Warn, "reverse path filter", found, remedy)
        }
        _ => fine("reverse path filter", found),
    })
}

fn writable(subject: &'static str, directory: &Path) -> Finding {
    let found = directory.display().to_string();
    match access(directory, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) if directory.is_dir() => fine(subject, found),
        Ok(()) => bad(Level::Fail, subject, format!("{found} is no directory"), "set another one"),
        Err(nix::errno::Errno::ENOENT) => bad(
            Level::Warn,
            subject,
            format!("{found} does not exist"),
            "install a pod network; the agent waits for it",
        ),
        Err(error) => {
            let remedy = "mount it writable, or set --cni-conf-dir and --cni-bin-dir";
            bad(Level::Fail, subject, format!("{found}: {error}"), remedy)
        }
    }
}

fn plugin(file: &Path) -> Finding {
    if file.is_file() {
        return fine("plugin", file.display().to_string());
    }
    let found = format!("{} is missing", file.display());
    bad(Level::Fail, "plugin", found, "put ambit-cni beside this program, or set --cni-plugin")
}

/// The runtime's configuration, and who else writes there.
fn configuration(settings: &install::Settings, entry: Entry) -> Vec<Finding> {
    const SUBJECT: &str = "CNI configuration";
    if !settings.conf_dir.is_dir() {
        return Vec::new();
    }
    let Inspection { files, plan } = match install::inspect(settings, entry) {
        Ok(inspection) => inspection,
        Err(error) => return vec![bad(Level::Fail, SUBJECT, chain(error), "repair or remove the file")],
    };
    let mut findings = Vec::new();
    for ignored in &plan.ignored {
        let found = format!("{} cannot be used: {}", ignored.name, ignored.problem);
        findings.push(bad(
            Level::Warn,
            SUBJECT,
            found,
            "repair or remove it: containerd loads nothing beside it",
        ));
    }
    findings.push(match &plan.primary {
        Some(name) => fine(SUBJECT, format!("{name} is the one to use")),
        None => {
            bad(Level::Warn, SUBJECT, "there is none to use", "install a pod network; the agent waits for it")
        }
    });
    findings.extend(plan.preempted_by.iter().map(|other| {
        let remedy = "rename one of the two, or set neither --cni-conf-name nor --cni-own-file";
        bad(Level::Fail, SUBJECT, format!("{other} sorts before the file with the plugin"), remedy)
    }));
    let primary = |file: &&File| Some(&file.name) == plan.primary.as_ref();
    findings.extend(files.iter().filter(primary).filter_map(other_writer));
    let field = |file: &&File| {
        list::plugin_types(&String::from_utf8_lossy(&file.bytes)).iter().any(|t| t == FIELD_PLUGIN)
    };
    findings.extend(files.iter().filter(field).map(|file| {
        let remedy = "remove the istio-cni DaemonSet from this node: two agents would capture the same pods";
        bad(Level::Fail, SUBJECT, format!("{} has the plugin {FIELD_PLUGIN}", file.name), remedy)
    }));
    findings
}

/// Warns of installers that are known to keep others out of their configuration.
fn other_writer(file: &File) -> Option<Finding> {
    let text = String::from_utf8_lossy(&file.bytes);
    let (writer, remedy) = suspect(&file.name, &text);
    let keeps_others_out = ["Cilium", "Multus"].iter().any(|name| writer.contains(name));
    let found = || format!("{} is written by {writer}, which may take the plugin out again", file.name);
    keeps_others_out.then(|| bad(Level::Warn, "other writers", found(), remedy))
}

/// Whether containerd looks where the entry goes.
fn containerd(config: &str, conf_dir: &Path) -> Option<Finding> {
    let value = |line: &str| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "conf_dir").then(|| value.trim().trim_matches(['"', '\'']).to_owned())
    };
    let theirs = config.lines().find_map(value)?;
    if Path::new(&theirs) == conf_dir {
        return Some(fine("containerd", format!("its conf_dir is {theirs}")));
    }
    let found = format!("its conf_dir is {theirs}, the agent's {}", conf_dir.display());
    Some(bad(Level::Warn, "containerd", found, "set --cni-conf-dir to where that directory is mounted"))
}

fn free(subject: &'static str, socket: &Path) -> Finding {
    let found = socket.display().to_string();
    match UnixStream::connect(socket) {
        Ok(_) => bad(
            Level::Warn,
            subject,
            format!("{found} is in use"),
            "an agent runs already: stop it before another one starts",
        ),
        // A socket of another kind, which somebody listens on all the same.
        Err(e) if e.raw_os_error() == Some(nix::libc::EPROTOTYPE) => bad(
            Level::Warn,
            subject,
            format!("{found} is in use"),
            "an agent runs already: stop it before another one starts",
        ),
        Err(_) => fine(subject, format!("{found} is free")),
    }
}

#[cfg(test)]
mod tests;
