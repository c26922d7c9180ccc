use super::*;
use clap::CommandFactory;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_agent_s_actions_take_its_flags_on_either_side() {
    for line in [
        ["ambit", "agent", "--cni-conf-dir", "/x", "check"],
        ["ambit", "agent", "check", "--cni-conf-dir", "/x"],
    ] {
        let Command::Agent(agent) = Cli::try_parse_from(line).unwrap().command else { panic!("{line:?}") };
        assert!(matches!(agent.action, Some(AgentAction::Check { .. })));
        assert_eq!(agent.cni.cni_conf_dir, Some(PathBuf::from("/x")));
    }
    for flag in
        ["--cni-conf-name=a/b.conf", "--cni-conf-name=x", "--cni-own-file-name=x.conf", "--chained=false"]
    {
        assert!(Cli::try_parse_from(["ambit", "agent", flag]).is_err(), "{flag}");
    }
}

#[test]
fn up_needs_no_flags() {
    let cli = Cli::try_parse_from(["ambit", "up"]).unwrap();
    let Command::Up(up) = cli.command else { panic!("another command") };
    assert_eq!(up.listen.port(), port::API_SERVER);
}
