use super::*;
use crate::fixtures::{WEB, endpoint, here, service, state, waypoint_service, workload};
use crate::resource::{ApplicationTunnel, Service};
use proptest::prelude::*;

fn own() -> Workload {
    endpoint(workload("own", &["10.0.0.2"]), 8080)
}

fn plan(
    own: &Workload,
    services: &[Service],
    method: &str,
    authority: &str,
) -> Result<SocketAddr, ConnectError> {
    let state = state(std::slice::from_ref(own), services);
    plan_inbound(&state, &here(), own, (method, authority), "10.0.0.2".parse().unwrap())
}

/// The port of the answer, or the status of the refusal.
#[track_caller]
fn check(own: &Workload, services: &[Service], authority: &str, expected: Result<u16, u16>) {
    let planned = plan(own, services, "CONNECT", authority);
    assert_eq!(planned.as_ref().map(SocketAddr::port).map_err(ConnectError::status), expected, "{planned:?}");
    if let Ok(to) = planned {
        assert_eq!(to.ip(), "10.0.0.2".parse::<IpAddr>().unwrap());
    }
}

#[test]
fn the_pod_s_own_address_is_served() {
    check(&own(), &[], "10.0.0.2:80", Ok(80));
    check(&own(), &[], "[::ffff:10.0.0.2]:80", Ok(80));
    check(&own(), &[], "10.0.0.3:80", Err(400));
    for port in [15001, 15006, 15008] {
        check(&own(), &[], &format!("10.0.0.2:{port}"), Err(503));
    }
    let other = plan(&own(), &[], "GET", "10.0.0.2:80");
    assert_eq!(other.unwrap_err().status(), 400);
}

#[test]
fn malformed_authorities_are_refused() {
    let long = format!("{}:80", "a".repeat(300));
    for authority in
        ["", ":80", "10.0.0.2", "10.0.0.2:", "10.0.0.2:99999", "a b:80", "1.2.3:80", "host:x", &long]
    {
        check(&own(), &[], authority, Err(400));
    }
}

#[test]
fn host_names_are_translated_for_this_workload() {
    let web = service(&["10.1.0.1"], 9090);
    let all = std::slice::from_ref(&web);
    check(&own(), all, "web.shop.svc.cluster.local:80", Ok(8080));
    check(&own(), all, "web.shop.svc.cluster.local:81", Err(503));
    check(&own(), all, "unknown.example:80", Err(503));
    let mut unnamed = own();
    unnamed.services.remove(WEB);
    check(&unnamed, all, "web.shop.svc.cluster.local:80", Ok(9090));
}

#[test]
fn a_waypoint_is_asked_for_what_is_behind_it() {
    let mut waypoint = own();
    waypoint.services.insert("shop/waypoint".into(), [(15008, 15008)].into());
    let mut web = service(&["10.1.0.1"], 80);
    check(&waypoint, std::slice::from_ref(&web), "10.1.0.1:80", Err(400));
    web.waypoint = Some(waypoint_service("shop/waypoint"));
    check(&waypoint, std::slice::from_ref(&web), "10.1.0.1:80", Ok(80));
}

#[test]
fn application_tunnels_take_another_port_and_the_proxy_protocol_is_refused() {
    let tunnelled = |proxy_header, port| {
        let mut one = own();
        one.application_tunnel = Some(ApplicationTunnel { proxy_header, port });
        one
    };
    check(&tunnelled(false, 15088), &[], "10.9.9.9:80", Ok(15088));
    check(&tunnelled(false, 15008), &[], "10.9.9.9:80", Err(503));
    check(&tunnelled(true, 15088), &[], "10.9.9.9:80", Err(503));
}

proptest! {
    #[test]
    fn inv_08_any_authority_is_served_or_refused(method in ".{0,10}", authority in ".{0,40}") {
        let _ = plan(&own(), &[service(&["10.1.0.1"], 80)], &method, &authority);
        let _ = plan(&own(), &[], "CONNECT", &authority);
    }
}
