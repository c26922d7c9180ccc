//! The decision of the name server: one question and one view of the zone to one answer.

use super::zone::{Entry, Host, NamedPort, Zone};
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use std::net::IpAddr;

/// Life of every record, in seconds: what CoreDNS gives cluster names, so that clients follow endpoints closely.
pub(crate) const TTL_S: u32 = 5;
/// Aliases inside the zone that are followed in one answer.
const ALIASES_MAX: usize = 8;
/// Version of the specification that the zone follows, answered for `dns-version.<domain>`.
const SPECIFICATION: &str = "1.1.0";
/// Weights of the SRV records of one name add up to about this.
const WEIGHT_SUM: u16 = 100;

/// What is to be answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// The zone holds the whole answer.
    Answer(Answer),
    /// The zone holds an alias; the records of its target are to be asked upstream and appended.
    Follow(Answer, Name),
    /// The name is not of this zone.
    Forward,
}

/// The sections of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) code: ResponseCode,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
}

/// Answers `question` from `zone`. `rotation` turns the order of several addresses, so that clients that take the
/// first spread over all.
pub(crate) fn answer(zone: &Zone, question: &Query, rotation: usize) -> Outcome {
    if !matches!(question.query_class(), DNSClass::IN | DNSClass::ANY) {
        return Outcome::Answer(bare(ResponseCode::NotImp));
    }
    if let Some(found) = reverse(zone, question.name()) {
        return Outcome::Answer(sections(zone, question, &found, 0));
    }
    if !zone.origin.domain.zone_of(question.name()) {
        return Outcome::Forward;
    }
    forward(zone, question, rotation)
}

/// Answers with a code and nothing else.
pub(crate) fn bare(code: ResponseCode) -> Answer {
    Answer { code, answers: Vec::new(), authorities: Vec::new(), additionals: Vec::new() }
}

fn forward(zone: &Zone, question: &Query, rotation: usize) -> Outcome {
    let mut chain = Vec::new();
    let mut name = question.name().clone();
    for _ in 0..ALIASES_MAX {
        let found = lookup(zone, &name);
        let target = match &found {
            Found::Data(data) if question.query_type() != RecordType::CNAME => alias(data),
            _ => None,
        };
        let Some(target) = target else {
            let asked = Query::query(name, question.query_type());
            let mut last = sections(zone, &asked, &found, rotation);
            chain.append(&mut last.answers);
            last.answers = chain;
            return Outcome::Answer(last);
        };
        chain.push(record(&name, RData::CNAME(CNAME(target.clone()))));
        if !zone.origin.domain.zone_of(&target) {
            let answer = Answer { answers: chain, ..bare(ResponseCode::NoError) };
            return Outcome::Follow(answer, target);
        }
        name = target;
    }
    Outcome::Answer(bare(ResponseCode::ServFail))
}

fn alias(data: &[RData]) -> Option<Name> {
    data.iter().find_map(|d| if let RData::CNAME(CNAME(target)) = d { Some(target.clone()) } else { None })
}

/// What the zone holds at a name.
enum Found {
    /// The name exists, with this data (none for a name that only has names below it).
    Data(Vec<RData>),
    /// The name does not exist.
    Missing,
}

/// Name not of this zone: none. Otherwise what its reverse tree holds at `name`.
fn reverse(zone: &Zone, name: &Name) -> Option<Found> {
    // `parse_arpa_name` wants an absolute name; every name off the wire is one.
    let network = name.parse_arpa_name().ok()?;
    let own = zone.origin.networks.iter().any(|n| n.contains(&network));
    let mut names: Vec<RData> = Vec::new();
    if network.prefix_len() == network.max_prefix_len() {
        names.extend(zone.names_of(network.addr()).filter_map(|n| Some(RData::PTR(PTR(absolute(zone, n)?)))));
    }
    match (names.is_empty(), own) {
        (false, _) => Some(Found::Data(names)),
        (true, true) if network.prefix_len() == network.max_prefix_len() => Some(Found::Missing),
        (true, true) => Some(Found::Data(Vec::new())),
        (true, false) => None,
    }
}

fn lookup(zone: &Zone, name: &Name) -> Found {
    // Counted by hand: `num_labels` leaves out a leading `*`.
    let depth = name.iter().count().saturating_sub(zone.origin.domain.iter().count());
    let labels: Vec<String> =
        name.iter().take(depth).map(|l| String::from_utf8_lossy(l).to_ascii_lowercase()).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    match *labels.as_slice() {
        [] => Found::Data(apex(zone)),
        ["dns-version"] => Found::Data(vec![RData::TXT(TXT::new(vec![SPECIFICATION.to_owned()]))]),
        ["dns" | "svc" | "pod"] | [_, "pod"] => Found::Data(Vec::new()),
        ["ns", "dns"] => Found::Data(zone.origin.server.iter().map(|a| address_data(*a)).collect()),
        [namespace, "svc"] if zone.has_namespace(namespace) => Found::Data(Vec::new()),
        [dashed, _, "pod"] => pod(dashed),
        [service, namespace, "svc"] => zone.service(namespace, service).map_or(Found::Missing, service_data),
        [host, service, namespace, "svc"] => {
            zone.service(namespace, service).map_or(Found::Missing, |entry| host_data(entry, host))
        }
        [port, protocol, service, namespace, "svc"] => {
            let Some(entry) = zone.service(namespace, service) else { return Found::Missing };
            port_data(zone, entry, (port, protocol), &format!("{service}.{namespace}.svc"))
        }
        _ => Found::Missing,
    }
}

fn apex(zone: &Zone) -> Vec<RData> {
    let mut data = vec![RData::SOA(start_of_authority(zone))];
    data.extend(absolute(zone, "ns.dns").map(|n| RData::NS(NS(n))));
    data
}

/// `<address with dashes>.<namespace>.pod`: the address itself, whether or not such a pod exists (as CoreDNS' mode
/// `insecure`, the default of kubeadm).
fn pod(dashed: &str) -> Found {
    let v4 = dashed.replace('-', ".").parse::<std::net::Ipv4Addr>().map(IpAddr::V4);
    let address = v4.or_else(|_| dashed.replace('-', ":").parse::<std::net::Ipv6Addr>().map(IpAddr::V6));
    address.map_or(Found::Missing, |a| Found::Data(vec![address_data(a)]))
}

fn service_data(entry: &Entry) -> Found {
    match entry {
        Entry::Addresses { addresses, .. } => {
            Found::Data(addresses.iter().map(|a| address_data(*a)).collect())
        }
        // Specification 2.4.1: without ready endpoints the name does not exist.
        Entry::Headless(hosts) if hosts.is_empty() => Found::Missing,
        Entry::Headless(hosts) => Found::Data(addresses_of(hosts.iter())),
        Entry::Alias(target) => Found::Data(vec![RData::CNAME(CNAME(target.clone()))]),
    }
}

fn host_data(entry: &Entry, host: &str) -> Found {
    let ports: Vec<&NamedPort> = match entry {
        Entry::Addresses { ports, .. } => ports.iter().collect(),
        Entry::Headless(hosts) => {
            let data = addresses_of(hosts.iter().filter(|h| h.name == host));
            if !data.is_empty() {
                return Found::Data(data);
            }
            hosts.iter().flat_map(|h| &h.ports).collect()
        }
        Entry::Alias(_) => return Found::Missing,
    };
    // `_tcp.<service>` has no data, but the names of ports are below it.
    let above = host.strip_prefix('_').is_some_and(|p| ports.iter().any(|port| port.protocol == p));
    if above { Found::Data(Vec::new()) } else { Found::Missing }
}

fn port_data(zone: &Zone, entry: &Entry, (port, protocol): (&str, &str), base: &str) -> Found {
    let (Some(name), Some(protocol)) = (port.strip_prefix('_'), protocol.strip_prefix('_')) else {
        return Found::Missing;
    };
    let is_it = |p: &&NamedPort| p.name == name && p.protocol == protocol;
    let targets: Vec<(u16, String)> = match entry {
        Entry::Addresses { ports, .. } => {
            ports.iter().filter(is_it).map(|p| (p.number, base.to_owned())).collect()
        }
        Entry::Headless(hosts) => hosts
            .iter()
            .flat_map(|h| h.ports.iter().filter(is_it).map(move |p| (p.number, format!("{}.{base}", h.name))))
            .collect(),
        Entry::Alias(_) => Vec::new(),
    };
    if targets.is_empty() {
        return Found::Missing;
    }
    let weight = (WEIGHT_SUM / u16::try_from(targets.len()).unwrap_or(u16::MAX)).max(1);
    let records = targets.iter().filter_map(|(number, target)| {
        Some(RData::SRV(SRV::new(0, weight, *number, absolute(zone, target)?)))
    });
    let mut data: Vec<RData> = records.collect();
    data.dedup();
    Found::Data(data)
}

fn addresses_of<'a>(hosts: impl Iterator<Item = &'a Host>) -> Vec<RData> {
    let addresses: std::collections::BTreeSet<IpAddr> = hosts.map(|h| h.address).collect();
    addresses.into_iter().map(address_data).collect()
}

fn address_data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

/// Picks the records of the asked type; an empty pick gets the SOA that bounds negative caching (RFC 2308).
fn sections(zone: &Zone, question: &Query, found: &Found, rotation: usize) -> Answer {
    let asked = question.query_type();
    let (code, data) = match found {
        Found::Missing => (ResponseCode::NXDomain, &[][..]),
        Found::Data(data) => (ResponseCode::NoError, data.as_slice()),
    };
    let mut picked: Vec<&RData> =
        data.iter().filter(|d| asked == RecordType::ANY || d.record_type() == asked).collect();
    if picked.is_empty() {
        let soa = Record::from_rdata(zone.origin.domain.clone(), TTL_S, RData::SOA(start_of_authority(zone)));
        return Answer { authorities: vec![soa], ..bare(code) };
    }
    let turn = rotation % picked.len();
    picked.rotate_left(turn);
    let additionals = picked.iter().flat_map(|d| addresses_of_target(zone, d)).collect();
    let answers = picked.into_iter().map(|d| record(question.name(), d.clone())).collect();
    Answer { answers, additionals, ..bare(code) }
}

/// Addresses of an SRV record's target, so that the client need not ask again.
fn addresses_of_target(zone: &Zone, data: &RData) -> Vec<Record> {
    let RData::SRV(srv) = data else { return Vec::new() };
    let Found::Data(found) = lookup(zone, &srv.target) else { return Vec::new() };
    let addresses = found.into_iter().filter(|d| matches!(d, RData::A(_) | RData::AAAA(_)));
    addresses.map(|d| record(&srv.target, d)).collect()
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL_S, data)
}

fn start_of_authority(zone: &Zone) -> SOA {
    let under = |label: &str| absolute(zone, label).unwrap_or_else(|| zone.origin.domain.clone());
    // Nobody transfers this zone, so the serial does not count anything. The other values are CoreDNS'.
    SOA::new(under("ns.dns"), under("hostmaster"), 1, 7200, 1800, 86400, TTL_S)
}

/// The absolute name of `relative`, unless it is too long for one.
fn absolute(zone: &Zone, relative: &str) -> Option<Name> {
    let labels = relative.split('.').map(str::as_bytes);
    Name::from_labels(labels).ok()?.append_domain(&zone.origin.domain).ok()
}

#[cfg(test)]
mod tests;
