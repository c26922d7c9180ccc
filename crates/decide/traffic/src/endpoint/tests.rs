use super::*;
use crate::fixtures::{endpoint, service, state, workload};
use crate::resource::{ApplicationTunnel, Locality};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use std::collections::BTreeMap;

fn named(name: &str, change: impl FnOnce(&mut Workload)) -> Workload {
    let mut one = endpoint(workload(name, &["10.0.0.1"]), 8080);
    change(&mut one);
    one
}

/// How often each endpoint is chosen in 1000 draws.
fn draws(service: &Service, source: &Workload, endpoints: &[Workload]) -> BTreeMap<String, usize> {
    let state = state(endpoints, std::slice::from_ref(service));
    let mut rng = StdRng::seed_from_u64(1);
    let mut counts = BTreeMap::new();
    for _ in 0..1000 {
        if let Some(chosen) = choose(&state, service, source, (80, PortMode::Standard), &mut rng) {
            *counts.entry(chosen.workload.name.clone()).or_default() += 1;
        }
    }
    counts
}

#[track_caller]
fn check(service: &Service, endpoints: &[Workload], expected: &[&str]) {
    let source = workload("source", &["10.0.0.9"]);
    let chosen: Vec<_> = draws(service, &source, endpoints).into_keys().collect();
    assert_eq!(chosen, expected);
}

fn plain() -> Service {
    service(&["10.1.0.1"], 8080)
}

#[test]
fn unhealthy_addressless_and_weightless_endpoints_are_left_out() {
    let sick = || named("sick", |w| w.healthy = false);
    check(&plain(), &[named("a", |_| {}), sick()], &["a"]);
    let mut all = plain();
    all.allow_unhealthy = true;
    check(&all, &[named("a", |_| {}), sick()], &["a", "sick"]);
    check(&plain(), &[named("a", |w| w.addresses.clear())], &[]);
    check(&plain(), &[named("a", |w| w.capacity = 0)], &[]);
    check(&plain(), &[], &[]);
    let remote = |w: &mut Workload| {
        w.addresses.clear();
        w.network = "elsewhere".into();
        w.network_gateway = Some(crate::fixtures::waypoint_service("a/b"));
    };
    check(&plain(), &[named("far", remote)], &["far"]);
}

#[test]
fn weights_are_proportional() {
    let counts = draws(
        &plain(),
        &workload("source", &["10.0.0.9"]),
        &[named("one", |w| w.capacity = 1), named("three", |w| w.capacity = 3)],
    );
    assert!((650..850).contains(&counts["three"]), "{counts:?}");
    let huge = [named("a", |w| w.capacity = u32::MAX), named("b", |w| w.capacity = u32::MAX)];
    check(&plain(), &huge, &["a", "b"]);
}

#[test]
fn ports_are_declared_and_translated() {
    let port = |service: &Service, one: Workload, asked, mode| {
        let state = state(std::slice::from_ref(&one), std::slice::from_ref(service));
        let source = workload("source", &["10.0.0.9"]);
        choose(&state, service, &source, (asked, mode), &mut StdRng::seed_from_u64(1)).map(|e| e.port)
    };
    assert_eq!(port(&plain(), named("a", |_| {}), 80, PortMode::Standard), Some(8080));
    assert_eq!(port(&plain(), named("a", |_| {}), 81, PortMode::Standard), None);
    let own = |w: &mut Workload| drop(w.services.insert(crate::fixtures::WEB.into(), [(80, 9090)].into()));
    assert_eq!(port(&plain(), named("a", own), 80, PortMode::Standard), Some(9090));
    let unnamed = |w: &mut Workload| drop(w.services.insert(crate::fixtures::WEB.into(), BTreeMap::new()));
    let by_name = service(&["10.1.0.1"], 0);
    assert_eq!(port(&by_name, named("a", unnamed), 80, PortMode::Standard), None);
    assert_eq!(port(&by_name, named("a", own), 80, PortMode::Standard), Some(9090));
    let tunnelled = |w: &mut Workload| {
        w.application_tunnel = Some(ApplicationTunnel { proxy_header: false, port: 15088 });
    };
    assert_eq!(port(&plain(), named("a", tunnelled), 81, PortMode::Waypoint), Some(81));
    assert_eq!(port(&plain(), named("a", |_| {}), 81, PortMode::Waypoint), None);
}

fn near(mode: BalanceMode, preference: &[Scope]) -> Service {
    let mut one = plain();
    (one.mode, one.preference) = (mode, preference.to_vec());
    one
}

fn zoned(name: &str, region: &str, zone: &str) -> Workload {
    let locality = Locality { region: region.into(), zone: zone.into(), subzone: String::new() };
    named(name, |w| w.locality = locality)
}

#[track_caller]
fn check_zone(service: &Service, endpoints: &[Workload], expected: &[&str]) {
    let chosen: Vec<_> = draws(service, &zoned("source", "r1", "z1"), endpoints).into_keys().collect();
    assert_eq!(chosen, expected);
}

#[test]
fn strict_needs_every_scope() {
    let service = near(BalanceMode::Strict, &[Scope::Region, Scope::Zone]);
    check_zone(&service, &[zoned("near", "r1", "z1"), zoned("far", "r1", "z2")], &["near"]);
    check_zone(&service, &[zoned("far", "r1", "z2")], &[]);
}

#[test]
fn failover_prefers_the_longest_match() {
    let service = near(BalanceMode::Failover, &[Scope::Region, Scope::Zone]);
    let (near_one, same_region, far) =
        (zoned("near", "r1", "z1"), zoned("same-region", "r1", "z2"), zoned("far", "r2", "z1"));
    check_zone(&service, &[near_one, same_region.clone(), far.clone()], &["near"]);
    check_zone(&service, &[same_region, far.clone()], &["same-region"]);
    // A later match does not count after a mismatch, but the endpoint stays usable.
    check_zone(&service, &[far], &["far"]);
}

#[test]
fn a_leading_network_scope_outweighs_the_others() {
    let service = near(BalanceMode::Failover, &[Scope::Network, Scope::Region, Scope::Zone]);
    let mut elsewhere = zoned("elsewhere", "r1", "z1");
    elsewhere.network = "n2".into();
    check_zone(&service, &[elsewhere.clone(), zoned("far", "r2", "z2")], &["far"]);
    let mut other = zoned("other", "r2", "z2");
    other.network = "n2".into();
    check_zone(&service, &[elsewhere, other], &["elsewhere"]);
}

#[track_caller]
fn check_address(addresses: &[&str], families: Families, original: &str, expected: Option<&str>) {
    let mut of = plain();
    of.families = families;
    let chosen = choose_address(&workload("a", addresses), Some(&of), original.parse().unwrap());
    assert_eq!(chosen, expected.map(|ip| ip.parse().unwrap()));
}

#[test]
fn addresses_follow_the_original_and_the_families() {
    let dual = ["10.0.0.1", "2001:db8::1"];
    check_address(&dual, Families::Dual, "10.1.0.1", Some("10.0.0.1"));
    check_address(&dual, Families::Dual, "2001:db8::99", Some("2001:db8::1"));
    check_address(&dual, Families::V4, "2001:db8::99", Some("10.0.0.1"));
    check_address(&dual, Families::V6, "10.1.0.1", Some("2001:db8::1"));
    check_address(&["10.0.0.1"], Families::V6, "10.1.0.1", None);
    check_address(&["10.0.0.1", "10.0.0.2"], Families::Any, "10.0.0.2", Some("10.0.0.2"));
    check_address(&[], Families::Any, "10.1.0.1", None);
}
