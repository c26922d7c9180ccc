//! `ambit agent` as an operator runs it: a real process on a node of its own.

// This file is a test from its first line; the lint only knows test functions.
#![allow(clippy::unwrap_used, reason = "a failed step of a test ends it")]

mod deployment;
mod lab;
mod removal;
mod status;

use kube::api::DeleteParams;
use lab::{CONF, LIST, Program, Proxy, on_a_node, shell, state, text, until};
use std::fs;
use std::process::Command;

/// Capabilities 1, 12, 19 and 21: CAP_DAC_OVERRIDE, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN.
const KEPT: u64 = 1 << 1 | 1 << 12 | 1 << 19 | 1 << 21;

/// What the kernel says of every thread of the agent.
#[track_caller]
fn check_confined(agent: &Program) {
    let (kept, none) = (format!("{KEPT:016x}"), format!("{:016x}", 0));
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap() {
        // A thread that has ended meanwhile says nothing.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        threads += 1;
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        for name in ["CapPrm:", "CapEff:", "CapBnd:"] {
            assert_eq!(value(name), kept, "{name}");
        }
        for name in ["CapInh:", "CapAmb:"] {
            assert_eq!(value(name), none, "{name}");
        }
        assert_eq!(value("NoNewPrivs:"), "1");
    }
    assert!(threads > 1, "the runtime's threads are confined too");
}

/// Tries to write a file as the agent sees it.
fn can_write(agent: &Program, file: &std::path::Path) -> Result<(), String> {
    let target = format!("--target={}", agent.pid());
    let output = Command::new("nsenter").args([&*target, "--mount", "touch"]).arg(file).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(text(&output)) }
}

#[test]
fn a_confined_agent_can_do_everything_that_it_is_for_and_nothing_else() {
    on_a_node(async |mut lab| {
        let agent = lab.start_agent().await;
        check_confined(&agent);
        for (file, name) in
            [("/etc/ambit-test", "/etc"), ("/root/ambit-test", "/root"), ("/var/tmp/ambit-test", "/var")]
        {
            let refused = can_write(&agent, file.as_ref()).unwrap_err();
            assert!(refused.contains("Read-only file system"), "{name}: {refused}");
        }
        assert!(can_write(&agent, &lab.at("else")).unwrap_err().contains("Read-only file system"));
        for name in ["run/istio-cni/x", "run/x", "bin/x", "conf/x"] {
            can_write(&agent, &lab.at(name)).unwrap();
        }
        // A pod whose namespace is mounted after the agent has started, and whose process is another user's.
        let net = lab.make_pod_net();
        let before = state(&net.netns);
        let _proxy = Proxy::connect(&lab);
        assert_eq!(lab.add("web", &net).await.0, 200);
        assert_eq!(lab.redirection("web").await.as_deref(), Some("enabled"));
        assert!(state(&net.netns).contains("istio-ambient-nat"));
        lab.label_namespace(None).await;
        lab.until_redirection("web", None).await;
        assert_eq!(state(&net.netns), before);
        lab.label_namespace(Some("ambient")).await;
        lab.until_redirection("web", Some("enabled")).await;
        assert!(state(&net.netns).contains("istio-ambient-nat"));
        assert!(shell("nft list ruleset").contains(&net.address), "the node's probes may reach it");
        // The plugin and its entry are kept in place, in a directory that replaces another too.
        assert!(lab.conf().contains("ambit-cni") && lab.at("bin/ambit-cni").exists());
        fs::write(lab.at("conf").join(CONF), LIST).unwrap();
        until("the entry is back", async || lab.conf().contains("ambit-cni")).await;
        fs::rename(lab.at("conf"), lab.at("conf-before")).unwrap();
        fs::create_dir(lab.at("conf")).unwrap();
        fs::write(lab.at("conf").join(CONF), LIST).unwrap();
        until("the entry is in the new one", async || lab.conf().contains("ambit-cni")).await;
        until("it is ready again", async || lab.get(8000, "/readyz").await.0 == 200).await;
        assert!(lab.get(15014, "/metrics").await.1.contains("istio_cni_install_ready 1"));
        lab.pods_of_shop().delete("web", &DeleteParams::default()).await.unwrap();
        until("the probe set is empty", async || !shell("nft list ruleset").contains(&net.address)).await;
        check_confined(&agent);
        assert!(agent.stop().await.success());
        assert!(!lab.at("run/ztunnel.sock").exists() && !lab.at("run/istio-cni/pluginevent.sock").exists());
    });
}

#[test]
fn an_agent_without_the_rights_it_needs_says_which() {
    on_a_node(async |lab| {
        let mut without = Command::new("setpriv");
        without.arg("--bounding-set=-sys_admin");
        let output = without.args(lab.agent(&[]).get_args()).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("the node agent lacks CAP_SYS_ADMIN, which it needs for entering"), "{said}");
    });
}

#[test]
fn inv_06_an_uninstallation_releases_captured_pods_first_and_leaves_the_plugin_while_sandboxes_live() {
    on_a_node(async |mut lab| {
        let node_before = shell("nft list ruleset");
        let agent = lab.start_agent().await;
        let proxy = Proxy::connect(&lab);
        let mut pods = Vec::new();
        for name in ["web", "db"] {
            let net = lab.make_pod_net();
            let before = state(&net.netns);
            assert_eq!(lab.add(name, &net).await.0, 200);
            pods.push((name, net, before));
        }
        let record = lab.record_sandbox();
        // Nothing is taken away while the agent still runs.
        let refused = lab.agent(&["uninstall"]).output().unwrap();
        assert!(!refused.status.success() && text(&refused).contains("is in use"), "{}", text(&refused));
        drop(proxy);
        assert!(agent.stop().await.success());
        assert!(lab.conf().contains("ambit-cni"), "an agent that stops leaves everything in place");
        for (name, net, _) in &pods {
            assert!(state(&net.netns).contains("istio-ambient-nat"), "{name} stays captured");
        }
        // A pod that cannot be found cannot be released, and so the plugin stays.
        let away = lab.at("away");
        fs::rename(lab.at("proc"), &away).unwrap();
        fs::create_dir(lab.at("proc")).unwrap();
        let refused = lab.agent(&["uninstall"]).output().unwrap();
        let said = text(&refused);
        assert!(!refused.status.success() && said.contains("pods are still captured"), "{said}");
        assert!(said.contains("shop/db") && said.contains("shop/web"), "{said}");
        assert!(lab.conf().contains("ambit-cni") && lab.at("bin/ambit-cni").exists());
        fs::remove_dir(lab.at("proc")).unwrap();
        fs::rename(&away, lab.at("proc")).unwrap();
        // Found again, all are released; the entry goes, and the plugin stays for the sandbox that lives.
        let done = lab.agent(&["uninstall"]).output().unwrap();
        let said = text(&done);
        assert!(done.status.success(), "{said}");
        assert!(said.contains("took the plugin out of") && said.contains("n-sandbox-eth0"), "{said}");
        for (name, net, before) in &pods {
            assert_eq!(&state(&net.netns), before, "{name}");
            assert_eq!(lab.redirection(name).await, None);
        }
        assert_eq!(lab.conf(), LIST);
        assert!(lab.at("bin/ambit-cni").exists());
        assert_eq!(shell("nft list ruleset"), node_before);
        // The sandbox is gone: the next run takes the plugin too, and another one has nothing to do.
        fs::remove_file(record).unwrap();
        for _ in 0..2 {
            let done = lab.agent(&["uninstall"]).output().unwrap();
            assert!(done.status.success(), "{}", text(&done));
            assert!(!lab.at("bin/ambit-cni").exists());
        }
    });
}
