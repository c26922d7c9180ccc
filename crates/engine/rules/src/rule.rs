//! A rule, built from the words that `nft` uses.

use crate::batch::Family;
use crate::expr::{Base, Comparison, Ct, Expr, Meta, NatKind, Reg, Verdict};
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// IANA's number.
    pub const fn number(self) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        }
    }
}

/// Sense of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// It must hold.
    Is,
    /// It must not hold.
    Not,
}

impl From<Match> for Comparison {
    fn from(sense: Match) -> Self {
        match sense {
            Match::Is => Comparison::Equal,
            Match::Not => Comparison::NotEqual,
        }
    }
}

/// Longest interface name with its terminating zero (`IFNAMSIZ`).
const INTERFACE_NAME_BYTES: usize = 16;

/// Expressions evaluated in order until one of them stops the rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// In order.
    pub exprs: Vec<Expr>,
    /// Shown by `nft list`; cut at 127 bytes.
    pub comment: Option<String>,
}

impl Rule {
    /// A rule without any test.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an expression.
    #[must_use]
    pub fn with(mut self, expr: Expr) -> Self {
        self.exprs.push(expr);
        self
    }

    /// Names the rule's purpose.
    #[must_use]
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }

    fn meta(self, key: Meta, sense: Match, value: Vec<u8>) -> Self {
        self.with(Expr::MetaLoad(key, Reg::R1)).with(Expr::Compare(Reg::R1, sense.into(), value))
    }

    fn payload(self, base: Base, offset: u32, length: u32) -> Self {
        self.with(Expr::Payload { base, offset, length, to: Reg::R1 })
    }

    /// Only packets of this family ([`Family::Ip`] or [`Family::Ip6`]); no test for the others.
    #[must_use]
    pub fn family(self, family: Family) -> Self {
        match family {
            Family::Ip | Family::Ip6 => self.meta(Meta::NetworkProtocol, Match::Is, vec![family.number()]),
            Family::Inet | Family::Bridge => self,
        }
    }

    /// Only this transport protocol.
    #[must_use]
    pub fn transport(self, transport: Transport) -> Self {
        self.meta(Meta::TransportProtocol, Match::Is, vec![transport.number()])
    }

    /// Tests the source address. The family must have been tested before.
    #[must_use]
    pub fn source(self, sense: Match, net: IpNet) -> Self {
        let offset = if net.addr().is_ipv4() { 12 } else { 8 };
        self.address(offset, sense, net)
    }

    /// Tests the destination address. The family must have been tested before.
    #[must_use]
    pub fn destination(self, sense: Match, net: IpNet) -> Self {
        let offset = if net.addr().is_ipv4() { 16 } else { 24 };
        self.address(offset, sense, net)
    }

    fn address(self, offset: u32, sense: Match, net: IpNet) -> Self {
        let (value, mask) = match net.trunc() {
            IpNet::V4(net) => (net.addr().octets().to_vec(), net.netmask().octets().to_vec()),
            IpNet::V6(net) => (net.addr().octets().to_vec(), net.netmask().octets().to_vec()),
        };
        let length = if net.addr().is_ipv4() { 4 } else { 16 };
        let loaded = self.payload(Base::Network, offset, length);
        let masked = if net.prefix_len() == net.max_prefix_len() {
            loaded
        } else {
            let xor = vec![0; mask.len()];
            loaded.with(Expr::Bitwise { register: Reg::R1, mask, xor })
        };
        masked.with(Expr::Compare(Reg::R1, sense.into(), value))
    }

    /// Tests that the destination is in a set of addresses. The family must have been tested before.
    #[must_use]
    pub fn destination_in(self, family: Family, set: impl Into<String>) -> Self {
        let (offset, length) = if family == Family::Ip6 { (24, 16) } else { (16, 4) };
        self.payload(Base::Network, offset, length).with(Expr::Lookup(Reg::R1, Comparison::Equal, set.into()))
    }

    /// Tests the source port. The transport must have been tested before.
    #[must_use]
    pub fn source_port(self, sense: Match, port: u16) -> Self {
        self.payload(Base::Transport, 0, 2).with(Expr::Compare(
            Reg::R1,
            sense.into(),
            port.to_be_bytes().to_vec(),
        ))
    }

    /// Tests the destination port. The transport must have been tested before.
    #[must_use]
    pub fn destination_port(self, sense: Match, port: u16) -> Self {
        self.payload(Base::Transport, 2, 2).with(Expr::Compare(
            Reg::R1,
            sense.into(),
            port.to_be_bytes().to_vec(),
        ))
    }

    /// Tests the packet mark's bits under `mask`.
    #[must_use]
    pub fn mark(self, sense: Match, value: u32, mask: u32) -> Self {
        self.with(Expr::MetaLoad(Meta::Mark, Reg::R1)).masked(sense, value, mask)
    }

    /// Tests the connection mark's bits under `mask`.
    #[must_use]
    pub fn connection_mark(self, sense: Match, value: u32, mask: u32) -> Self {
        self.with(Expr::CtLoad(Ct::Mark, Reg::R1)).masked(sense, value, mask)
    }

    fn masked(self, sense: Match, value: u32, mask: u32) -> Self {
        self.with(Expr::Bitwise {
            register: Reg::R1,
            mask: mask.to_ne_bytes().to_vec(),
            xor: 0u32.to_ne_bytes().to_vec(),
        })
        .with(Expr::Compare(Reg::R1, sense.into(), value.to_ne_bytes().to_vec()))
    }

    /// Tests the input interface's name.
    #[must_use]
    pub fn input(self, sense: Match, name: &str) -> Self {
        self.meta(Meta::InputName, sense, interface(name))
    }

    /// Tests the output interface's name.
    #[must_use]
    pub fn output(self, sense: Match, name: &str) -> Self {
        self.meta(Meta::OutputName, sense, interface(name))
    }

    /// Tests the user id of the sending socket.
    #[must_use]
    pub fn socket_uid(self, uid: u32) -> Self {
        self.meta(Meta::SocketUid, Match::Is, uid.to_ne_bytes().to_vec())
    }

    /// Counts what came this far.
    #[must_use]
    pub fn counter(self) -> Self {
        self.with(Expr::Counter)
    }

    /// Sets the connection mark's bits under `mask` to `value`, leaving the others.
    #[must_use]
    pub fn set_connection_mark(self, value: u32, mask: u32) -> Self {
        self.with(Expr::CtLoad(Ct::Mark, Reg::R1))
            .with(Expr::Bitwise {
                register: Reg::R1,
                mask: (!mask & !value).to_ne_bytes().to_vec(),
                xor: value.to_ne_bytes().to_vec(),
            })
            .with(Expr::CtSet(Ct::Mark, Reg::R1))
    }

    /// Copies the whole connection mark to the packet.
    #[must_use]
    pub fn restore_mark(self) -> Self {
        self.with(Expr::CtLoad(Ct::Mark, Reg::R1)).with(Expr::MetaSet(Meta::Mark, Reg::R1))
    }

    /// Tracks the packet in a zone of its own.
    #[must_use]
    pub fn zone(self, zone: u16) -> Self {
        self.with(Expr::Immediate(Reg::R1, zone.to_ne_bytes().to_vec())).with(Expr::CtSet(Ct::Zone, Reg::R1))
    }

    /// Ends with a verdict.
    #[must_use]
    pub fn verdict(self, verdict: Verdict) -> Self {
        self.with(Expr::Verdict(verdict))
    }

    /// Ends with acceptance.
    #[must_use]
    pub fn accept(self) -> Self {
        self.verdict(Verdict::Accept)
    }

    /// Rewrites the destination to this host's `port`.
    #[must_use]
    pub fn redirect(self, port: u16) -> Self {
        self.with(Expr::Immediate(Reg::R1, port.to_be_bytes().to_vec())).with(Expr::Redirect(Reg::R1))
    }

    /// Rewrites the source address.
    #[must_use]
    pub fn snat(self, address: IpAddr) -> Self {
        let (family, bytes) = match address {
            IpAddr::V4(address) => (Family::Ip, address.octets().to_vec()),
            IpAddr::V6(address) => (Family::Ip6, address.octets().to_vec()),
        };
        self.with(Expr::Immediate(Reg::R1, bytes)).with(Expr::Nat {
            kind: NatKind::Source,
            family,
            address: Reg::R1,
            port: None,
        })
    }
}

/// An interface name as the kernel compares it. Names that are too long cannot exist and match nothing.
fn interface(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(INTERFACE_NAME_BYTES, 0);
    bytes
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exprs.iter().try_for_each(|expr| write!(f, " {expr}"))?;
        self.comment.as_ref().map_or(Ok(()), |comment| write!(f, " comment {comment:?}"))
    }
}
