use super::*;
use crate::batch::{Family, TableName};

/// Splits a rendered batch into (type, flags, sequence, body) and checks that the lengths add up.
fn messages(bytes: &[u8]) -> Vec<(u16, u16, u32, Vec<u8>)> {
    let mut rest = bytes;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_ne_bytes(rest[at..at + 2].try_into().unwrap());
        let length = word(0) as usize;
        assert_eq!(length % 4, 0, "messages are aligned");
        found.push((half(4), half(6), word(8), rest[16..length].to_vec()));
        rest = &rest[length..];
    }
    found
}

#[test]
fn a_batch_is_framed_numbered_and_acknowledged_once() {
    let table = TableName::inet("t");
    let batch = Batch {
        commands: vec![
            Command::AddTable(table.clone()),
            Command::FlushTable(table.clone()),
            Command::DeleteTable(table),
        ],
    };
    let encoded = batch.encode(7).unwrap();
    let found: Vec<_> = messages(&encoded.bytes).iter().map(|m| (m.0, m.1, m.2)).collect();
    assert_eq!(
        found,
        [(0x10, 1, 7), (0xa00, 0x401, 8), (0xa08, 1, 9), (0xa02, 1 | flag::ACK, 10), (0x11, 1, 11)]
    );
    assert_eq!(encoded.last_sequence(), 10);
    assert_eq!(encoded.object(8), Some("add table inet t"));
    assert_eq!(encoded.object(10), Some("delete table inet t"));
    assert_eq!((encoded.object(7), encoded.object(11)), (None, None));
}

#[test]
fn a_table_message_has_the_kernel_s_layout() {
    let batch = Batch { commands: vec![Command::AddTable(TableName::inet("t"))] };
    let body = &messages(&batch.encode(1).unwrap().bytes)[1].3;
    assert_eq!(body, &[1, 0, 0, 0, 6, 0, 1, 0, b't', 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0]);
}

#[track_caller]
fn check_refused(name: &str) {
    let batch =
        Batch { commands: vec![Command::AddTable(TableName { family: Family::Ip, name: name.to_owned() })] };
    assert!(matches!(batch.encode(1), Err(Error::Name { .. })), "{name:?}");
}

#[test]
fn names_that_the_kernel_would_cut_are_refused() {
    check_refused("");
    check_refused("a\0b");
    check_refused(&"n".repeat(256));
}

#[test]
fn a_rule_too_large_for_an_attribute_is_refused() {
    let rule = (0..4000).fold(Rule::new(), |rule, _| rule.counter());
    let batch = Batch { commands: vec![Command::AddRule(TableName::inet("t"), "c".into(), rule)] };
    assert!(matches!(batch.encode(1), Err(Error::TooLarge { .. })));
}

#[test]
fn many_elements_are_spread_over_messages_and_none_write_nothing() {
    let element = |n: u32| Element {
        key: vec![Datum::Ipv4(n.into())],
        comment: Some("c".repeat(200)),
        ..Element::default()
    };
    let add =
        |elements| Batch { commands: vec![Command::AddElements(TableName::inet("t"), "s".into(), elements)] };
    let many = add((0..1001).map(element).collect()).encode(1).unwrap();
    assert_eq!(many.objects.len(), 6);
    assert_eq!(
        many.objects[5],
        format!("add element inet t s {{ 0.0.3.232 comment {:?} }}", "c".repeat(200))
    );
    assert_eq!(messages(&many.bytes).len(), 8);
    assert_eq!(add(vec![]).encode(1).unwrap().objects.len(), 0);
}

#[test]
fn concatenations_are_padded_and_numbered_as_nft_does() {
    assert_eq!(
        concatenation(&[SetType::Ipv4, SetType::Protocol, SetType::Port]),
        (7 << 12 | 12 << 6 | 13, 12)
    );
    assert_eq!(concatenation(&[SetType::Ipv4]), (7, 4));
    assert_eq!(
        concatenated(&[Datum::Ipv4([10, 0, 0, 1].into()), Datum::Port(80)]),
        [10, 0, 0, 1, 0, 80, 0, 0]
    );
    assert_eq!(concatenated(&[Datum::Port(80)]), [0, 80]);
}
