//! The runtime's CNI configuration: where it is, who else writes it, and whether the agent can.

use super::{Finding, Level, bad, chain, fine};
use ambit_agent::install::{self, Inspection};
use ambit_cni_conf::rivalry::suspect;
use ambit_cni_conf::{Entry, File, list};
use nix::unistd::{AccessFlags, access};
use std::path::Path;

/// Where containerd's own configuration is.
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";
/// Where CRI-O's is, and the directory of the files that override it.
const CRIO_CONFIG: &str = "/etc/crio/crio.conf";
const CRIO_PARTS: &str = "/etc/crio/crio.conf.d";
/// Plugins of other meshes, how bad it is to have one, and what to do.
const OTHER_MESHES: [(&str, Level, &str); 3] = [
    (
        "istio-cni",
        Level::Fail,
        "remove the istio-cni DaemonSet from this node: two agents would capture the same pods",
    ),
    (
        "linkerd-cni",
        Level::Warn,
        "label the namespaces of one mesh only: a pod of both would have its traffic taken twice",
    ),
    (
        "kuma-cni",
        Level::Warn,
        "label the namespaces of one mesh only: a pod of both would have its traffic taken twice",
    ),
];

pub(super) fn writable(subject: &'static str, directory: &Path) -> Finding {
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

pub(super) fn plugin(file: &Path) -> Finding {
    if file.is_file() {
        return fine("plugin", file.display().to_string());
    }
    let found = format!("{} is missing", file.display());
    bad(Level::Fail, "plugin", found, "put ambit-cni beside this program, or set --cni-plugin")
}

/// The runtime's configuration, and who else writes there.
pub(super) fn check(settings: &install::Settings, entry: Entry) -> Vec<Finding> {
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
    findings.extend(files.iter().flat_map(|file| {
        let kinds = list::plugin_types(&String::from_utf8_lossy(&file.bytes));
        let others = OTHER_MESHES.iter().filter(move |(kind, ..)| kinds.iter().any(|there| there == kind));
        others.map(|(kind, level, remedy)| {
            bad(*level, SUBJECT, format!("{} has the plugin {kind}", file.name), *remedy)
        })
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

/// Whether the runtime looks where the entry goes.
pub(super) fn runtime(conf_dir: &Path) -> Vec<Finding> {
    let containerd = std::fs::read_to_string(CONTAINERD_CONFIG).ok();
    let containerd = containerd.and_then(|text| directory(&text, ("containerd", "conf_dir"), conf_dir));
    // Later files override earlier ones.
    let mut parts: Vec<_> =
        std::fs::read_dir(CRIO_PARTS).into_iter().flatten().flatten().map(|e| e.path()).collect();
    parts.sort();
    let crio = std::iter::once(CRIO_CONFIG.into())
        .chain(parts)
        .filter_map(|file| std::fs::read_to_string(file).ok());
    let crio = crio.filter_map(|text| directory(&text, ("CRI-O", "network_dir"), conf_dir)).next_back();
    containerd.into_iter().chain(crio).collect()
}

fn directory(config: &str, (program, key): (&'static str, &str), conf_dir: &Path) -> Option<Finding> {
    let value = |line: &str| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim().trim_matches(['"', '\'']).trim_end_matches('/').to_owned())
    };
    let theirs = config.lines().find_map(value)?;
    if Path::new(&theirs) == conf_dir {
        return Some(fine(program, format!("its {key} is {theirs}")));
    }
    let found = format!("its {key} is {theirs}, the agent's {}", conf_dir.display());
    Some(bad(Level::Warn, program, found, "set --cni-conf-dir to where that directory is mounted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_directory(config: &str, program: (&'static str, &str), expected: Option<Level>) {
        let found = directory(config, program, Path::new("/etc/cni/net.d"));
        assert_eq!(found.map(|finding| finding.level), expected, "{config}");
    }

    #[test]
    fn the_runtime_s_directory_is_compared() {
        let containerd = ("containerd", "conf_dir");
        check_directory("", containerd, None);
        check_directory("[cni]\n  conf_dir = \"/etc/cni/net.d\"", containerd, Some(Level::Ok));
        check_directory("conf_dir='/var/lib/cni/net.d'", containerd, Some(Level::Warn));
        check_directory("# conf_dir = \"/x\"", containerd, None);
        let crio = ("CRI-O", "network_dir");
        check_directory("[crio.network]\nnetwork_dir = \"/etc/cni/net.d/\"", crio, Some(Level::Ok));
        check_directory("network_dir = \"/etc/kubernetes/cni/net.d\"", crio, Some(Level::Warn));
        check_directory("# network_dir = \"/x\"\n", crio, None);
    }
}
