//! Validation of Services, Endpoints and EndpointSlices. Sources: Kubernetes
//! `pkg/apis/core/validation/validation.go`, `pkg/apis/discovery/validation/validation.go`.

use std::net::IpAddr;

use serde_json::Value;

use super::container::port_or_name;
use super::metadata::label_map;
use super::names;
use super::{items, text};
use crate::fault::Faults;
use crate::path::Path;

/// Endpoints in an EndpointSlice at most.
const ENDPOINTS_MAX: usize = 1000;
/// Addresses of one endpoint at most.
const ADDRESSES_MAX: usize = 100;
/// Ports of an EndpointSlice at most.
const PORTS_MAX: usize = 20_000;
/// Seconds of session affinity at most: a day.
const AFFINITY_SECONDS_MAX: i64 = 86_400;

/// Checks the spec of a Service.
pub(super) fn service_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let kind = text(spec, "type");
    let cluster_ip = text(spec, "clusterIP");
    let headless = cluster_ip == "None";
    let ports = spec["ports"].as_array().map_or(0, Vec::len);
    if ports == 0 && !headless && kind != "ExternalName" {
        faults.required(&path.field("ports"), "");
    }
    if kind == "ExternalName" {
        external_name(spec, path, faults);
    }
    if headless && matches!(kind, "NodePort" | "LoadBalancer") {
        faults.invalid(
            &path.field("clusterIP"),
            "None",
            format!("may not be set to 'None' for {kind} services"),
        );
    }
    cluster_ips(spec, path, faults);
    label_map(&spec["selector"], &path.field("selector"), faults);
    service_ports(spec, path, faults);
    let seconds = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
    if let Some(seconds) = seconds.as_i64().filter(|seconds| !(1..=AFFINITY_SECONDS_MAX).contains(seconds)) {
        let config = path.field("sessionAffinityConfig");
        let client = config.field("clientIP");
        let message = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
        faults.invalid(&client.field("timeoutSeconds"), seconds, message);
    }
}

fn external_name(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let name = text(spec, "externalName").trim_end_matches('.');
    if name.is_empty() {
        faults.required(&path.field("externalName"), "");
    } else if let Err(message) = names::dns_subdomain(name) {
        faults.invalid(&path.field("externalName"), name, message);
    }
    for field in ["clusterIP", "clusterIPs"] {
        let value = &spec[field];
        let unset = value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty);
        if !unset {
            faults.forbidden(&path.field(field), "may not be set for ExternalName services");
        }
    }
}

fn cluster_ips(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let cluster_ip = text(spec, "clusterIP");
    let valid = |text: &str| matches!(text, "" | "None") || text.parse::<IpAddr>().is_ok();
    let message = "must be empty, 'None', or a valid IP address";
    if !valid(cluster_ip) {
        faults.invalid(&path.field("clusterIP"), cluster_ip, message);
    }
    let list = path.field("clusterIPs");
    for (index, ip) in items(spec, "clusterIPs") {
        let ip = ip.as_str().unwrap_or_default();
        if !valid(ip) {
            faults.invalid(&list.index(index), ip, message);
        }
        if index == 0 && ip != cluster_ip && !cluster_ip.is_empty() {
            let message = "first value must match `clusterIP`";
            faults.invalid(&list, spec["clusterIPs"].clone(), message);
        }
    }
}

fn service_ports(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let list = path.field("ports");
    let several = items(spec, "ports").count() > 1;
    let internal = matches!(text(spec, "type"), "ClusterIP" | "ExternalName");
    let mut seen_names: Vec<&str> = Vec::new();
    let mut seen = Vec::new();
    for (index, port) in items(spec, "ports") {
        let path = list.index(index);
        let name = text(port, "name");
        if name.is_empty() {
            if several {
                faults.required(&path.field("name"), "");
            }
        } else if let Err(message) = names::dns_label(name) {
            faults.invalid(&path.field("name"), name, message);
        } else if seen_names.contains(&name) {
            faults.duplicate(&path.field("name"), name);
        }
        seen_names.push(name);
        let number = port["port"].as_i64().unwrap_or_default();
        if let Err(message) = names::port_number(number) {
            faults.invalid(&path.field("port"), number, message);
        }
        port_or_name(&port["targetPort"], &path.field("targetPort"), faults);
        let node_port = port["nodePort"].as_i64().unwrap_or_default();
        if internal && node_port != 0 {
            let message = format!("may not be used when `type` is '{}'", text(spec, "type"));
            faults.forbidden(&path.field("nodePort"), message);
        } else if node_port != 0
            && let Err(message) = names::port_number(node_port)
        {
            faults.invalid(&path.field("nodePort"), node_port, message);
        }
        let key = (text(port, "protocol"), number);
        if seen.contains(&key) {
            faults.duplicate(&path, serde_json::json!({"port": number, "protocol": key.0}));
        }
        seen.push(key);
    }
}

/// A Service keeps the cluster address it has, as long as it has one at all.
pub(super) fn service_update(new: &Value, old: &Value, faults: &mut Faults) {
    let (new, old) = (&new["spec"], &old["spec"]);
    let external = |spec: &Value| text(spec, "type") == "ExternalName";
    let before = text(old, "clusterIP");
    if external(new) || external(old) || before.is_empty() || text(new, "clusterIP") == before {
        return;
    }
    let path = Path::Root.field("spec");
    let ips = path.field("clusterIPs");
    let shown = serde_json::json!([text(new, "clusterIP")]);
    faults.invalid(&ips.index(0), shown, "may not change once set");
}

fn ip(text: &str, path: &Path<'_>, faults: &mut Faults) {
    match text.parse::<IpAddr>() {
        Err(_) => faults.invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        Ok(ip) if ip.is_unspecified() => {
            faults.invalid(path, text, format!("may not be unspecified ({ip})"));
        }
        Ok(ip) if ip.is_loopback() => {
            faults.invalid(path, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
        }
        Ok(_) => {}
    }
}

/// Checks a part of Endpoints.
pub(super) fn endpoint_subset(subset: &Value, path: &Path<'_>, faults: &mut Faults) {
    for list in ["addresses", "notReadyAddresses"] {
        let list_path = path.field(list);
        for (index, address) in items(subset, list) {
            ip(text(address, "ip"), &list_path.index(index).field("ip"), faults);
        }
    }
    let several = items(subset, "ports").count() > 1;
    let ports = path.field("ports");
    for (index, port) in items(subset, "ports") {
        let path = ports.index(index);
        if several && text(port, "name").is_empty() {
            faults.required(&path.field("name"), "");
        }
        let number = port["port"].as_i64().unwrap_or_default();
        if let Err(message) = names::port_number(number) {
            faults.invalid(&path.field("port"), number, message);
        }
    }
}

/// Checks an EndpointSlice.
pub(super) fn endpoint_slice(slice: &Value, path: &Path<'_>, faults: &mut Faults) {
    let kind = text(slice, "addressType");
    let endpoints = path.field("endpoints");
    let count = items(slice, "endpoints").count();
    if count > ENDPOINTS_MAX {
        faults.too_many(&endpoints, count, ENDPOINTS_MAX);
    }
    for (index, endpoint) in items(slice, "endpoints") {
        let endpoint_path = endpoints.index(index);
        let list = endpoint_path.field("addresses");
        let count = items(endpoint, "addresses").count();
        if count > ADDRESSES_MAX {
            faults.too_many(&list, count, ADDRESSES_MAX);
        }
        for (index, address) in items(endpoint, "addresses") {
            slice_address(kind, address.as_str().unwrap_or_default(), &list.index(index), faults);
        }
    }
    let ports = path.field("ports");
    let count = items(slice, "ports").count();
    if count > PORTS_MAX {
        faults.too_many(&ports, count, PORTS_MAX);
    }
    let mut seen = Vec::new();
    for (index, port) in items(slice, "ports") {
        let path = ports.index(index);
        let name = text(port, "name");
        if seen.contains(&name) {
            faults.duplicate(&path.field("name"), name);
        } else if !name.is_empty()
            && let Err(message) = names::dns_label(name)
        {
            faults.invalid(&path.field("name"), name, message);
        }
        seen.push(name);
    }
}

fn slice_address(kind: &str, address: &str, path: &Path<'_>, faults: &mut Faults) {
    match kind {
        "IPv4" if address.parse::<std::net::Ipv4Addr>().is_err() => {
            faults.invalid(path, address, "must be a valid IPv4 address");
        }
        "IPv6" if address.parse::<std::net::Ipv6Addr>().is_err() => {
            faults.invalid(path, address, "must be a valid IPv6 address");
        }
        "IPv4" | "IPv6" => ip(address, path, faults),
        "FQDN" => {
            if let Err(message) = names::dns_subdomain(address.trim_end_matches('.')) {
                faults.invalid(path, address, message);
            }
        }
        _ => {}
    }
}

/// An EndpointSlice keeps its kind of addresses.
pub(super) fn endpoint_slice_update(new: &Value, old: &Value, faults: &mut Faults) {
    if new["addressType"] != old["addressType"] {
        faults.invalid(&Path::Root.field("addressType"), new["addressType"].clone(), "field is immutable");
    }
}

/// Checks the spec of an Ingress. Source: `pkg/apis/networking/validation/validation.go`.
pub(super) fn ingress_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    if items(spec, "rules").next().is_none() && spec["defaultBackend"].is_null() {
        faults.invalid(path, "object", "either `defaultBackend` or `rules` must be specified");
    }
    ingress_backend(&spec["defaultBackend"], &path.field("defaultBackend"), faults);
    let rules = path.field("rules");
    for (index, rule) in items(spec, "rules") {
        let rule_path = rules.index(index);
        let http = rule_path.field("http");
        let paths = http.field("paths");
        for (index, of) in items(&rule["http"], "paths") {
            let path = paths.index(index);
            let (kind, value) = (text(of, "pathType"), text(of, "path"));
            if kind.is_empty() {
                faults.required(&path.field("pathType"), "pathType must be specified");
            } else if kind != "ImplementationSpecific" && !value.starts_with('/') {
                faults.invalid(&path.field("path"), value, "must be an absolute path");
            }
            ingress_backend(&of["backend"], &path.field("backend"), faults);
        }
    }
}

fn ingress_backend(backend: &Value, path: &Path<'_>, faults: &mut Faults) {
    if backend.is_null() {
        return;
    }
    let (service, resource) = (&backend["service"], &backend["resource"]);
    match (service.is_object(), resource.is_object()) {
        (true, true) => faults.invalid(path, "object", "cannot set both resource and service backends"),
        (false, false) => faults.required(path, "resource or service backend is required"),
        (false, true) => {}
        (true, false) => {
            let path = path.field("service");
            if text(service, "name").is_empty() {
                faults.required(&path.field("name"), "");
            }
            let port = &service["port"];
            let (named, numbered) =
                (!text(port, "name").is_empty(), port["number"].as_i64().is_some_and(|n| n != 0));
            if named == numbered {
                let message = if named {
                    "cannot set both port name & port number"
                } else {
                    "port name or number is required"
                };
                match named {
                    true => faults.invalid(&path, "object", message),
                    false => faults.required(&path, message),
                }
            }
        }
    }
}
