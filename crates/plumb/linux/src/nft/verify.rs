//! Comparison of what the kernel holds with the batch that should have made it.
//!
//! The messages of the batch are compared with those of the kernel's dump, attribute by attribute: what a batch sets must be
//! there with the same value. The kernel may tell more, such as handles and defaults.

use super::{Messages, NEW_RULE, NEW_TABLE, NFTABLES, dump, string_attribute};
use crate::Error;
use ambit_rules::Batch;
use std::collections::BTreeMap;

const GET_CHAIN: u16 = NFTABLES | 4;
const NEW_CHAIN: u16 = NFTABLES | 3;
const GET_RULE: u16 = NFTABLES | 7;
/// Attributes of chains and rules (`linux/netfilter/nf_tables.h`).
const TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// Bits of an attribute's type that are no part of the type.
const TYPE_MASK: u16 = 0x3fff;
/// Marks an attribute that holds attributes.
const NESTED: u16 = 0x8000;
/// An expression whose values change by themselves.
const COUNTER: &str = "counter";

/// A chain: the attributes of its message, and those of its rules, in order.
#[derive(Debug, Default)]
struct Chain {
    attributes: Vec<u8>,
    rules: Vec<Vec<u8>>,
}

/// Chains by address family, table and name.
type Chains = BTreeMap<(u8, String, String), Chain>;

/// Checks that the tables that a batch makes hold its chains with their hooks, and its rules in their order, and no
/// others. Elements of sets come and go and are not looked at.
///
/// # Errors
/// The first difference, named; or the kernel has no nf_tables, or the caller may not use it.
pub fn verify(batch: &Batch) -> Result<(), Error> {
    let encoded = batch.encode(super::FIRST_SEQUENCE)?;
    let mut wanted = Chains::new();
    for (kind, _, body) in Messages(&encoded.bytes) {
        take(&mut wanted, kind, body);
    }
    let tables: Vec<(u8, String)> = Messages(&encoded.bytes)
        .filter(|(kind, ..)| *kind == NEW_TABLE)
        .filter_map(|(_, _, body)| table_of(body))
        .collect();
    let mut found = Chains::new();
    for kind in [GET_CHAIN, GET_RULE] {
        // All families at once.
        dump(kind, 0, &[], |kind, body| {
            if table_of(body).is_some_and(|table| tables.contains(&table)) {
                take(&mut found, kind, body);
            }
        })?;
    }
    for (name, chain) in &wanted {
        compare(name, chain, found.get(name))?;
    }
    match found.keys().find(|name| !wanted.contains_key(*name)) {
        Some(more) => Err(difference(&text(more), "no such chain", "it")),
        None => Ok(()),
    }
}

/// Address family and name of the table that a message is about.
fn table_of(body: &[u8]) -> Option<(u8, String)> {
    Some((*body.first()?, string_attribute(body.get(4..)?, TABLE)?))
}

/// Takes up the message of a chain or rule.
fn take(chains: &mut Chains, kind: u16, body: &[u8]) {
    let name = if kind == NEW_CHAIN { CHAIN_NAME } else { RULE_CHAIN };
    let Some((header, attributes)) = body.split_at_checked(4) else { return };
    if !matches!(kind, NEW_CHAIN | NEW_RULE) {
        return;
    }
    let (Some(table), Some(name)) = (string_attribute(attributes, TABLE), string_attribute(attributes, name))
    else {
        return;
    };
    let chain = chains.entry((header[0], table, name)).or_default();
    match kind {
        NEW_CHAIN => chain.attributes = attributes.to_vec(),
        _ => chain.rules.push(attributes.to_vec()),
    }
}

fn compare(name: &(u8, String, String), wanted: &Chain, found: Option<&Chain>) -> Result<(), Error> {
    let name = text(name);
    let Some(found) = found else { return Err(difference(&name, "the chain", "no such chain")) };
    let is_base = |chain: &Chain| attribute(&chain.attributes, CHAIN_HOOK).is_some();
    if !covers(&wanted.attributes, &found.attributes) || is_base(wanted) != is_base(found) {
        return Err(difference(&name, "its hook, priority and policy as planned", "others"));
    }
    if wanted.rules.len() != found.rules.len() {
        let rules = |count: usize| format!("{count} rules");
        return Err(difference(&name, &rules(wanted.rules.len()), &rules(found.rules.len())));
    }
    for (at, (wanted, found)) in wanted.rules.iter().zip(&found.rules).enumerate() {
        if let Some(expression) = different_expression(wanted, found) {
            let object = format!("rule {} of {name}", at + 1);
            return Err(difference(&object, "the rule as planned", &format!("another {expression}")));
        }
    }
    Ok(())
}

/// The first expression of a rule in which it differs.
fn different_expression(wanted: &[u8], found: &[u8]) -> Option<String> {
    let expressions = |rule| Attributes(attribute(rule, RULE_EXPRESSIONS).unwrap_or_default());
    let (mut wanted, mut found) = (expressions(wanted), expressions(found));
    loop {
        let (wanted, found) = match (wanted.next(), found.next()) {
            (None, None) => return None,
            (Some((_, wanted)), Some((_, found))) => (wanted, found),
            (Some((_, one)), None) | (None, Some((_, one))) => {
                return Some(string_attribute(one, EXPRESSION_NAME).unwrap_or_default());
            }
        };
        let name = string_attribute(wanted, EXPRESSION_NAME).unwrap_or_default();
        let same = string_attribute(found, EXPRESSION_NAME).as_ref() == Some(&name)
            && (name == COUNTER
                || covers(
                    attribute(wanted, EXPRESSION_DATA).unwrap_or_default(),
                    attribute(found, EXPRESSION_DATA).unwrap_or_default(),
                ));
        if !same {
            return Some(name);
        }
    }
}

/// Whether all attributes of one list are in another, with the same values.
fn covers(wanted: &[u8], found: &[u8]) -> bool {
    Attributes(wanted).all(|(kind, value)| {
        let Some(other) = attribute(found, kind & TYPE_MASK) else { return false };
        if kind & NESTED != 0 { covers(value, other) } else { value == other }
    })
}

/// The first attribute of a type.
fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    Attributes(attributes).find(|(kind, _)| kind & TYPE_MASK == wanted).map(|(_, value)| value)
}

/// Attributes with the type as it is written, and their values.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16::from_ne_bytes(self.0.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(self.0.get(2..4)?.try_into().ok()?);
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn text((family, table, chain): &(u8, String, String)) -> String {
    format!("chain {} {table} {chain}", super::family_name(*family))
}

fn difference(object: &str, expected: &str, found: &str) -> Error {
    Error::NotInPlace { object: object.to_owned(), expected: expected.to_owned(), found: found.to_owned() }
}
