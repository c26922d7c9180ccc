//! The proxy's knowledge as JSON, for the admin endpoint.

use crate::pod::{Pod, Shared};
use ambit_traffic::{Peer, Policy, Service, Workload};
use serde_json::{Value, json};
use std::sync::Arc;

/// Workloads, services, policies and certificates.
pub(crate) fn config(shared: &Shared) -> String {
    let state = shared.store.now();
    let sorted = |mut list: Vec<Value>, key: &str| {
        list.sort_by_key(|one| one[key].as_str().map(str::to_owned));
        list
    };
    json!({
        "workloads": sorted(state.workloads().map(workload).collect(), "uid"),
        "services": sorted(state.services().map(service).collect(), "key"),
        "policies": sorted(state.policies().map(policy).collect(), "name"),
        "certificates": shared.certificates.dump(),
        "workloadState": pods(shared),
        "version": env!("CARGO_PKG_VERSION"),
    })
    .to_string()
}

fn pods(shared: &Shared) -> Value {
    let describe = |pod: Arc<Pod>| {
        let connection = |peer: Peer| {
            json!({
                "src": peer.source,
                "identity": peer.identity.map(|identity| identity.to_string()),
                "dst": peer.destination.to_string(),
            })
        };
        let inbound: Vec<_> = pod.connections.peers().into_iter().map(connection).collect();
        let value = json!({
            "state": "Up",
            "info": {
                "name": pod.name.name,
                "namespace": pod.name.namespace,
                "serviceAccount": pod.name.service_account,
            },
            "netns": pod.namespace.inode(),
            "connections": { "inbound": inbound, "tunnels": pod.pool.connections() },
        });
        (pod.uid.clone(), value)
    };
    let known: Vec<_> = shared.pods().values().filter_map(std::sync::Weak::upgrade).collect();
    known.into_iter().map(describe).collect::<serde_json::Map<_, _>>().into()
}

fn workload(workload: &Arc<Workload>) -> Value {
    json!({
        "uid": &*workload.uid,
        "name": workload.name,
        "namespace": &*workload.namespace,
        "workloadIps": workload.addresses,
        "identity": workload.identity.to_string(),
        "protocol": format!("{:?}", workload.tunnel).to_uppercase(),
        "node": &*workload.node,
        "authorizationPolicies": workload.policies.iter().map(|p| &**p).collect::<Vec<_>>(),
        "status": if workload.healthy { "Healthy" } else { "Unhealthy" },
        "services": workload.services.keys().map(|key| &**key).collect::<Vec<_>>(),
    })
}

fn service(service: &Arc<Service>) -> Value {
    let vips = service.vips.iter().map(|vip| format!("{}/{}", vip.network, vip.address));
    json!({
        "key": &*service.key,
        "name": service.name,
        "namespace": &*service.namespace,
        "hostname": &*service.hostname,
        "vips": vips.collect::<Vec<_>>(),
        "ports": service.ports,
    })
}

fn policy(policy: &Arc<Policy>) -> Value {
    json!({
        "name": &*policy.key,
        "namespace": &*policy.namespace,
        "scope": format!("{:?}", policy.scope),
        "action": format!("{:?}", policy.action),
        "dryRun": policy.dry_run,
    })
}
