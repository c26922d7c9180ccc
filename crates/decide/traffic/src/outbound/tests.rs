use super::*;
use crate::fixtures::{WEB, endpoint, here, service, socket, state, waypoint_service, workload};
use crate::resource::{BalanceMode, Workload};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

fn source() -> Workload {
    workload("source", &["10.0.0.9"])
}

fn plan(workloads: &[Workload], services: &[Service], to: &str) -> Result<Route, OutboundError> {
    let state = state(workloads, services);
    plan_outbound(&state, &here(), &source(), socket(to), &mut StdRng::seed_from_u64(1))
}

/// The carrier's word and the address connected to, or the error.
#[track_caller]
fn check(workloads: &[Workload], services: &[Service], to: &str, expected: &str) {
    let shown = match plan(workloads, services, to) {
        Ok(Route { carrier: Carrier::Tcp, connect, .. }) => format!("tcp {connect}"),
        Ok(Route { carrier: Carrier::Hbone { authority, expected }, connect, .. }) => {
            let accounts: Vec<_> = expected.iter().map(Identity::service_account).collect();
            format!("hbone {connect} for {authority} as {}", accounts.join("+"))
        }
        Err(error) => format!("error: {error}"),
    };
    assert_eq!(shown, expected);
}

fn server() -> Workload {
    endpoint(workload("b", &["10.0.0.2"]), 8080)
}

fn changed(mut one: Workload, change: impl FnOnce(&mut Workload)) -> Workload {
    change(&mut one);
    one
}

fn web(change: impl FnOnce(&mut Service)) -> Service {
    let mut one = service(&["10.1.0.1"], 8080);
    change(&mut one);
    one
}

#[test]
fn the_proxy_itself_is_never_dialled() {
    for port in [15001, 15006, 15008] {
        check(
            &[],
            &[],
            &format!("127.0.0.1:{port}"),
            &format!("error: 127.0.0.1:{port} is the proxy itself"),
        );
    }
    check(&[], &[], "127.0.0.1:15053", "tcp 127.0.0.1:15053");
}

#[test]
fn workloads_are_reached_by_their_tunnel_or_as_they_are() {
    check(&[server()], &[], "10.0.0.2:9000", "hbone 10.0.0.2:15008 for 10.0.0.2:9000 as sa-b");
    let plain = changed(server(), |w| w.tunnel = Tunnel::None);
    check(&[plain], &[], "10.0.0.2:9000", "tcp 10.0.0.2:9000");
    check(&[], &[], "192.0.2.1:443", "tcp 192.0.2.1:443");
}

#[test]
fn services_are_resolved_to_an_endpoint() {
    let all = [server()];
    check(&all, &[web(|_| {})], "10.1.0.1:80", "hbone 10.0.0.2:15008 for 10.0.0.2:8080 as sa-b");
    let san = "spiffe://cluster.local/ns/shop/sa/another".parse().unwrap();
    let named = web(|s| s.subject_alt_names = vec![san]);
    check(&all, &[named], "10.1.0.1:80", "hbone 10.0.0.2:15008 for 10.0.0.2:8080 as another+sa-b");
    let none = format!("error: no healthy upstream: service {WEB} has no usable endpoint for port");
    check(&all, &[web(|_| {})], "10.1.0.1:81", &format!("{none} 81"));
    check(&[], &[web(|_| {})], "10.1.0.1:80", &format!("{none} 80"));
    let straight = web(|s| s.mode = BalanceMode::Passthrough);
    check(&all, &[straight], "10.1.0.1:80", "tcp 10.1.0.1:80");
}

#[test]
fn inv_02_what_is_not_served_yet_is_refused_and_never_passed_through() {
    let waypoint = || Some(waypoint_service("shop/waypoint"));
    let guarded = web(|s| s.waypoint = waypoint());
    check(&[server()], &[guarded], "10.1.0.1:80", &format!("error: not served yet: a waypoint for {WEB}"));
    let weighted = web(|s| s.weighted_waypoints = vec![(waypoint_service("shop/waypoint"), 1)]);
    check(&[server()], &[weighted], "10.1.0.1:80", &format!("error: not served yet: a waypoint for {WEB}"));
    let uid = "Kubernetes//Pod/shop/b";
    let behind = || changed(server(), |w| w.waypoint = waypoint());
    check(&[behind()], &[], "10.0.0.2:80", &format!("error: not served yet: a waypoint for {uid}"));
    // Traffic to a service does not use the waypoint of its endpoints.
    check(&[behind()], &[web(|_| {})], "10.1.0.1:80", "hbone 10.0.0.2:15008 for 10.0.0.2:8080 as sa-b");
    let far = changed(server(), |w| w.network = "elsewhere".into());
    let no_gateway =
        format!("error: no valid destination: {uid} is in network \"elsewhere\", which has no gateway");
    check(std::slice::from_ref(&far), &[web(|_| {})], "10.1.0.1:80", &no_gateway);
    let gated = changed(far, |w| w.network_gateway = waypoint());
    check(
        &[gated],
        &[web(|_| {})],
        "10.1.0.1:80",
        &format!("error: not served yet: a network gateway for {uid}"),
    );
    let named = changed(server(), |w| {
        w.addresses.clear();
        w.hostname = "db.example".into();
    });
    let not_resolved = format!("error: not served yet: resolving a host name for {uid}");
    check(&[named], &[web(|_| {})], "10.1.0.1:80", &not_resolved);
}

#[test]
fn a_waypoint_reaches_its_workloads_straight() {
    let behind = changed(server(), |w| w.waypoint = Some(waypoint_service("shop/waypoint")));
    let waypoint =
        changed(source(), |w| drop(w.services.insert("shop/waypoint".into(), [(15008, 15008)].into())));
    check(&[behind, waypoint], &[], "10.0.0.2:80", "hbone 10.0.0.2:15008 for 10.0.0.2:80 as sa-b");
}

#[test]
fn dual_stack_endpoints_are_reached_in_the_family_of_the_client() {
    let dual = endpoint(workload("b", &["10.0.0.2", "2001:db8::2"]), 8080);
    let both = service(&["10.1.0.1", "2001:db8:1::1"], 8080);
    let expected = "hbone [2001:db8::2]:15008 for [2001:db8::2]:8080 as sa-b";
    check(&[dual], &[both], "[2001:db8:1::1]:80", expected);
}
