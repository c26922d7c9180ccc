//! What the runtime is told to make a pod's sandbox from.

use super::log_dir;
use crate::context::{Context, identity};
use crate::cri::label;
use crate::resolv::{self, ClusterDns};
use ambit_api::core::v1::{Pod, PodSecurityContext};
use ambit_node_plan::pod::{is_host_network, resources};
use ambit_proto::cri::{
    DnsConfig, Int64Value, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
};
use std::collections::HashMap;

/// Longest host name. Source: gethostname(2), as kubelet truncates.
const HOSTNAME_BYTES_MAX: usize = 63;

/// The pod's host name.
pub(super) fn hostname(context: &Context, pod: &Pod) -> String {
    if is_host_network(pod) {
        return context.settings.node_name.clone();
    }
    let stated = pod.spec.as_ref().and_then(|s| s.hostname.clone()).filter(|name| !name.is_empty());
    let mut name = stated.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    name.truncate(HOSTNAME_BYTES_MAX);
    name.trim_end_matches(['-', '.']).to_owned()
}

pub(super) fn sandbox_config(context: &Context, pod: &Pod, attempt: u32) -> PodSandboxConfig {
    let (namespace, name, uid) = identity(pod);
    let spec = pod.spec.clone().unwrap_or_default();
    let qos = resources::qos_class(&spec);
    let cluster =
        ClusterDns { server: context.settings.cluster_dns, domain: &context.settings.cluster_domain };
    let dns = resolv::for_pod(pod, &context.resolv, cluster);
    let mut labels: HashMap<String, String> =
        pod.metadata.labels.clone().unwrap_or_default().into_iter().collect();
    let own = [(label::POD_NAME, name), (label::POD_NAMESPACE, namespace), (label::POD_UID, uid)];
    labels.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            attempt,
        }),
        // With the node's own network the name is the node's, which the runtime sees by itself.
        hostname: if is_host_network(pod) { String::new() } else { hostname(context, pod) },
        log_directory: log_dir(context, pod).display().to_string(),
        dns_config: Some(DnsConfig { servers: dns.servers, searches: dns.searches, options: dns.options }),
        labels,
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: context.layout.pod_cgroup(qos, uid),
            security_context: Some(security(pod)),
            sysctls: sysctls(spec.security_context.as_ref()),
        }),
    }
}

/// The namespaces of a pod, which its containers share.
pub(super) fn namespaces(pod: &Pod) -> NamespaceOption {
    let spec = pod.spec.as_ref();
    let node = |flag: Option<bool>| flag.unwrap_or(false);
    let mode = |shared: bool| if shared { NamespaceMode::Node } else { NamespaceMode::Pod };
    let pid = if node(spec.and_then(|s| s.host_pid)) {
        NamespaceMode::Node
    } else if node(spec.and_then(|s| s.share_process_namespace)) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    NamespaceOption {
        network: mode(is_host_network(pod)) as i32,
        pid: pid as i32,
        ipc: mode(node(spec.and_then(|s| s.host_ipc))) as i32,
        target_id: String::new(),
    }
}

fn security(pod: &Pod) -> LinuxSandboxSecurityContext {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.clone()).unwrap_or_default();
    let id = |value: Option<i64>| value.map(|value| Int64Value { value });
    let containers = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    let privileged = |c: &ambit_api::core::v1::Container| {
        c.security_context.as_ref().and_then(|s| s.privileged).unwrap_or(false)
    };
    LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        run_as_user: id(context.run_as_user),
        run_as_group: id(context.run_as_group).filter(|_| context.run_as_user.is_some()),
        supplemental_groups: supplemental_groups(&context),
        privileged: containers.into_iter().any(privileged),
        ..LinuxSandboxSecurityContext::default()
    }
}

/// The groups of all processes of a pod.
pub(super) fn supplemental_groups(context: &PodSecurityContext) -> Vec<i64> {
    context.fs_group.into_iter().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

fn sysctls(context: Option<&PodSecurityContext>) -> HashMap<String, String> {
    let list = context.and_then(|c| c.sysctls.as_ref()).into_iter().flatten();
    list.map(|sysctl| (sysctl.name.clone(), sysctl.value.clone())).collect()
}
