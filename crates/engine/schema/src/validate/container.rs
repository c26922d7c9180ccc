//! Validation of containers. Source: Kubernetes `pkg/apis/core/validation/validation.go`.

use serde_json::Value;

use super::names;
use super::{items, text};
use crate::fault::Faults;
use crate::path::Path;
use crate::quantity::Quantity;

/// Checks one container by itself; what concerns all containers of a pod is checked with the pod.
pub(super) fn container(container: &Value, path: &Path<'_>, faults: &mut Faults) {
    let name = text(container, "name");
    if !name.is_empty()
        && let Err(message) = names::dns_label(name)
    {
        faults.invalid(&path.field("name"), name, message);
    }
    let image = text(container, "image");
    if image.is_empty() {
        faults.required(&path.field("image"), "");
    } else if image.trim() != image {
        faults.invalid(&path.field("image"), image, "must not have leading or trailing whitespace");
    }
    ports(container, &path.field("ports"), faults);
    for probe in ["livenessProbe", "startupProbe"] {
        if let Some(count) = container[probe]["successThreshold"].as_i64().filter(|count| *count != 1) {
            faults.invalid(&path.field(probe).field("successThreshold"), count, "must be 1");
        }
    }
    let lifecycle = path.field("lifecycle");
    for hook in ["postStart", "preStop"] {
        if container["lifecycle"][hook].is_object() {
            let known = ["exec", "httpGet", "tcpSocket", "sleep"];
            handler(&container["lifecycle"][hook], &lifecycle.field(hook), &known, faults);
        }
    }
    mounts(container, &path.field("volumeMounts"), faults);
}

fn ports(container: &Value, path: &Path<'_>, faults: &mut Faults) {
    let mut names_seen = Vec::new();
    for (index, port) in items(container, "ports") {
        let path = path.index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            if let Err(message) = names::port_name(name) {
                faults.invalid(&path.field("name"), name, message);
            } else if names_seen.contains(&name) {
                faults.duplicate(&path.field("name"), name);
            }
            names_seen.push(name);
        }
        let number = port["containerPort"].as_i64().unwrap_or_default();
        if number == 0 {
            faults.required(&path.field("containerPort"), "");
        } else if let Err(message) = names::port_number(number) {
            faults.invalid(&path.field("containerPort"), number, message);
        }
        let host = port["hostPort"].as_i64().unwrap_or_default();
        if host != 0
            && let Err(message) = names::port_number(host)
        {
            faults.invalid(&path.field("hostPort"), host, message);
        }
    }
}

fn mounts(container: &Value, path: &Path<'_>, faults: &mut Faults) {
    let mut seen = Vec::new();
    for (index, mount) in items(container, "volumeMounts") {
        let place = text(mount, "mountPath");
        if seen.contains(&place) {
            faults.invalid(&path.index(index).field("mountPath"), place, "must be unique");
        }
        seen.push(place);
    }
}

/// Checks an environment variable.
pub(super) fn env_var(variable: &Value, path: &Path<'_>, faults: &mut Faults) {
    if let Err(message) = names::env_name(text(variable, "name")) {
        faults.invalid(&path.field("name"), text(variable, "name"), message);
    }
    let Some(source) = variable["valueFrom"].as_object() else { return };
    let path = path.field("valueFrom");
    match source.len() {
        0 => {
            let known = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`";
            faults.invalid(&path, "", format!("must specify one of: {known}"));
        }
        1 => {}
        _ => faults.invalid(&path, "", "may not have more than one field specified at a time"),
    }
    if !text(variable, "value").is_empty() {
        faults.invalid(&path, "", "may not be specified when `value` is not empty");
    }
}

/// Checks a probe.
pub(super) fn probe(probe: &Value, path: &Path<'_>, faults: &mut Faults) {
    handler(probe, path, &["exec", "httpGet", "tcpSocket", "grpc"], faults);
    let counts =
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    for field in counts {
        if let Some(number) = probe[field].as_i64().filter(|number| *number < 0) {
            faults.invalid(&path.field(field), number, "must be greater than or equal to 0");
        }
    }
    if let Some(seconds) = probe["terminationGracePeriodSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
        faults.invalid(&path.field("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
    if probe["grpc"].is_object() {
        let number = probe["grpc"]["port"].as_i64().unwrap_or_default();
        if let Err(message) = names::port_number(number) {
            faults.invalid(&path.field("grpc").field("port"), number, message);
        }
    }
}

fn handler(of: &Value, path: &Path<'_>, known: &[&str], faults: &mut Faults) {
    let given: Vec<_> = known.iter().filter(|name| !of[**name].is_null()).collect();
    if given.is_empty() {
        faults.required(path, "must specify a handler type");
    }
    for name in given.iter().skip(1) {
        faults.forbidden(&path.field(name), "may not specify more than 1 handler type");
    }
    if of["exec"].is_object() && of["exec"]["command"].as_array().is_none_or(Vec::is_empty) {
        faults.required(&path.field("exec").field("command"), "");
    }
}

/// Checks an HTTP request of a probe or hook.
pub(super) fn http_get(action: &Value, path: &Path<'_>, faults: &mut Faults) {
    if text(action, "path").is_empty() {
        faults.required(&path.field("path"), "");
    }
    port_or_name(&action["port"], &path.field("port"), faults);
}

/// Checks a connection attempt of a probe or hook.
pub(super) fn tcp_socket(action: &Value, path: &Path<'_>, faults: &mut Faults) {
    port_or_name(&action["port"], &path.field("port"), faults);
}

/// Checks a port given as number or name; one that is missing is reported as such elsewhere.
pub(super) fn port_or_name(port: &Value, path: &Path<'_>, faults: &mut Faults) {
    let outcome = match port {
        Value::String(name) => names::port_name(name),
        Value::Number(number) => names::port_number(number.as_i64().unwrap_or_default()),
        _ => Ok(()),
    };
    if let Err(message) = outcome {
        faults.invalid(path, port.clone(), message);
    }
}

/// Checks requests and limits.
pub(super) fn resources(resources: &Value, path: &Path<'_>, faults: &mut Faults) {
    for kind in ["limits", "requests"] {
        let path = path.field(kind);
        for (name, amount) in resources[kind].as_object().into_iter().flatten() {
            let path = path.key(name);
            if let Err(message) = names::qualified_name(name) {
                faults.invalid(&path, name.as_str(), message);
            }
            if Quantity::of(amount).is_some_and(Quantity::is_negative) {
                faults.invalid(&path, amount.clone(), "must be greater than or equal to 0");
            }
        }
    }
    let path = path.field("requests");
    for (name, request) in resources["requests"].as_object().into_iter().flatten() {
        let limit = &resources["limits"][name.as_str()];
        if let (Some(request_amount), Some(limit)) = (Quantity::of(request), Quantity::of(limit))
            && request_amount > limit
        {
            let shown = request.as_str().map_or_else(|| request.to_string(), str::to_owned);
            let message =
                format!("must be less than or equal to {name} limit of {}", limit_text(resources, name));
            faults.invalid(&path, shown, message);
        }
    }
}

fn limit_text(resources: &Value, name: &str) -> String {
    let limit = &resources["limits"][name];
    limit.as_str().map_or_else(|| limit.to_string(), str::to_owned)
}

/// Checks a container's security context.
pub(super) fn security_context(context: &Value, path: &Path<'_>, faults: &mut Faults) {
    for field in ["runAsUser", "runAsGroup"] {
        if let Some(id) = context[field].as_i64().filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
            faults.invalid(&path.field(field), id, "must be between 0 and 2147483647, inclusive");
        }
    }
    if context["allowPrivilegeEscalation"] == false && context["privileged"] == true {
        let message = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        faults.invalid(path, context.clone(), message);
    }
}
