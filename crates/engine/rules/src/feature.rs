//! What the packet rules need of a kernel, one by one: which option of the kernel's configuration brings it, and a trial that shows
//! whether it is there.
//!
//! A kernel refuses a whole transaction for one expression that it does not know, with an error that names neither option nor
//! module. A trial uses one feature alone, and removes in the same transaction what it makes, so that it leaves nothing.

use crate::batch::{
    Batch, Chain, ChainHook, ChainKind, Command, Family, Hook, Policy, Set, SetType, TableName,
};
use crate::rule::Rule;
use ambit_names::{mark, mesh, port};

/// Table of the trials.
const TABLE: &str = "ambit-trial";
const CHAIN: &str = "trial";

/// What a feature is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Every captured pod.
    Capture,
    /// Pods whose DNS is captured.
    Dns,
    /// Probes of the node.
    Probes,
    /// Keeping pods off the network that cannot be captured.
    Quarantine,
}

/// One feature of the kernel's packet filter.
#[derive(Debug, Clone, Copy)]
pub struct Feature {
    /// Its name, for people.
    pub name: &'static str,
    /// What it is needed for.
    pub purpose: Purpose,
    /// Options of the kernel's configuration that bring it.
    pub option: &'static str,
    /// The module that has it where it is one; kernels load it by themselves if they find it.
    pub module: &'static str,
    family: Family,
    /// The commands between the making of the table and its removal.
    commands: fn(TableName) -> Vec<Command>,
}

/// All features, each after those that its own trial needs.
pub const FEATURES: [Feature; 11] = [
    Feature {
        name: "tables for IPv4 and IPv6 together",
        purpose: Purpose::Capture,
        option: "CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET",
        module: "nf_tables",
        family: Family::Inet,
        commands: |table| vec![filter(table, Hook::Prerouting)],
    },
    Feature {
        name: "chains that choose routes again",
        purpose: Purpose::Capture,
        option: "CONFIG_NF_TABLES_IPV4, CONFIG_NF_TABLES_IPV6",
        module: "nf_tables",
        family: Family::Inet,
        commands: |table| vec![chain(table, ChainKind::Route, Hook::Output)],
    },
    Feature {
        name: "chains that rewrite addresses",
        purpose: Purpose::Capture,
        option: "CONFIG_NF_NAT, CONFIG_NFT_NAT",
        module: "nft_chain_nat",
        family: Family::Inet,
        commands: |table| vec![chain(table, ChainKind::Nat, Hook::Prerouting)],
    },
    Feature {
        name: "redirection to this machine",
        purpose: Purpose::Capture,
        option: "CONFIG_NFT_REDIR",
        module: "nft_redir",
        family: Family::Inet,
        commands: |table| {
            let rule = Rule::new().transport(crate::Transport::Tcp).redirect(port::OUTBOUND);
            with_rule(chain(table, ChainKind::Nat, Hook::Prerouting), rule)
        },
    },
    Feature {
        name: "marks of packets",
        purpose: Purpose::Capture,
        option: "CONFIG_NF_TABLES",
        module: "nft_meta",
        family: Family::Inet,
        commands: |table| {
            let rule = Rule::new().mark(crate::Match::Is, mark::PROXY, mark::MASK).accept();
            with_rule(filter(table, Hook::Prerouting), rule)
        },
    },
    Feature {
        name: "marks of connections",
        purpose: Purpose::Capture,
        option: "CONFIG_NFT_CT, CONFIG_NF_CONNTRACK_MARK",
        module: "nft_ct",
        family: Family::Inet,
        commands: |table| {
            let rule = Rule::new().set_connection_mark(mark::CONNECTION, mark::MASK);
            with_rule(filter(table, Hook::Prerouting), rule)
        },
    },
    Feature {
        name: "counters",
        purpose: Purpose::Capture,
        option: "CONFIG_NFT_COUNTER (before Linux 5.17)",
        module: "nft_counter",
        family: Family::Inet,
        commands: |table| with_rule(filter(table, Hook::Prerouting), Rule::new().counter()),
    },
    Feature {
        name: "zones of connections",
        purpose: Purpose::Dns,
        option: "CONFIG_NFT_CT, CONFIG_NF_CONNTRACK_ZONES",
        module: "nft_ct",
        family: Family::Inet,
        commands: |table| with_rule(filter(table, Hook::Prerouting), Rule::new().zone(1)),
    },
    Feature {
        name: "sets of addresses",
        purpose: Purpose::Probes,
        option: "CONFIG_NF_TABLES, CONFIG_NFT_HASH (before Linux 4.18)",
        module: "nf_tables_set",
        family: Family::Inet,
        commands: |table| {
            let set = Set { name: "pods".to_owned(), key: vec![SetType::Ipv4], value: vec![] };
            let rule = Rule::new().family(Family::Ip).destination_in(Family::Ip, "pods").accept();
            let mut commands = vec![Command::AddSet(table.clone(), set)];
            commands.extend(with_rule(filter(table, Hook::Output), rule));
            commands
        },
    },
    Feature {
        name: "rewriting of source addresses by socket owner",
        purpose: Purpose::Probes,
        option: "CONFIG_NFT_NAT",
        module: "nft_nat",
        family: Family::Inet,
        commands: |table| {
            let rule = Rule::new().family(Family::Ip).transport(crate::Transport::Tcp).socket_uid(0);
            let rule = rule.snat(mesh::PROBE_ADDRESS_V4.into());
            with_rule(chain(table, ChainKind::Nat, Hook::Postrouting), rule)
        },
    },
    Feature {
        name: "tables for frames of bridges",
        purpose: Purpose::Quarantine,
        option: "CONFIG_NF_TABLES_BRIDGE",
        module: "nf_tables",
        family: Family::Bridge,
        commands: |table| vec![filter(table, Hook::Forward)],
    },
];

impl Feature {
    /// Commands that use the feature and leave nothing. They must be applied together.
    pub fn trial(&self) -> Batch {
        let table = TableName { family: self.family, name: TABLE.to_owned() };
        let mut batch = Batch::default();
        batch.push(Command::AddTable(table.clone()));
        batch.commands.extend((self.commands)(table.clone()));
        batch.push(Command::DeleteTable(table));
        batch
    }
}

fn filter(table: TableName, hook: Hook) -> Command {
    chain(table, ChainKind::Filter, hook)
}

fn chain(table: TableName, kind: ChainKind, hook: Hook) -> Command {
    // Address rewriting does not take every priority (not below -200).
    let at = ChainHook { kind, hook, priority: 0, policy: Policy::Accept };
    Command::AddChain(table, Chain { name: CHAIN.to_owned(), hook: Some(at) })
}

fn with_rule(chain: Command, rule: Rule) -> Vec<Command> {
    match &chain {
        Command::AddChain(table, _) => {
            let rule = Command::AddRule(table.clone(), CHAIN.to_owned(), rule);
            vec![chain, rule]
        }
        _ => vec![chain],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Expr;
    use crate::host::plan_probe_rules;
    use crate::pod::{Capture, Families, plan_capture};
    use crate::quarantine::plan_quarantine;
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    /// What of a batch a kernel may not know: kinds of chains and of expressions, with the keys of those that have some.
    fn used(batch: &Batch) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for command in &batch.commands {
            match command {
                Command::AddChain(table, Chain { hook: Some(at), .. }) => {
                    used.insert(format!("{:?} chain in {}", at.kind, table.family));
                }
                Command::AddRule(_, _, rule) => used.extend(rule.exprs.iter().map(name)),
                Command::AddSet(..) => drop(used.insert("set".to_owned())),
                _ => {}
            }
        }
        used
    }

    fn name(expr: &Expr) -> String {
        match expr {
            Expr::CtLoad(key, _) => format!("ct {key:?}"),
            Expr::CtSet(key, _) => format!("set ct {key:?}"),
            Expr::Nat { kind, .. } => format!("nat {kind:?}"),
            // Every kernel with nf_tables has these, and the others are told by their kind.
            Expr::MetaLoad(..) | Expr::MetaSet(..) => "meta".to_owned(),
            Expr::Compare(..)
            | Expr::Bitwise { .. }
            | Expr::Payload { .. }
            | Expr::Immediate(..)
            | Expr::Verdict(..) => "built in".to_owned(),
            other => format!("{:?}", discriminant(other)),
        }
    }

    #[test]
    fn whatever_the_rules_use_has_a_trial() {
        let mut tried: BTreeSet<String> =
            FEATURES.iter().flat_map(|feature| used(&feature.trial())).collect();
        tried.insert("built in".to_owned());
        let capture = Capture { reroute_interfaces: vec!["tap0".into()], ..Capture::default() };
        for batch in
            [plan_capture(&capture), plan_probe_rules(0, Families::Dual), plan_quarantine(Families::Dual)]
        {
            let untried: Vec<_> = used(&batch).difference(&tried).cloned().collect();
            assert_eq!(untried, Vec::<String>::new());
        }
    }

    #[test]
    fn a_trial_removes_what_it_makes() {
        for feature in FEATURES {
            let commands = feature.trial().commands;
            let (Some(Command::AddTable(made)), Some(Command::DeleteTable(removed))) =
                (commands.first(), commands.last())
            else {
                panic!("{commands:?}")
            };
            assert_eq!(made, removed);
        }
    }
}
