//! The table that turns a service's address into one of its endpoints, for whoever is not captured by the mesh.
//!
//! Two maps per family hold all that changes. `services` takes address, protocol and port of a service to the chain
//! `pick-N` of its number of endpoints; that chain draws a number below N and looks up, in `endpoints`, the address
//! and port that the number stands for. So a change of endpoints is a change of elements, never of rules, and the
//! cost per connection does not grow with the number of services.
//!
//! What is sent to the service network and matches no element is refused, whether the service has no endpoints, has
//! no such port, or does not exist.

use crate::batch::{
    Batch, Chain, ChainHook, ChainKind, Command, Datum, Element, Family, Hook, Policy, Set, SetType,
    TableName,
};
use crate::expr::{Base, Comparison, Expr, Meta, NatKind, NumberKind, Reg, Reject, Verdict};
use crate::rule::{Match, Rule, Transport};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Name of the table, in the family `inet`.
pub const TABLE: &str = "ambit-services";
/// Endpoints of one service port that are used; the rest get no connections. Keeps the number of chains bounded
/// (Kubernetes itself cuts its older Endpoints objects at the same number).
pub const ENDPOINTS_MAX: usize = 1000;
/// Elements in one netlink message: an attribute holds at most 65,535 bytes, an element about a hundred.
const ELEMENTS_PER_MESSAGE: usize = 256;
/// Priority of destination NAT (`dstnat`).
const DESTINATION_NAT: i32 = -100;
/// Priority of source NAT (`srcnat`).
const SOURCE_NAT: i32 = 100;

/// One port of one service and where its connections go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Address of the service.
    pub address: IpAddr,
    /// Protocol of the port.
    pub transport: Transport,
    /// The port.
    pub port: u16,
    /// Ready endpoints; those of another family than `address` are left out.
    pub endpoints: Vec<SocketAddr>,
    /// Shown by `nft list`.
    pub name: String,
}

/// What surrounds the services.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// Networks that service addresses come from.
    pub service_networks: Vec<IpNet>,
    /// Service addresses that a process on this host holds itself (cluster DNS): never rewritten or refused.
    pub own_addresses: Vec<IpAddr>,
    /// Networks of the host's pods: what they send elsewhere than over `bridge` leaves with the host's address.
    pub pod_networks: Vec<IpNet>,
    /// The bridge that pods are attached to.
    pub bridge: String,
}

/// Address, protocol number, port.
type Key = (IpAddr, u8, u16);

/// The whole table as data. Equal services give equal rules, in whatever order they are listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceRules {
    surroundings: Surroundings,
    services: BTreeMap<Key, Targets>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Targets {
    endpoints: Vec<SocketAddr>,
    name: String,
}

impl ServiceRules {
    /// Builds the rules. Of two ports with the same address, protocol and number the first one counts.
    pub fn new(surroundings: Surroundings, ports: impl IntoIterator<Item = ServicePort>) -> Self {
        let mut services = BTreeMap::new();
        for port in ports {
            if surroundings.own_addresses.contains(&port.address) {
                continue;
            }
            let same_family = port.endpoints.iter().filter(|e| e.is_ipv4() == port.address.is_ipv4());
            let unique: BTreeSet<SocketAddr> = same_family.copied().collect();
            let endpoints: Vec<SocketAddr> = unique.into_iter().take(ENDPOINTS_MAX).collect();
            if endpoints.is_empty() {
                continue;
            }
            let key = (port.address, port.transport.number(), port.port);
            services.entry(key).or_insert(Targets { endpoints, name: port.name });
        }
        Self { surroundings, services }
    }

    /// How many service ports are routed.
    pub fn ports(&self) -> usize {
        self.services.len()
    }

    /// The batch that replaces whatever table of this name is there.
    pub fn replace(&self) -> Batch {
        let mut batch = remove();
        let table = table();
        batch.push(Command::AddTable(table.clone()));
        for family in [Family::Ip, Family::Ip6] {
            sets(family).into_iter().for_each(|set| add(&mut batch, |t| Command::AddSet(t, set)));
        }
        base_chains(&mut batch);
        self.rules(&mut batch);
        self.change(&Self::default(), &mut batch);
        batch
    }

    /// The batch that turns the table of `old` into this one; none if they are equal.
    pub fn update(&self, old: &Self) -> Option<Batch> {
        if self == old {
            return None;
        }
        if self.surroundings != old.surroundings {
            return Some(self.replace());
        }
        let mut batch = Batch::default();
        self.change(old, &mut batch);
        Some(batch)
    }

    /// Elements and chains that differ from `old`'s. Chains come before the elements that lead to them, and go
    /// after those that did.
    fn change(&self, old: &Self, batch: &mut Batch) {
        let (now, before) = (self.pick_chains(), old.pick_chains());
        for (family, count) in now.difference(&before) {
            pick_chain(*family, *count, batch);
        }
        let gone = old.services.iter().filter(|(key, targets)| self.services.get(key) != Some(targets));
        change_elements(batch, &Elements::of(gone), Command::DeleteElements);
        let added = self.services.iter().filter(|(key, targets)| old.services.get(key) != Some(targets));
        change_elements(batch, &Elements::of(added), Command::AddElements);
        let (now_local, before_local) = (self.hairpins(), old.hairpins());
        change_elements(
            batch,
            &Elements::hairpin(before_local.difference(&now_local)),
            Command::DeleteElements,
        );
        change_elements(batch, &Elements::hairpin(now_local.difference(&before_local)), Command::AddElements);
        for (family, count) in before.difference(&now) {
            let chain = pick_name(*family, *count);
            batch.push(Command::FlushChain(table(), chain.clone()));
            batch.push(Command::DeleteChain(table(), chain));
        }
    }

    fn pick_chains(&self) -> BTreeSet<(Family, usize)> {
        self.services.iter().map(|((address, ..), t)| (family_of(*address), t.endpoints.len())).collect()
    }

    fn hairpins(&self) -> BTreeSet<IpAddr> {
        self.services.values().flat_map(|t| &t.endpoints).map(SocketAddr::ip).collect()
    }

    fn rules(&self, batch: &mut Batch) {
        for family in [Family::Ip, Family::Ip6] {
            for chain in ["prerouting", "output"] {
                rule(batch, chain, dispatch(family));
            }
            rule(batch, "postrouting", hairpin(family));
        }
        let Surroundings { service_networks, own_addresses, pod_networks, bridge } = &self.surroundings;
        for network in pod_networks {
            let leaves = Rule::new().family(family_of(network.addr())).source(Match::Is, *network);
            let leaves = leaves.destination(Match::Not, *network).output(Match::Not, bridge);
            rule(batch, "postrouting", leaves.with(Expr::Masquerade).comment("pods to the outside"));
        }
        for network in service_networks {
            let to_it = Rule::new().family(family_of(network.addr())).destination(Match::Is, *network);
            let own = own_addresses.iter().filter(|a| network.contains(*a));
            let refused = own.fold(to_it, |r, a| r.destination(Match::Not, IpNet::from(*a)));
            let refused = refused.counter().with(Expr::Reject(Reject::PortUnreachable));
            for chain in ["refuse-forward", "refuse-output"] {
                rule(batch, chain, refused.clone().comment("no endpoint"));
            }
        }
    }
}

/// The batch that removes the table, whether or not it is there.
pub fn remove() -> Batch {
    // Adding first makes the deletion succeed in any case; the kernel before 6.3 has no other way.
    Batch { commands: vec![Command::AddTable(table()), Command::DeleteTable(table())] }
}

/// The table.
pub fn table() -> TableName {
    TableName::inet(TABLE)
}

fn add(batch: &mut Batch, command: impl FnOnce(TableName) -> Command) {
    batch.push(command(table()));
}

fn rule(batch: &mut Batch, chain: &str, rule: Rule) {
    batch.push(Command::AddRule(table(), chain.to_owned(), rule));
}

fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
}

/// Name of a set, map or chain of one family.
fn name(stem: &str, family: Family) -> String {
    format!("{stem}{}", if family == Family::Ip6 { 6 } else { 4 })
}

fn pick_name(family: Family, count: usize) -> String {
    format!("{}-{count}", name("pick", family))
}

fn sets(family: Family) -> [Set; 3] {
    let address = if family == Family::Ip6 { SetType::Ipv6 } else { SetType::Ipv4 };
    let service = vec![address, SetType::Protocol, SetType::Port];
    let drawn = [&service[..], &[SetType::Mark]].concat();
    [
        Set { name: name("services", family), key: service, value: vec![SetType::Verdict] },
        Set { name: name("endpoints", family), key: drawn, value: vec![address, SetType::Port] },
        Set { name: name("hairpin", family), key: vec![address, address], value: vec![] },
    ]
}

fn base_chains(batch: &mut Batch) {
    let chains = [
        ("prerouting", ChainKind::Nat, Hook::Prerouting, DESTINATION_NAT),
        ("output", ChainKind::Nat, Hook::Output, DESTINATION_NAT),
        ("postrouting", ChainKind::Nat, Hook::Postrouting, SOURCE_NAT),
        ("refuse-forward", ChainKind::Filter, Hook::Forward, 0),
        ("refuse-output", ChainKind::Filter, Hook::Output, 0),
    ];
    for (name, kind, hook, priority) in chains {
        let at = ChainHook { kind, hook, priority, policy: Policy::Accept };
        add(batch, |t| Command::AddChain(t, Chain { name: name.to_owned(), hook: Some(at) }));
    }
}

/// How many 4-byte registers an address of the family takes.
fn address_words(family: Family) -> u32 {
    if family == Family::Ip6 { 4 } else { 1 }
}

/// Offset of the source address in the family's header; the destination follows it.
fn source_offset(family: Family) -> u32 {
    if family == Family::Ip6 { 8 } else { 12 }
}

/// Loads destination address, protocol and destination port into consecutive registers from the first word on.
fn load_destination(rule: Rule, family: Family) -> Rule {
    let words = address_words(family);
    let length = words * 4;
    let offset = source_offset(family) + length;
    rule.with(Expr::Payload { base: Base::Network, offset, length, to: Reg::word(0) })
        .with(Expr::MetaLoad(Meta::TransportProtocol, Reg::word(words)))
        .with(Expr::Payload { base: Base::Transport, offset: 2, length: 2, to: Reg::word(words + 1) })
}

fn dispatch(family: Family) -> Rule {
    load_destination(Rule::new().family(family), family).with(Expr::MapLookup {
        key: Reg::word(0),
        map: name("services", family),
        to: None,
    })
}

fn pick_chain(family: Family, count: usize, batch: &mut Batch) {
    let chain = pick_name(family, count);
    add(batch, |t| Command::AddChain(t, Chain { name: chain.clone(), hook: None }));
    let words = address_words(family);
    // The key takes at most seven words, so the value goes after them.
    let value = Reg::word(8);
    let modulus = u32::try_from(count).unwrap_or(u32::MAX);
    // The family's test was made before the jump; nft repeats it for `dnat ip` when it lists the rule.
    let picked = load_destination(Rule::new(), family)
        .with(Expr::Number { to: Reg::word(words + 2), kind: NumberKind::Random, modulus, offset: 0 })
        .with(Expr::MapLookup { key: Reg::word(0), map: name("endpoints", family), to: Some(value) })
        .with(Expr::Nat {
            kind: NatKind::Destination,
            family,
            address: value,
            port: Some(Reg::word(8 + words)),
        });
    rule(batch, &chain, picked);
}

/// A pod that reaches itself through a service must see the answer come from outside, so its own packets get the
/// host's address. That both addresses are the same endpoint happens in no other case.
fn hairpin(family: Family) -> Rule {
    let length = address_words(family) * 4;
    let load = |offset, to| Expr::Payload { base: Base::Network, offset, length, to };
    Rule::new()
        .family(family)
        .with(load(source_offset(family), Reg::word(0)))
        .with(load(source_offset(family) + length, Reg::word(address_words(family))))
        .with(Expr::Lookup(Reg::word(0), Comparison::Equal, name("hairpin", family)))
        .with(Expr::Masquerade)
        .comment("pods to themselves")
}

/// Elements by the set they belong to.
#[derive(Default)]
struct Elements(BTreeMap<String, Vec<Element>>);

impl Elements {
    fn of<'a>(services: impl Iterator<Item = (&'a Key, &'a Targets)>) -> Self {
        let mut all = Self::default();
        for ((address, protocol, port), targets) in services {
            let family = family_of(*address);
            let key = vec![Datum::from(*address), Datum::Protocol(*protocol), Datum::Port(*port)];
            for (number, endpoint) in (0u32..).zip(&targets.endpoints) {
                all.push(
                    name("endpoints", family),
                    Element {
                        key: [&key[..], &[Datum::Mark(number)]].concat(),
                        value: vec![Datum::from(endpoint.ip()), Datum::Port(endpoint.port())],
                        ..Element::default()
                    },
                );
            }
            let chain = pick_name(family, targets.endpoints.len());
            let comment = Some(targets.name.clone());
            let verdict = Some(Verdict::Goto(chain));
            all.push(name("services", family), Element { key, verdict, comment, value: vec![] });
        }
        all
    }

    fn hairpin<'a>(addresses: impl Iterator<Item = &'a IpAddr>) -> Self {
        let mut all = Self::default();
        for address in addresses {
            let key = vec![Datum::from(*address), Datum::from(*address)];
            all.push(name("hairpin", family_of(*address)), Element { key, ..Element::default() });
        }
        all
    }

    fn push(&mut self, set: String, element: Element) {
        self.0.entry(set).or_default().push(element);
    }
}

fn change_elements(
    batch: &mut Batch,
    elements: &Elements,
    command: fn(TableName, String, Vec<Element>) -> Command,
) {
    for (set, elements) in &elements.0 {
        for chunk in elements.chunks(ELEMENTS_PER_MESSAGE) {
            batch.push(command(table(), set.clone(), chunk.to_vec()));
        }
    }
}

#[cfg(test)]
mod tests;
