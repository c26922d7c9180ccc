//! Kubernetes kinds with only the fields that the mesh reads, for whoever watches all objects of a cluster: a whole pod
//! takes many times the memory. The fields have the names and the meaning of the whole kinds'.

use crate::core::v1 as core;
use crate::meta::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// `core/v1` Pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    /// Metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<PodSpec>,
    /// What is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PodStatus>,
}

/// Spec of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Node that it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Its service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Whether it is in the host's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    /// Its containers, as far as they have ports.
    #[serde(default, deserialize_with = "containers", skip_serializing_if = "<[_]>::is_empty")]
    pub containers: Box<[Container]>,
    /// Its init containers and sidecars, as far as they have ports.
    #[serde(default, deserialize_with = "containers", skip_serializing_if = "<[_]>::is_empty")]
    pub init_containers: Box<[Container]>,
}

/// A container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// `Always` makes an init container a sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Its ports.
    #[serde(default, deserialize_with = "list", skip_serializing_if = "<[_]>::is_empty")]
    pub ports: Box<[ContainerPort]>,
}

/// A port of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// Name that services can mean it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its number.
    pub container_port: i32,
    /// `TCP` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Status of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Where it is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Its first address.
    #[serde(rename = "podIP", default, skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// Its addresses.
    #[serde(rename = "podIPs", default, deserialize_with = "list", skip_serializing_if = "<[_]>::is_empty")]
    pub pod_ips: Box<[PodIp]>,
    /// The condition `Ready`, if there is one.
    #[serde(default, deserialize_with = "ready", skip_serializing_if = "<[_]>::is_empty")]
    pub conditions: Box<[PodCondition]>,
}

/// An address of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIp {
    /// The address.
    pub ip: String,
}

/// A condition of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodCondition {
    /// Its name.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

/// A list, with nothing and `null` as the empty one.
fn list<'de, D, T>(from: D) -> Result<Box<[T]>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(from)?.unwrap_or_default().into())
}

fn containers<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Box<[Container]>, D::Error> {
    let all: Box<[Container]> = list(from)?;
    Ok(all.into_iter().filter(|container| !container.ports.is_empty()).collect())
}

fn ready<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Box<[PodCondition]>, D::Error> {
    let all: Box<[PodCondition]> = list(from)?;
    Ok(all.into_iter().filter(|condition| condition.type_ == "Ready").collect())
}

impl Resource for Pod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        core::Pod::kind(&())
    }
    fn group(_: &()) -> Cow<'_, str> {
        core::Pod::group(&())
    }
    fn version(_: &()) -> Cow<'_, str> {
        core::Pod::version(&())
    }
    fn plural(_: &()) -> Cow<'_, str> {
        core::Pod::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(object: Value, expected: Value) {
        // What is read here can be read as the whole kind too: the names are the same.
        let whole: core::Pod = serde_json::from_value(object.clone()).unwrap();
        let slim: Pod = serde_json::from_value(object).unwrap();
        assert_eq!(serde_json::to_value(&slim).unwrap(), expected);
        let again: Pod = serde_json::from_value(serde_json::to_value(&whole).unwrap()).unwrap();
        assert_eq!(again, slim);
    }

    #[test]
    fn only_what_is_read_is_kept() {
        check(json!({}), json!({"metadata": {}}));
        check(
            json!({
                "metadata": {"name": "p", "namespace": "n", "labels": {"app": "a"}},
                "spec": {
                    "nodeName": "n1", "serviceAccountName": "sa", "hostNetwork": true, "volumes": [{"name": "v"}],
                    "containers": [
                        {"name": "none", "image": "i"},
                        {"name": "c", "image": "i", "ports": [{"name": "web", "containerPort": 80, "protocol": "TCP"}]},
                    ],
                    "initContainers": [{"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 81}]}],
                },
                "status": {
                    "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "hostIP": "192.0.2.1",
                    "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "False"}],
                },
            }),
            json!({
                "metadata": {"name": "p", "namespace": "n", "labels": {"app": "a"}},
                "spec": {
                    "nodeName": "n1", "serviceAccountName": "sa", "hostNetwork": true,
                    "containers": [{"ports": [{"name": "web", "containerPort": 80, "protocol": "TCP"}]}],
                    "initContainers": [{"restartPolicy": "Always", "ports": [{"containerPort": 81}]}],
                },
                "status": {
                    "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
                    "conditions": [{"type": "Ready", "status": "False"}],
                },
            }),
        );
    }

    #[test]
    fn what_is_not_there_may_be_null() {
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": null, "initContainers": null}, "status": {"podIPs": null, "conditions": null}}))
        .unwrap();
        assert_eq!(pod.spec, Some(PodSpec::default()));
        assert_eq!(pod.status, Some(PodStatus::default()));
    }

    #[test]
    fn it_is_watched_as_a_pod() {
        assert_eq!(Pod::url_path(&(), Some("n")), core::Pod::url_path(&(), Some("n")));
    }
}
