//! Objects through decoding, defaulting, validation and printing, against golden files. A `NAME.in.yaml` holds objects
//! of any kinds; `NAME.golden` what becomes of each. `UPDATE_GOLDEN=1` rewrites the golden files.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Catalog, FieldValidation, ResourceType, parse_yaml};

/// The time at which ages are taken.
const NOW: &str = "2026-01-02T00:00:00Z";

#[track_caller]
fn check(name: &str, render: impl Fn(&ResourceType, &str) -> String) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let input = std::fs::read_to_string(directory.join(format!("{name}.in.yaml"))).unwrap();
    let golden_path = directory.join(format!("{name}.golden"));
    let catalog = catalog();
    let mut output = String::new();
    for document in input.split("\n---\n") {
        let head = parse_yaml(document).unwrap().value;
        let of = find(&catalog, &head);
        let title = head["metadata"]["name"].as_str().unwrap_or("without a name");
        writeln!(output, "### {} {title}\n{}", of.kind, render(of, document)).unwrap();
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden_path, &output).unwrap();
    }
    let golden = std::fs::read_to_string(&golden_path).unwrap_or_default();
    assert!(output == golden, "{name}.golden differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{output}");
}

/// The built-in kinds and a custom one.
fn catalog() -> Catalog {
    let definition = parse_yaml(include_str!("../testdata/gadgets.crd.yaml")).unwrap().value;
    let (catalog, problems) = Catalog::builtin().with_crds(&[definition]);
    assert_eq!(problems, []);
    catalog
}

fn find<'a>(catalog: &'a Catalog, object: &Value) -> &'a ResourceType {
    let api_version = object["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    catalog.kind(group, version, object["kind"].as_str().unwrap()).unwrap()
}

fn read(of: &ResourceType, document: &str) -> Result<Value, String> {
    let decoded = of.decode(parse_yaml(document).unwrap(), FieldValidation::Strict);
    let mut object = decoded.map_err(|error| error.to_string())?.object;
    of.default(&mut object);
    Ok(object)
}

/// What `object` has beyond `before`.
fn added(before: &Value, object: &Value) -> Value {
    match (before, object) {
        (Value::Object(before), Value::Object(object)) => {
            let fresh = object.iter().filter_map(|(key, value)| match before.get(key) {
                None => Some((key.clone(), value.clone())),
                Some(old) => Some((key.clone(), added(old, value))).filter(|(_, value)| !is_nothing(value)),
            });
            Value::Object(fresh.collect::<Map<_, _>>())
        }
        (Value::Array(before), Value::Array(object)) if before.len() == object.len() => {
            before.iter().zip(object).map(|(before, object)| added(before, object)).collect()
        }
        (before, object) if before == object => Value::Null,
        (_, object) => object.clone(),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.iter().all(is_nothing),
        _ => false,
    }
}

#[test]
fn defaults() {
    check("defaults", |of, document| match read(of, document) {
        Ok(object) => {
            let faults = of.validate_create(&object);
            assert!(faults.is_empty(), "{faults:?}");
            serde_json::to_string_pretty(&added(&parse_yaml(document).unwrap().value, &object)).unwrap()
        }
        Err(error) => panic!("{error}"),
    });
}

#[test]
fn faults() {
    check("faults", |of, document| match read(of, document) {
        Ok(object) => {
            let faults: Vec<_> = of.validate_create(&object).iter().map(ToString::to_string).collect();
            assert!(!faults.is_empty(), "nothing wrong with {document}");
            faults.join("\n")
        }
        Err(error) => format!("refused: {error}"),
    });
}

#[test]
fn cells() {
    let now = NOW.parse().unwrap();
    check("cells", |of, document| {
        let object = parse_yaml(document).unwrap().value;
        let cells = of.cells(&object, now);
        assert_eq!(cells.len(), of.columns().len());
        let pairs = of.columns().iter().zip(cells).map(|(column, cell)| {
            let wide = if column.priority > 0 { " (wide)" } else { "" };
            format!("{}{wide}: {}", column.name, json!(cell))
        });
        pairs.collect::<Vec<_>>().join("\n")
    });
}
