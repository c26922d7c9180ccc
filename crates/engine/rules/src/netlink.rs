//! Rendering of a batch to nf_tables netlink messages.
//!
//! Numbers follow `linux/netfilter/nf_tables.h` and `linux/netfilter/nfnetlink.h`.

use crate::batch::{Batch, Chain, Command, Datum, Element, Policy, Set, SetType, TableName};
use crate::expr::{Base, Comparison, Expr, NatKind, NumberKind, Reg, Reject, Verdict};
use crate::rule::Rule;

/// Why a batch cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The kernel takes names of 1 to 255 bytes without a zero byte.
    #[error("{command}: {name:?} cannot be a name: it needs 1 to 255 bytes, none of them zero")]
    Name {
        /// The command.
        command: String,
        /// The name.
        name: String,
    },
    /// An attribute's length has 16 bits.
    #[error("{command}: too large for one netlink attribute (65,535 bytes)")]
    TooLarge {
        /// The command.
        command: String,
    },
}

/// A rendered batch: one packet for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// All messages, the batch's begin and end included.
    pub bytes: Vec<u8>,
    /// Sequence number of the begin message. The `n`th message after it has `first_sequence + 1 + n`.
    pub first_sequence: u32,
    /// What the messages between begin and end are about, in order.
    pub objects: Vec<String>,
}

impl Encoded {
    /// Sequence number of the last message before the end: the only one that asks for an acknowledgement, so that a
    /// large batch cannot overflow the receive buffer. Errors are reported for every message.
    pub fn last_sequence(&self) -> u32 {
        self.first_sequence.wrapping_add(u32::try_from(self.objects.len()).unwrap_or(u32::MAX))
    }

    /// What the message with this sequence number is about.
    pub fn object(&self, sequence: u32) -> Option<&str> {
        let index = sequence.wrapping_sub(self.first_sequence).checked_sub(1)?;
        self.objects.get(usize::try_from(index).ok()?).map(String::as_str)
    }
}

/// Netlink flags (`linux/netlink.h`).
mod flag {
    pub(super) const REQUEST: u16 = 0x1;
    pub(super) const ACK: u16 = 0x4;
    pub(super) const CREATE: u16 = 0x400;
    pub(super) const APPEND: u16 = 0x800;
}

/// Message types.
mod message {
    pub(super) const BATCH_BEGIN: u16 = 0x10;
    pub(super) const BATCH_END: u16 = 0x11;
    /// `NFNL_SUBSYS_NFTABLES`, in the upper byte of every nf_tables message type.
    pub(super) const SUBSYSTEM: u16 = 10;
    pub(super) const NEW_TABLE: u16 = 0;
    pub(super) const DEL_TABLE: u16 = 2;
    pub(super) const NEW_CHAIN: u16 = 3;
    pub(super) const DEL_CHAIN: u16 = 5;
    pub(super) const NEW_RULE: u16 = 6;
    pub(super) const DEL_RULE: u16 = 8;
    pub(super) const NEW_SET: u16 = 9;
    pub(super) const DEL_SET: u16 = 11;
    pub(super) const NEW_ELEMENT: u16 = 12;
    pub(super) const DEL_ELEMENT: u16 = 14;
}

/// Bytes of a netlink header and the nfnetlink header after it.
const HEADER_BYTES: usize = 20;
/// Longest name of a table, chain or set.
const NAME_BYTES_MAX: usize = 255;
/// Longest comment without its terminating zero (`NFTNL_UDATA_COMMENT_MAXLEN`).
const COMMENT_BYTES_MAX: usize = 127;
/// Elements per message: with comments they stay below the 65,535 bytes of one attribute.
const ELEMENTS_PER_MESSAGE: usize = 200;
/// Marks an attribute that holds attributes.
const NESTED: u16 = 0x8000;

/// Writes messages and their attributes.
struct Writer {
    bytes: Vec<u8>,
    too_large: bool,
}

impl Writer {
    fn message(&mut self, kind: u16, flags: u16, family: u8, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.resize(start + HEADER_BYTES, 0);
        self.bytes[start + 4..start + 6].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[start + 6..start + 8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[start + 16] = family;
        // The batch's begin and end name the subsystem here; the kernel ignores it elsewhere.
        if kind >> 8 == 0 {
            self.bytes[start + 18..start + 20].copy_from_slice(&message::SUBSYSTEM.to_be_bytes());
        }
        body(self);
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        write(self);
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.too_large = true,
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn nested(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        self.attribute(kind | NESTED, write);
    }

    fn raw(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |w| w.bytes.extend_from_slice(value));
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.raw(kind, &value.to_be_bytes());
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, |w| {
            w.bytes.extend_from_slice(value.as_bytes());
            w.bytes.push(0);
        });
    }

    /// A value (`NFTA_DATA_VALUE`).
    fn value(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |w| w.raw(1, value));
    }

    /// A verdict (`NFTA_DATA_VERDICT`).
    fn verdict(&mut self, kind: u16, verdict: &Verdict) {
        // Codes: linux/netfilter.h for drop and accept, `enum nft_verdicts` for the rest.
        let (code, chain): (i32, Option<&str>) = match verdict {
            Verdict::Drop => (0, None),
            Verdict::Accept => (1, None),
            Verdict::Jump(chain) => (-3, Some(chain)),
            Verdict::Goto(chain) => (-4, Some(chain)),
            Verdict::Return => (-5, None),
        };
        self.nested(kind, |w| {
            w.nested(2, |w| {
                w.raw(1, &code.to_be_bytes());
                if let Some(chain) = chain {
                    w.text(2, chain);
                }
            });
        });
    }

    /// A comment in nft's own layout of the user data: type 0, length, text with its zero.
    fn comment(&mut self, kind: u16, comment: &str) {
        let mut end = comment.len().min(COMMENT_BYTES_MAX);
        while !comment.is_char_boundary(end) {
            end -= 1;
        }
        let text: Vec<u8> = comment.bytes().take(end).filter(|byte| *byte != 0).collect();
        let length = u8::try_from(text.len() + 1).expect("the longest comment has 127 bytes");
        self.attribute(kind, |w| {
            w.bytes.extend_from_slice(&[0, length]);
            w.bytes.extend_from_slice(&text);
            w.bytes.push(0);
        });
    }
}

impl Batch {
    /// Renders the batch. `sequence` numbers the begin message; the following ones count on.
    ///
    /// # Errors
    /// A name the kernel cannot take, or a rule too large for one attribute.
    pub fn encode(&self, sequence: u32) -> Result<Encoded, Error> {
        let mut writer = Writer { bytes: Vec::new(), too_large: false };
        let mut objects = Vec::new();
        writer.message(message::BATCH_BEGIN, flag::REQUEST, 0, |_| ());
        let mut last = 0;
        for (index, command) in self.commands.iter().enumerate() {
            check_names(command)?;
            last = write_command(&mut writer, command, index, &mut objects);
            if writer.too_large {
                return Err(Error::TooLarge { command: command.to_string() });
            }
        }
        if !objects.is_empty() {
            let flags = u16::from_ne_bytes([writer.bytes[last + 6], writer.bytes[last + 7]]) | flag::ACK;
            writer.bytes[last + 6..last + 8].copy_from_slice(&flags.to_ne_bytes());
        }
        writer.message(message::BATCH_END, flag::REQUEST, 0, |_| ());
        let mut bytes = writer.bytes;
        number_messages(&mut bytes, sequence);
        Ok(Encoded { bytes, first_sequence: sequence, objects })
    }
}

/// Fills in the sequence numbers.
fn number_messages(bytes: &mut [u8], first: u32) {
    let (mut at, mut sequence) = (0, first);
    while let Some(header) = bytes.get_mut(at..at + HEADER_BYTES) {
        header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        sequence = sequence.wrapping_add(1);
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        at += usize::try_from(length).expect("a message's length fits the address space");
    }
}

fn check_names(command: &Command) -> Result<(), Error> {
    let (table, name) = match command {
        Command::AddTable(table) | Command::DeleteTable(table) | Command::FlushTable(table) => (table, None),
        Command::AddChain(table, chain) => (table, Some(&chain.name)),
        Command::AddSet(table, set) => (table, Some(&set.name)),
        Command::FlushChain(table, name)
        | Command::DeleteChain(table, name)
        | Command::AddRule(table, name, _)
        | Command::FlushSet(table, name)
        | Command::DeleteSet(table, name)
        | Command::AddElements(table, name, _)
        | Command::DeleteElements(table, name, _) => (table, Some(name)),
    };
    for name in std::iter::once(&table.name).chain(name) {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(Error::Name { command: command.to_string(), name: name.clone() });
        }
    }
    Ok(())
}

/// Writes a command's messages and what each is about; returns where the last one starts.
fn write_command(w: &mut Writer, command: &Command, index: usize, objects: &mut Vec<String>) -> usize {
    let start = w.bytes.len();
    let family = |table: &TableName| table.family.number();
    let named = |w: &mut Writer, kind: u16, table: &TableName, name: Option<(u16, &str)>| {
        w.message(message::SUBSYSTEM << 8 | kind, flag::REQUEST, family(table), |w| {
            w.text(1, &table.name);
            if let Some((attribute, name)) = name {
                w.text(attribute, name);
            }
        });
    };
    match command {
        Command::AddTable(table) => {
            w.message(
                message::SUBSYSTEM << 8 | message::NEW_TABLE,
                flag::REQUEST | flag::CREATE,
                family(table),
                |w| {
                    w.text(1, &table.name);
                    w.number(2, 0);
                },
            );
        }
        Command::DeleteTable(table) => named(w, message::DEL_TABLE, table, None),
        Command::FlushTable(table) => named(w, message::DEL_RULE, table, None),
        Command::AddChain(table, chain) => write_chain(w, table, chain),
        Command::FlushChain(table, chain) => named(w, message::DEL_RULE, table, Some((2, chain))),
        Command::DeleteChain(table, chain) => named(w, message::DEL_CHAIN, table, Some((3, chain))),
        Command::AddRule(table, chain, rule) => write_rule(w, table, chain, rule),
        Command::AddSet(table, set) => write_set(w, table, set, index),
        Command::FlushSet(table, set) => named(w, message::DEL_ELEMENT, table, Some((2, set))),
        Command::DeleteSet(table, set) => named(w, message::DEL_SET, table, Some((2, set))),
        Command::AddElements(table, set, elements) => {
            return write_elements(w, message::NEW_ELEMENT, (table, set, elements), objects);
        }
        Command::DeleteElements(table, set, elements) => {
            return write_elements(w, message::DEL_ELEMENT, (table, set, elements), objects);
        }
    }
    objects.push(command.to_string());
    start
}

fn write_chain(w: &mut Writer, table: &TableName, chain: &Chain) {
    let kind = message::SUBSYSTEM << 8 | message::NEW_CHAIN;
    w.message(kind, flag::REQUEST | flag::CREATE, table.family.number(), |w| {
        w.text(1, &table.name);
        w.text(3, &chain.name);
        if let Some(at) = &chain.hook {
            w.nested(4, |w| {
                w.number(1, at.hook.number());
                w.raw(2, &at.priority.to_be_bytes());
            });
            w.number(5, u32::from(at.policy == Policy::Accept));
            w.text(7, at.kind.word());
        }
    });
}

fn write_rule(w: &mut Writer, table: &TableName, chain: &str, rule: &Rule) {
    let kind = message::SUBSYSTEM << 8 | message::NEW_RULE;
    w.message(kind, flag::REQUEST | flag::CREATE | flag::APPEND, table.family.number(), |w| {
        w.text(1, &table.name);
        w.text(2, chain);
        w.nested(4, |w| rule.exprs.iter().for_each(|expr| write_expr(w, expr)));
        if let Some(comment) = &rule.comment {
            w.comment(7, comment);
        }
    });
}

/// nft's number of a concatenated type: six bits for each part.
fn concatenation(parts: &[SetType]) -> (u32, u32) {
    match parts {
        [only] => (only.number(), only.length()),
        parts => parts.iter().fold((0, 0), |(number, length), part| {
            (number << 6 | part.number(), length + part.length().next_multiple_of(4))
        }),
    }
}

fn write_set(w: &mut Writer, table: &TableName, set: &Set, index: usize) {
    const MAP: u32 = 0x8;
    let kind = message::SUBSYSTEM << 8 | message::NEW_SET;
    w.message(kind, flag::REQUEST | flag::CREATE, table.family.number(), |w| {
        w.text(1, &table.name);
        w.text(2, &set.name);
        w.number(3, if set.value.is_empty() { 0 } else { MAP });
        let (number, length) = concatenation(&set.key);
        w.number(4, number);
        w.number(5, length);
        if !set.value.is_empty() {
            let (number, length) = concatenation(&set.value);
            w.number(6, number);
            w.number(7, length);
        }
        // The kernel wants an id that is unique in the batch.
        w.number(10, u32::try_from(index).unwrap_or(u32::MAX).wrapping_add(1));
    });
}

/// Parts of a key or value, each padded to four bytes when there are several.
fn concatenated(parts: &[Datum]) -> Vec<u8> {
    match parts {
        [only] => only.bytes(),
        parts => parts
            .iter()
            .flat_map(|part| {
                let mut bytes = part.bytes();
                bytes.resize(bytes.len().next_multiple_of(4), 0);
                bytes
            })
            .collect(),
    }
}

fn write_elements(
    w: &mut Writer,
    kind: u16,
    (table, set, elements): (&TableName, &str, &[Element]),
    objects: &mut Vec<String>,
) -> usize {
    let (flags, verb) = match kind {
        message::NEW_ELEMENT => (flag::REQUEST | flag::CREATE, "add"),
        _ => (flag::REQUEST, "delete"),
    };
    let mut start = w.bytes.len();
    // No message at all for no elements: an empty deletion would flush the set.
    for part in elements.chunks(ELEMENTS_PER_MESSAGE) {
        start = w.bytes.len();
        w.message(message::SUBSYSTEM << 8 | kind, flags, table.family.number(), |w| {
            w.text(1, &table.name);
            w.text(2, set);
            w.nested(3, |w| part.iter().for_each(|element| write_element(w, kind, element)));
        });
        objects.push(match part {
            [only] => format!("{verb} element {table} {set} {{ {only} }}"),
            [first, ..] => format!("{verb} {} elements {table} {set} {{ {first}, … }}", part.len()),
            [] => String::new(),
        });
    }
    start
}

fn write_element(w: &mut Writer, kind: u16, element: &Element) {
    w.nested(1, |w| {
        w.value(1, &concatenated(&element.key));
        if kind != message::NEW_ELEMENT {
            return;
        }
        match &element.verdict {
            Some(verdict) => w.verdict(2, verdict),
            None if element.value.is_empty() => {}
            None => w.value(2, &concatenated(&element.value)),
        }
        if let Some(comment) = &element.comment {
            w.comment(6, comment);
        }
    });
}

/// One expression: its name and its attributes.
fn write_expr(w: &mut Writer, expr: &Expr) {
    let name = expr_name(expr);
    w.nested(1, |w| {
        w.text(1, name);
        w.nested(2, |w| write_expr_data(w, expr));
    });
}

const fn expr_name(expr: &Expr) -> &'static str {
    match expr {
        Expr::MetaLoad(..) | Expr::MetaSet(..) => "meta",
        Expr::CtLoad(..) | Expr::CtSet(..) => "ct",
        Expr::Payload { .. } => "payload",
        Expr::Bitwise { .. } => "bitwise",
        Expr::Compare(..) => "cmp",
        Expr::Lookup(..) | Expr::MapLookup { .. } => "lookup",
        Expr::Immediate(..) | Expr::Verdict(_) => "immediate",
        Expr::Number { .. } => "numgen",
        Expr::Nat { .. } => "nat",
        Expr::Redirect(_) => "redir",
        Expr::Masquerade => "masq",
        Expr::Counter => "counter",
        Expr::Reject(_) => "reject",
        Expr::NoTrack => "notrack",
    }
}

fn write_expr_data(w: &mut Writer, expr: &Expr) {
    match expr {
        Expr::MetaLoad(key, Reg(to)) => pairs(w, &[(1, *to), (2, key.number())]),
        Expr::MetaSet(key, Reg(from)) => pairs(w, &[(2, key.number()), (3, *from)]),
        Expr::CtLoad(key, Reg(to)) => pairs(w, &[(1, *to), (2, key.number())]),
        Expr::CtSet(key, Reg(from)) => pairs(w, &[(2, key.number()), (4, *from)]),
        Expr::Payload { base, offset, length, to } => {
            let base = if *base == Base::Network { 1 } else { 2 };
            pairs(w, &[(1, to.0), (2, base), (3, *offset), (4, *length)]);
        }
        Expr::Bitwise { register, mask, xor } => {
            let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
            pairs(w, &[(1, register.0), (2, register.0), (3, length)]);
            w.value(4, mask);
            w.value(5, xor);
        }
        Expr::Compare(Reg(register), how, value) => {
            pairs(w, &[(1, *register), (2, u32::from(*how == Comparison::NotEqual))]);
            w.value(3, value);
        }
        Expr::Lookup(Reg(register), how, set) => {
            w.text(1, set);
            pairs(w, &[(2, *register), (5, u32::from(*how == Comparison::NotEqual))]);
        }
        Expr::MapLookup { key, map, to } => {
            w.text(1, map);
            pairs(w, &[(2, key.0), (3, to.map_or(0, |to| to.0))]);
        }
        Expr::Immediate(Reg(to), value) => {
            w.number(1, *to);
            w.value(2, value);
        }
        Expr::Verdict(verdict) => {
            w.number(1, 0);
            w.verdict(2, verdict);
        }
        Expr::Number { to, kind, modulus, offset } => {
            let kind = u32::from(*kind == NumberKind::Random);
            pairs(w, &[(1, to.0), (2, *modulus), (3, kind), (4, *offset)]);
        }
        Expr::Nat { kind, family, address, port } => {
            let kind = u32::from(*kind == NatKind::Destination);
            pairs(w, &[(1, kind), (2, u32::from(family.number())), (3, address.0)]);
            if let Some(Reg(port)) = port {
                w.number(5, *port);
            }
        }
        Expr::Redirect(Reg(port)) => w.number(1, *port),
        Expr::Reject(Reject::TcpReset) => w.number(1, 1),
        Expr::Reject(Reject::PortUnreachable) => {
            w.number(1, 2);
            w.raw(2, &[1]);
        }
        Expr::Counter => {
            // Bytes and packets, both from zero.
            w.raw(1, &0u64.to_be_bytes());
            w.raw(2, &0u64.to_be_bytes());
        }
        Expr::Masquerade | Expr::NoTrack => {}
    }
}

fn pairs(w: &mut Writer, attributes: &[(u16, u32)]) {
    attributes.iter().for_each(|(kind, value)| w.number(*kind, *value));
}

#[cfg(test)]
mod tests;
