//! Packet rules of the host that let the node's own probes reach captured pods.
//!
//! The node's probes of an enrolled pod leave with a link-local source address that the pod's rules know, so that they
//! pass by the proxy even where it refuses plain text.

use crate::batch::{
    Batch, Chain, ChainHook, ChainKind, Command, Element, Family, Hook, Policy, Set, SetType, TableName,
};
use crate::pod::{Families, NAT_TABLE};
use crate::rule::{Rule, Transport};
use ambit_names::mesh;
use std::net::IpAddr;

/// Set of the addresses of enrolled pods, IPv4.
pub const PROBE_SET_V4: &str = "istio-inpod-probes-v4";
/// Set of the addresses of enrolled pods, IPv6.
pub const PROBE_SET_V6: &str = "istio-inpod-probes-v6";
/// Not the peer's chain `postrouting`: that has another priority, which cannot be changed while it is there.
const CHAIN: &str = "probes";
/// Before all chains at the usual 100 (`srcnat`): a connection is rewritten by the first chain that wants to, and many a
/// node has one that masquerades whatever comes along.
const PRIORITY: i32 = 90;

/// The host's table.
pub fn table() -> TableName {
    TableName::inet(NAT_TABLE)
}

/// Commands that put the host's rule and its empty sets in place, whatever of them is there.
///
/// `prober` is the user id of the processes whose probes are let through.
pub fn plan_probe_rules(prober: u32, families: Families) -> Batch {
    let mut batch = Batch::default();
    batch.push(Command::AddTable(table())).push(Command::FlushTable(table()));
    let at = ChainHook {
        kind: ChainKind::Nat,
        hook: Hook::Postrouting,
        priority: PRIORITY,
        policy: Policy::Accept,
    };
    batch.push(Command::AddChain(table(), Chain { name: CHAIN.to_owned(), hook: Some(at) }));
    for family in families.list() {
        let (set, key, source) = parts(*family);
        let name = set.to_owned();
        batch
            .push(Command::AddSet(table(), Set { name: name.clone(), key: vec![key], value: vec![] }))
            .push(Command::FlushSet(table(), name.clone()));
        let rule = Rule::new()
            .family(*family)
            .transport(Transport::Tcp)
            .socket_uid(prober)
            .destination_in(*family, name)
            .counter()
            .snat(source);
        batch.push(Command::AddRule(table(), CHAIN.to_owned(), rule));
    }
    batch
}

/// Commands that remove the host's rule and sets, whatever of them is there.
pub fn plan_probe_removal() -> Batch {
    let mut batch = Batch::default();
    batch.push(Command::AddTable(table())).push(Command::DeleteTable(table()));
    batch
}

/// Commands that let probes of these addresses through, for the pod named by `uid`.
pub fn plan_probe_addresses(addresses: &[IpAddr], uid: &str) -> Batch {
    elements(addresses, |set, address| {
        let element =
            Element { key: vec![address.into()], comment: Some(uid.to_owned()), ..Element::default() };
        Command::AddElements(table(), set.to_owned(), vec![element])
    })
}

/// Commands that no longer let probes of these addresses through. All must be in the sets.
pub fn plan_probe_address_removal(addresses: &[IpAddr]) -> Batch {
    elements(addresses, |set, address| {
        let element = Element { key: vec![address.into()], ..Element::default() };
        Command::DeleteElements(table(), set.to_owned(), vec![element])
    })
}

fn elements(addresses: &[IpAddr], command: impl Fn(&str, IpAddr) -> Command) -> Batch {
    let commands = addresses
        .iter()
        .map(|address| command(if address.is_ipv4() { PROBE_SET_V4 } else { PROBE_SET_V6 }, *address))
        .collect();
    Batch { commands }
}

fn parts(family: Family) -> (&'static str, SetType, IpAddr) {
    match family {
        Family::Ip6 => (PROBE_SET_V6, SetType::Ipv6, mesh::PROBE_ADDRESS_V6.into()),
        _ => (PROBE_SET_V4, SetType::Ipv4, mesh::PROBE_ADDRESS_V4.into()),
    }
}
