use super::*;
use serde_json::{Value, json};

/// A zone with one service of each sort.
pub(in crate::dns) fn zone() -> Zone {
    let services: Vec<Service> = [
        service(
            "web",
            json!({"clusterIP": "10.96.0.20", "clusterIPs": ["10.96.0.20", "fd00::20"],
            "ports": [{"name": "http", "port": 80}, {"port": 81}, {"name": "odd", "port": 90000}]}),
        ),
        service("single", json!({"clusterIP": "10.96.0.21"})),
        service("pending", json!({})),
        service("db", json!({"clusterIP": "None"})),
        service("idle", json!({"clusterIP": "None"})),
        service("out", json!({"type": "ExternalName", "externalName": "example.org"})),
        service("in", json!({"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"})),
        service("loop", json!({"type": "ExternalName", "externalName": "loop.shop.svc.cluster.local."})),
        service("bad", json!({"type": "ExternalName", "externalName": "a..b"})),
    ]
    .into_iter()
    .map(|v| serde_json::from_value(v).unwrap())
    .collect();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4",
        "ports": [{"name": "peer", "port": 7000}],
        "endpoints": [
            {"addresses": ["10.244.0.7"]},
            {"addresses": ["10.244.0.5"], "hostname": "db-0", "conditions": {"ready": true}},
            {"addresses": ["10.244.0.6"], "hostname": "db-1", "conditions": {"ready": false}},
            {"addresses": ["no address"], "conditions": {"ready": true}},
        ],
    }))
    .unwrap();
    let domain = Name::from_ascii("cluster.local.").unwrap();
    let networks = ["10.96.0.0/16", "10.244.0.0/24", "fd00::/112"].map(|n| n.parse().unwrap());
    let origin = Origin { domain, server: vec!["10.96.0.10".parse().unwrap()], networks: networks.into() };
    Zone::build(origin, &services, [&slice])
}

fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec})
}

#[test]
fn a_service_that_cannot_be_named_is_left_out() {
    let zone = zone();
    assert!(zone.service("shop", "web").is_some());
    assert_eq!([zone.service("shop", "pending"), zone.service("shop", "bad")], [None, None]);
}

#[test]
fn a_port_number_that_cannot_be_is_left_out() {
    let zone = zone();
    let Some(Entry::Addresses { ports, .. }) = zone.service("shop", "web") else { panic!("no addresses") };
    assert_eq!(ports, &[NamedPort { name: "http".into(), protocol: "tcp", number: 80 }]);
}
