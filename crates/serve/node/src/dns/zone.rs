//! What the cluster's zone holds: an immutable index made anew from Services and EndpointSlices.
//!
//! The names follow the Kubernetes DNS-based service discovery specification, version 1.1.0.

use crate::slices::ByService;
use ambit_api::core::v1::Service;
use ambit_api::discovery::v1::EndpointSlice;
use hickory_proto::rr::Name;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Facts of the zone that no object holds.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The cluster's domain, absolute and in lower case.
    pub(crate) domain: Name,
    /// Addresses of the name server itself, answered for `ns.dns.<domain>`.
    pub(crate) server: Vec<IpAddr>,
    /// Networks whose reverse names belong to this zone: pods and services.
    pub(crate) networks: Vec<IpNet>,
}

/// An immutable view of the zone.
#[derive(Debug)]
pub(crate) struct Zone {
    pub(crate) origin: Origin,
    namespaces: BTreeMap<String, BTreeMap<String, Entry>>,
    reverse: HashMap<IpAddr, BTreeSet<String>>,
}

/// How a service answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Its own addresses, and its named ports.
    Addresses { addresses: Vec<IpAddr>, ports: Vec<NamedPort> },
    /// The addresses of its ready endpoints.
    Headless(Vec<Host>),
    /// Another name.
    Alias(Name),
}

/// A named port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NamedPort {
    pub(crate) name: String,
    pub(crate) protocol: &'static str,
    pub(crate) number: u16,
}

/// A ready endpoint of a headless service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) ports: Vec<NamedPort>,
}

impl Zone {
    /// Builds the index. Objects that cannot be named (no name, a bad external name) are left out.
    pub(crate) fn build<'a>(
        origin: Origin,
        services: impl IntoIterator<Item = &'a Service>,
        slices: impl IntoIterator<Item = &'a EndpointSlice>,
    ) -> Self {
        let slices = ByService::new(slices);
        let mut zone = Self { origin, namespaces: BTreeMap::new(), reverse: HashMap::new() };
        for service in services {
            let (Some(namespace), Some(name)) =
                (service.metadata.namespace.as_deref(), service.metadata.name.as_deref())
            else {
                continue;
            };
            if let Some(entry) = entry_of(service, slices.of(namespace, name)) {
                zone.add(namespace, name, entry);
            }
        }
        zone
    }

    fn add(&mut self, namespace: &str, name: &str, entry: Entry) {
        let base = format!("{name}.{namespace}.svc");
        match &entry {
            Entry::Addresses { addresses, .. } => {
                for address in addresses {
                    self.reverse.entry(*address).or_default().insert(base.clone());
                }
            }
            Entry::Headless(hosts) => {
                for host in hosts {
                    let full = format!("{}.{base}", host.name);
                    self.reverse.entry(host.address).or_default().insert(full);
                }
            }
            Entry::Alias(_) => {}
        }
        self.namespaces.entry(namespace.to_owned()).or_default().insert(name.to_owned(), entry);
    }

    /// The service `name` of `namespace`.
    pub(crate) fn service(&self, namespace: &str, name: &str) -> Option<&Entry> {
        self.namespaces.get(namespace)?.get(name)
    }

    /// Whether any service exists in `namespace`.
    pub(crate) fn has_namespace(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// Names of `address`, relative to the domain.
    pub(crate) fn names_of(&self, address: IpAddr) -> impl Iterator<Item = &str> {
        self.reverse.get(&address).into_iter().flatten().map(String::as_str)
    }
}

fn entry_of(service: &Service, slices: &[&EndpointSlice]) -> Option<Entry> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        let mut target = Name::from_ascii(spec.external_name.as_deref()?).ok()?;
        target.set_fqdn(true);
        return Some(Entry::Alias(target));
    }
    if spec.cluster_ip.as_deref() == Some("None") {
        return Some(Entry::Headless(hosts_of(slices)));
    }
    let listed = spec.cluster_ips.iter().flatten();
    let addresses: BTreeSet<IpAddr> = listed.chain(&spec.cluster_ip).filter_map(|a| a.parse().ok()).collect();
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        let name = port.name.as_deref().filter(|n| !n.is_empty())?;
        named_port(name, port.protocol.as_deref(), port.port)
    });
    // No address yet: the API server allocates it in the same write, so such a service is being looked at
    // through a foreign API server and answers nothing until it has one.
    (!addresses.is_empty())
        .then(|| Entry::Addresses { addresses: addresses.into_iter().collect(), ports: ports.collect() })
}

fn named_port(name: &str, protocol: Option<&str>, number: i32) -> Option<NamedPort> {
    let protocol = match protocol.unwrap_or("TCP") {
        "TCP" => "tcp",
        "UDP" => "udp",
        "SCTP" => "sctp",
        _ => return None,
    };
    let number = u16::try_from(number).ok()?;
    Some(NamedPort { name: name.to_ascii_lowercase(), protocol, number })
}

fn hosts_of(slices: &[&EndpointSlice]) -> Vec<Host> {
    let mut hosts = BTreeSet::new();
    for slice in slices {
        let named = slice.ports.iter().flatten().filter_map(|port| {
            let name = port.name.as_deref().filter(|n| !n.is_empty())?;
            named_port(name, port.protocol.as_deref(), port.port?)
        });
        let ports: Vec<NamedPort> = named.collect();
        for endpoint in &slice.endpoints {
            // An unset condition means ready (EndpointConditions.ready).
            if endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(false) {
                continue;
            }
            for address in endpoint.addresses.iter().filter_map(|a| a.parse::<IpAddr>().ok()) {
                let name = endpoint.hostname.clone().unwrap_or_else(|| dashed(address));
                hosts.insert(Host { name: name.to_ascii_lowercase(), address, ports: ports.clone() });
            }
        }
    }
    hosts.into_iter().collect()
}

/// The name given to an endpoint without a hostname, as CoreDNS does: the address with dashes.
fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

#[cfg(test)]
pub(super) mod tests;
