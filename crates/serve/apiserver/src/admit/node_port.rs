//! Node ports of services: chosen in the write that asks for them.
//! Source: k8s.io/kubernetes pkg/registry/core/service (storage and portallocator).

use crate::cluster::Cluster;
use crate::request::text;
use crate::status::{Answer, Failure};
use ambit_runtime::Entropy;
use ambit_schema::{FaultKind, FieldFault, ResourceType};
use rand::Rng as _;
use serde_json::Value;
use std::collections::HashSet;

/// Ports that nodes open for services. Source: kube-apiserver's service-node-port-range.
const RANGE: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// Whether the ports of a service are opened on nodes.
fn opens(service: &Value) -> bool {
    match text(service, "/spec/type") {
        "NodePort" => true,
        "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    }
}

/// Whether nodes have a port of their own on which a load balancer asks for the service's health.
fn has_health_port(service: &Value) -> bool {
    text(service, "/spec/type") == "LoadBalancer" && text(service, "/spec/externalTrafficPolicy") == "Local"
}

fn ports_mut(service: &mut Value) -> impl Iterator<Item = &mut Value> {
    service["spec"].get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten()
}

fn number(port: &Value) -> Option<u64> {
    port["nodePort"].as_u64().filter(|number| *number != 0)
}

/// Keeps node ports that a changed service had and does not name, and gives up those that it does not need any more.
pub(super) fn carry_over(service: &mut Value, old: Option<&Value>) {
    let Some(old) = old else { return };
    let (needs, needed) = (opens(service), opens(old));
    let before = |port: &Value| {
        let old = old["spec"]["ports"].as_array().into_iter().flatten();
        let mut same = old.filter(|of| of["port"] == port["port"] && of["protocol"] == port["protocol"]);
        same.next().and_then(number)
    };
    for port in ports_mut(service) {
        match (number(port), before(port)) {
            (None, Some(had)) if needs && needed => port["nodePort"] = had.into(),
            (Some(has), Some(had)) if needed && !needs && has == had => {
                port.as_object_mut().map(|port| port.remove("nodePort"));
            }
            _ => {}
        }
    }
    let had = old["spec"]["healthCheckNodePort"].as_u64();
    match has_health_port(service) {
        true if service["spec"]["healthCheckNodePort"].as_u64().is_none() && has_health_port(old) => {
            service["spec"]["healthCheckNodePort"] = had.into();
        }
        false if had.is_some() => {
            service["spec"].as_object_mut().map(|spec| spec.remove("healthCheckNodePort"));
        }
        _ => {}
    }
}

/// Whether anything has to be chosen or looked up.
pub(super) fn is_wanting(service: &Value) -> bool {
    opens(service) || has_health_port(service)
}

/// Chooses the ports that are missing, and checks those that are named. The caller holds the turn.
pub(super) fn allocate(
    cluster: &Cluster,
    kind: &ResourceType,
    service: &mut Value,
    old: Option<&Value>,
) -> Answer<()> {
    if !is_wanting(service) {
        return Ok(());
    }
    let own = (text(service, "/metadata/namespace").to_owned(), text(service, "/metadata/name").to_owned());
    let others = cluster.values("services", None).into_iter().filter(|other| {
        old.is_none()
            || (text(other, "/metadata/namespace"), text(other, "/metadata/name")) != (&*own.0, &*own.1)
    });
    let mut taken: HashSet<u64> = others.flat_map(|other| all_of(&other)).collect();
    let name = own.1;
    let refused = |path: String, port: u64, message: String| {
        let fault = FieldFault { path, kind: FaultKind::Invalid, message, bad_value: Some(port.into()) };
        Failure::invalid(kind, &name, &[fault])
    };
    let check = |taken: &HashSet<u64>, path: String, port: u64| match u16::try_from(port) {
        Ok(within) if !RANGE.contains(&within) => {
            let (first, last) = (RANGE.start(), RANGE.end());
            Err(refused(
                path,
                port,
                format!(
                    "provided port is not in the valid range. The range of valid ports is {first}-{last}"
                ),
            ))
        }
        Ok(_) if !taken.contains(&port) => Ok(()),
        _ => Err(refused(path, port, "provided port is already allocated".into())),
    };
    if opens(service) {
        let named: Vec<(usize, u64)> =
            ports_mut(service).enumerate().filter_map(|(at, port)| Some((at, number(port)?))).collect();
        for (at, port) in &named {
            check(&taken, format!("spec.ports[{at}].nodePort"), *port)?;
        }
        taken.extend(named.iter().map(|(_, port)| *port));
        for port in ports_mut(service).filter(|port| number(port).is_none()) {
            port["nodePort"] = free(&mut taken)?.into();
        }
    }
    if has_health_port(service) {
        match service["spec"]["healthCheckNodePort"].as_u64().filter(|port| *port != 0) {
            Some(port) => check(&taken, "spec.healthCheckNodePort".into(), port)?,
            None => service["spec"]["healthCheckNodePort"] = free(&mut taken)?.into(),
        }
    }
    Ok(())
}

/// All node ports of a service.
fn all_of(service: &Value) -> Vec<u64> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten().filter_map(number);
    ports.chain(service["spec"]["healthCheckNodePort"].as_u64()).collect()
}

/// The first free port at or after a random one; it is taken then.
fn free(taken: &mut HashSet<u64>) -> Answer<u64> {
    let shift = Entropy.rng().random_range(0..RANGE.len());
    let found = RANGE.cycle().skip(shift).take(RANGE.len()).map(u64::from).find(|port| !taken.contains(port));
    let found = found.ok_or_else(|| Failure::internal("failed to allocate a nodePort: range is full"))?;
    taken.insert(found);
    Ok(found)
}
