use super::*;
use crate::fixtures::{bytes, socket, workload};
use crate::policy::PolicyScope;
use ambit_names::spiffe::Identity;
use ambit_proto::security as wire;
use proptest::prelude::*;
use proptest::sample::select;
use wire::string_match::MatchType;

fn text(match_type: MatchType) -> wire::StringMatch {
    wire::StringMatch { match_type: Some(match_type) }
}

fn net(ip: &str, length: u32) -> wire::Address {
    wire::Address { address: bytes(ip).into(), length }
}

fn peer(identity: Option<&str>) -> Peer {
    Peer {
        source: "10.0.0.9".parse().unwrap(),
        identity: identity.map(|id| id.parse().unwrap()),
        destination: socket("10.0.0.2:8080"),
    }
}

const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";

fn rules(matches: Vec<wire::Match>) -> Vec<wire::Rule> {
    vec![wire::Rule { clauses: vec![wire::Clause { matches }] }]
}

fn message(action: wire::Action, rules: Vec<wire::Rule>) -> wire::Authorization {
    wire::Authorization {
        name: "p".into(),
        namespace: "shop".into(),
        scope: wire::Scope::Namespace.into(),
        action: action.into(),
        rules,
        ..Default::default()
    }
}

#[track_caller]
fn check_match(one: wire::Match, identity: Option<&str>, expected: bool) {
    let policy = Policy::parse("shop/p", &message(wire::Action::Deny, rules(vec![one]))).unwrap();
    assert_eq!(policy.matches(&peer(identity)), expected);
}

#[test]
fn attributes_of_a_match() {
    let principals = |kind| wire::Match { principals: vec![text(kind)], ..Default::default() };
    check_match(wire::Match::default(), Some(CLIENT), false);
    let short = CLIENT.strip_prefix("spiffe://").unwrap();
    for (kind, expected) in [
        (MatchType::Exact(short.into()), true),
        (MatchType::Exact(CLIENT.into()), true),
        (MatchType::Exact("cluster.local/ns/shop/sa/other".into()), false),
        (MatchType::Prefix("cluster.local/ns/shop/".into()), true),
        (MatchType::Prefix("elsewhere/".into()), false),
        (MatchType::Suffix("/sa/client".into()), true),
        (MatchType::Suffix("/sa/clien".into()), false),
        (MatchType::Presence(()), true),
    ] {
        check_match(principals(kind.clone()), Some(CLIENT), expected);
        check_match(principals(kind), None, false);
    }
    let not_present =
        wire::Match { not_principals: vec![text(MatchType::Presence(()))], ..Default::default() };
    check_match(not_present.clone(), None, true);
    check_match(not_present, Some(CLIENT), false);
    let namespaces =
        wire::Match { namespaces: vec![text(MatchType::Exact("shop".into()))], ..Default::default() };
    check_match(namespaces.clone(), Some(CLIENT), true);
    check_match(namespaces, None, false);
    let empty =
        wire::Match { not_namespaces: vec![text(MatchType::Exact("shop".into()))], ..Default::default() };
    check_match(empty, None, true);
    let account = |namespace: &str| wire::Match {
        service_accounts: vec![wire::ServiceAccountMatch {
            namespace: namespace.into(),
            service_account: "client".into(),
        }],
        ..Default::default()
    };
    check_match(account("shop"), Some("spiffe://elsewhere/ns/shop/sa/client"), true);
    check_match(account("other"), Some(CLIENT), false);
    check_match(account("shop"), None, false);
}

#[test]
fn addresses_and_ports_of_a_match() {
    let source = |ip, length| wire::Match { source_ips: vec![net(ip, length)], ..Default::default() };
    check_match(source("10.0.0.0", 24), None, true);
    check_match(source("10.0.0.9", 32), None, true);
    check_match(source("10.0.1.0", 24), None, false);
    check_match(source("::", 0), None, false);
    let both = wire::Match {
        source_ips: vec![net("10.0.0.0", 24)],
        not_source_ips: vec![net("10.0.0.9", 32)],
        ..Default::default()
    };
    check_match(both, None, false);
    let to = wire::Match { destination_ips: vec![net("10.0.0.2", 32)], ..Default::default() };
    check_match(to, None, true);
    check_match(wire::Match { destination_ports: vec![80, 8080], ..Default::default() }, None, true);
    check_match(wire::Match { not_destination_ports: vec![8080], ..Default::default() }, None, false);
    // All attributes must hold.
    let mixed = wire::Match { destination_ports: vec![8080], ..source("10.0.1.0", 24) };
    check_match(mixed, None, false);
}

#[test]
fn rules_and_clauses() {
    let holds = || wire::Match { destination_ports: vec![8080], ..Default::default() };
    let fails = || wire::Match { destination_ports: vec![1], ..Default::default() };
    let clause = |matches: Vec<wire::Match>| wire::Clause { matches };
    let check = |rules: Vec<wire::Rule>, expected: bool| {
        let policy = Policy::parse("shop/p", &message(wire::Action::Deny, rules)).unwrap();
        assert_eq!(policy.matches(&peer(None)), expected);
    };
    let rule = |clauses: Vec<wire::Clause>| wire::Rule { clauses };
    check(vec![], false);
    check(vec![rule(vec![])], true);
    check(vec![rule(vec![clause(vec![])])], true);
    check(vec![rule(vec![clause(vec![fails(), holds()])])], true);
    check(vec![rule(vec![clause(vec![holds()]), clause(vec![fails()])])], false);
    check(vec![rule(vec![clause(vec![fails()])]), rule(vec![clause(vec![holds()])])], true);
}

#[test]
fn a_condition_that_cannot_be_read_refuses_the_policy() {
    let refused =
        |one: wire::Match| Policy::parse("shop/p", &message(wire::Action::Allow, rules(vec![one]))).is_err();
    assert!(refused(wire::Match { not_source_ips: vec![net("10.0.0.0", 33)], ..Default::default() }));
    let short = wire::Address { address: vec![1].into(), length: 8 };
    assert!(refused(wire::Match { source_ips: vec![short], ..Default::default() }));
    let unset = wire::StringMatch { match_type: None };
    assert!(refused(wire::Match { principals: vec![unset], ..Default::default() }));
    assert!(refused(wire::Match { destination_ports: vec![70_000], ..Default::default() }));
    let mut other = message(wire::Action::Allow, vec![]);
    other.action = 7;
    assert!(Policy::parse("shop/p", &other).is_err());
    other = message(wire::Action::Allow, vec![]);
    other.scope = 7;
    assert!(Policy::parse("shop/p", &other).is_err());
}

fn policy(name: &str, scope: wire::Scope, action: wire::Action, holds: bool) -> Policy {
    let port = if holds { 8080 } else { 1 };
    let one = wire::Match { destination_ports: vec![port], ..Default::default() };
    let mut from = message(action, rules(vec![one]));
    from.scope = scope.into();
    Policy::parse(name, &from).unwrap()
}

#[track_caller]
fn check(policies: &[Policy], named: &[&str], expected: Option<&str>) -> Verdict {
    let mut state = State::default();
    policies.iter().for_each(|one| state.insert_policy(one.clone()));
    let mut own = workload("own", &["10.0.0.2"]);
    own.policies = named.iter().map(|name| (*name).into()).collect();
    let verdict = state.authorize(&own, &peer(None));
    assert_eq!(verdict.denial.as_ref().map(Denial::to_string).as_deref(), expected);
    verdict
}

#[test]
fn deny_goes_before_allow_and_allow_needs_a_match() {
    use wire::Action::{Allow, Deny};
    use wire::Scope::{Global, Namespace, WorkloadSelector};
    let (denies, allows) =
        (policy("shop/d", Namespace, Deny, true), policy("shop/a", Namespace, Allow, true));
    check(&[], &[], None);
    check(&[denies.clone(), allows.clone()], &[], Some("explicitly denied by shop/d"));
    let verdict = check(std::slice::from_ref(&allows), &[], None);
    assert_eq!(verdict.allowed_by.as_deref(), Some("shop/a"));
    let other = policy("shop/a", Namespace, Allow, false);
    check(&[other], &[], Some("allow policies exist, but none allowed"));
    check(&[policy("root/g", Global, Deny, true)], &[], Some("explicitly denied by root/g"));
    // Policies of a selector hold only for those that name them.
    let selected = policy("shop/s", WorkloadSelector, Deny, true);
    check(std::slice::from_ref(&selected), &[], None);
    check(&[selected], &["shop/s"], Some("explicitly denied by shop/s"));
    let mut foreign = denies;
    foreign.namespace = "elsewhere".into();
    check(&[foreign], &[], None);
}

#[test]
fn inv_02_a_named_policy_that_is_not_held_denies() {
    let allows = policy("shop/a", wire::Scope::Namespace, wire::Action::Allow, true);
    check(&[allows], &["shop/late"], Some("policy shop/late has not arrived yet"));
}

#[test]
fn dry_run_policies_are_only_reported() {
    use wire::Action::{Allow, Deny};
    let dry = |name, action, holds| {
        let mut one = policy(name, wire::Scope::Namespace, action, holds);
        one.dry_run = true;
        one
    };
    let verdict = check(&[dry("shop/d", Deny, true), dry("shop/a", Allow, false)], &[], None);
    assert_eq!(verdict.dry_run, [("shop/d".into(), Action::Deny)]);
}

/// The rules once more, as plainly as possible, on the messages themselves.
fn naive(policies: &[wire::Authorization], peer: &Peer) -> bool {
    let string = |m: &wire::StringMatch, s: &str| match m.match_type.as_ref().unwrap() {
        MatchType::Exact(x) => s == x,
        MatchType::Prefix(x) => s.starts_with(x.as_str()),
        MatchType::Suffix(x) => s.ends_with(x.as_str()),
        MatchType::Presence(()) => !s.is_empty(),
    };
    let principal = peer.identity.as_ref().map(|id| id.to_string().replace("spiffe://", ""));
    let namespace = peer.identity.as_ref().map_or("", Identity::namespace);
    let matches = |m: &wire::Match| {
        let mut all = vec![];
        if !m.principals.is_empty() {
            all.push(m.principals.iter().any(|x| principal.as_ref().is_some_and(|p| string(x, p))));
        }
        if !m.not_principals.is_empty() {
            all.push(!m.not_principals.iter().any(|x| principal.as_ref().is_some_and(|p| string(x, p))));
        }
        if !m.namespaces.is_empty() {
            all.push(m.namespaces.iter().any(|x| string(x, namespace)));
        }
        if !m.not_namespaces.is_empty() {
            all.push(!m.not_namespaces.iter().any(|x| string(x, namespace)));
        }
        if !m.destination_ports.is_empty() {
            all.push(m.destination_ports.contains(&u32::from(peer.destination.port())));
        }
        if !m.not_destination_ports.is_empty() {
            all.push(!m.not_destination_ports.contains(&u32::from(peer.destination.port())));
        }
        !all.is_empty() && all.into_iter().all(|one| one)
    };
    let policy = |p: &wire::Authorization| {
        p.rules
            .iter()
            .any(|r| r.clauses.iter().all(|c| c.matches.is_empty() || c.matches.iter().any(matches)))
    };
    let of =
        |action: wire::Action| policies.iter().filter(move |p| p.action == i32::from(action) && !p.dry_run);
    if of(wire::Action::Deny).any(policy) {
        return false;
    }
    of(wire::Action::Allow).count() == 0 || of(wire::Action::Allow).any(policy)
}

fn any_text() -> impl Strategy<Value = wire::StringMatch> {
    let words =
        select(vec!["", "shop", "cluster.local/ns/shop/sa/client", "cluster.local/", "/sa/client", "x"]);
    (words, 0..4_u8).prop_map(|(word, kind)| {
        text(match kind {
            0 => MatchType::Exact(word.into()),
            1 => MatchType::Prefix(word.into()),
            2 => MatchType::Suffix(word.into()),
            _ => MatchType::Presence(()),
        })
    })
}

fn some<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(of, 0..2)
}

fn any_match() -> impl Strategy<Value = wire::Match> {
    let port = || select(vec![1_u32, 8080]);
    (some(any_text()), some(any_text()), some(any_text()), some(any_text()), some(port()), some(port()))
        .prop_map(
            |(
                principals,
                not_principals,
                namespaces,
                not_namespaces,
                destination_ports,
                not_destination_ports,
            )| {
                wire::Match {
                    principals,
                    not_principals,
                    namespaces,
                    not_namespaces,
                    destination_ports,
                    not_destination_ports,
                    ..Default::default()
                }
            },
        )
}

fn any_policy() -> impl Strategy<Value = wire::Authorization> {
    let rules = some(some(some(any_match())));
    (rules, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(rules, deny, dry_run, global)| {
        let rules = rules
            .into_iter()
            .map(|clauses| wire::Rule {
                clauses: clauses.into_iter().map(|matches| wire::Clause { matches }).collect(),
            })
            .collect();
        let action = if deny { wire::Action::Deny } else { wire::Action::Allow };
        let scope = if global { wire::Scope::Global } else { wire::Scope::Namespace };
        wire::Authorization { dry_run, scope: scope.into(), ..message(action, rules) }
    })
}

proptest! {
    #[test]
    fn equals_the_naive_reference(
        policies in prop::collection::vec(any_policy(), 0..5),
        identity in prop::option::of(select(vec![CLIENT, "spiffe://other/ns/x/sa/y"])),
    ) {
        let mut state = State::default();
        for (index, one) in policies.iter().enumerate() {
            state.insert_policy(Policy::parse(&format!("shop/{index}"), one).unwrap());
        }
        let peer = peer(identity);
        let verdict = state.authorize(&workload("own", &["10.0.0.2"]), &peer);
        prop_assert_eq!(verdict.denial.is_none(), naive(&policies, &peer));
    }
}

#[test]
fn scopes_are_read() {
    assert_eq!(policy("a/b", wire::Scope::Global, wire::Action::Allow, true).scope, PolicyScope::Global);
}
