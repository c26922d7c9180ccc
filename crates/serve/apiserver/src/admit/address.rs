//! Addresses of services: chosen in the write that creates the service.
//! Source: k8s.io/kubernetes pkg/registry/core/service (storage and ipallocator).

use super::{Held, Turn, node_port};
use crate::cluster::Cluster;
use crate::etcd::Unchanged;
use crate::request::text;
use crate::status::{Answer, Failure};
use ambit_runtime::Entropy;
use ambit_schema::{FaultKind, FieldFault, ResourceType};
use ipnet::IpNet;
use rand::Rng as _;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::IpAddr;

/// Addresses at the start of the range that are only given to services that ask for one: an even part of the range
/// between these bounds. Source: KEP-3070.
const STATIC_BAND: (u128, u128) = (16, 256);

/// Completes the addresses of a new or changed service. The turn lasts until the service is written, so that no
/// other service can be given the same address.
pub(super) async fn allocate<'a>(
    cluster: &'a Cluster,
    kind: &ResourceType,
    service: &mut Value,
    old: Option<&Value>,
) -> Answer<Held<'a>> {
    let name = text(service, "/metadata/name").to_owned();
    let invalid = |path: &str, value: &str, message: String| {
        let bad_value = Some(Value::String(value.to_owned()));
        let fault = FieldFault { path: path.into(), kind: FaultKind::Invalid, message, bad_value };
        Failure::invalid(kind, &name, &[fault])
    };
    match text(service, "/spec/type") {
        "ExternalName" => {
            release(service);
            node_port::carry_over(service, old);
            return Ok(None);
        }
        // What is none is told by validation.
        _ => node_port::carry_over(service, old),
    }
    let before = old.map_or("", |old| text(old, "/spec/clusterIP"));
    let wanted = match (text(service, "/spec/clusterIP"), text(service, "/spec/clusterIPs/0")) {
        ("", first) => first.to_owned(),
        (wanted, "") => wanted.to_owned(),
        (wanted, first) if wanted == first || first == before => wanted.to_owned(),
        (_, first) => {
            let message = "first value must match `clusterIP`".to_owned();
            return Err(invalid("spec.clusterIPs[0]", first, message));
        }
    };
    if !before.is_empty() && !wanted.is_empty() && wanted != before {
        let message = "may not change once set".to_owned();
        return Err(invalid("spec.clusterIPs[0]", &wanted, message));
    }
    let settled = if before.is_empty() && wanted == "None" { "None" } else { before };
    if !settled.is_empty() {
        set(service, settled, &cluster.options.service_cidr);
        if !node_port::is_wanting(service) {
            return Ok(None);
        }
    }
    let lock = cluster.address_turn.lock().await;
    let unchanged = Unchanged { collection: "services".into(), since: cluster.db.revision() };
    let turn = Turn { _lock: lock, unchanged };
    node_port::allocate(cluster, kind, service, old)?;
    if !settled.is_empty() {
        return Ok(Some(turn));
    }
    let taken = taken(cluster);
    let chosen = match wanted.as_str() {
        "" => free(&cluster.options.service_cidr, &taken)
            .ok_or_else(|| Failure::internal("failed to allocate a serviceIP: range is full"))?
            .to_string(),
        wanted => {
            let problem = match wanted.parse::<IpAddr>() {
                Err(_) => "must be empty, 'None', or a valid IP address".to_owned(),
                Ok(ip) if !cluster.options.service_cidr.contains(&ip) => format!(
                    "failed to allocate IP {ip}: the provided IP is not in the valid range. \
                     The range of valid IPs is {}",
                    cluster.options.service_cidr
                ),
                Ok(ip) if taken.contains(&ip) => {
                    format!("failed to allocate IP {ip}: provided IP is already allocated")
                }
                Ok(_) => String::new(),
            };
            if !problem.is_empty() {
                return Err(invalid("spec.clusterIPs", wanted, problem));
            }
            wanted.to_owned()
        }
    };
    set(service, &chosen, &cluster.options.service_cidr);
    Ok(Some(turn))
}

fn set(service: &mut Value, address: &str, range: &IpNet) {
    let family = if matches!(range, IpNet::V4(_)) { "IPv4" } else { "IPv6" };
    let spec = &mut service["spec"];
    spec["clusterIP"] = address.into();
    spec["clusterIPs"] = json!([address]);
    for (field, value) in [
        ("type", json!("ClusterIP")),
        ("sessionAffinity", json!("None")),
        ("ipFamilies", json!([family])),
        ("ipFamilyPolicy", json!("SingleStack")),
        ("internalTrafficPolicy", json!("Cluster")),
    ] {
        if spec.get(field).is_none_or(|v| v.is_null() || v.as_array().is_some_and(Vec::is_empty)) {
            spec[field] = value;
        }
    }
    if !service["status"].get("loadBalancer").is_some_and(Value::is_object) {
        service["status"] = json!({"loadBalancer": {}});
    }
}

fn release(service: &mut Value) {
    if let Some(spec) = service["spec"].as_object_mut() {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            spec.remove(field);
        }
    }
}

fn taken(cluster: &Cluster) -> HashSet<IpAddr> {
    let addresses = |service: Value| {
        let all = service["spec"]["clusterIPs"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter_map(|a| a.as_str()?.parse().ok())
    };
    cluster.values("services", None).into_iter().flat_map(addresses).collect()
}

/// A free address of the range: the first at or after a random one, from the part for dynamic use as long as that has
/// any.
fn free(range: &IpNet, taken: &HashSet<IpAddr>) -> Option<IpAddr> {
    let (base, size) = match range {
        IpNet::V4(net) => (u128::from(u32::from(net.network())), 1_u128 << (32 - net.prefix_len())),
        // No more than 2^16 addresses of a large IPv6 range are ever tried.
        IpNet::V6(net) => (u128::from(net.network()), 1_u128 << (128 - net.prefix_len()).min(16)),
    };
    let address = |offset: u128| match range {
        IpNet::V4(_) => {
            IpAddr::from(std::net::Ipv4Addr::from(u32::try_from(base + offset).unwrap_or(u32::MAX)))
        }
        IpNet::V6(_) => IpAddr::from(std::net::Ipv6Addr::from(base + offset)),
    };
    // The network's own address, and the last one, are not used.
    let end = size.saturating_sub(1);
    let start = (size / 16).clamp(STATIC_BAND.0, STATIC_BAND.1).min(end);
    let dynamic = end.saturating_sub(start);
    let shift = if dynamic > 0 { Entropy.rng().random_range(0..dynamic) } else { 0 };
    let upper = (0..dynamic).map(|i| start + (i + shift) % dynamic);
    upper.chain(1..start).map(address).find(|candidate| !taken.contains(candidate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_until_the_range_is_full_the_static_part_last() {
        let range: IpNet = "10.0.0.0/27".parse().unwrap();
        let mut taken = HashSet::new();
        let mut order = Vec::new();
        while let Some(address) = free(&range, &taken) {
            assert!(range.contains(&address) && taken.insert(address), "{address}");
            let IpAddr::V4(v4) = address else { panic!("{address} is of the range's family") };
            order.push(v4.octets()[3]);
        }
        assert_eq!(order.len(), 30);
        assert!(order[..15].iter().all(|last| *last >= 16) && order[15..].iter().all(|last| *last < 16));
    }

    #[test]
    fn large_ipv6_ranges_are_usable() {
        let range: IpNet = "fd00::/108".parse().unwrap();
        assert!(free(&range, &HashSet::new()).is_some_and(|address| range.contains(&address)));
    }
}
