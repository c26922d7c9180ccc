//! Encoded resources of the workload API, with what a server needs to find them by.

use ambit_proto::{security, workload};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;
use twox_hash::XxHash64;

/// One resource, encoded once for all clients. Equal resources have equal bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The encoded message: `istio.workload.Address` or `istio.security.Authorization`.
    pub body: Bytes,
    /// Hash of `body`.
    pub version: u64,
    /// How it can be found besides by name.
    pub facts: Facts,
}

/// How a resource can be found besides by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Facts {
    /// A workload.
    Workload {
        /// Its addresses.
        addresses: Vec<NetworkIp>,
        /// Node it runs on; empty when unknown.
        node: String,
        /// Services it belongs to, as `namespace/hostname`, sorted.
        services: Vec<String>,
        /// Where the bare `istio.workload.Workload` starts in the body.
        workload_at: usize,
    },
    /// A service.
    Service {
        /// Its addresses.
        addresses: Vec<NetworkIp>,
    },
    /// A policy.
    Policy,
}

/// An address within a network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkIp {
    /// Name of the network; empty for the default one.
    pub network: String,
    /// Address.
    pub ip: IpAddr,
}

impl fmt::Display for NetworkIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.ip)
    }
}

/// Reads 4 or 16 raw bytes.
fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Raw bytes of an address.
pub(crate) fn ip_bytes(ip: IpAddr) -> Bytes {
    match ip {
        IpAddr::V4(ip) => Bytes::copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => Bytes::copy_from_slice(&ip.octets()),
    }
}

/// Field numbers of the oneof in `istio.workload.Address`.
const WORKLOAD_FIELD: u32 = 1;
const SERVICE_FIELD: u32 = 2;

impl Resource {
    /// Encodes a workload as an `Address`.
    pub(crate) fn workload(mut workload: workload::Workload) -> Self {
        let network_ip = |ip| NetworkIp { network: workload.network.clone(), ip };
        let addresses = workload.addresses.iter().filter_map(|b| ip(b)).map(network_ip).collect();
        let node = workload.node.clone();
        // The order of a map's entries on the wire is not fixed. They are appended one by one in the order of their
        // keys, which a reader merges into one map, so that equal workloads have equal bytes.
        let by_key: BTreeMap<_, _> = std::mem::take(&mut workload.services).into_iter().collect();
        let services = by_key.keys().cloned().collect();
        let mut inner = workload.encode_to_vec();
        for entry in by_key {
            inner.extend(
                workload::Workload { services: [entry].into(), ..Default::default() }.encode_to_vec(),
            );
        }
        let (body, workload_at) = wrap(WORKLOAD_FIELD, &inner);
        Self::new(body, Facts::Workload { addresses, node, services, workload_at })
    }

    /// Encodes a service as an `Address`.
    pub(crate) fn service(service: &workload::Service) -> Self {
        let network_ip = |a: &workload::NetworkAddress| {
            Some(NetworkIp { network: a.network.clone(), ip: ip(&a.address)? })
        };
        let addresses = service.addresses.iter().filter_map(network_ip).collect();
        let (body, _) = wrap(SERVICE_FIELD, &service.encode_to_vec());
        Self::new(body, Facts::Service { addresses })
    }

    /// Encodes a policy.
    pub(crate) fn policy(policy: &security::Authorization) -> Self {
        Self::new(policy.encode_to_vec().into(), Facts::Policy)
    }

    fn new(body: Bytes, facts: Facts) -> Self {
        // Seed 0, as the field's control plane computes versions of addresses.
        let mut hasher = XxHash64::with_seed(0);
        hasher.write(&body);
        Self { version: hasher.finish(), body, facts }
    }

    /// The version as it is sent: the hash in hexadecimal.
    pub fn version_text(&self) -> String {
        format!("{:x}", self.version)
    }

    /// The bare `istio.workload.Workload`, if it is one. Shares the body's memory.
    pub fn workload_body(&self) -> Option<Bytes> {
        match self.facts {
            Facts::Workload { workload_at, .. } => Some(self.body.slice(workload_at..)),
            _ => None,
        }
    }
}

/// A message with one length-delimited field, and where the field's content starts.
fn wrap(field: u32, content: &[u8]) -> (Bytes, usize) {
    let mut body = BytesMut::with_capacity(content.len() + 6);
    prost::encoding::encode_key(field, prost::encoding::WireType::LengthDelimited, &mut body);
    prost::encoding::encode_varint(content.len() as u64, &mut body);
    let start = body.len();
    body.put_slice(content);
    (body.freeze(), start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(order: &[&str]) -> workload::Workload {
        workload::Workload {
            uid: "c//Pod/n/p".into(),
            network: "net".into(),
            addresses: vec![Bytes::from_static(&[10, 0, 0, 1])],
            services: order
                .iter()
                .map(|s| {
                    let port = workload::Port { service_port: 80, target_port: 8080, app_protocol: 0 };
                    (format!("n/{s}"), workload::PortList { ports: vec![port] })
                })
                .collect(),
            ..Default::default()
        }
    }

    #[test]
    fn equal_workloads_have_equal_bytes_which_decode_to_themselves() {
        let names: Vec<String> = (0..20).map(|i| format!("s{i}")).collect();
        let forward: Vec<&str> = names.iter().map(String::as_str).collect();
        let backward: Vec<&str> = forward.iter().rev().copied().collect();
        let (a, b) = (Resource::workload(sample(&forward)), Resource::workload(sample(&backward)));
        assert_eq!(a, b);
        let decoded = workload::Address::decode(a.body.clone()).unwrap();
        assert_eq!(decoded.r#type, Some(workload::address::Type::Workload(sample(&forward))));
        let bare = workload::Workload::decode(a.workload_body().unwrap()).unwrap();
        assert_eq!(bare, sample(&forward));
        let Facts::Workload { addresses, .. } = &a.facts else { panic!("it is a workload") };
        assert_eq!(addresses[0].to_string(), "net/10.0.0.1");
    }

    #[test]
    fn the_version_is_the_hash_the_field_uses() {
        // XXH64 of nothing with seed 0, from the algorithm's specification.
        assert_eq!(Resource::new(Bytes::new(), Facts::Policy).version_text(), "ef46db3751d8e999");
    }
}
