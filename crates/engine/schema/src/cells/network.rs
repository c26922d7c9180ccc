//! Cells of Services, Endpoints and EndpointSlices.

use jiff::Timestamp;
use serde_json::Value;

use super::{age_cell, items, or_none, selector_text, text};

/// Items of a list that a cell shows; the rest is counted.
const SHOWN_MAX: usize = 3;

/// Type, Cluster-IP, External-IP, Port(s), Age, Selector.
pub(super) fn service(service: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &service["spec"];
    let cluster_ip =
        items(spec, "clusterIPs").next().and_then(Value::as_str).unwrap_or(text(spec, "clusterIP"));
    vec![
        text(spec, "type").into(),
        or_none(cluster_ip).into(),
        external_ip(service).into(),
        service_ports(spec).into(),
        age_cell(service, now),
        selector_text(&spec["selector"]).into(),
    ]
}

fn external_ip(service: &Value) -> String {
    let spec = &service["spec"];
    let own: Vec<_> = items(spec, "externalIPs").filter_map(Value::as_str).collect();
    match text(spec, "type") {
        "LoadBalancer" => {
            let ingress = items(&service["status"]["loadBalancer"], "ingress");
            let place = |of| Some(text(of, "ip")).filter(|ip| !ip.is_empty()).unwrap_or(text(of, "hostname"));
            let mut places: Vec<_> = ingress.map(place).filter(|place| !place.is_empty()).collect();
            places.extend(&own);
            if places.is_empty() { "<pending>".to_owned() } else { places.join(",") }
        }
        "ExternalName" => text(spec, "externalName").to_owned(),
        _ => or_none(&own.join(",")).to_owned(),
    }
}

fn service_ports(spec: &Value) -> String {
    let ports: Vec<_> = items(spec, "ports")
        .map(|port| {
            let node_port = port["nodePort"].as_i64().filter(|number| *number > 0);
            let node_port = node_port.map_or_else(String::new, |number| format!(":{number}"));
            format!("{}{node_port}/{}", port["port"], text(port, "protocol"))
        })
        .collect();
    or_none(&ports.join(",")).to_owned()
}

/// Shows the first few; how many there are beyond them.
fn abridged(all: &[String]) -> String {
    match all.len() {
        0 => "<none>".to_owned(),
        count if count > SHOWN_MAX => {
            format!("{} + {} more...", all[..SHOWN_MAX].join(","), count - SHOWN_MAX)
        }
        _ => all.join(","),
    }
}

/// Endpoints, Age.
pub(super) fn endpoints(endpoints: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in items(endpoints, "subsets") {
        let ports: Vec<_> = items(subset, "ports").collect();
        for address in items(subset, "addresses") {
            let ip = text(address, "ip");
            if ports.is_empty() {
                all.push(ip.to_owned());
            }
            let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
            all.extend(ports.iter().map(|port| format!("{host}:{}", port["port"])));
        }
    }
    vec![abridged(&all).into(), age_cell(endpoints, now)]
}

/// AddressType, Ports, Endpoints, Age.
pub(super) fn endpoint_slice(slice: &Value, now: Timestamp) -> Vec<Value> {
    let port = |port: &Value| match (port["port"].as_i64(), text(port, "name")) {
        (Some(number), _) => number.to_string(),
        (None, "") => "*".to_owned(),
        (None, name) => name.to_owned(),
    };
    let ports = match &slice["ports"] {
        Value::Null => "<unset>".to_owned(),
        _ => abridged(&items(slice, "ports").map(port).collect::<Vec<_>>()),
    };
    let addresses = items(slice, "endpoints").flat_map(|endpoint| items(endpoint, "addresses"));
    let addresses: Vec<_> = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
    let addresses = if addresses.is_empty() { "<unset>".to_owned() } else { abridged(&addresses) };
    vec![text(slice, "addressType").into(), ports.into(), addresses.into(), age_cell(slice, now)]
}

/// Class, Hosts, Address, Ports, Age.
pub(super) fn ingress(ingress: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &ingress["spec"];
    let hosts: Vec<_> =
        items(spec, "rules").map(|rule| text(rule, "host")).filter(|host| !host.is_empty()).collect();
    let shown = match hosts.len() {
        0 => "*".to_owned(),
        count if count > SHOWN_MAX => {
            format!("{} + {} more...", hosts[..SHOWN_MAX].join(","), count - SHOWN_MAX)
        }
        _ => hosts.join(","),
    };
    let addresses: Vec<_> = items(&ingress["status"]["loadBalancer"], "ingress")
        .map(|of| if text(of, "ip").is_empty() { text(of, "hostname") } else { text(of, "ip") })
        .collect();
    let ports = if items(spec, "tls").next().is_some() { "80, 443" } else { "80" };
    vec![
        or_none(text(spec, "ingressClassName")).into(),
        shown.into(),
        addresses.join(",").into(),
        ports.into(),
        age_cell(ingress, now),
    ]
}

/// Controller, Parameters, Age.
pub(super) fn ingress_class(class: &Value, now: Timestamp) -> Vec<Value> {
    let of = &class["spec"]["parameters"];
    let kind = match text(of, "apiGroup") {
        "" => text(of, "kind").to_owned(),
        group => format!("{}.{group}", text(of, "kind")),
    };
    let parameters =
        if of.is_object() { format!("{kind}/{}", text(of, "name")) } else { "<none>".to_owned() };
    vec![text(&class["spec"], "controller").into(), parameters.into(), age_cell(class, now)]
}

/// Pod-Selector, Age.
pub(super) fn network_policy(policy: &Value, now: Timestamp) -> Vec<Value> {
    vec![super::workloads::label_selector(&policy["spec"]["podSelector"]).into(), age_cell(policy, now)]
}
