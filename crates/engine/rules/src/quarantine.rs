//! Packet rules of the host that keep pods off the network until they are captured.
//!
//! The addresses of such pods are in sets; whatever is forwarded, sent or received by the host with one of them is
//! dropped. A table of the family `inet` sees what the host routes, one of the family `bridge` what stays between two
//! pods of one bridge, which routing never sees. Nothing inside the pods is needed: it works where their network
//! namespaces cannot be found.

use crate::batch::{
    Batch, Chain, ChainHook, ChainKind, Command, Element, Family, Hook, Policy, Set, SetType, TableName,
};
use crate::expr::{Base, Comparison, Expr, Meta, Reg, Verdict};
use crate::pod::Families;
use crate::rule::Rule;
use std::net::IpAddr;

/// Name of both tables.
const TABLE: &str = "ambit-quarantine";
const SET_V4: &str = "pods-v4";
const SET_V6: &str = "pods-v6";
/// Before filters of others, which may accept what they know; behind address translation of incoming packets, so that
/// the pod's own address is seen.
const PRIORITY: i32 = -50;

/// The host's tables.
pub fn tables() -> [TableName; 2] {
    [TableName::inet(TABLE), TableName { family: Family::Bridge, name: TABLE.to_owned() }]
}

/// Commands that put the rules in place, whatever of them is there. Addresses that are in the sets stay in them, so
/// that an agent that starts anew opens no gap.
pub fn plan_quarantine(families: Families) -> Batch {
    let mut batch = Batch::default();
    for table in tables() {
        batch.push(Command::AddTable(table.clone())).push(Command::FlushTable(table.clone()));
        for family in families.list() {
            let (name, key) = set(*family);
            let set = Set { name: name.to_owned(), key: vec![key], value: vec![] };
            batch.push(Command::AddSet(table.clone(), set));
        }
        for hook in hooks(table.family) {
            let at = ChainHook {
                kind: ChainKind::Filter,
                hook: *hook,
                priority: PRIORITY,
                policy: Policy::Accept,
            };
            let name = hook.word().to_owned();
            batch.push(Command::AddChain(table.clone(), Chain { name: name.clone(), hook: Some(at) }));
            for family in families.list() {
                for end in ends(*hook) {
                    batch.push(Command::AddRule(table.clone(), name.clone(), drop_rule(*family, *end)));
                }
            }
        }
    }
    batch
}

/// Commands that remove the rules and sets, whatever of them is there.
pub fn plan_quarantine_removal() -> Batch {
    let mut batch = Batch::default();
    for table in tables() {
        batch.push(Command::AddTable(table.clone())).push(Command::DeleteTable(table));
    }
    batch
}

/// Commands that make the sets hold exactly these addresses. `families` are those the rules were planned for.
pub fn plan_quarantined(families: Families, addresses: &[(IpAddr, String)]) -> Batch {
    let mut batch = Batch::default();
    for table in tables() {
        for family in families.list() {
            batch.push(Command::FlushSet(table.clone(), set(*family).0.to_owned()));
        }
    }
    for (address, uid) in addresses {
        batch.commands.extend(plan_quarantine_addresses(&[*address], uid).commands);
    }
    batch
}

/// Commands that keep these addresses of the pod named by `uid` off the network.
pub fn plan_quarantine_addresses(addresses: &[IpAddr], uid: &str) -> Batch {
    elements(addresses, Command::AddElements, Some(uid))
}

/// Commands that let these addresses use the network again. All must be in the sets.
pub fn plan_quarantine_address_removal(addresses: &[IpAddr]) -> Batch {
    elements(addresses, Command::DeleteElements, None)
}

fn elements(
    addresses: &[IpAddr],
    command: fn(TableName, String, Vec<Element>) -> Command,
    comment: Option<&str>,
) -> Batch {
    let mut batch = Batch::default();
    for table in tables() {
        for address in addresses {
            let (name, _) = set(if address.is_ipv4() { Family::Ip } else { Family::Ip6 });
            let element = Element {
                key: vec![(*address).into()],
                comment: comment.map(str::to_owned),
                ..Element::default()
            };
            batch.push(command(table.clone(), name.to_owned(), vec![element]));
        }
    }
    batch
}

/// The end of a packet's way whose address is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Source,
    Destination,
}

/// A bridge's frames for the host itself go on to the table of the family `inet`.
fn hooks(family: Family) -> &'static [Hook] {
    if family == Family::Bridge { &[Hook::Forward] } else { &[Hook::Input, Hook::Forward, Hook::Output] }
}

fn ends(hook: Hook) -> &'static [End] {
    match hook {
        Hook::Input => &[End::Source],
        Hook::Output => &[End::Destination],
        _ => &[End::Source, End::Destination],
    }
}

fn set(family: Family) -> (&'static str, SetType) {
    if family == Family::Ip6 { (SET_V6, SetType::Ipv6) } else { (SET_V4, SetType::Ipv4) }
}

/// The EtherType tells the families apart in both tables; a bridge knows no other sign.
fn drop_rule(family: Family, end: End) -> Rule {
    let (ether_type, length, source, destination): ([u8; 2], u32, u32, u32) =
        if family == Family::Ip6 { ([0x86, 0xdd], 16, 8, 24) } else { ([0x08, 0x00], 4, 12, 16) };
    let offset = if end == End::Source { source } else { destination };
    Rule::new()
        .with(Expr::MetaLoad(Meta::EtherType, Reg::R1))
        .with(Expr::Compare(Reg::R1, Comparison::Equal, ether_type.to_vec()))
        .with(Expr::Payload { base: Base::Network, offset, length, to: Reg::R1 })
        .with(Expr::Lookup(Reg::R1, Comparison::Equal, set(family).0.to_owned()))
        .counter()
        .verdict(Verdict::Drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Compares the plan's text with a golden file; `UPDATE_GOLDEN=1` rewrites it.
    #[track_caller]
    fn check(name: &str, plan: &Batch) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, plan.to_string()).unwrap();
        }
        assert_eq!(plan.to_string(), std::fs::read_to_string(&path).unwrap(), "{name} differs");
    }

    #[test]
    fn the_rules_are_the_golden_ones() {
        check("quarantine.golden", &plan_quarantine(Families::Dual));
        let addresses = [("10.0.0.7".parse().unwrap(), "uid-7".to_owned())];
        check("quarantine-addresses.golden", &plan_quarantined(Families::V4, &addresses));
    }

    #[test]
    fn every_plan_can_be_rendered() {
        let address = ["fd00::7".parse().unwrap()];
        for plan in [
            plan_quarantine(Families::V4),
            plan_quarantine_removal(),
            plan_quarantine_addresses(&address, "uid"),
            plan_quarantine_address_removal(&address),
        ] {
            assert_eq!(plan.encode(1).unwrap().objects.len(), plan.commands.len());
        }
    }
}
