//! Services and EndpointSlices to the ports that are to be routed.

use crate::slices::ByService;
use ambit_api::core::v1::Service;
use ambit_api::discovery::v1::{Endpoint, EndpointSlice};
use ambit_rules::Transport;
use ambit_rules::service::ServicePort;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// What is to be routed, and what of the services is not.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) ports: Vec<ServicePort>,
    pub(super) notes: BTreeSet<Note>,
}

/// Something that a service asks for and does not get.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Note {
    pub(super) service: String,
    pub(super) what: String,
}

/// Decides which addresses, protocols and ports lead where, for clients on the node `node`.
pub(super) fn plan<'a>(
    services: impl IntoIterator<Item = &'a Service>,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    node: &str,
) -> Plan {
    let slices = ByService::new(slices);
    let mut plan = Plan::default();
    for service in services {
        let meta = &service.metadata;
        if let (Some(namespace), Some(name)) = (meta.namespace.as_deref(), meta.name.as_deref()) {
            plan.add(service, &format!("{namespace}/{name}"), slices.of(namespace, name), node);
        }
    }
    plan
}

impl Plan {
    fn add(&mut self, service: &Service, service_name: &str, slices: &[&EndpointSlice], node: &str) {
        let Some(spec) = &service.spec else { return };
        if spec.type_.as_deref() == Some("ExternalName") {
            return;
        }
        // `clusterIPs` repeats `clusterIP`; objects of old clients have the latter only. Headless: "None", no address.
        let listed = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
        let addresses: BTreeSet<IpAddr> = listed.filter_map(|address| address.parse().ok()).collect();
        if addresses.is_empty() {
            return;
        }
        self.note_missing(service, service_name);
        let local = (spec.internal_traffic_policy.as_deref() == Some("Local")).then_some(node);
        for port in spec.ports.iter().flatten() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let transport = match protocol {
                "TCP" => Transport::Tcp,
                "UDP" => Transport::Udp,
                other => {
                    self.note(service_name, format!("port {} is not routed: protocol {other}", port.port));
                    continue;
                }
            };
            let Ok(number) = u16::try_from(port.port) else { continue };
            let port_name = port.name.as_deref().unwrap_or_default();
            let endpoints = endpoints(slices, (port_name, protocol), local);
            let name = format!("{service_name}:{}", if port_name.is_empty() { protocol } else { port_name });
            self.ports.extend(addresses.iter().map(|address| ServicePort {
                address: *address,
                transport,
                port: number,
                endpoints: endpoints.clone(),
                name: name.clone(),
            }));
        }
    }

    fn note_missing(&mut self, service: &Service, name: &str) {
        let Some(spec) = &service.spec else { return };
        if let Some(kind @ ("NodePort" | "LoadBalancer")) = spec.type_.as_deref() {
            self.note(
                name,
                format!("routed its cluster address only: {kind} is not served by this node yet"),
            );
        }
        if spec.external_ips.as_ref().is_some_and(|addresses| !addresses.is_empty()) {
            self.note(name, "did not route its externalIPs: not served by this node yet".to_owned());
        }
        if spec.session_affinity.as_deref() == Some("ClientIP") {
            self.note(
                name,
                "ignored sessionAffinity ClientIP: every connection picks an endpoint".to_owned(),
            );
        }
    }

    fn note(&mut self, service: &str, what: String) {
        self.notes.insert(Note { service: service.to_owned(), what });
    }
}

/// Endpoints of one port: the ready ones; if there is none, those that still serve while they end, as kube-proxy does
/// (KEP-1669).
fn endpoints(slices: &[&EndpointSlice], port: (&str, &str), node: Option<&str>) -> Vec<SocketAddr> {
    let ready = collect(slices, port, node, is_ready);
    if ready.is_empty() { collect(slices, port, node, serves_while_ending) } else { ready }
}

fn collect(
    slices: &[&EndpointSlice],
    (name, protocol): (&str, &str),
    node: Option<&str>,
    usable: fn(&Endpoint) -> bool,
) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for slice in slices {
        let number = slice.ports.iter().flatten().find_map(|port| {
            let same = port.name.as_deref().unwrap_or_default() == name
                && port.protocol.as_deref().unwrap_or("TCP") == protocol;
            if same { u16::try_from(port.port?).ok() } else { None }
        });
        let Some(number) = number else { continue };
        for endpoint in &slice.endpoints {
            if !usable(endpoint) || node.is_some_and(|node| endpoint.node_name.as_deref() != Some(node)) {
                continue;
            }
            // All addresses of an endpoint are alternatives; the first one is used (EndpointSlice, Endpoint.addresses).
            let address = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
            found.extend(address.map(|address| SocketAddr::new(address, number)));
        }
    }
    found
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

fn serves_while_ending(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().is_some_and(|c| c.serving == Some(true) && c.terminating == Some(true))
}

#[cfg(test)]
mod tests;
