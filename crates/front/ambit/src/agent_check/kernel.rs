//! What the agent needs of the kernel and of its own rights, each tried alone.

use super::{Finding, Level, bad, chain, fine};
use crate::cli;
use ambit_linux::capability::{self, Capability};
use ambit_linux::netns::NetNs;
use ambit_linux::own_mounts::OwnMounts;
use ambit_linux::socket::{self, Transparency};
use ambit_linux::{nft, route};
use ambit_names::mark;
use ambit_rules::feature::{FEATURES, Feature, Purpose};
use ambit_rules::pod::{Capture, Families, plan_capture, plan_routes};
use std::net::SocketAddr;

/// Tries everything in a private network namespace.
pub(super) fn check(args: &cli::Agent) -> Vec<Finding> {
    let mut findings = rights();
    if findings.iter().any(|finding| finding.level == Level::Fail) {
        // The kernel would refuse everything, whatever it has.
        return findings;
    }
    findings.push(view());
    let needs = "use a kernel (5.10 or later) with CONFIG_NET_NS, and set user.max_net_namespaces above 0";
    let tried = NetNs::create_private().and_then(|netns| netns.run(|| inside(args)));
    match tried {
        Ok(tried) => {
            findings.push(fine("network namespaces", "can be made and entered"));
            findings.extend(tried);
        }
        Err(error) => findings.push(bad(Level::Fail, "network namespaces", chain(error), needs)),
    }
    findings
}

fn inside(args: &cli::Agent) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        FEATURES.iter().filter_map(|feature| feature_of(feature, args)).collect();
    if findings.is_empty() {
        findings.push(fine("packet filter", format!("nf_tables has all {} features", FEATURES.len())));
    }
    findings.push(routes("routes by marks", Families::V4));
    if !args.no_ipv6 && !route::ipv6_on_loopback() {
        findings.push(bad(Level::Warn, "IPv6", "this machine has none", "set --no-ipv6"));
    } else if !args.no_ipv6 {
        findings.push(routes("routes by marks for IPv6", Families::Dual));
    }
    let families = if args.no_ipv6 { Families::V4 } else { Families::Dual };
    let capture = Capture { families, ..Capture::default() };
    findings.push(match nft::apply(&plan_capture(&capture)) {
        Ok(()) => fine("packet rules", "nf_tables takes the rules of a captured pod"),
        Err(error) => bad(Level::Fail, "packet rules", chain(error), "see what is missing above"),
    });
    findings.push(marked_sockets());
    findings
}

/// Nothing where the feature is there.
fn feature_of(feature: &Feature, args: &cli::Agent) -> Option<Finding> {
    nft::apply(&feature.trial()).err().map(|error| missing(feature, chain(error), args))
}

fn missing(feature: &Feature, answer: String, args: &cli::Agent) -> Finding {
    let (level, consequence) = match feature.purpose {
        Purpose::Capture => (Level::Fail, "no pod can be captured"),
        Purpose::Probes => (Level::Fail, "the node's probes do not reach captured pods"),
        Purpose::Dns if args.dns_capture => (Level::Fail, "pods' DNS cannot be captured"),
        Purpose::Dns => (Level::Warn, "pods that ask for the capture of their DNS are not captured"),
        Purpose::Quarantine if matches!(args.uncaptured, cli::Uncaptured::LetBe) => {
            (Level::Warn, "--uncaptured kept-off is not possible")
        }
        Purpose::Quarantine => {
            (Level::Fail, "pods cannot be kept off the network (--uncaptured let-be goes without)")
        }
    };
    let found = format!("the kernel has no {}, {consequence}: {answer}", feature.name);
    let remedy =
        format!("use a kernel with {}, or load the module {} (modprobe)", feature.option, feature.module);
    bad(level, "packet filter", found, remedy)
}

fn routes(subject: &'static str, families: Families) -> Finding {
    match plan_routes(families).iter().try_for_each(route::add_marked) {
        Ok(()) => fine(subject, "can be added"),
        Err(error) => {
            let remedy = "use a kernel with CONFIG_IP_MULTIPLE_TABLES (and CONFIG_IPV6_MULTIPLE_TABLES), or set --no-ipv6";
            bad(Level::Fail, subject, chain(error), remedy)
        }
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

/// What the agent keeps of its rights, if it is started as this check was.
fn rights() -> Vec<Finding> {
    const SUBJECT: &str = "rights";
    let held = match capability::held() {
        Ok(held) => held,
        Err(error) => return vec![bad(Level::Fail, SUBJECT, chain(error), "mount /proc")],
    };
    let missing = [
        (Capability::NetAdmin, Level::Fail, "packet rules cannot be changed"),
        (Capability::SysAdmin, Level::Fail, "the network namespaces of pods cannot be entered"),
        (Capability::SysPtrace, Level::Warn, "running pods whose processes are other users' are not found"),
        (Capability::DacOverride, Level::Warn, "CNI directories of other users than root cannot be written"),
        (Capability::SetPcap, Level::Warn, "the agent cannot give up the rest of its rights for good"),
    ];
    let missing: Vec<Finding> = missing
        .into_iter()
        .filter(|(capability, ..)| !held.has(*capability))
        .map(|(capability, level, consequence)| {
            let remedy = "add it to the capabilities of the agent's container, or run the agent as root of the machine";
            bad(level, SUBJECT, format!("{capability} is missing: {consequence}"), remedy)
        })
        .collect();
    if missing.is_empty() { vec![fine(SUBJECT, "all that the agent needs")] } else { missing }
}

/// Tried on a thread of its own, whose mounts end with it.
fn view() -> Finding {
    const SUBJECT: &str = "read-only view of the files";
    let tried = std::thread::spawn(|| OwnMounts::enter(&[]).map(drop)).join();
    match tried {
        Ok(Ok(())) => fine(SUBJECT, "can be made"),
        Ok(Err(error)) => {
            let remedy = "the agent works without; use Linux 5.12 or later, and a container that may mount (AppArmor unconfined)";
            bad(Level::Warn, SUBJECT, chain(error), remedy)
        }
        Err(_) => bad(Level::Warn, SUBJECT, "the trial broke off", "the agent works without"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn agent(flags: &[&str]) -> cli::Agent {
        match cli::Cli::try_parse_from(["ambit", "agent"].iter().chain(flags)).unwrap().command {
            cli::Command::Agent(agent) => agent,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_missing(purpose: Purpose, flags: &[&str], level: Level, text: &str) {
        let feature = FEATURES.iter().find(|feature| feature.purpose == purpose).unwrap();
        let finding = missing(feature, "No such file or directory".to_owned(), &agent(flags));
        assert_eq!(finding.level, level, "{finding:?}");
        for part in [text, feature.name, "No such file"] {
            assert!(finding.found.contains(part), "{finding:?}");
        }
        for part in [feature.option, feature.module] {
            assert!(finding.remedy.contains(part), "{finding:?}");
        }
    }

    #[test]
    fn a_missing_feature_is_named_with_its_option_module_and_consequence() {
        check_missing(Purpose::Capture, &[], Level::Fail, "no pod can be captured");
        check_missing(Purpose::Probes, &[], Level::Fail, "probes");
        check_missing(Purpose::Dns, &[], Level::Warn, "that ask for");
        check_missing(Purpose::Dns, &["--dns-capture"], Level::Fail, "cannot be captured");
        check_missing(Purpose::Quarantine, &[], Level::Fail, "--uncaptured let-be goes without");
        check_missing(Purpose::Quarantine, &["--uncaptured=let-be"], Level::Warn, "is not possible");
    }

    #[test]
    fn missing_rights_are_told_and_nothing_is_tried_without_them() {
        // On a thread of its own, which alone gives up its rights.
        let findings = std::thread::spawn(|| {
            capability::keep_only([Capability::SysAdmin].into_iter().collect()).unwrap();
            check(&agent(&[]))
        });
        let findings = findings.join().unwrap();
        let of = |level| findings.iter().filter(move |finding| finding.level == level).count();
        assert_eq!((findings.len(), of(Level::Fail), of(Level::Warn)), (4, 1, 3), "{findings:?}");
        assert!(findings[0].found.contains("CAP_NET_ADMIN is missing"), "{findings:?}");
    }
}
