//! Packet rules of a pod and of the host as data, and their rendering to netlink messages.
//! It never applies them.

pub mod batch;
pub mod expr;
pub mod feature;
pub mod host;
pub mod netlink;
pub mod pod;
pub mod quarantine;
pub mod rule;
pub mod service;

pub use batch::{
    Batch, Chain, ChainHook, ChainKind, Command, Datum, Element, Family, Hook, Policy, Set, SetType,
    TableName,
};
pub use netlink::{Encoded, Error};
pub use rule::{Match, Rule, Transport};
