//! Environment variables and the fields and resources they may refer to.

use super::files::Materials;
use super::resources::{parse_milli, parse_value};
use ambit_api::Quantity;
use ambit_api::core::v1::{Container, EnvVar, EnvVarSource, Pod, ResourceFieldSelector, Service};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Why a variable or file cannot be made. The text is shown as the container's or volume's waiting message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// A referenced object is missing.
    #[error("{kind} {name:?} not found")]
    Missing {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A referenced key is missing.
    #[error("couldn't find key {key} in {kind} {name:?}")]
    MissingKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// The field path means nothing here.
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    /// The resource is not one that can be referred to.
    #[error("unsupported resourceFieldRef {0:?}")]
    Resource(String),
    /// The path of a file leads out of its volume.
    #[error("file path {0:?} must be relative and must not contain '..'")]
    Path(String),
    /// A token was not issued.
    #[error("no token for audience {0:?}")]
    Token(String),
}

/// What is known of the node and of the pod's place on it.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The node's name.
    pub node_name: String,
    /// The node's addresses.
    pub host_ips: Vec<IpAddr>,
    /// The pod's addresses.
    pub pod_ips: Vec<IpAddr>,
    /// Processors of the node, in thousandths.
    pub cpu_milli: u64,
    /// Memory of the node in bytes.
    pub memory_bytes: u64,
}

/// The whole environment of a container, in order; later entries of a name replace earlier ones.
/// Source: kubelet's `makeEnvironmentVariables`.
///
/// # Errors
/// A variable that is not optional refers to something missing.
pub fn environment(
    pod: &Pod,
    container: &Container,
    materials: &Materials,
    services: &[&Service],
    facts: &Facts,
) -> Result<Vec<(String, String)>, SourceError> {
    let service_vars = service_variables(services);
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    let mut put = |known: &mut BTreeMap<String, String>, name: String, value: String| {
        if known.insert(name.clone(), value).is_none() {
            order.push(name);
        }
    };
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        for (key, value) in materials.whole(from)? {
            put(&mut known, format!("{prefix}{key}"), value);
        }
    }
    for variable in container.env.iter().flatten() {
        let lookup = |name: &str| known.get(name).or_else(|| service_vars.get(name)).cloned();
        let value = match (&variable.value, &variable.value_from) {
            (Some(text), _) if !text.is_empty() => Some(expand(text, lookup)),
            (_, Some(source)) => referred(pod, container, variable, source, (materials, facts))?,
            _ => Some(String::new()),
        };
        if let Some(value) = value {
            put(&mut known, variable.name.clone(), value);
        }
    }
    for (name, value) in service_vars {
        if !known.contains_key(&name) {
            put(&mut known, name, value);
        }
    }
    Ok(order.into_iter().filter_map(|name| known.remove_entry(&name)).collect())
}

/// Replaces `$(NAME)` by the variable's value; `$$` is a dollar; what is not known stays as it is.
/// Source: the API's documentation of `command`.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            result.push('$');
            rest = after;
            continue;
        }
        let name = tail.strip_prefix('(').and_then(|t| t.split_once(')'));
        match name {
            Some((name, after)) => {
                match lookup(name) {
                    Some(value) => result.push_str(&value),
                    None => result.push_str(&format!("$({name})")),
                }
                rest = after;
            }
            None => {
                result.push('$');
                rest = tail;
            }
        }
    }
    result.push_str(rest);
    result
}

/// The value a variable refers to; `None` if it is optional and missing.
fn referred(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    source: &EnvVarSource,
    (materials, facts): (&Materials, &Facts),
) -> Result<Option<String>, SourceError> {
    if let Some(field) = &source.field_ref {
        return field_value(pod, &field.field_path, facts).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_value(pod, Some(container), resource, facts).map(Some);
    }
    if let Some(key) = &source.config_map_key_ref {
        return materials.config_map_key(&key.name, &key.key, key.optional.unwrap_or(false));
    }
    if let Some(key) = &source.secret_key_ref {
        return materials.secret_key(&key.name, &key.key, key.optional.unwrap_or(false));
    }
    Err(SourceError::Field(format!("valueFrom of {}", variable.name)))
}

/// The value of a pod's field. Source: the API's documentation of `fieldRef`.
///
/// # Errors
/// The path is not one that may be referred to.
pub fn field_value(pod: &Pod, path: &str, facts: &Facts) -> Result<String, SourceError> {
    let meta = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let list = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let first = |ips: &[IpAddr]| ips.first().map(ToString::to_string).unwrap_or_default();
    let labels = meta.labels.clone().unwrap_or_default();
    let annotations = meta.annotations.clone().unwrap_or_default();
    Ok(match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => lines(&labels),
        "metadata.annotations" => lines(&annotations),
        "spec.nodeName" => facts.node_name.clone(),
        "spec.serviceAccountName" => pod
            .spec
            .as_ref()
            .and_then(|s| s.service_account_name.clone())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "default".to_owned()),
        "status.hostIP" => first(&facts.host_ips),
        "status.hostIPs" => list(&facts.host_ips),
        "status.podIP" => first(&facts.pod_ips),
        "status.podIPs" => list(&facts.pod_ips),
        _ => {
            let keyed = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']").map(str::to_owned);
            if let Some(key) = keyed("metadata.labels['") {
                labels.get(&key).cloned().unwrap_or_default()
            } else if let Some(key) = keyed("metadata.annotations['") {
                annotations.get(&key).cloned().unwrap_or_default()
            } else {
                return Err(SourceError::Field(path.to_owned()));
            }
        }
    })
}

/// `key="value"`, one a line, sorted; the value is quoted as in Go. Source: kubelet's `FormatMap`.
fn lines(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
}

/// A container's request or limit, in units of the divisor; the node's size stands in for a missing limit.
///
/// # Errors
/// The resource is not `limits.` or `requests.` of `cpu`, `memory` or `ephemeral-storage`, or the container is unknown.
pub fn resource_value(
    pod: &Pod,
    container: Option<&Container>,
    selector: &ResourceFieldSelector,
    facts: &Facts,
) -> Result<String, SourceError> {
    let unknown = || SourceError::Resource(selector.resource.clone());
    let named = selector.container_name.as_deref();
    let spec = pod.spec.as_ref();
    let all = || spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    let container = named.map_or(container, |name| all().find(|c| c.name == name)).ok_or_else(unknown)?;
    let (of, name) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let resources = container.resources.as_ref();
    let limit = resources.and_then(|r| r.limits.as_ref()?.get(name));
    let request = resources.and_then(|r| r.requests.as_ref()?.get(name));
    let stated = match of {
        "limits" => limit,
        "requests" => request.or(limit),
        _ => return Err(unknown()),
    };
    let milli = match (stated.and_then(parse_milli), of, name) {
        (Some(milli), ..) => milli,
        (None, "limits", "cpu") => i128::from(facts.cpu_milli),
        (None, "limits", "memory") => i128::from(facts.memory_bytes) * 1000,
        (None, _, "cpu" | "memory" | "ephemeral-storage") => 0,
        _ => return Err(unknown()),
    };
    let one = Quantity("1".to_owned());
    let divisor = selector.divisor.as_ref().filter(|d| parse_value(d).is_some_and(|v| v != 0));
    let divisor = divisor.and_then(parse_milli).or_else(|| parse_milli(&one)).unwrap_or(1000);
    // Rounded up, as kubelet does.
    Ok((milli.div_euclid(divisor) + i128::from(milli.rem_euclid(divisor) != 0)).to_string())
}

/// The variables that tell of services. Source: kubelet's `envvars.FromServices`.
pub fn service_variables(services: &[&Service]) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for service in services {
        let Some(spec) = &service.spec else { continue };
        let ip = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None");
        let (Some(ip), Some(name), Some(ports)) = (ip, &service.metadata.name, &spec.ports) else { continue };
        let Some(main) = ports.first() else { continue };
        let prefix = variable_name(name);
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        variables.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
        variables.insert(format!("{prefix}_SERVICE_PORT"), main.port.to_string());
        for port in ports {
            if let Some(port_name) = port.name.as_deref().filter(|n| !n.is_empty()) {
                let key = format!("{prefix}_SERVICE_PORT_{}", variable_name(port_name));
                variables.insert(key, port.port.to_string());
            }
        }
        let url = |port: &ambit_api::core::v1::ServicePort| {
            let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
            (format!("{protocol}://{host}:{}", port.port), protocol)
        };
        variables.insert(format!("{prefix}_PORT"), url(main).0);
        for port in ports {
            let (url, protocol) = url(port);
            let prefix = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
            variables.insert(prefix.clone(), url);
            variables.insert(format!("{prefix}_PROTO"), protocol);
            variables.insert(format!("{prefix}_PORT"), port.port.to_string());
            variables.insert(format!("{prefix}_ADDR"), ip.to_owned());
        }
    }
    variables
}

fn variable_name(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check_expand(text: &str, expected: &str) {
        let lookup = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("$(A)".to_owned()),
            _ => None,
        };
        assert_eq!(expand(text, lookup), expected);
    }

    #[test]
    fn expansion() {
        check_expand("plain", "plain");
        check_expand("$(A)-$(A)", "1-1");
        check_expand("[$(EMPTY)]", "[]");
        check_expand("$(NESTED)", "$(A)");
        check_expand("$$(A)", "$(A)");
        check_expand("$$$(A)", "$1");
        check_expand("$(UNKNOWN)", "$(UNKNOWN)");
        check_expand("$(A", "$(A");
        check_expand("$A $", "$A $");
        check_expand("ü$(A)ü", "ü1ü");
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "demo", "uid": "u1",
                "labels": { "app": "web", "b": "x\"y" }, "annotations": { "k": "v" },
            },
            "spec": { "containers": [{
                "name": "c",
                "resources": { "limits": { "cpu": "1500m" }, "requests": { "memory": "64Mi" } },
            }] },
        }))
        .unwrap()
    }

    fn facts() -> Facts {
        Facts {
            node_name: "n1".into(),
            host_ips: vec!["192.0.2.1".parse().unwrap()],
            pod_ips: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            cpu_milli: 2000,
            memory_bytes: 1 << 30,
        }
    }

    #[track_caller]
    fn check_field(path: &str, expected: Result<&str, &str>) {
        let value = field_value(&pod(), path, &facts()).map_err(|e| e.to_string());
        assert_eq!(value, expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn fields() {
        check_field("metadata.name", Ok("web"));
        check_field("metadata.labels", Ok("app=\"web\"\nb=\"x\\\"y\""));
        check_field("metadata.labels['app']", Ok("web"));
        check_field("metadata.labels['none']", Ok(""));
        check_field("metadata.annotations['k']", Ok("v"));
        check_field("spec.nodeName", Ok("n1"));
        check_field("spec.serviceAccountName", Ok("default"));
        check_field("status.podIP", Ok("10.0.0.2"));
        check_field("status.podIPs", Ok("10.0.0.2,fd00::2"));
        check_field("status.hostIP", Ok("192.0.2.1"));
        check_field("spec.containers", Err("unsupported fieldPath: spec.containers"));
    }

    #[track_caller]
    fn check_resource(selector: Value, expected: Result<&str, &str>) {
        let selector = serde_json::from_value(selector).unwrap();
        let pod = pod();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let value = resource_value(&pod, Some(container), &selector, &facts());
        assert_eq!(value.map_err(|e| e.to_string()), expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn resource_fields() {
        check_resource(json!({ "resource": "limits.cpu" }), Ok("2"));
        check_resource(json!({ "resource": "requests.memory", "divisor": "1Mi" }), Ok("64"));
        check_resource(json!({ "resource": "limits.memory", "divisor": "1Gi" }), Ok("1"));
        check_resource(json!({ "resource": "requests.ephemeral-storage" }), Ok("0"));
        check_resource(
            json!({ "resource": "limits.gpu" }),
            Err("unsupported resourceFieldRef \"limits.gpu\""),
        );
        check_resource(
            json!({ "resource": "limits.cpu", "containerName": "z" }),
            Err("unsupported resourceFieldRef \"limits.cpu\""),
        );
    }

    #[track_caller]
    fn check_environment(container: Value, expected: Result<&[(&str, &str)], &str>) {
        let config: ambit_api::core::v1::ConfigMap =
            serde_json::from_value(json!({ "data": { "a": "1", "b": "2" } })).unwrap();
        let mut materials = Materials::default();
        materials.config_maps.insert("conf".into(), config);
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": "my-web" },
            "spec": { "clusterIP": "10.96.0.7", "ports": [{ "name": "http", "port": 80 }] },
        }))
        .unwrap();
        let container = serde_json::from_value(container).unwrap();
        let result = environment(&pod(), &container, &materials, &[&service], &facts());
        let result = result.map_err(|e| e.to_string());
        match expected {
            Err(message) => assert_eq!(result, Err(message.to_owned())),
            Ok(head) => {
                let result = result.unwrap();
                let head: Vec<_> = head.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
                assert_eq!(result[..head.len()], head);
                assert!(result[head.len()..].iter().all(|(k, _)| k.starts_with("MY_WEB_")), "{result:?}");
            }
        }
    }

    #[test]
    fn environments() {
        check_environment(
            json!({ "name": "c", "env": [
                { "name": "A", "value": "1" },
                { "name": "B", "value": "$(A)$(MY_WEB_SERVICE_HOST):$(MY_WEB_SERVICE_PORT_HTTP)$(C)" },
                { "name": "C", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                { "name": "A", "value": "2" },
            ] }),
            Ok(&[("A", "2"), ("B", "110.96.0.7:80$(C)"), ("C", "web")]),
        );
        check_environment(
            json!({ "name": "c", "envFrom": [{ "prefix": "P_", "configMapRef": { "name": "conf" } }],
                "env": [{ "name": "P_a", "value": "x$(P_b)" }] }),
            Ok(&[("P_a", "x2"), ("P_b", "2")]),
        );
        check_environment(
            json!({ "name": "c", "env": [{ "name": "A", "valueFrom":
                { "configMapKeyRef": { "name": "conf", "key": "z" } } }] }),
            Err("couldn't find key z in ConfigMap \"conf\""),
        );
        check_environment(
            json!({ "name": "c", "env": [{ "name": "A", "valueFrom":
                { "secretKeyRef": { "name": "none", "key": "z" } } }] }),
            Err("secret \"none\" not found"),
        );
        check_environment(
            json!({ "name": "c", "env": [{ "name": "A", "valueFrom":
                { "secretKeyRef": { "name": "none", "key": "z", "optional": true } } }] }),
            Ok(&[]),
        );
        check_environment(
            json!({ "name": "c", "envFrom": [{ "secretRef": { "name": "none", "optional": true } }] }),
            Ok(&[]),
        );
    }
}
