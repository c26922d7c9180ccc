//! Packet rules in the namespace of a captured pod.
//!
//! Marks, ports, priorities and the order of the rules are those of Istio's ambient redirection, so that a proxy of
//! either make finds what it expects and rules left by the other are replaced.

use crate::batch::{Batch, Chain, ChainHook, ChainKind, Command, Family, Hook, Policy, TableName};
use crate::expr::Verdict;
use crate::rule::{Match, Rule, Transport};
use ambit_names::{mark, mesh, port};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Name of the table with the address rewriting rules, in a pod and on the host.
pub const NAT_TABLE: &str = "istio-ambient-nat";
/// Name of the table with the marking rules.
pub const MANGLE_TABLE: &str = "istio-ambient-mangle";
/// Name of the table with the connection tracking rules.
pub const RAW_TABLE: &str = "istio-ambient-raw";
/// Zone that keeps the proxy's DNS queries apart from the application's.
const DNS_ZONE: u16 = 1;

/// What becomes of connections that arrive at the pod in plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Inbound {
    /// They go to the proxy.
    #[default]
    Captured,
    /// They go straight to the application.
    Bypassed,
}

/// Whether the pod's DNS queries go to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dns {
    /// They do.
    #[default]
    Captured,
    /// They go to the pod's resolver.
    Untouched,
}

/// Which address families are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Families {
    /// IPv4 only.
    V4,
    /// IPv4 and IPv6.
    #[default]
    Dual,
}

impl Families {
    /// The families one by one.
    pub const fn list(self) -> &'static [Family] {
        match self {
            Families::V4 => &[Family::Ip],
            Families::Dual => &[Family::Ip, Family::Ip6],
        }
    }

    /// A test for rules that name no address: none when both families are captured.
    const fn any(self) -> Family {
        match self {
            Families::V4 => Family::Ip,
            Families::Dual => Family::Inet,
        }
    }
}

/// How a pod is captured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capture {
    /// Inbound plain text.
    pub inbound: Inbound,
    /// DNS queries.
    pub dns: Dns,
    /// Address families.
    pub families: Families,
    /// Interfaces whose traffic is treated as the pod's own outbound traffic (virtual machines behind a tap).
    pub reroute_interfaces: Vec<String>,
    /// What passes by the proxy.
    pub excluded: Excluded,
}

/// TCP connections that are not captured. DNS is captured or not as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Excluded {
    /// Ports of the pod.
    pub inbound_ports: Vec<u16>,
    /// Ports of others.
    pub outbound_ports: Vec<u16>,
    /// Networks of others.
    pub outbound_nets: Vec<IpNet>,
}

/// The kernel's policy-routing objects that deliver marked replies to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkedRoute {
    /// [`Family::Ip`] or [`Family::Ip6`].
    pub family: Family,
    /// Connection mark that selects the route table.
    pub mark: u32,
    /// Bits of the mark that count.
    pub mask: u32,
    /// Route table with the `local default dev lo` route.
    pub table: u32,
    /// Priority of the rule.
    pub priority: u32,
}

/// Routing rules and routes of a captured pod: `fwmark 0x111/0xfff lookup 100` and `local default dev lo table 100`.
pub fn plan_routes(families: Families) -> Vec<MarkedRoute> {
    families
        .list()
        .iter()
        .map(|family| MarkedRoute {
            family: *family,
            mark: mark::CONNECTION,
            mask: mark::MASK,
            table: mark::ROUTE_TABLE,
            priority: mark::RULE_PRIORITY,
        })
        .collect()
}

/// Tables of a captured pod.
pub fn tables() -> [TableName; 3] {
    [NAT_TABLE, MANGLE_TABLE, RAW_TABLE].map(TableName::inet)
}

/// Commands that put the rules of a captured pod in place, whatever of them is there already.
pub fn plan_capture(capture: &Capture) -> Batch {
    let mut batch = Batch::default();
    for table in tables() {
        batch.push(Command::AddTable(table.clone())).push(Command::FlushTable(table));
    }
    raw(&mut batch, capture);
    mangle(&mut batch, capture);
    nat(&mut batch, capture);
    batch
}

/// Commands that remove the rules of a captured pod, whatever of them is there.
pub fn plan_release() -> Batch {
    let mut batch = Batch::default();
    for table in tables() {
        // Adding first makes the deletion succeed when the table is missing.
        batch.push(Command::AddTable(table.clone())).push(Command::DeleteTable(table));
    }
    batch
}

/// A pair of base chain and chain of rules, as the peer lays them out.
struct Hooked {
    table: TableName,
    base: &'static str,
    chain: &'static str,
    kind: ChainKind,
    hook: Hook,
    priority: i32,
}

impl Hooked {
    fn write(self, batch: &mut Batch, rules: Vec<Rule>) {
        let Hooked { table, base, chain, kind, hook, priority } = self;
        let at = ChainHook { kind, hook, priority, policy: Policy::Accept };
        batch
            .push(Command::AddChain(table.clone(), Chain { name: base.to_owned(), hook: Some(at) }))
            .push(Command::AddChain(table.clone(), Chain { name: chain.to_owned(), hook: None }))
            .push(Command::AddRule(
                table.clone(),
                base.to_owned(),
                Rule::new().verdict(Verdict::Jump(chain.to_owned())),
            ));
        for rule in rules {
            batch.push(Command::AddRule(table.clone(), chain.to_owned(), rule));
        }
    }
}

fn prerouting(table: &str, kind: ChainKind, priority: i32) -> Hooked {
    let table = TableName::inet(table);
    Hooked { table, base: "prerouting", chain: "istio-prerouting", kind, hook: Hook::Prerouting, priority }
}

fn output(table: &str, kind: ChainKind, priority: i32) -> Hooked {
    let table = TableName::inet(table);
    Hooked { table, base: "output", chain: "istio-output", kind, hook: Hook::Output, priority }
}

fn raw(batch: &mut Batch, capture: &Capture) {
    if capture.dns == Dns::Untouched {
        return;
    }
    let any = capture.families.any();
    prerouting(RAW_TABLE, ChainKind::Filter, -300).write(
        batch,
        vec![
            not_proxy(Rule::new().family(any).transport(Transport::Udp).source_port(Match::Is, port::DNS))
                .counter()
                .zone(DNS_ZONE),
        ],
    );
    output(RAW_TABLE, ChainKind::Filter, -300).write(
        batch,
        vec![
            Rule::new()
                .family(any)
                .transport(Transport::Udp)
                .destination_port(Match::Is, port::DNS)
                .mark(Match::Is, mark::PROXY, mark::MASK)
                .counter()
                .zone(DNS_ZONE),
        ],
    );
}

fn mangle(batch: &mut Batch, capture: &Capture) {
    let any = capture.families.any();
    prerouting(MANGLE_TABLE, ChainKind::Filter, -150).write(
        batch,
        vec![
            Rule::new()
                .family(any)
                .mark(Match::Is, mark::PROXY, mark::MASK)
                .counter()
                .set_connection_mark(mark::CONNECTION, mark::MASK),
        ],
    );
    // A route chain, so that the restored mark sends replies of the application into the proxy's route table.
    output(MANGLE_TABLE, ChainKind::Route, -150).write(
        batch,
        vec![
            Rule::new()
                .family(any)
                .connection_mark(Match::Is, mark::CONNECTION, mark::MASK)
                .counter()
                .restore_mark(),
        ],
    );
}

fn nat(batch: &mut Batch, capture: &Capture) {
    prerouting(NAT_TABLE, ChainKind::Nat, -100).write(batch, inbound(capture));
    output(NAT_TABLE, ChainKind::Nat, -100).write(batch, outbound(capture));
}

fn inbound(capture: &Capture) -> Vec<Rule> {
    let any = capture.families.any();
    let mut rules = Vec::new();
    for interface in &capture.reroute_interfaces {
        let from = || Rule::new().family(any).input(Match::Is, interface).transport(Transport::Tcp).counter();
        rules.push(from().redirect(port::OUTBOUND));
        rules.push(from().verdict(Verdict::Return));
    }
    if capture.inbound == Inbound::Bypassed {
        return rules;
    }
    for family in capture.families.list() {
        rules.push(tcp(*family).source(Match::Is, host(probe_address(*family))).counter().accept());
    }
    for excluded in &capture.excluded.inbound_ports {
        let rule = Rule::new().family(any).transport(Transport::Tcp);
        rules.push(rule.destination_port(Match::Is, *excluded).counter().accept());
    }
    for family in capture.families.list() {
        let rule = tcp(*family)
            .destination(Match::Not, host(loopback(*family)))
            .destination_port(Match::Not, port::INBOUND_HBONE);
        rules.push(not_proxy(rule).counter().redirect(port::INBOUND_PLAINTEXT));
    }
    rules
}

fn outbound(capture: &Capture) -> Vec<Rule> {
    let any = capture.families.any();
    let families = capture.families.list();
    let mut rules = Vec::new();
    for family in families {
        rules.push(tcp(*family).destination(Match::Is, host(probe_address(*family))).counter().accept());
    }
    if capture.dns == Dns::Captured {
        let query = Rule::new()
            .family(any)
            .output(Match::Not, "lo")
            .transport(Transport::Udp)
            .destination_port(Match::Is, port::DNS);
        rules.push(not_proxy(query).counter().redirect(port::DNS_PROXY));
        for family in families {
            let query = tcp(*family)
                .destination(Match::Not, host(loopback(*family)))
                .destination_port(Match::Is, port::DNS);
            rules.push(not_proxy(query).counter().redirect(port::DNS_PROXY));
        }
    }
    // Connections that the proxy accepted on behalf of the application and replies to them.
    let replies = Rule::new().family(any).transport(Transport::Tcp);
    rules.push(replies.mark(Match::Is, mark::CONNECTION, mark::MASK).counter().accept());
    // The application talking to its own address.
    for family in families {
        let own = Rule::new().family(*family).output(Match::Is, "lo");
        rules.push(own.destination(Match::Not, host(loopback(*family))).counter().accept());
    }
    for port in &capture.excluded.outbound_ports {
        let rule = Rule::new().family(any).transport(Transport::Tcp);
        rules.push(rule.destination_port(Match::Is, *port).counter().accept());
    }
    for net in &capture.excluded.outbound_nets {
        let family = if net.addr().is_ipv4() { Family::Ip } else { Family::Ip6 };
        if families.contains(&family) {
            rules.push(tcp(family).destination(Match::Is, *net).counter().accept());
        }
    }
    for family in families {
        let rule = tcp(*family).destination(Match::Not, host(loopback(*family)));
        rules.push(not_proxy(rule).counter().redirect(port::OUTBOUND));
    }
    rules
}

fn tcp(family: Family) -> Rule {
    Rule::new().family(family).transport(Transport::Tcp)
}

fn not_proxy(rule: Rule) -> Rule {
    rule.mark(Match::Not, mark::PROXY, mark::MASK)
}

fn probe_address(family: Family) -> IpAddr {
    match family {
        Family::Ip6 => mesh::PROBE_ADDRESS_V6.into(),
        _ => mesh::PROBE_ADDRESS_V4.into(),
    }
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::Ip6 => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    }
}

/// A net of one address.
fn host(address: IpAddr) -> IpNet {
    match address {
        IpAddr::V4(address) => IpNet::V4(Ipv4Net::from(address)),
        IpAddr::V6(address) => IpNet::V6(Ipv6Net::from(address)),
    }
}

#[cfg(test)]
mod tests;
