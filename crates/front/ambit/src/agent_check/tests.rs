use super::*;
use ambit_names::path;
use clap::Parser;
use std::path::Path;

const LIST: &str = r#"{"name": "n", "plugins": [{"type": "bridge"}]}"#;

fn agent(dir: &Path) -> cli::Agent {
    let at = |name: &str| dir.join(name).display().to_string();
    let flags = [
        ("--cni-conf-dir", at("conf")),
        ("--cni-bin-dir", at("bin")),
        ("--cni-plugin", at("plugin")),
        ("--run-dir", at("run")),
        ("--handover-socket", at("handover.sock")),
    ];
    let line = ["ambit".to_owned(), "agent".to_owned()].into_iter();
    let line = line.chain(flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
    match cli::Cli::try_parse_from(line).unwrap().command {
        cli::Command::Agent(agent) => agent,
        other => panic!("{other:?}"),
    }
}

fn node() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["conf", "bin", "run"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("plugin"), "x").unwrap();
    std::fs::write(dir.path().join("conf/10-a.conflist"), LIST).unwrap();
    dir
}

fn of_level(findings: &[Finding], level: Level) -> Vec<String> {
    findings.iter().filter(|finding| finding.level == level).map(line).collect()
}

#[test]
fn a_node_with_everything_passes_and_is_not_changed() {
    let dir = node();
    let findings = check(&agent(dir.path())).unwrap();
    assert_eq!(of_level(&findings, Level::Fail), Vec::<String>::new());
    for subject in [
        "packet filter",
        "packet rules",
        "network namespaces",
        "rights",
        "routes by marks",
        "transparent sockets",
        "cgroups",
        "processes of the node",
        "plugin directory",
    ] {
        assert!(
            findings.iter().any(|f| f.subject == subject && f.level == Level::Ok),
            "{subject}: {findings:?}"
        );
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("conf/10-a.conflist")).unwrap(), LIST);
}

#[track_caller]
fn check_finds(change: impl FnOnce(&Path), level: Level, text: &str) {
    let dir = node();
    change(dir.path());
    let findings = check(&agent(dir.path())).unwrap();
    let found = of_level(&findings, level);
    assert!(found.iter().any(|line| line.contains(text)), "{text}: {findings:#?}");
}

#[test]
fn what_is_missing_or_in_conflict_is_told_with_the_remedy() {
    let write = |name: &'static str, text: &'static str| {
        move |dir: &Path| std::fs::write(dir.join(name), text).unwrap()
    };
    check_finds(|dir| std::fs::remove_file(dir.join("plugin")).unwrap(), Level::Fail, "--cni-plugin");
    check_finds(write("conf/05-a.conflist", "{"), Level::Warn, "05-a.conflist cannot be used");
    let field = r#"{"name": "n", "plugins": [{"type": "bridge"}, {"type": "istio-cni"}]}"#;
    check_finds(write("conf/10-a.conflist", field), Level::Fail, "remove the istio-cni DaemonSet");
    let linkerd = r#"{"name": "n", "plugins": [{"type": "bridge"}, {"type": "linkerd-cni"}]}"#;
    check_finds(write("conf/10-a.conflist", linkerd), Level::Warn, "of one mesh only");
    let cilium = r#"{"name": "n", "plugins": [{"type": "cilium-cni"}]}"#;
    check_finds(write("conf/10-a.conflist", cilium), Level::Warn, "cni.exclusive=false");
    check_finds(
        |dir| std::fs::remove_file(dir.join("conf/10-a.conflist")).unwrap(),
        Level::Warn,
        "there is none to use",
    );
    check_finds(|dir| std::fs::remove_dir_all(dir.join("conf")).unwrap(), Level::Warn, "does not exist");
    let bin = |dir: &Path| {
        std::fs::remove_dir(dir.join("bin")).unwrap();
        std::fs::write(dir.join("bin"), "").unwrap();
    };
    check_finds(bin, Level::Fail, "plugin directory");
}

#[test]
fn a_running_agent_is_noticed() {
    let dir = node();
    let _listener =
        std::os::unix::net::UnixListener::bind(dir.path().join("run").join(path::PLUGIN_EVENT_SOCKET))
            .unwrap();
    let findings = check(&agent(dir.path())).unwrap();
    assert!(of_level(&findings, Level::Warn).iter().any(|line| line.contains("an agent runs already")));
}
