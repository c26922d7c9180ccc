use super::*;
use serde_json::{Value, json};

fn service(spec: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec})).unwrap()
}

fn slice(ports: Value, endpoints: Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": ports, "endpoints": endpoints}))
    .unwrap()
}

/// `address/protocol/port -> endpoints (name)` a line.
fn shown(plan: &Plan) -> Vec<String> {
    let line = |port: &ServicePort| {
        let protocol = if port.transport == Transport::Tcp { "tcp" } else { "udp" };
        let endpoints: Vec<String> = port.endpoints.iter().map(ToString::to_string).collect();
        format!("{}/{protocol}/{} -> {} ({})", port.address, port.port, endpoints.join(","), port.name)
    };
    plan.ports.iter().map(line).collect()
}

#[track_caller]
fn check(spec: Value, slices: &[EndpointSlice], expected: &[&str]) -> Plan {
    let plan = plan([&service(spec)], slices, "node-1");
    assert_eq!(shown(&plan), expected);
    plan
}

#[track_caller]
fn check_note(spec: Value, expected: &[&str]) {
    let plan = plan([&service(spec)], [], "node-1");
    let notes: Vec<&str> = plan.notes.iter().map(|note| note.what.as_str()).collect();
    assert_eq!(notes, expected);
}

fn http(target: u16) -> Value {
    json!([{"name": "http", "port": target}])
}

#[test]
fn ports_lead_to_ready_endpoints_by_port_name() {
    let spec = json!({"clusterIP": "10.96.0.20", "clusterIPs": ["10.96.0.20"],
        "ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]});
    let endpoints = json!([
        {"addresses": ["10.244.0.2"], "conditions": {"ready": true}},
        {"addresses": ["10.244.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
        {"addresses": ["10.244.0.4"]},
        {"addresses": ["no address"]},
    ]);
    let ports = json!([{"name": "http", "port": 8080}, {"name": "dns", "port": 5353, "protocol": "UDP"},
        {"name": "dns", "port": 5354, "protocol": "TCP"}]);
    check(
        spec,
        &[slice(ports, endpoints)],
        &[
            "10.96.0.20/tcp/80 -> 10.244.0.2:8080,10.244.0.4:8080 (shop/web:http)",
            "10.96.0.20/udp/53 -> 10.244.0.2:5353,10.244.0.4:5353 (shop/web:dns)",
        ],
    );
}

#[test]
fn an_unnamed_port_leads_to_the_unnamed_port() {
    let spec = json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]});
    let endpoints = json!([{"addresses": ["10.244.0.2"]}]);
    check(
        spec,
        &[slice(json!([{"name": "", "port": 8080}]), endpoints)],
        &["10.96.0.20/tcp/80 -> 10.244.0.2:8080 (shop/web:TCP)"],
    );
}

#[test]
fn endpoints_that_end_serve_until_another_is_ready() {
    let spec = json!({"clusterIP": "10.96.0.20", "ports": [{"name": "http", "port": 80}]});
    let ending = json!({"ready": false, "serving": true, "terminating": true});
    let gone = json!({"ready": false, "serving": false, "terminating": true});
    let endpoints = json!([{"addresses": ["10.244.0.2"], "conditions": ending}, {"addresses": ["10.244.0.3"], "conditions": gone}]);
    check(spec, &[slice(http(80), endpoints)], &["10.96.0.20/tcp/80 -> 10.244.0.2:80 (shop/web:http)"]);
}

#[test]
fn a_local_service_uses_endpoints_of_this_node() {
    let spec = json!({"clusterIP": "10.96.0.20", "internalTrafficPolicy": "Local", "ports": [{"name": "http", "port": 80}]});
    let endpoints = json!([
        {"addresses": ["10.244.0.2"], "nodeName": "node-1"},
        {"addresses": ["10.244.1.2"], "nodeName": "node-2"},
        {"addresses": ["10.244.2.2"]},
    ]);
    check(spec, &[slice(http(80), endpoints)], &["10.96.0.20/tcp/80 -> 10.244.0.2:80 (shop/web:http)"]);
}

#[test]
fn both_families_are_routed_and_headless_and_alias_services_are_not() {
    let ports = json!([{"name": "http", "port": 80}]);
    check(
        json!({"clusterIP": "10.96.0.20", "clusterIPs": ["10.96.0.20", "fd00::20"], "ports": ports}),
        &[],
        &["10.96.0.20/tcp/80 ->  (shop/web:http)", "fd00::20/tcp/80 ->  (shop/web:http)"],
    );
    check(json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports}), &[], &[]);
    check(json!({"type": "ExternalName", "externalName": "example.org", "ports": ports}), &[], &[]);
}

#[test]
fn what_is_not_routed_is_noted() {
    let node_port = "routed its cluster address only: NodePort is not served by this node yet";
    check_note(json!({"clusterIP": "10.96.0.20", "type": "NodePort"}), &[node_port]);
    check_note(
        json!({"clusterIP": "10.96.0.20", "externalIPs": ["192.0.2.1"], "sessionAffinity": "ClientIP"}),
        &[
            "did not route its externalIPs: not served by this node yet",
            "ignored sessionAffinity ClientIP: every connection picks an endpoint",
        ],
    );
    check_note(
        json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80, "protocol": "SCTP"}]}),
        &["port 80 is not routed: protocol SCTP"],
    );
}
