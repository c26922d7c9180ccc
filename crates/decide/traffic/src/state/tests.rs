use super::*;
use crate::fixtures::{bytes, endpoint, service, state, wire_service, wire_workload, workload};
use proptest::prelude::*;
use proptest::sample::select;

fn put(url: &str, name: &str, body: Vec<u8>) -> Change {
    Change::Put { type_url: url.into(), name: name.into(), body: body.into() }
}

fn address(of: wire::address::Type) -> Vec<u8> {
    wire::Address { r#type: Some(of) }.encode_to_vec()
}

fn put_workload(one: wire::Workload) -> Change {
    put(type_url::ADDRESS, "x", address(wire::address::Type::Workload(one)))
}

fn put_service(one: wire::Service) -> Change {
    put(type_url::ADDRESS, "x", address(wire::address::Type::Service(one)))
}

#[track_caller]
fn refused(change: &Change, words: &str) {
    let mut state = State::default();
    let error = state.apply(change).expect_err("it must be refused").to_string();
    assert!(error.contains(words), "{error}");
    assert_eq!((state.workloads().count(), state.services().count()), (0, 0));
}

fn broken_workload(breaks: impl FnOnce(&mut wire::Workload)) -> Change {
    let mut one = wire_workload("a", &["10.0.0.1"]);
    breaks(&mut one);
    put_workload(one)
}

fn broken_service(breaks: impl FnOnce(&mut wire::Service)) -> Change {
    let mut one = wire_service(&["10.1.0.1"], 8080);
    breaks(&mut one);
    put_service(one)
}

#[test]
fn workloads_that_break_a_rule_are_refused() {
    refused(&broken_workload(|w| w.uid.clear()), "uid");
    refused(&broken_workload(|w| w.addresses.push(vec![1, 2, 3].into())), "3 bytes");
    refused(
        &broken_workload(|w| w.tunnel_protocol = wire::TunnelProtocol::LegacyIstioMtls.into()),
        "tunnel_protocol",
    );
    refused(&broken_workload(|w| w.tunnel_protocol = 9), "tunnel_protocol");
    refused(&broken_workload(|w| w.status = 9), "status");
    refused(&broken_workload(|w| w.workload_type = 9), "workload_type");
    refused(&broken_workload(|w| w.network_mode = -1), "network_mode");
    refused(&broken_workload(|w| w.namespace.clear()), "identity");
    refused(&broken_workload(|w| w.service_account = "a/b".into()), "identity");
    refused(
        &broken_workload(|w| drop(w.services.insert("no-slash".into(), wire::PortList::default()))),
        "no-slash",
    );
    refused(&broken_workload(|w| w.waypoint = Some(wire::GatewayAddress::default())), "waypoint: missing");
    let tunnel = wire::ApplicationTunnel { protocol: 7, port: 0 };
    refused(&broken_workload(|w| w.application_tunnel = Some(tunnel)), "application_tunnel");
    let ports = wire::PortList { ports: crate::fixtures::ports(&[(70_000, 80)]) };
    refused(&broken_workload(|w| drop(w.services.insert("a/b".into(), ports))), "70000");
}

#[test]
fn services_that_break_a_rule_are_refused() {
    refused(&broken_service(|s| s.hostname.clear()), "hostname");
    refused(&broken_service(|s| s.addresses[0].address = vec![1].into()), "1 bytes");
    refused(&broken_service(|s| s.addresses[0].length = Some(33)), "prefix Some(33)");
    refused(&broken_service(|s| s.ip_families = 9), "ip_families");
    refused(&broken_service(|s| s.ports[0].app_protocol = 99), "app_protocol");
    let scope = wire::LoadBalancing { routing_preference: vec![0], ..Default::default() };
    refused(&broken_service(|s| s.load_balancing = Some(scope)), "routing_preference");
    let mode = wire::LoadBalancing { mode: 9, ..Default::default() };
    refused(&broken_service(|s| s.load_balancing = Some(mode)), "load_balancing.mode");
    let health = wire::LoadBalancing { health_policy: 9, ..Default::default() };
    refused(&broken_service(|s| s.load_balancing = Some(health)), "health_policy");
    let weighted = wire::WeightedWaypoint { destination: None, weight: 1 };
    refused(&broken_service(|s| s.weighted_waypoints.push(weighted)), "weighted_waypoints");
}

#[test]
fn other_resources_are_refused() {
    refused(&put(type_url::ADDRESS, "x", vec![0xff]), "decode");
    refused(&put(type_url::ADDRESS, "x", vec![]), "type: missing");
    refused(&put("type.googleapis.com/elsewhere", "x", vec![]), "elsewhere");
    let mut state = State::default();
    let removed = Change::Remove { type_url: "elsewhere".into(), name: "x".into() };
    assert!(state.apply(&removed).is_err());
}

#[test]
fn defaults_and_unknown_visibility_are_honoured() {
    let mut one = wire_workload("a", &["::ffff:10.0.0.1"]);
    one.service_account.clear();
    let mut of = wire_service(&["10.1.0.1"], 8080);
    of.visibility = 99;
    of.subject_alt_names = vec!["spiffe://cluster.local/ns/x/sa/y".into(), "web.example".into()];
    let mut state = State::default();
    state.apply(&put_workload(one)).unwrap();
    state.apply(&put_service(of)).unwrap();
    let found = state.workload("Kubernetes//Pod/shop/a").unwrap();
    assert_eq!(found.identity.to_string(), "spiffe://cluster.local/ns/shop/sa/default");
    assert_eq!((found.cluster.as_str(), found.capacity), ("Kubernetes", 1));
    assert_eq!(found.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    let service = state.service(crate::fixtures::WEB).unwrap();
    assert!(!service.namespace_only);
    assert_eq!(service.subject_alt_names.len(), 1);
}

#[test]
fn a_refused_resource_leaves_its_predecessor() {
    let mut state = State::default();
    state.apply(&put_workload(wire_workload("a", &["10.0.0.1"]))).unwrap();
    state.apply(&broken_workload(|w| w.status = 9)).unwrap_err();
    assert!(state.workload("Kubernetes//Pod/shop/a").is_some());
}

fn at(ip: &str) -> NetworkAddress {
    NetworkAddress { network: "".into(), address: ip.parse().unwrap() }
}

#[test]
fn removal_names_a_workload_or_a_service() {
    let mut state = state(&[workload("a", &["10.0.0.1"])], &[service(&["10.1.0.1"], 80)]);
    let remove = |name: &str| Change::Remove { type_url: type_url::ADDRESS.into(), name: name.into() };
    state.apply(&remove("Kubernetes//Pod/shop/other")).unwrap();
    assert_eq!(state.workloads().count(), 1);
    state.apply(&remove("Kubernetes//Pod/shop/a")).unwrap();
    assert!(state.workload_at(&at("10.0.0.1")).is_none());
    state.apply(&remove(crate::fixtures::WEB)).unwrap();
    assert!(state.service_at(&at("10.1.0.1"), "shop").is_none());
}

#[test]
fn node_addresses_are_not_indexed() {
    let mut shared = workload("a", &["10.0.0.1"]);
    shared.host_network = true;
    assert!(state(&[shared], &[]).workload_at(&at("10.0.0.1")).is_none());
}

#[test]
fn local_workloads_are_found_by_their_three_names() {
    let state = state(&[workload("a", &["10.0.0.1"])], &[]);
    let name = |service_account: &str| LocalName {
        name: "a".into(),
        namespace: "shop".into(),
        service_account: service_account.into(),
    };
    assert!(state.local_workload(&name("sa-a")).is_some());
    assert!(state.local_workload(&name("sa-b")).is_none());
    assert_eq!(state.node_identities("node-1").len(), 1);
    assert!(state.node_identities("node-2").is_empty());
}

#[test]
fn the_best_service_of_an_address_wins() {
    let named = |namespace: &str, change: fn(&mut wire::Service)| {
        let mut one = wire_service(&["10.1.0.1"], 80);
        one.namespace = namespace.into();
        change(&mut one);
        Service::try_from(one).unwrap()
    };
    let wide = |namespace: &str, length: u32| {
        let mut one = wire_service(&["10.1.0.0"], 80);
        one.namespace = namespace.into();
        one.hostname = format!("wide-{length}");
        one.addresses[0].length = Some(length);
        Service::try_from(one).unwrap()
    };
    let plain = |_: &mut wire::Service| {};
    let hidden = |one: &mut wire::Service| one.visibility = 1;
    let canonical = |one: &mut wire::Service| one.canonical = true;
    let check = |services: &[Service], ip: &str, namespace: &str, expected: Option<&str>| {
        let state = state(&[], services);
        let found = state.service_at(&at(ip), namespace).map(|s| format!("{}/{}", s.namespace, s.hostname));
        let expected = expected.map(str::to_owned);
        assert_eq!(found.as_deref().map(|f| f.split('.').next().unwrap().to_owned()), expected);
    };
    let both = [named("one", plain), named("two", plain)];
    check(&both, "10.1.0.1", "two", Some("two/web"));
    check(&both, "10.1.0.1", "three", Some("one/web"));
    check(&[named("one", plain), named("two", canonical)], "10.1.0.1", "three", Some("two/web"));
    check(&[named("one", hidden)], "10.1.0.1", "two", None);
    check(&[named("one", hidden)], "10.1.0.1", "one", Some("one/web"));
    let ranges = [wide("one", 16), wide("one", 24), named("two", plain)];
    check(&ranges, "10.1.0.1", "one", Some("two/web"));
    check(&ranges, "10.1.0.9", "one", Some("one/wide-24"));
    check(&ranges, "10.1.9.9", "one", Some("one/wide-16"));
    check(&ranges, "10.2.0.1", "one", None);
}

#[test]
fn a_policy_that_cannot_be_read_refuses_in_its_place() {
    let mut state = State::default();
    let garbage = put(type_url::AUTHORIZATION, "shop/p", vec![0xff; 3]);
    state.apply(&garbage).unwrap_err();
    let held = state.policy("shop/p").unwrap();
    assert_eq!((held.action, held.scope), (crate::Action::Deny, PolicyScope::Namespace));
    let good = security::Authorization { name: "p".into(), namespace: "shop".into(), ..Default::default() };
    state.apply(&put(type_url::AUTHORIZATION, "shop/p", good.encode_to_vec())).unwrap();
    assert_eq!(state.policy("shop/p").unwrap().action, crate::Action::Allow);
    // The good one stays in force.
    state.apply(&garbage).unwrap_err();
    assert_eq!(state.policy("shop/p").unwrap().action, crate::Action::Allow);
    let remove = Change::Remove { type_url: type_url::AUTHORIZATION.into(), name: "shop/p".into() };
    state.apply(&remove).unwrap();
    assert!(state.policy("shop/p").is_none());
}

/// What every question gives, for comparison.
fn answers(state: &State) -> String {
    let mut lines = vec![];
    for ip in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        lines.push(format!("{:?}", state.workload_at(&at(ip)).map(|w| &w.uid)));
        lines.push(format!("{:?}", state.service_at(&at(ip), "shop").map(|s| &s.key)));
    }
    lines.push(format!("{:?}", state.endpoints(crate::fixtures::WEB).map(|w| &w.uid).collect::<Vec<_>>()));
    lines.push(format!("{:?}", state.node_identities("node-1")));
    lines.push(format!("{:?}", state.service_named("web.shop.svc.cluster.local", "shop").map(|s| &s.vips)));
    lines.join("\n")
}

proptest! {
    /// The indexes after any history equal those built anew from what is left.
    #[test]
    fn inv_05_any_history_equals_from_scratch(
        steps in prop::collection::vec((0..3_usize, select(vec!["10.0.0.1", "10.0.0.2", "10.0.0.3"]), 0..4_u8), 0..30)
    ) {
        let mut state = State::default();
        for (which, ip, step) in steps {
            let name = ["a", "b", "c"][which];
            match step {
                0 => state.put_workload(workload(name, &[ip])),
                1 => state.put_workload(endpoint(workload(name, &[]), 8080)),
                2 => state.remove_address(&format!("Kubernetes//Pod/shop/{name}")),
                _ if which == 0 => state.remove_address(crate::fixtures::WEB),
                _ => state.put_service(service(&[ip], 80)),
            }
        }
        let mut anew = State::default();
        state.workloads().for_each(|one| anew.put_workload((**one).clone()));
        state.services().for_each(|one| anew.put_service((**one).clone()));
        // Two workloads may hold one address: which of them is found depends on the order they came in.
        let lone = |ip: &str| state.workloads().filter(|w| w.addresses.contains(&ip.parse().unwrap())).count() < 2;
        if ["10.0.0.1", "10.0.0.2", "10.0.0.3"].into_iter().all(lone) {
            prop_assert_eq!(answers(&state), answers(&anew));
        }
    }

    /// No bytes make it panic.
    #[test]
    fn inv_08_any_bytes_are_applied_or_refused(body in prop::collection::vec(any::<u8>(), 0..64), which in 0..3_usize) {
        let url = [type_url::ADDRESS, type_url::WORKLOAD, type_url::AUTHORIZATION][which];
        let _ = State::default().apply(&put(url, "shop/x", body));
    }
}

#[test]
fn addresses_are_those_of_their_family() {
    assert_eq!(bytes("10.0.0.1").len(), 4);
    let v6 = state(&[workload("a", &["2001:db8::1"])], &[]);
    assert!(v6.workload_at(&at("2001:db8::1")).is_some());
}
