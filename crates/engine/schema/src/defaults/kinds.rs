//! Defaults that depend on other fields. Each function gets an object of its definition whose plain defaults are
//! already filled in. Sources: `pkg/apis/{core,apps}/v1/defaults.go`, apiextensions `v1/defaults.go`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::table::{self, DefinitionId};

type Object = Map<String, Value>;
/// Fills in what depends on other fields.
type Fill = fn(&mut Object);

const DEPENDENT: &[(&str, Fill)] = &[
    ("api.apps.v1.DaemonSetUpdateStrategy", deployment_strategy),
    ("api.apps.v1.DeploymentStrategy", deployment_strategy),
    ("api.apps.v1.StatefulSetUpdateStrategy", deployment_strategy),
    ("api.autoscaling.v2.HorizontalPodAutoscalerSpec", autoscaler_spec),
    ("api.batch.v1.JobSpec", job_spec),
    ("api.core.v1.Container", container),
    ("api.core.v1.EphemeralContainer", container),
    ("api.core.v1.LimitRangeItem", limit_range_item),
    ("api.core.v1.Namespace", namespace),
    ("api.core.v1.Pod", pod),
    ("api.core.v1.PodSpec", pod_spec),
    ("api.core.v1.ReplicationController", replication_controller),
    ("api.core.v1.Secret", secret),
    ("api.core.v1.ServicePort", service_port),
    ("api.core.v1.ServiceSpec", service_spec),
    ("api.core.v1.Volume", volume),
    ("api.networking.v1.NetworkPolicySpec", network_policy_spec),
    ("api.rbac.v1.RoleRef", role_reference),
    ("api.resource.v1.DeviceSubRequest", device_count),
    ("api.resource.v1.ExactDeviceRequest", device_count),
    ("api.rbac.v1.Subject", subject),
    ("apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition", definition),
    ("apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionNames", definition_names),
    ("apimachinery.pkg.apis.meta.v1.ObjectMeta", object_meta),
];

/// Fills in what depends on other fields of an object of that definition.
pub(super) fn dependent_defaults(id: DefinitionId, object: &mut Object) {
    static BY_ID: LazyLock<HashMap<DefinitionId, Fill>> = LazyLock::new(|| {
        let find = |name| table::find(name).unwrap_or_else(|| panic!("the type table has no {name}"));
        DEPENDENT.iter().map(|(name, function)| (find(name), *function)).collect()
    });
    if let Some(function) = BY_ID.get(&id) {
        function(object);
    }
}

/// Limits of containers default to the largest allowed, requests to the limits, or else to the smallest.
fn limit_range_item(item: &mut Object) {
    if item.get("type").is_none_or(|of| of != "Container") {
        return;
    }
    for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
        let Some(Value::Object(amounts)) = item.get(from).cloned() else { continue };
        if let Some(known) = item.entry(to).or_insert_with(|| json!({})).as_object_mut() {
            amounts.into_iter().for_each(|(resource, amount)| _ = known.entry(resource).or_insert(amount));
        }
    }
}

/// Empty parts of metadata are the same as none, so that writing either changes nothing.
fn object_meta(metadata: &mut Object) {
    metadata.retain(|_, value| match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    });
}

/// The group of roles, users and groups. Source: `pkg/apis/rbac/v1/defaults.go`.
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

fn role_reference(reference: &mut Object) {
    if text(reference, "apiGroup").is_empty() {
        reference.insert("apiGroup".into(), RBAC_GROUP.into());
    }
}

fn subject(subject: &mut Object) {
    if text(subject, "apiGroup").is_empty() && matches!(text(subject, "kind"), "User" | "Group") {
        subject.insert("apiGroup".into(), RBAC_GROUP.into());
    }
}

fn text<'a>(object: &'a Object, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn fill(object: &mut Object, field: &str, value: impl Into<Value>) {
    object.entry(field).or_insert_with(|| value.into());
}

fn items<'a>(object: &'a mut Object, field: &str) -> impl Iterator<Item = &'a mut Object> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn deployment_strategy(strategy: &mut Object) {
    if text(strategy, "type") == "RollingUpdate" {
        fill(strategy, "rollingUpdate", json!({}));
    }
}

/// Source: `pkg/apis/autoscaling/v2/defaults.go`.
fn autoscaler_spec(spec: &mut Object) {
    fill(
        spec,
        "metrics",
        json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]),
    );
}

/// Source: `pkg/apis/batch/v1/defaults.go`.
fn job_spec(spec: &mut Object) {
    let indexed_backoff = spec.get("backoffLimitPerIndex").is_some_and(|limit| !limit.is_null());
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        spec.insert("completions".to_owned(), 1.into());
    }
    fill(spec, "parallelism", 1);
    fill(spec, "backoffLimit", if indexed_backoff { i64::from(i32::MAX) } else { 6 });
    let by_rules = spec.get("podFailurePolicy").is_some_and(Value::is_object);
    fill(spec, "podReplacementPolicy", if by_rules { "Failed" } else { "TerminatingOrFailed" });
}

/// Selector and labels follow the template.
fn replication_controller(controller: &mut Object) {
    let labels = controller.get("spec").map(|spec| spec["template"]["metadata"]["labels"].clone());
    let Some(labels @ Value::Object(_)) = labels else { return };
    if let Some(spec) = controller.get_mut("spec").and_then(Value::as_object_mut) {
        fill(spec, "selector", labels.clone());
    }
    if let Some(metadata) = controller.get_mut("metadata").and_then(Value::as_object_mut) {
        fill(metadata, "labels", labels);
    }
}

/// Source: `pkg/apis/networking/v1/defaults.go`.
fn network_policy_spec(spec: &mut Object) {
    let unset = spec.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty);
    if unset {
        let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
        let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        spec.insert("policyTypes".to_owned(), types);
    }
}

/// Source: `pkg/apis/resource/v1/defaults.go`.
fn device_count(request: &mut Object) {
    if text(request, "allocationMode") == "ExactCount" {
        fill(request, "count", 1);
    }
}

fn container(container: &mut Object) {
    let image = text(container, "image");
    if !image.is_empty() {
        let policy = if image_tag(image) == "latest" { "Always" } else { "IfNotPresent" };
        fill(container, "imagePullPolicy", policy);
    }
}

/// The tag of an image reference; `latest` when it names neither tag nor digest.
fn image_tag(image: &str) -> &str {
    let (name, digest) = image.split_once('@').map_or((image, ""), |(name, digest)| (name, digest));
    let last = name.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        Some((_, tag)) => tag,
        None if digest.is_empty() => "latest",
        None => "",
    }
}

fn namespace(namespace: &mut Object) {
    let Some(metadata) = namespace.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let name = text(metadata, "name").to_owned();
    if name.is_empty() {
        return;
    }
    let labels = metadata.entry("labels").or_insert_with(|| json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels.insert(ambit_names::label::NAMESPACE_NAME.to_owned(), name.into());
    }
}

/// Defaults of pods that pod templates do not get.
fn pod(pod: &mut Object) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    fill(spec, "enableServiceLinks", true);
    if text(spec, "priorityClassName").is_empty() {
        fill(spec, "priority", 0);
        fill(spec, "preemptionPolicy", "PreemptLowerPriority");
    }
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or_default();
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            requests_from_limits(container);
            if host_network {
                items(container, "ports").for_each(host_port);
            }
        }
    }
}

/// A limit without a request is also the request.
fn requests_from_limits(container: &mut Object) {
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    let requests = resources.entry("requests").or_insert_with(|| json!({}));
    if let Some(requests) = requests.as_object_mut() {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

fn host_port(port: &mut Object) {
    if let Some(number) = port.get("containerPort").cloned() {
        fill(port, "hostPort", number);
    }
}

/// `serviceAccount` is the old name of `serviceAccountName` and always repeats it.
fn pod_spec(spec: &mut Object) {
    if text(spec, "serviceAccountName").is_empty() && !text(spec, "serviceAccount").is_empty() {
        spec.insert("serviceAccountName".to_owned(), text(spec, "serviceAccount").into());
    }
    let name = text(spec, "serviceAccountName").to_owned();
    if !name.is_empty() {
        spec.insert("serviceAccount".to_owned(), name.into());
    }
}

/// `stringData` is only a way to write `data`.
fn secret(secret: &mut Object) {
    use base64::Engine as _;
    let Some(Value::Object(plain)) = secret.remove("stringData") else { return };
    let data = secret.entry("data").or_insert_with(|| json!({}));
    if let Some(data) = data.as_object_mut() {
        let encode = |text: &Value| {
            base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default())
        };
        data.extend(plain.iter().map(|(key, text)| (key.clone(), encode(text).into())));
    }
}

fn service_port(port: &mut Object) {
    let unset = match port.get("targetPort") {
        None => true,
        Some(target) => *target == json!(0) || *target == json!(""),
    };
    if let (true, Some(number)) = (unset, port.get("port").cloned()) {
        port.insert("targetPort".to_owned(), number);
    }
}

fn service_spec(spec: &mut Object) {
    let kind = text(spec, "type").to_owned();
    match text(spec, "sessionAffinity") {
        "ClientIP" => fill(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10_800}})),
        _ => {
            spec.remove("sessionAffinityConfig");
        }
    }
    let external = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
    if external {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    if external || kind == "ClusterIP" {
        fill(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
}

/// A volume without a source is an empty directory.
fn volume(volume: &mut Object) {
    if volume.keys().all(|key| key == "name") {
        fill(volume, "emptyDir", json!({}));
    }
}

fn definition(definition: &mut Object) {
    let versions = definition.get("spec").and_then(|spec| spec["versions"].as_array());
    let stored = versions.into_iter().flatten().find(|version| version["storage"] == true);
    let Some(stored) = stored.and_then(|version| version["name"].as_str()).map(str::to_owned) else { return };
    let status = definition.entry("status").or_insert_with(|| json!({}));
    if let Some(status) = status.as_object_mut() {
        fill(status, "storedVersions", json!([stored]));
    }
}

fn definition_names(names: &mut Object) {
    let kind = text(names, "kind").to_owned();
    if kind.is_empty() {
        return;
    }
    if text(names, "singular").is_empty() {
        names.insert("singular".to_owned(), kind.to_lowercase().into());
    }
    if text(names, "listKind").is_empty() {
        names.insert("listKind".to_owned(), format!("{kind}List").into());
    }
}
