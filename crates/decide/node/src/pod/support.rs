//! Parts of a pod that this node refuses, clearly, instead of ignoring them.

use ambit_api::core::v1::{Container, Pod, Volume};

/// Why the pod cannot run here; `None` if it can. The text names the field and what to do.
pub fn unsupported(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if let Some(class) = &spec.runtime_class_name {
        return Some(format!("spec.runtimeClassName {class:?} is not served by this node: leave it out"));
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("spec.resourceClaims are not served by this node yet: leave them out".to_owned());
    }
    let volumes = spec.volumes.iter().flatten().find_map(volume);
    let host_network = spec.host_network.unwrap_or(false);
    let init = spec.init_containers.iter().flatten();
    volumes.or_else(|| init.chain(&spec.containers).find_map(|c| container(c, host_network)))
}

fn volume(volume: &Volume) -> Option<String> {
    let served = volume.empty_dir.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some()
        || volume.host_path.is_some();
    if !served {
        return Some(format!(
            "volume {:?} is of a kind this node does not serve yet: use emptyDir, configMap, secret, projected, downwardAPI or hostPath",
            volume.name
        ));
    }
    let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    let foreign =
        sources.into_iter().any(|s| s.cluster_trust_bundle.is_some() || s.pod_certificate.is_some());
    foreign.then(|| {
        format!(
            "volume {:?} projects a source this node does not serve yet: use serviceAccountToken, configMap, secret or downwardAPI",
            volume.name
        )
    })
}

fn container(container: &Container, host_network: bool) -> Option<String> {
    let name = &container.name;
    let mounts = container.volume_mounts.iter().flatten();
    if let Some(mount) = mounts.into_iter().find(|m| m.sub_path.is_some() || m.sub_path_expr.is_some()) {
        return Some(format!(
            "container {name:?}: subPath of volume mount {:?} is not served yet",
            mount.name
        ));
    }
    if container.volume_devices.as_ref().is_some_and(|d| !d.is_empty()) {
        return Some(format!("container {name:?}: volumeDevices are not served yet"));
    }
    if container.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some() || l.pre_stop.is_some()) {
        return Some(format!("container {name:?}: lifecycle hooks are not served yet: leave lifecycle out"));
    }
    let mut ports = container.ports.iter().flatten();
    if !host_network && ports.any(|p| p.host_port.is_some_and(|port| port != 0)) {
        return Some(format!(
            "container {name:?}: hostPort is not served yet: use a Service, or hostNetwork: true"
        ));
    }
    let probes = [&container.startup_probe, &container.liveness_probe, &container.readiness_probe];
    if probes.into_iter().flatten().any(|p| p.grpc.is_some()) {
        return Some(format!("container {name:?}: grpc probes are not served yet: use tcpSocket"));
    }
    let https = |scheme: &Option<String>| scheme.as_deref() == Some("HTTPS");
    let mut gets = probes.into_iter().flatten().filter_map(|p| p.http_get.as_ref());
    if gets.any(|get| https(&get.scheme)) {
        return Some(format!("container {name:?}: HTTPS probes are not served yet: use tcpSocket"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(spec: serde_json::Value, expected: Option<&str>) {
        let pod: Pod = serde_json::from_value(serde_json::json!({ "spec": spec })).unwrap();
        assert_eq!(unsupported(&pod).as_deref(), expected);
    }

    #[test]
    fn what_is_not_served_is_named() {
        use serde_json::json;
        let with = |extra: serde_json::Value| {
            let mut container = json!({ "name": "a", "image": "i" });
            container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({ "containers": [container] })
        };
        check(with(json!({})), None);
        check(with(json!({ "ports": [{ "containerPort": 80 }] })), None);
        check(
            with(json!({ "ports": [{ "containerPort": 80, "hostPort": 80 }] })),
            Some("container \"a\": hostPort is not served yet: use a Service, or hostNetwork: true"),
        );
        check(
            with(json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v", "subPath": "s" }] })),
            Some("container \"a\": subPath of volume mount \"v\" is not served yet"),
        );
        check(
            with(json!({ "lifecycle": { "preStop": { "sleep": { "seconds": 1 } } } })),
            Some("container \"a\": lifecycle hooks are not served yet: leave lifecycle out"),
        );
        check(
            with(json!({ "livenessProbe": { "grpc": { "port": 1 } } })),
            Some("container \"a\": grpc probes are not served yet: use tcpSocket"),
        );
        check(
            with(json!({ "readinessProbe": { "httpGet": { "port": 1, "scheme": "HTTPS" } } })),
            Some("container \"a\": HTTPS probes are not served yet: use tcpSocket"),
        );
        check(
            json!({ "containers": [], "volumes": [{ "name": "d", "nfs": { "path": "/", "server": "s" } }] }),
            Some(
                "volume \"d\" is of a kind this node does not serve yet: use emptyDir, configMap, secret, projected, downwardAPI or hostPath",
            ),
        );
        check(
            json!({ "containers": [], "runtimeClassName": "gvisor" }),
            Some("spec.runtimeClassName \"gvisor\" is not served by this node: leave it out"),
        );
    }
}
