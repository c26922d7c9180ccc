//! Expressions of a rule, at the level of the kernel's nf_tables machine: loads into registers, tests and actions.
//!
//! Their text form follows `nft --debug=netlink`, so that the two can be compared by eye.

use std::fmt;

/// A register. [`Reg::R1`] holds 16 bytes; [`Reg::word`] names its 4-byte quarters and those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(pub(crate) u32);

impl Reg {
    /// The first 16-byte register.
    pub const R1: Reg = Reg(1);
    /// The second 16-byte register.
    pub const R2: Reg = Reg(2);

    /// The `n`th 4-byte register; words 0 to 3 are the quarters of [`Reg::R1`]. Needed for concatenations.
    pub const fn word(n: u32) -> Reg {
        Reg(8 + n)
    }
}

/// Facts about a packet (`meta`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// Protocol of the frame's payload (its EtherType), network byte order.
    EtherType,
    /// Packet mark, host byte order.
    Mark,
    /// Name of the input interface, 16 bytes padded with zeros.
    InputName,
    /// Name of the output interface, 16 bytes padded with zeros.
    OutputName,
    /// User id of the socket that sent the packet, host byte order.
    SocketUid,
    /// Address family of the packet, one byte.
    NetworkProtocol,
    /// Transport protocol, one byte.
    TransportProtocol,
}

impl Meta {
    pub(crate) const fn number(self) -> u32 {
        match self {
            Meta::EtherType => 1,
            Meta::Mark => 3,
            Meta::InputName => 6,
            Meta::OutputName => 7,
            Meta::SocketUid => 10,
            Meta::NetworkProtocol => 15,
            Meta::TransportProtocol => 16,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Meta::EtherType => "protocol",
            Meta::Mark => "mark",
            Meta::InputName => "iifname",
            Meta::OutputName => "oifname",
            Meta::SocketUid => "skuid",
            Meta::NetworkProtocol => "nfproto",
            Meta::TransportProtocol => "l4proto",
        }
    }
}

/// Facts about a connection (`ct`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ct {
    /// State bits, host byte order.
    State,
    /// Connection mark, host byte order.
    Mark,
    /// Zone, two bytes, host byte order.
    Zone,
}

impl Ct {
    pub(crate) const fn number(self) -> u32 {
        match self {
            Ct::State => 0,
            Ct::Mark => 3,
            Ct::Zone => 17,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Ct::State => "state",
            Ct::Mark => "mark",
            Ct::Zone => "zone",
        }
    }
}

/// Where a payload load counts its offset from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Start of the IP header.
    Network,
    /// Start of the transport header.
    Transport,
}

/// Sense of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No further rule of this chain's hook is asked.
    Accept,
    /// Discarded.
    Drop,
    /// Back to the calling chain.
    Return,
    /// Into another chain, and back at its end.
    Jump(String),
    /// Into another chain, not back.
    Goto(String),
}

/// Which address a NAT statement rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatKind {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// Answer of a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// A TCP reset.
    TcpReset,
    /// ICMP or ICMPv6 port unreachable.
    PortUnreachable,
}

/// How [`Expr::Number`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberKind {
    /// One after the other.
    Incremental,
    /// At random.
    Random,
}

/// One expression. Values are bytes as the kernel compares them: network byte order for payload, host byte order for
/// marks, user ids and zones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads a fact about the packet.
    MetaLoad(Meta, Reg),
    /// Sets a fact about the packet.
    MetaSet(Meta, Reg),
    /// Loads a fact about the connection.
    CtLoad(Ct, Reg),
    /// Sets a fact about the connection.
    CtSet(Ct, Reg),
    /// Loads bytes of the packet.
    Payload {
        /// Header to count from.
        base: Base,
        /// Offset in bytes.
        offset: u32,
        /// Length in bytes.
        length: u32,
        /// Destination.
        to: Reg,
    },
    /// `register = (register & mask) ^ xor`.
    Bitwise {
        /// Source and destination.
        register: Reg,
        /// Bits kept.
        mask: Vec<u8>,
        /// Bits flipped afterwards.
        xor: Vec<u8>,
    },
    /// Goes on only if the comparison holds.
    Compare(Reg, Comparison, Vec<u8>),
    /// Goes on only if the register is in the set (or not).
    Lookup(Reg, Comparison, String),
    /// Looks the register up in a map; goes on only if found.
    MapLookup {
        /// Key.
        key: Reg,
        /// Name of the map.
        map: String,
        /// Register for the value; `None` for a verdict map.
        to: Option<Reg>,
    },
    /// Loads a value.
    Immediate(Reg, Vec<u8>),
    /// Ends the rule with a verdict.
    Verdict(Verdict),
    /// Loads a number in `offset..offset + modulus`, host byte order.
    Number {
        /// Destination.
        to: Reg,
        /// How it counts.
        kind: NumberKind,
        /// How many numbers there are.
        modulus: u32,
        /// The first.
        offset: u32,
    },
    /// Rewrites an address and perhaps a port, taken from registers.
    Nat {
        /// Source or destination.
        kind: NatKind,
        /// Family of the address.
        family: crate::Family,
        /// Register of the address.
        address: Reg,
        /// Register of the port.
        port: Option<Reg>,
    },
    /// Rewrites the destination to this host, port taken from a register.
    Redirect(Reg),
    /// Rewrites the source to the address of the output interface.
    Masquerade,
    /// Counts packets and bytes.
    Counter,
    /// Refuses with an answer.
    Reject(Reject),
    /// Leaves the packet out of connection tracking.
    NoTrack,
}

/// Bytes as 4-byte groups in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reg {}", self.0)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump -> {chain}"),
            Verdict::Goto(chain) => write!(f, "goto -> {chain}"),
        }
    }
}

impl Comparison {
    const fn word(self) -> &'static str {
        match self {
            Comparison::Equal => "eq",
            Comparison::NotEqual => "neq",
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::MetaLoad(key, to) => write!(f, "[ meta load {} => {to} ]", key.word()),
            Expr::MetaSet(key, from) => write!(f, "[ meta set {} with {from} ]", key.word()),
            Expr::CtLoad(key, to) => write!(f, "[ ct load {} => {to} ]", key.word()),
            Expr::CtSet(key, from) => write!(f, "[ ct set {} with {from} ]", key.word()),
            Expr::Payload { base, offset, length, to } => {
                let header = if *base == Base::Network { "network" } else { "transport" };
                write!(f, "[ payload load {length}b @ {header} header + {offset} => {to} ]")
            }
            Expr::Bitwise { register, mask, xor } => {
                write!(f, "[ bitwise {register} = ( {register} & {} ) ^ {} ]", Hex(mask), Hex(xor))
            }
            Expr::Compare(register, how, value) => {
                write!(f, "[ cmp {} {register} {} ]", how.word(), Hex(value))
            }
            Expr::Lookup(register, how, set) => {
                let sense = if *how == Comparison::NotEqual { " 0x1" } else { "" };
                write!(f, "[ lookup {register} set {set}{sense} ]")
            }
            Expr::MapLookup { key, map, to: Some(to) } => write!(f, "[ lookup {key} set {map} d{to} ]"),
            Expr::MapLookup { key, map, to: None } => write!(f, "[ lookup {key} set {map} dreg 0 ]"),
            Expr::Immediate(to, value) => write!(f, "[ immediate {to} {} ]", Hex(value)),
            Expr::Verdict(verdict) => write!(f, "[ immediate reg 0 {verdict} ]"),
            Expr::Number { to, kind, modulus, offset } => {
                let kind = if *kind == NumberKind::Random { "random" } else { "inc" };
                write!(f, "[ numgen {to} = {kind} mod {modulus} offset {offset} ]")
            }
            Expr::Nat { kind, family, address, port } => {
                let kind = if *kind == NatKind::Source { "snat" } else { "dnat" };
                write!(f, "[ nat {kind} {family} addr {address}")?;
                port.map_or(Ok(()), |port| write!(f, " proto {port}"))?;
                f.write_str(" ]")
            }
            Expr::Redirect(port) => write!(f, "[ redir proto {port} ]"),
            Expr::Masquerade => f.write_str("[ masq ]"),
            Expr::Counter => f.write_str("[ counter ]"),
            Expr::Reject(Reject::TcpReset) => f.write_str("[ reject tcp reset ]"),
            Expr::Reject(Reject::PortUnreachable) => f.write_str("[ reject port unreachable ]"),
            Expr::NoTrack => f.write_str("[ notrack ]"),
        }
    }
}
