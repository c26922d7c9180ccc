//! The Node object and its lease.

use crate::context::Context;
use crate::error::Error;
use crate::images::architecture;
use ambit_api::Quantity;
use ambit_api::coordination::v1::{Lease, LeaseSpec};
use ambit_api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    NodeSystemInfo,
};
use ambit_api::meta::{MicroTime, ObjectMeta, OwnerReference, Time};
use ambit_linux::mount;
use ambit_node_plan::pod::truncate_to_second;
use ambit_runtime::Shutdown;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use tracing::warn;

/// Between two renewals of the lease. Source: kubelet's node lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// How long the lease counts without a renewal, in seconds.
const LEASE_SECONDS: i32 = 40;
/// Renewals between two writes of an unchanged status: five minutes, as kubelet does.
const STATUS_EVERY: u32 = 30;
/// Deadline of one write.
const WRITE_WAIT: Duration = Duration::from_secs(10);
/// Pods the node may run. Source: kubelet's default.
const PODS_MAX: u32 = 110;
/// Memory kept for the node itself, in bytes, taken from what pods may use.
const MEMORY_RESERVED_BYTES: u64 = 100 * 1024 * 1024;
/// Namespace of node leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Creates the Node, or takes over the one that is there, and writes its status.
///
/// # Errors
/// The API server refuses.
pub(crate) async fn register(context: &Context, runtime_version: &str) -> Result<Node, Error> {
    let api: Api<Node> = Api::all(context.client.clone());
    let name = &context.settings.node_name;
    let node = node(context);
    let existing = within("read the Node", api.get_opt(name)).await?;
    match existing {
        None => {
            within("create the Node", api.create(&PostParams::default(), &node)).await?;
        }
        Some(_) => {
            let patch = json!({ "metadata": { "labels": node.metadata.labels } });
            let params = PatchParams::default();
            within("update the Node", api.patch(name, &params, &Patch::Merge(patch))).await?;
        }
    }
    write_status(context, runtime_version, &Ready::Yes).await
}

/// Renews the lease, and the status when it changes and now and then, until `shutdown`.
pub(crate) async fn keep_alive(context: &Context, node: &Node, runtime_version: &str, shutdown: &Shutdown) {
    let mut renewals = 0_u32;
    let mut written = Ready::Yes;
    loop {
        if let Err(error) = renew(context, node).await {
            warn!(error = %error.full_text(), "cannot renew the node's lease");
        }
        renewals = renewals.wrapping_add(1);
        let ready = match context.cri.not_ready().await {
            Ok(None) => Ready::Yes,
            Ok(Some(why)) => Ready::No(why),
            Err(error) => Ready::No(error.full_text()),
        };
        if renewals.is_multiple_of(STATUS_EVERY) || ready != written {
            match write_status(context, runtime_version, &ready).await {
                Ok(_) => written = ready,
                Err(error) => warn!(error = %error.full_text(), "cannot write the node's status"),
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RENEW_INTERVAL) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Ready {
    Yes,
    No(String),
}

fn labels(context: &Context) -> BTreeMap<String, String> {
    let arch = architecture();
    let pairs = [
        ("kubernetes.io/hostname", context.settings.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn node(context: &Context) -> Node {
    let cidrs: Vec<String> = context.settings.pod_cidrs.iter().map(ToString::to_string).collect();
    Node {
        metadata: ObjectMeta {
            name: Some(context.settings.node_name.clone()),
            labels: Some(labels(context)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: cidrs.first().cloned(),
            pod_cidrs: Some(cidrs),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

async fn write_status(context: &Context, runtime_version: &str, ready: &Ready) -> Result<Node, Error> {
    let api: Api<Node> = Api::all(context.client.clone());
    let name = &context.settings.node_name;
    let stored = within("read the Node", api.get(name)).await?;
    let status = status(context, &stored, runtime_version, ready);
    let patch = json!({ "status": status });
    let params = PatchParams::default();
    within("write the Node's status", api.patch_status(name, &params, &Patch::Strategic(patch))).await
}

fn status(context: &Context, stored: &Node, runtime_version: &str, ready: &Ready) -> NodeStatus {
    let quantity = |text: String| Quantity(text);
    let memory = context.capacity.memory_bytes;
    let disk = mount::filesystem_bytes(context.layout.state_dir()).map_or(0, |(size, _)| size);
    let resources = |memory: u64| {
        BTreeMap::from([
            ("cpu".to_owned(), quantity(format!("{}m", context.capacity.cpu_milli))),
            ("memory".to_owned(), quantity(format!("{}Ki", memory / 1024))),
            ("ephemeral-storage".to_owned(), quantity(format!("{}Ki", disk / 1024))),
            ("pods".to_owned(), quantity(PODS_MAX.to_string())),
        ])
    };
    let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let ips = context.addresses.0.iter().map(|ip| address("InternalIP", ip.to_string()));
    let hostname = std::iter::once(address("Hostname", context.settings.node_name.clone()));
    let port = i32::from(context.settings.listen.port());
    NodeStatus {
        addresses: Some(ips.chain(hostname).collect()),
        capacity: Some(resources(memory)),
        allocatable: Some(resources(memory.saturating_sub(MEMORY_RESERVED_BYTES))),
        conditions: Some(conditions(context, stored, ready)),
        daemon_endpoints: Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port }) }),
        node_info: Some(node_info(runtime_version)),
        ..NodeStatus::default()
    }
}

fn conditions(context: &Context, stored: &Node, ready: &Ready) -> Vec<NodeCondition> {
    let now = Time(truncate_to_second(context.clock.timestamp()));
    let (status, reason, message) = match ready {
        Ready::Yes => ("True", "KubeletReady", "the node runtime is posting ready status"),
        Ready::No(why) => ("False", "KubeletNotReady", why.as_str()),
    };
    let stored = stored.status.iter().flat_map(|s| s.conditions.iter().flatten()).collect::<Vec<_>>();
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        let before = stored.iter().find(|c| c.type_ == type_ && c.status == status);
        let since = before.and_then(|c| c.last_transition_time.clone());
        NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(now.clone()),
            last_transition_time: Some(since.unwrap_or_else(|| now.clone())),
        }
    };
    vec![
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "the node has sufficient memory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "the node has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "the node has sufficient process ids"),
        condition("Ready", status, reason, message),
    ]
}

fn node_info(runtime_version: &str) -> NodeSystemInfo {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let os_release = read("/etc/os-release");
    let pretty = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let version = format!("v1.35.0-ambit.{}", env!("CARGO_PKG_VERSION"));
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: format!("containerd://{runtime_version}"),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        kube_proxy_version: String::new(),
        kubelet_version: version,
        machine_id: read("/etc/machine-id"),
        operating_system: "linux".to_owned(),
        os_image: pretty.unwrap_or("Linux").trim_matches('"').to_owned(),
        system_uuid: read("/sys/class/dmi/id/product_uuid"),
        ..NodeSystemInfo::default()
    }
}

async fn renew(context: &Context, node: &Node) -> Result<(), Error> {
    let api: Api<Lease> = Api::namespaced(context.client.clone(), LEASE_NAMESPACE);
    let name = context.settings.node_name.as_str();
    let now = context.clock.timestamp();
    let renewed = json!({ "spec": { "holderIdentity": name, "renewTime": MicroTime(now) } });
    let params = PatchParams::default();
    let patched = tokio::time::timeout(WRITE_WAIT, api.patch(name, &params, &Patch::Merge(renewed))).await;
    match patched {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(e)) if ambit_kube::is_not_found(&e) => {}
        Ok(Err(source)) => return Err(api_error("renew the lease", source)),
        Err(_) => return Err(deadline("renew the lease")),
    }
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    };
    within("create the lease", api.create(&PostParams::default(), &lease)).await.map(drop)
}

async fn within<T>(attempt: &str, answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(WRITE_WAIT, answer).await {
        Ok(answer) => answer.map_err(|source| api_error(attempt, source)),
        Err(_) => Err(deadline(attempt)),
    }
}

fn api_error(attempt: &str, source: kube::Error) -> Error {
    Error::Api { attempt: attempt.to_owned(), source: Box::new(source) }
}

fn deadline(attempt: &str) -> Error {
    Error::ApiDeadline { attempt: attempt.to_owned(), seconds: WRITE_WAIT.as_secs() }
}
