//! Tables, chains, sets and elements, and the batch of commands that changes them in one transaction.

use crate::expr::Verdict;
use crate::rule::Rule;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Address family of a table or of a NAT statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Frames of a bridge.
    Bridge,
}

impl Family {
    /// The kernel's number (`NFPROTO_*`).
    pub const fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Ip => 2,
            Family::Ip6 => 10,
            Family::Bridge => 7,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Bridge => "bridge",
        })
    }
}

/// A table: its family and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Family.
    pub family: Family,
    /// Name, unique in the family.
    pub name: String,
}

impl TableName {
    /// A table of the family `inet`.
    pub fn inet(name: impl Into<String>) -> Self {
        Self { family: Family::Inet, name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// Point of the packet's way at which a base chain is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// Before a local socket.
    Input,
    /// Between interfaces.
    Forward,
    /// After a local socket.
    Output,
    /// After routing.
    Postrouting,
}

impl Hook {
    pub(crate) const fn number(self) -> u32 {
        match self {
            Hook::Prerouting => 0,
            Hook::Input => 1,
            Hook::Forward => 2,
            Hook::Output => 3,
            Hook::Postrouting => 4,
        }
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
        }
    }
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Accept, drop, mark.
    Filter,
    /// Route again when the mark changed.
    Route,
    /// Rewrite addresses.
    Nat,
}

impl ChainKind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            ChainKind::Filter => "filter",
            ChainKind::Route => "route",
            ChainKind::Nat => "nat",
        }
    }
}

/// What happens to a packet that no rule decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Goes on.
    Accept,
    /// Is discarded.
    Drop,
}

/// Where a base chain is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainHook {
    /// What it may do.
    pub kind: ChainKind,
    /// Where it is asked.
    pub hook: Hook,
    /// Order among the chains of that hook: lower is earlier.
    pub priority: i32,
    /// For packets that no rule decided.
    pub policy: Policy,
}

/// A chain; without a hook it is only jumped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Name in its table.
    pub name: String,
    /// Where it is attached.
    pub hook: Option<ChainHook>,
}

/// Type of a set's key or a map's value, possibly one part of a concatenation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetType {
    /// IPv4 address.
    Ipv4,
    /// IPv6 address.
    Ipv6,
    /// Transport protocol, one byte.
    Protocol,
    /// Port, network byte order.
    Port,
    /// Mark, host byte order.
    Mark,
    /// A verdict (map values only, not in a concatenation).
    Verdict,
}

impl SetType {
    /// nft's number of the type (informational to the kernel, needed by `nft list`).
    pub(crate) const fn number(self) -> u32 {
        match self {
            SetType::Ipv4 => 7,
            SetType::Ipv6 => 8,
            SetType::Protocol => 12,
            SetType::Port => 13,
            SetType::Mark => 19,
            SetType::Verdict => 0xffff_ff00,
        }
    }

    /// Length in bytes.
    pub(crate) const fn length(self) -> u32 {
        match self {
            SetType::Ipv4 | SetType::Mark => 4,
            SetType::Ipv6 | SetType::Verdict => 16,
            SetType::Protocol => 1,
            SetType::Port => 2,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            SetType::Ipv4 => "ipv4_addr",
            SetType::Ipv6 => "ipv6_addr",
            SetType::Protocol => "inet_proto",
            SetType::Port => "inet_service",
            SetType::Mark => "mark",
            SetType::Verdict => "verdict",
        }
    }
}

/// A named set, or a map when `value` is not empty. Several types are a concatenation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Name in its table.
    pub name: String,
    /// Parts of the key.
    pub key: Vec<SetType>,
    /// Parts of the value; empty for a plain set.
    pub value: Vec<SetType>,
}

/// One part of a key or value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Datum {
    /// IPv4 address.
    Ipv4(Ipv4Addr),
    /// IPv6 address.
    Ipv6(Ipv6Addr),
    /// Transport protocol number.
    Protocol(u8),
    /// Port.
    Port(u16),
    /// Mark.
    Mark(u32),
}

impl Datum {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Datum::Ipv4(address) => address.octets().to_vec(),
            Datum::Ipv6(address) => address.octets().to_vec(),
            Datum::Protocol(number) => vec![*number],
            Datum::Port(port) => port.to_be_bytes().to_vec(),
            Datum::Mark(mark) => mark.to_ne_bytes().to_vec(),
        }
    }
}

impl From<std::net::IpAddr> for Datum {
    fn from(address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(address) => Datum::Ipv4(address),
            std::net::IpAddr::V6(address) => Datum::Ipv6(address),
        }
    }
}

impl fmt::Display for Datum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Datum::Ipv4(address) => address.fmt(f),
            Datum::Ipv6(address) => address.fmt(f),
            Datum::Protocol(number) => number.fmt(f),
            Datum::Port(port) => port.fmt(f),
            Datum::Mark(mark) => write!(f, "{mark:#x}"),
        }
    }
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Element {
    /// Parts of the key.
    pub key: Vec<Datum>,
    /// Parts of the value of a map.
    pub value: Vec<Datum>,
    /// Value of a verdict map.
    pub verdict: Option<Verdict>,
    /// Shown by `nft list`; cut at 127 bytes.
    pub comment: Option<String>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Makes a table if it is not there.
    AddTable(TableName),
    /// Removes a table with all in it; an error if it is not there.
    DeleteTable(TableName),
    /// Removes all rules of a table; chains and sets stay.
    FlushTable(TableName),
    /// Makes a chain if it is not there.
    AddChain(TableName, Chain),
    /// Removes all rules of a chain.
    FlushChain(TableName, String),
    /// Removes a chain that nothing jumps to.
    DeleteChain(TableName, String),
    /// Appends a rule to a chain.
    AddRule(TableName, String, Rule),
    /// Makes a set or map if it is not there.
    AddSet(TableName, Set),
    /// Removes all elements of a set.
    FlushSet(TableName, String),
    /// Removes a set that no rule uses.
    DeleteSet(TableName, String),
    /// Adds elements.
    AddElements(TableName, String, Vec<Element>),
    /// Removes elements by key; an error if one is not there.
    DeleteElements(TableName, String, Vec<Element>),
}

/// Commands that take effect together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// In order.
    pub commands: Vec<Command>,
}

impl Batch {
    /// Appends a command.
    pub fn push(&mut self, command: Command) -> &mut Self {
        self.commands.push(command);
        self
    }

    /// Whether something is removed: closing a netlink socket that did so is slow (the kernel waits out its readers).
    pub fn deletes(&self) -> bool {
        self.commands.iter().any(|command| {
            !matches!(
                command,
                Command::AddTable(_)
                    | Command::AddChain(..)
                    | Command::AddRule(..)
                    | Command::AddSet(..)
                    | Command::AddElements(..)
            )
        })
    }
}

fn types(parts: &[SetType]) -> String {
    parts.iter().map(|part| part.word()).collect::<Vec<_>>().join(" . ")
}

fn data(parts: &[Datum]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . ")
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data(&self.key))?;
        if let Some(comment) = &self.comment {
            write!(f, " comment {comment:?}")?;
        }
        match &self.verdict {
            Some(verdict) => write!(f, " : {verdict}"),
            None if self.value.is_empty() => Ok(()),
            None => write!(f, " : {}", data(&self.value)),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::AddTable(table) => write!(f, "add table {table}"),
            Command::DeleteTable(table) => write!(f, "delete table {table}"),
            Command::FlushTable(table) => write!(f, "flush table {table}"),
            Command::AddChain(table, Chain { name, hook: None }) => write!(f, "add chain {table} {name}"),
            Command::AddChain(table, Chain { name, hook: Some(at) }) => write!(
                f,
                "add chain {table} {name} {{ type {} hook {} priority {}; policy {}; }}",
                at.kind.word(),
                at.hook.word(),
                at.priority,
                if at.policy == Policy::Accept { "accept" } else { "drop" },
            ),
            Command::FlushChain(table, chain) => write!(f, "flush chain {table} {chain}"),
            Command::DeleteChain(table, chain) => write!(f, "delete chain {table} {chain}"),
            Command::AddRule(table, chain, rule) => write!(f, "add rule {table} {chain}{rule}"),
            Command::AddSet(table, Set { name, key, value }) if value.is_empty() => {
                write!(f, "add set {table} {name} {{ type {}; }}", types(key))
            }
            Command::AddSet(table, Set { name, key, value }) => {
                write!(f, "add map {table} {name} {{ type {} : {}; }}", types(key), types(value))
            }
            Command::FlushSet(table, set) => write!(f, "flush set {table} {set}"),
            Command::DeleteSet(table, set) => write!(f, "delete set {table} {set}"),
            Command::AddElements(table, set, elements) => {
                write!(f, "add element {table} {set} {{ {} }}", list(elements))
            }
            Command::DeleteElements(table, set, elements) => {
                write!(f, "delete element {table} {set} {{ {} }}", list(elements))
            }
        }
    }
}

/// Elements in a command's text: the first few, as errors quote it.
fn list(elements: &[Element]) -> String {
    const SHOWN: usize = 8;
    let mut shown: Vec<String> = elements.iter().take(SHOWN).map(ToString::to_string).collect();
    if elements.len() > SHOWN {
        shown.push(format!("… {} in all", elements.len()));
    }
    shown.join(", ")
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.commands.iter().try_for_each(|command| writeln!(f, "{command}"))
    }
}
