//! Validation of pods as a whole. Source: Kubernetes `pkg/apis/core/validation/validation.go`.

use serde_json::Value;

use super::metadata;
use super::names::{self, Syntax};
use super::{items, text};
use crate::fault::Faults;
use crate::path::Path;

/// The lists of containers of a pod.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
/// Name servers in a pod's DNS settings at most.
const NAME_SERVERS_MAX: usize = 3;

/// Checks the metadata of a pod template.
pub(super) fn pod_template(template: &Value, path: &Path<'_>, faults: &mut Faults) {
    let path = path.field("metadata");
    metadata::labels(&template["metadata"], &path.field("labels"), faults);
    metadata::annotations(&template["metadata"], &path.field("annotations"), faults);
}

/// Checks the spec of a pod.
pub(super) fn pod_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    containers(spec, path, faults);
    volumes(spec, path, faults);
    host_ports(spec, path, faults);
    simple_fields(spec, path, faults);
    metadata::label_map(&spec["nodeSelector"], &path.field("nodeSelector"), faults);
    dns(spec, path, faults);
    let aliases = path.field("hostAliases");
    for (index, alias) in items(spec, "hostAliases") {
        if text(alias, "ip").parse::<std::net::IpAddr>().is_err() {
            let message = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            faults.invalid(&aliases.index(index).field("ip"), text(alias, "ip"), message);
        }
    }
}

fn simple_fields(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let named: [(&str, Syntax); 5] = [
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
        ("nodeName", names::dns_subdomain),
        ("serviceAccountName", names::dns_subdomain),
        ("priorityClassName", names::dns_subdomain),
    ];
    for (field, syntax) in named {
        let value = text(spec, field);
        if !value.is_empty()
            && let Err(message) = syntax(value)
        {
            faults.invalid(&path.field(field), value, message);
        }
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64().filter(|seconds| *seconds < 1) {
        faults.invalid(
            &path.field("activeDeadlineSeconds"),
            seconds,
            "must be between 1 and 2147483647, inclusive",
        );
    }
    if let Some(seconds) = spec["terminationGracePeriodSeconds"].as_i64().filter(|seconds| *seconds < 0) {
        let path = path.field("terminationGracePeriodSeconds");
        faults.invalid(&path, seconds, "must be greater than or equal to 0");
    }
}

fn containers(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let mut seen = Vec::new();
    for list in CONTAINER_LISTS {
        let list_path = path.field(list);
        for (index, container) in items(spec, list) {
            let path = list_path.index(index);
            let name = text(container, "name");
            if seen.contains(&name) && !name.is_empty() {
                faults.duplicate(&path.field("name"), name);
            }
            seen.push(name);
            mounted_volumes(spec, container, &path.field("volumeMounts"), faults);
            if list == "initContainers" {
                init_container(container, &path, faults);
            }
        }
    }
}

fn init_container(container: &Value, path: &Path<'_>, faults: &mut Faults) {
    if text(container, "restartPolicy") == "Always" {
        return;
    }
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if !container[field].is_null() {
            faults.forbidden(
                &path.field(field),
                "may not be set for init containers without restartPolicy=Always",
            );
        }
    }
}

fn mounted_volumes(spec: &Value, container: &Value, path: &Path<'_>, faults: &mut Faults) {
    for (index, mount) in items(container, "volumeMounts") {
        let name = text(mount, "name");
        if !name.is_empty() && !items(spec, "volumes").any(|(_, volume)| text(volume, "name") == name) {
            faults.not_found(&path.index(index).field("name"), name);
        }
    }
}

fn volumes(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let list = path.field("volumes");
    let mut seen = Vec::new();
    for (index, volume) in items(spec, "volumes") {
        let name = text(volume, "name");
        if seen.contains(&name) && !name.is_empty() {
            faults.duplicate(&list.index(index).field("name"), name);
        }
        seen.push(name);
    }
}

fn host_ports(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let host_network = spec["hostNetwork"] == true;
    let mut taken = Vec::new();
    let list = path.field("containers");
    for (index, container) in items(spec, "containers") {
        let container_path = list.index(index);
        let ports = container_path.field("ports");
        for (index, port) in items(container, "ports") {
            let path = ports.index(index);
            let number = port["hostPort"].as_i64().unwrap_or_default();
            if host_network && port["containerPort"].as_i64().unwrap_or_default() != number {
                let message = "must match `hostPort` when `hostNetwork` is true";
                faults.invalid(&path.field("containerPort"), port["containerPort"].clone(), message);
            }
            if number == 0 {
                continue;
            }
            let claim = (text(port, "protocol"), text(port, "hostIP"), number);
            if taken.contains(&claim) {
                faults.duplicate(&path.field("hostPort"), format!("{}/{}/{number}", claim.0, claim.1));
            }
            taken.push(claim);
        }
    }
}

fn dns(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let config = path.field("dnsConfig");
    let servers = spec["dnsConfig"]["nameservers"].as_array().map_or(0, Vec::len);
    if text(spec, "dnsPolicy") == "None" && servers == 0 {
        let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        faults.required(&config.field("nameservers"), message);
    }
    if servers > NAME_SERVERS_MAX {
        let message = "must not have more than 3 nameservers";
        faults.invalid(&config.field("nameservers"), spec["dnsConfig"]["nameservers"].clone(), message);
    }
}

/// Checks a toleration.
pub(super) fn toleration(toleration: &Value, path: &Path<'_>, faults: &mut Faults) {
    let key = text(toleration, "key");
    let operator = text(toleration, "operator");
    if !key.is_empty()
        && let Err(message) = names::qualified_name(key)
    {
        faults.invalid(&path.field("key"), key, message);
    }
    if key.is_empty() && operator != "Exists" {
        let message =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        faults.invalid(&path.field("operator"), operator, message);
    }
    if operator == "Exists" && !text(toleration, "value").is_empty() {
        faults.invalid(
            &path.field("operator"),
            toleration.clone(),
            "value must be empty when `operator` is 'Exists'",
        );
    }
    if !toleration["tolerationSeconds"].is_null() && text(toleration, "effect") != "NoExecute" {
        let message = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        faults.invalid(&path.field("effect"), text(toleration, "effect"), message);
    }
}
