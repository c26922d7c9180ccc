use super::*;
use crate::netns::NetNs;
use ambit_rules::expr::{Expr, NumberKind, Reg, Reject, Verdict};
use ambit_rules::pod::{Capture, Dns, Families, Inbound, plan_capture, plan_release};
use ambit_rules::{
    Chain, ChainHook, ChainKind, Command, Datum, Element, Family, Hook, Policy, Rule, Set, SetType,
    TableName, Transport,
};
use std::error::Error as _;
use std::path::Path;

fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    NetNs::create_private().unwrap().run(work).unwrap()
}

fn nft(arguments: &[&str]) -> String {
    let output = std::process::Command::new("nft").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Compares what `nft` shows with a golden file; `UPDATE_GOLDEN=1` rewrites it.
#[track_caller]
fn check_listing(name: &str, batch: &Batch) {
    let shown = inside(|| {
        apply(batch).unwrap();
        apply(batch).expect("applying again changes nothing");
        verify(batch).expect("what is there is what was meant");
        nft(&["-s", "list", "ruleset"])
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &shown).unwrap();
    }
    assert_eq!(shown, std::fs::read_to_string(&path).unwrap(), "{name} differs");
}

#[test]
fn nft_shows_the_rules_as_meant() {
    check_listing("pod-dual.nft", &plan_capture(&Capture::default()));
    check_listing("pod-v4.nft", &plan_capture(&Capture { families: Families::V4, ..Capture::default() }));
    let variant = |name, capture: Capture| check_listing(name, &plan_capture(&capture));
    variant("pod-bypass-inbound.nft", Capture { inbound: Inbound::Bypassed, ..Capture::default() });
    variant("pod-dns-untouched.nft", Capture { dns: Dns::Untouched, ..Capture::default() });
    let interfaces = ["tap0", "tap1"].map(str::to_owned).to_vec();
    variant("pod-reroute.nft", Capture { reroute_interfaces: interfaces, ..Capture::default() });
    let mut host = ambit_rules::host::plan_probe_rules(1000, Families::Dual);
    let pod = ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
    host.commands.extend(ambit_rules::host::plan_probe_addresses(&pod, "uid-7").commands);
    check_listing("host.nft", &host);
}

/// A service in the manner of a cluster's: verdict map by address, protocol and port, then a numbered endpoint map.
fn service() -> Batch {
    let table = TableName { family: Family::Ip, name: "services".into() };
    let at =
        ChainHook { kind: ChainKind::Nat, hook: Hook::Prerouting, priority: -100, policy: Policy::Accept };
    let endpoint = |n: u32| Element {
        key: vec![Datum::Mark(n)],
        value: vec![Datum::Ipv4([10, 0, 0, 1].into()), Datum::Port(8080)],
        ..Element::default()
    };
    let load = |base, offset, length, to| Expr::Payload { base, offset, length, to };
    let by_service = Rule::new()
        .with(load(ambit_rules::expr::Base::Network, 16, 4, Reg::R1))
        .with(Expr::MetaLoad(ambit_rules::expr::Meta::TransportProtocol, Reg::word(1)))
        .with(load(ambit_rules::expr::Base::Transport, 2, 2, Reg::word(2)))
        .with(Expr::MapLookup { key: Reg::R1, map: "services".into(), to: None });
    let by_number = Rule::new()
        .transport(Transport::Tcp)
        .with(Expr::Number { to: Reg::R1, kind: NumberKind::Random, modulus: 1, offset: 0 })
        .with(Expr::MapLookup { key: Reg::R1, map: "web".into(), to: Some(Reg::R1) })
        .with(Expr::Nat {
            kind: ambit_rules::expr::NatKind::Destination,
            family: Family::Ip,
            address: Reg::R1,
            port: Some(Reg::word(1)),
        });
    let name = || table.clone();
    Batch {
        commands: vec![
            Command::AddTable(name()),
            Command::AddChain(name(), Chain { name: "web".into(), hook: None }),
            Command::AddSet(
                name(),
                Set {
                    name: "services".into(),
                    key: vec![SetType::Ipv4, SetType::Protocol, SetType::Port],
                    value: vec![SetType::Verdict],
                },
            ),
            Command::AddSet(
                name(),
                Set {
                    name: "web".into(),
                    key: vec![SetType::Mark],
                    value: vec![SetType::Ipv4, SetType::Port],
                },
            ),
            Command::AddElements(name(), "web".into(), vec![endpoint(0)]),
            Command::AddElements(
                name(),
                "services".into(),
                vec![Element {
                    key: vec![Datum::Ipv4([10, 96, 0, 1].into()), Datum::Protocol(6), Datum::Port(80)],
                    verdict: Some(Verdict::Goto("web".into())),
                    comment: Some("default/web".into()),
                    ..Element::default()
                }],
            ),
            Command::FlushChain(name(), "web".into()),
            Command::AddRule(name(), "web".into(), by_number),
            Command::AddChain(name(), Chain { name: "prerouting".into(), hook: Some(at) }),
            Command::FlushChain(name(), "prerouting".into()),
            Command::AddRule(name(), "prerouting".into(), by_service),
        ],
    }
}

#[test]
fn maps_concatenations_and_numbers_work() {
    check_listing("service.nft", &service());
}

#[test]
fn every_expression_is_taken_by_the_kernel() {
    let table = TableName::inet("t");
    let at = |kind, hook| ChainHook { kind, hook, priority: 0, policy: Policy::Drop };
    let add = |chain: &str, rule| Command::AddRule(TableName::inet("t"), chain.into(), rule);
    let filter = Chain { name: "in".into(), hook: Some(at(ChainKind::Filter, Hook::Input)) };
    let nat = Chain { name: "post".into(), hook: Some(at(ChainKind::Nat, Hook::Postrouting)) };
    let batch = Batch {
        commands: vec![
            Command::AddTable(table.clone()),
            Command::AddChain(table.clone(), filter),
            Command::AddChain(table, nat),
            add("in", Rule::new().transport(Transport::Tcp).with(Expr::Reject(Reject::TcpReset))),
            add("in", Rule::new().with(Expr::Reject(Reject::PortUnreachable)).comment("why \"quoted\"")),
            add("in", Rule::new().with(Expr::NoTrack)),
            add("in", Rule::new().verdict(Verdict::Drop)),
            add("post", Rule::new().with(Expr::Masquerade)),
        ],
    };
    let shown = inside(|| apply(&batch).map(|()| nft(&["-s", "list", "ruleset"]))).unwrap();
    for expected in ["reject with tcp reset", "reject", "notrack", "drop", "masquerade"] {
        assert!(shown.contains(expected), "{expected} is missing in {shown}");
    }
}

#[test]
fn a_refused_command_is_named_and_nothing_takes_effect() {
    let table = TableName::inet("t");
    let batch = Batch {
        commands: vec![
            Command::AddTable(table.clone()),
            Command::AddRule(table.clone(), "missing".into(), Rule::new().accept()),
            Command::AddChain(table, Chain { name: "later".into(), hook: None }),
        ],
    };
    let (error, left) = inside(|| (apply(&batch).unwrap_err(), tables().unwrap()));
    assert_eq!(error.to_string(), "the kernel refused to add rule inet t missing [ immediate reg 0 accept ]");
    assert_eq!(error.source().unwrap().to_string(), "No such file or directory (os error 2)");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn release_removes_everything_and_may_be_repeated() {
    inside(|| {
        apply(&plan_release()).expect("nothing is there yet");
        let capture = plan_capture(&Capture::default());
        apply(&capture).unwrap();
        verify(&capture).unwrap();
        assert_eq!(tables().unwrap().len(), 3);
        apply(&plan_release()).unwrap();
        assert_eq!(nft(&["list", "ruleset"]), "");
        let gone = verify(&capture).unwrap_err().to_string();
        assert!(gone.contains("no such chain"), "{gone}");
    });
}

#[test]
fn large_batches_fit() {
    let table = TableName::inet("t");
    let key = |n: u32| Element { key: vec![Datum::Ipv4(n.into())], ..Element::default() };
    let mut batch = Batch {
        commands: vec![
            Command::AddTable(table.clone()),
            Command::AddSet(table.clone(), Set { name: "s".into(), key: vec![SetType::Ipv4], value: vec![] }),
            Command::AddElements(table.clone(), "s".into(), (1..20_000).map(key).collect()),
            Command::AddChain(table.clone(), Chain { name: "c".into(), hook: None }),
        ],
    };
    for _ in 0..2_000 {
        batch.push(Command::AddRule(table.clone(), "c".into(), Rule::new().counter().accept()));
    }
    inside(|| apply(&batch).and_then(|()| verify(&batch))).unwrap();
}

/// What somebody does to the rules of a captured pod, and how the difference is told.
#[track_caller]
fn check_found(tamper: &str, expected: &str) {
    inside(|| {
        let batch = plan_capture(&Capture::default());
        apply(&batch).unwrap();
        // Counters count, which is no difference.
        let before = nft(&["-s", "list", "ruleset"]);
        nft(&[tamper]);
        let told = verify(&batch).expect_err(tamper).to_string();
        assert_eq!(told, expected, "{tamper}");
        apply(&batch).unwrap();
        // A chain that is not ours stays, and is told again.
        if !expected.contains("no such chain, the kernel has it") {
            verify(&batch).unwrap();
            assert_eq!(nft(&["-s", "list", "ruleset"]), before);
        }
    });
}

#[test]
fn rules_that_somebody_changed_are_found_and_made_good() {
    let nat = "inet istio-ambient-nat";
    let output = format!("{nat} istio-output");
    check_found(
        &format!("flush chain {output}"),
        &format!("chain {output}: expected 10 rules, the kernel has 0 rules"),
    );
    check_found(
        &format!("insert rule {output} tcp dport 9999 accept"),
        &format!("chain {output}: expected 10 rules, the kernel has 11 rules"),
    );
    // As many rules, but another port, another order, another mark.
    check_found(
        &format!("flush chain {nat} prerouting; add rule {nat} prerouting goto istio-prerouting"),
        &format!(
            "rule 1 of chain {nat} prerouting: expected the rule as planned, the kernel has another immediate"
        ),
    );
    let mangle = "inet istio-ambient-mangle istio-output";
    check_found(
        &format!(
            "flush chain {mangle}; add rule {mangle} ct mark and 0xfff == 0x112 counter meta mark set ct mark"
        ),
        &format!("rule 1 of chain {mangle}: expected the rule as planned, the kernel has another cmp"),
    );
    check_found(
        &format!("flush chain {mangle}; add rule {mangle} ct mark and 0xfff == 0x111 counter"),
        &format!("rule 1 of chain {mangle}: expected the rule as planned, the kernel has another ct"),
    );
    check_found(
        &format!("chain {nat} output {{ policy drop; }}"),
        &format!(
            "chain {nat} output: expected its hook, priority and policy as planned, the kernel has others"
        ),
    );
    check_found(
        &format!("add chain {nat} more"),
        &format!("chain {nat} more: expected no such chain, the kernel has it"),
    );
    check_found(
        "delete table inet istio-ambient-raw",
        "chain inet istio-ambient-raw istio-output: expected the chain, the kernel has no such chain",
    );
}
