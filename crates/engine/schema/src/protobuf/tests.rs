//! Bodies that Kubernetes' own serialiser made, and bodies that nobody would make.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::{Strategy, any, prop, prop_assert, proptest};
use serde_json::{Value, json};

use super::{ProtobufError, decode_protobuf, encode_protobuf};
use crate::{Catalog, FieldValidation, GroupVersionKind};

/// Bytes in base64 and their JSON, a line each, of each object of `protobuf.in.yaml`.
const GOLDEN: &str = include_str!("../../testdata/protobuf.golden");

fn golden() -> impl Iterator<Item = (Vec<u8>, Value)> {
    let mut lines = GOLDEN.lines();
    std::iter::from_fn(move || {
        let bytes = STANDARD.decode(lines.next()?).unwrap();
        Some((bytes, serde_json::from_str(lines.next()?).unwrap()))
    })
}

/// Go's JSON has a null where a time or a list was never set, which reads as absent.
fn without_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|name, value| !value.is_null() || name == "thing");
        map.values_mut().for_each(without_nulls);
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(without_nulls);
    }
}

fn nobody() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "Nothing")
}

fn pod() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "Pod")
}

/// A message's field of bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(number < 16 && content.len() < 128, "made for small fields only");
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, raw)].concat()
}

#[test]
fn bodies_read_as_kubernetes_reads_them() {
    let mut count = 0;
    for (bytes, mut expected) in golden() {
        without_nulls(&mut expected);
        let found = decode_protobuf(&bytes, &nobody()).unwrap();
        assert_eq!(found, expected, "{:#}", found);
        count += 1;
    }
    assert_eq!(count, 15);
}

#[test]
fn what_is_written_is_read_again() {
    for (bytes, _) in golden() {
        let object = decode_protobuf(&bytes, &nobody()).unwrap();
        let written = encode_protobuf(&object).unwrap_or_else(|| panic!("{object:#}"));
        assert_eq!(decode_protobuf(&written, &nobody()).unwrap(), object);
    }
    // Objects of many kinds, from other tests.
    let mut count = 0;
    for text in
        [include_str!("../../testdata/cells.in.yaml"), include_str!("../../testdata/defaults.in.yaml")]
    {
        for document in text.split("\n---\n") {
            let parsed = crate::parse_yaml(document).unwrap();
            let api_version = parsed.value["apiVersion"].as_str().unwrap();
            let (group, version) = api_version.split_once('/').unwrap_or(("", "v1"));
            let catalog = Catalog::builtin();
            let Some(of) = catalog.kind(group, version, parsed.value["kind"].as_str().unwrap()) else {
                continue;
            };
            // Some are wrong on purpose.
            let Ok(decoded) = of.decode(parsed, FieldValidation::Strict) else { continue };
            let mut object = decoded.object;
            of.default(&mut object);
            let written = encode_protobuf(&object).unwrap_or_else(|| panic!("{object:#}"));
            let mut read = decode_protobuf(&written, &nobody()).unwrap();
            of.default(&mut read);
            without_zeros(&mut read);
            without_zeros(&mut object);
            assert_eq!(read, object);
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

/// Zeros, empty lists and absent fields are one on the wire, in most fields.
fn without_zeros(value: &mut Value) {
    if let Value::Object(map) = value {
        map.values_mut().for_each(without_zeros);
        let zeros = [Value::Null, json!(0), json!(""), json!(false), json!([])];
        map.retain(|_, value| !zeros.contains(value));
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(without_zeros);
    }
}

#[test]
fn custom_kinds_have_no_protobuf_form() {
    let custom = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    assert_eq!(super::encode_protobuf(&custom), None);
}

#[test]
fn bodies_decode_without_a_warning() {
    let catalog = Catalog::builtin();
    for (bytes, _) in golden() {
        let object = decode_protobuf(&bytes, &nobody()).unwrap();
        let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap_or(("", "v1"));
        let Some(of) = catalog.kind(group, version, object["kind"].as_str().unwrap()) else { continue };
        assert_eq!(of.decode(object.clone(), FieldValidation::Strict).unwrap().object, object);
    }
}

#[test]
fn every_field_of_every_kind_has_a_number() {
    let types = include_str!("../../data/types.tbl");
    let mut definition = "";
    for line in types.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix(' ') {
            None => definition = line,
            // The type of an object stands in the envelope, and the server's version is JSON only.
            Some(field) if field.starts_with("apiVersion ") || field.starts_with("kind ") => {}
            Some(_) if definition.starts_with("apimachinery.pkg.version.Info") => {}
            Some(field) => assert!(field.contains(" #"), "{definition}: {field}"),
        }
    }
}

#[test]
fn what_the_envelope_does_not_say_is_expected() {
    let expected = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    let raw = field(1, &field(1, b"a"));
    for (version, kind) in [("v1", "Pod"), ("", "Pod"), ("v1", ""), ("", "")] {
        assert_eq!(decode_protobuf(&body(version, kind, &raw), &pod()).unwrap(), expected);
    }
    let bare = [b"k8s\0".to_vec(), field(2, &raw)].concat();
    assert_eq!(decode_protobuf(&bare, &pod()).unwrap(), expected);
}

#[test]
fn messages_merge_and_scalars_are_replaced() {
    let label = |key: &[u8], value: &[u8]| field(11, &[field(1, key), field(2, value)].concat());
    let first = field(1, &[field(1, b"a"), label(b"k", b"1"), label(b"only", b"")].concat());
    let second = field(1, &[field(1, b"b"), label(b"k", b"2"), field(11, b"")].concat());
    assert_eq!(
        decode_protobuf(&body("v1", "Pod", &[first, second].concat()), &nobody()).unwrap()["metadata"],
        json!({"name": "b", "labels": {"k": "2", "only": "", "": ""}})
    );
}

#[track_caller]
fn check_refused(bytes: &[u8], expected: &str) {
    let error = decode_protobuf(bytes, &pod()).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn broken_envelopes() {
    let envelope = "the body is not a Kubernetes object in protobuf: ";
    check_refused(b"", &format!("{envelope}it does not begin with \"k8s\\0\""));
    check_refused(b"{}", &format!("{envelope}it does not begin with \"k8s\\0\""));
    check_refused(b"k8s\0\x12\x05a", &format!("{envelope}a value is longer than the message around it"));
    check_refused(b"k8s\0\x10\x05", &format!("{envelope}the envelope has a value of the wrong type"));
    let packed = [body("v1", "Pod", b""), field(3, b"gzip")].concat();
    check_refused(&packed, &format!("{envelope}encoded objects are not supported"));
    check_refused(
        &body("v1", "P\u{e4}\0", b"")[..9],
        &format!("{envelope}a value is longer than the message around it"),
    );
}

#[test]
fn kinds_without_a_form() {
    for (version, kind, shown) in [
        ("example.com/v1", "Gadget", "no kind \"Gadget\" in version \"example.com/v1\""),
        ("v1", "Nonsense", "no kind \"Nonsense\" in version \"v1\""),
    ] {
        let error = decode_protobuf(&body(version, kind, b""), &pod()).unwrap_err();
        assert!(matches!(error, ProtobufError::Kind(_)));
        assert_eq!(error.to_string(), format!("{shown} can be read from protobuf: send application/json"));
    }
}

#[test]
fn broken_objects() {
    let pod = "the body is not a Pod in protobuf: ";
    check_refused(
        &body("v1", "Pod", b"\x08\x01"),
        &format!("{pod}metadata: a number where a message, text or bytes were expected"),
    );
    check_refused(&body("v1", "Pod", b"\x0a"), &format!("{pod}a number is cut off"));
    check_refused(
        &body("v1", "Pod", &field(1, &field(1, b"\xff"))),
        &format!("{pod}metadata.name: text that is not UTF-8"),
    );
    let seconds = field(8, b"\x08\xff\xff\xff\xff\xff\xff\xff\x7f");
    check_refused(
        &body("v1", "Pod", &field(1, &seconds)),
        &format!("{pod}metadata.creationTimestamp: a time outside of the calendar"),
    );
    let volume = field(1, &field(2, &field(2, &field(2, &field(1, b"\xff")))));
    check_refused(
        &body("v1", "Pod", &field(2, &volume)),
        &format!("{pod}spec.volumes[0].emptyDir.sizeLimit: text that is not UTF-8"),
    );
    let grace = field(2, b"\x22\x01a");
    check_refused(
        &body("v1", "Pod", &grace),
        &format!("{pod}spec.terminationGracePeriodSeconds: not a number where one was expected"),
    );
    let fields = field(1, &delimited(b"\x8a\x01", &field(7, &field(1, b"[1]"))));
    check_refused(
        &body("v1", "Pod", &fields),
        &format!("{pod}metadata.managedFields[0].fieldsV1: the JSON inside is not an object"),
    );
}

#[test]
fn deep_schemas_are_refused_and_not_too_deep_ones_read() {
    let definition = GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let read = |depth: usize| {
        // Number 28 of a JSON schema is the schema that must not hold.
        let schema = (0..depth).fold(Vec::new(), |inner, _| delimited(b"\xe2\x01", &inner));
        // The schema of a version of the spec of the object of the envelope.
        let raw = [b"\x0a", b"\x22", b"\x3a", b"\x12", b"\x12"]
            .into_iter()
            .fold(schema, |inner, key: &[u8; 1]| delimited(key, &inner));
        decode_protobuf(&[b"k8s\0".to_vec(), raw].concat(), &definition)
    };
    let schema = read(100).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
    assert!(schema["not"]["not"].is_object());
    let error = read(5_000).unwrap_err();
    assert!(error.to_string().ends_with("nested too deeply"), "{error}");
}

/// A field of bytes of any length, after its key.
fn delimited(key: &[u8], content: &[u8]) -> Vec<u8> {
    let mut out = key.to_vec();
    let mut length = content.len();
    while length >= 128 {
        out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend_from_slice(content);
    out
}

/// A good body with some bytes changed and some cut off.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let bodies: Vec<Vec<u8>> = golden().map(|(bytes, _)| bytes).collect();
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (prop::sample::select(bodies), changes, any::<prop::sample::Index>()).prop_map(
        |(mut bytes, changes, cut)| {
            for (index, byte) in &changes {
                let index = index.index(bytes.len());
                bytes[index] = *byte;
            }
            if changes.len() % 2 == 1 {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(raw in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = decode_protobuf(&raw, &pod());
        let _ = decode_protobuf(&body("v1", "Pod", &raw), &pod());
        let crd = body("apiextensions.k8s.io/v1", "CustomResourceDefinition", &raw);
        let _ = decode_protobuf(&crd, &pod());
    }

    #[test]
    fn damaged_bodies_are_read_as_objects_or_refused(bytes in damaged()) {
        if let Ok(object) = decode_protobuf(&bytes, &pod()) {
            prop_assert!(object.is_object());
        }
    }
}
