//! Objects through decoding, defaulting, validation and printing, against golden files. A `NAME.in.yaml` holds objects
//! of any kinds; `NAME.golden` what becomes of each. `UPDATE_GOLDEN=1` rewrites the golden files.

use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::{Just, Strategy, any, prop, prop_assert_eq, prop_oneof, proptest};
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

/// Names of fields and values that lead a random object deep into the types.
fn anything() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "name",
        "labels",
        "containers",
        "ports",
        "port",
        "protocol",
        "volumes",
        "template",
        "selector",
        "matchLabels",
        "env",
        "valueFrom",
        "resources",
        "limits",
        "strategy",
        "type",
        "versions",
        "schema",
        "openAPIV3Schema",
        "properties",
        "items",
        "names",
        "plural",
        "kind",
        "conditions",
        "containerStatuses",
        "data",
        "replicas",
        "addresses",
        "endpoints",
        "ownerReferences",
        "finalizers",
        "livenessProbe",
        "httpGet",
        "tolerations",
        "storage",
        "hostNetwork",
        "clusterIP",
        "subsets",
        "taints",
        "stringData",
        "mode",
        "hosts",
        "choice",
        "port",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z./:%é-]{0,6}".prop_map(Value::from),
        prop::sample::select(vec!["object", "array", "1Gi", "ClientIP", "Recreate", "2026-01-01T00:00:00Z"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(key.clone(), inner, 0..6).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    /// Whatever a client sends, and whatever an old release stored, is answered.
    #[test]
    fn nothing_panics(object in anything(), other in anything()) {
        let catalog = catalog();
        let now = NOW.parse().unwrap();
        for of in catalog.resources() {
            for object in [&object, &other] {
                let mut object = of.decode(object.clone(), FieldValidation::Strict).map_or(object.clone(), |of| of.object);
                of.default(&mut object);
                let mut again = object.clone();
                of.default(&mut again);
                prop_assert_eq!(&again, &object, "defaults are filled in once");
                let _ = of.validate_create(&object);
                let _ = of.validate_update(&object, &other);
                prop_assert_eq!(of.cells(&object, now).len(), of.columns().len());
                let _ = of.field_for_selector(&object, "spec.nodeName");
                let _ = of.from_stored(of.to_stored(object));
            }
        }
        let _ = catalog.with_crds(&[object, other]);
    }

    /// Decoding is done once: what it has let through, it lets through unchanged.
    #[test]
    fn decoding_twice_is_decoding_once(object in anything()) {
        let catalog = catalog();
        for of in catalog.resources() {
            if let Ok(once) = of.decode(object.clone(), FieldValidation::Warn) {
                let twice = of.decode(once.object.clone(), FieldValidation::Strict).unwrap();
                prop_assert_eq!(twice.object, once.object);
            }
        }
    }
}
