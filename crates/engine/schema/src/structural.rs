//! Structural schemas: whether the schema of a custom resource is one, and its reading into the common model.
//! Source: apiextensions `pkg/apiserver/schema/structural.go` and `validation.go`.

use serde_json::{Map, Value};

use crate::crd::with_object_fields;
use crate::fault::Faults;
use crate::path::Path;
use crate::schema::{Field, ListKind, MapKind, Rules, Schema, Shape};

/// Levels of nesting of a schema at most; deeper ones could exhaust a stack.
const DEPTH_MAX: usize = 100;

const FORBIDDEN: [&str; 9] = [
    "$ref",
    "definitions",
    "dependencies",
    "patternProperties",
    "additionalItems",
    "deprecated",
    "discriminator",
    "readOnly",
    "xml",
];
/// What may stand in the root of a value but not in the logical parts (`allOf`, `anyOf`, `oneOf`, `not`).
const NOT_IN_LOGIC: [&str; 8] = [
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
];
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema[key].as_str().unwrap_or_default()
}

fn is_set(schema: &Value, key: &str) -> bool {
    schema[key] == true
}

/// Reports what keeps a schema from being structural.
pub(crate) fn check(path: &Path<'_>, schema: &Value, faults: &mut Faults) {
    if !schema.is_object() {
        faults.required(path, "schemas are required");
        return;
    }
    if text(schema, "type") != "object" {
        faults.invalid(&path.field("type"), text(schema, "type"), "must be object at the root");
    }
    check_metadata(path, schema, faults);
    check_node(path, schema, faults, 0);
}

fn check_metadata(path: &Path<'_>, schema: &Value, faults: &mut Faults) {
    let metadata = &schema["properties"]["metadata"];
    let properties = metadata["properties"].as_object().into_iter().flatten();
    let stray =
        properties.map(|(name, _)| name.as_str()).find(|name| !matches!(*name, "name" | "generateName"));
    if let Some(name) = stray {
        let message =
            format!("must not specify anything other than name and generateName, but metadata has {name}");
        faults.forbidden(&path.field("properties").key("metadata"), message);
    }
}

fn check_node(path: &Path<'_>, schema: &Value, faults: &mut Faults, depth: usize) {
    let Some(map) = schema.as_object() else {
        faults.invalid(path, schema.clone(), "a schema must be an object");
        return;
    };
    if depth > DEPTH_MAX {
        faults.forbidden(path, "the schema is nested too deeply");
        return;
    }
    for key in FORBIDDEN.iter().filter(|key| map.contains_key(**key)) {
        faults.forbidden(&path.field(key), format!("{key} is not supported"));
    }
    if is_set(schema, "uniqueItems") {
        faults.forbidden(
            &path.field("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        );
    }
    check_type(path, schema, faults);
    check_extensions(path, schema, faults);
    check_children(path, schema, faults, depth);
    for key in ["allOf", "anyOf", "oneOf"] {
        let part = path.field(key);
        for (index, schema) in schema[key].as_array().into_iter().flatten().enumerate() {
            check_logic(&part.index(index), schema, faults, depth + 1);
        }
    }
    if map.contains_key("not") {
        check_logic(&path.field("not"), &schema["not"], faults, depth + 1);
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(error) = compile(pattern)
    {
        faults.invalid(&path.field("pattern"), pattern, error);
    }
}

fn compile(pattern: &str) -> Result<regex::Regex, String> {
    regex::Regex::new(pattern).map_err(|error| format!("must be a valid regular expression: {error}"))
}

fn check_type(path: &Path<'_>, schema: &Value, faults: &mut Faults) {
    let kind = text(schema, "type");
    let int_or_string = is_set(schema, "x-kubernetes-int-or-string");
    if int_or_string && !kind.is_empty() {
        faults.forbidden(&path.field("type"), "must be empty if x-kubernetes-int-or-string is true");
    }
    if kind.is_empty() && !int_or_string && !is_set(schema, "x-kubernetes-preserve-unknown-fields") {
        faults.required(&path.field("type"), "must not be empty for specified object fields");
    }
    if !kind.is_empty() && !TYPES.contains(&kind) {
        faults.not_supported(&path.field("type"), kind, &TYPES.map(Value::from));
    }
}

fn check_extensions(path: &Path<'_>, schema: &Value, faults: &mut Faults) {
    if is_set(schema, "x-kubernetes-embedded-resource") && text(schema, "type") != "object" {
        faults.invalid(
            &path.field("type"),
            text(schema, "type"),
            "must be object if x-kubernetes-embedded-resource is true",
        );
    }
    let list_type = text(schema, "x-kubernetes-list-type");
    let list_path = path.field("x-kubernetes-list-type");
    if !matches!(list_type, "" | "atomic" | "set" | "map") {
        faults.not_supported(&list_path, list_type, &["atomic", "map", "set"].map(Value::from));
    }
    let keys = schema["x-kubernetes-list-map-keys"].as_array().map_or(&[][..], Vec::as_slice);
    let keys_path = path.field("x-kubernetes-list-map-keys");
    if list_type == "map" && keys.is_empty() {
        faults.required(&keys_path, "must not be empty if x-kubernetes-list-type is map");
    }
    for (index, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        if schema["items"]["properties"].get(name).is_none() {
            faults.invalid(&keys_path.index(index), name, "must be a property of the items");
        }
    }
}

fn check_children(path: &Path<'_>, schema: &Value, faults: &mut Faults, depth: usize) {
    let properties = path.field("properties");
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        check_node(&properties.key(name), property, faults, depth + 1);
    }
    let additional = path.field("additionalProperties");
    match &schema["additionalProperties"] {
        Value::Null | Value::Bool(true) => {}
        Value::Bool(false) => faults.forbidden(&additional, "additionalProperties cannot be set to false"),
        of => check_node(&additional, of, faults, depth + 1),
    }
    let has_properties = schema["properties"].as_object().is_some_and(|map| !map.is_empty());
    if has_properties && !schema["additionalProperties"].is_null() {
        faults.forbidden(&additional, "additionalProperties and properties are mutual exclusive");
    }
    let items = path.field("items");
    match &schema["items"] {
        Value::Null if text(schema, "type") == "array" => faults.required(&items, "must be specified"),
        Value::Null => {}
        Value::Array(_) => faults.forbidden(&items, "items must be a schema object and not an array"),
        of => check_node(&items, of, faults, depth + 1),
    }
}

/// A logical part may only restrict what the structure around it already describes.
fn check_logic(path: &Path<'_>, schema: &Value, faults: &mut Faults, depth: usize) {
    let Some(map) = schema.as_object() else {
        faults.invalid(path, schema.clone(), "a schema must be an object");
        return;
    };
    if depth > DEPTH_MAX {
        faults.forbidden(path, "the schema is nested too deeply");
        return;
    }
    for key in NOT_IN_LOGIC.iter().filter(|key| map.contains_key(**key)) {
        faults.forbidden(&path.field(key), "must be undefined to be structural");
    }
    // The one exception upstream makes: the two types of int-or-string values.
    if map.contains_key("type") && !matches!(text(schema, "type"), "integer" | "string") {
        faults.forbidden(&path.field("type"), "must be empty to be structural");
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(error) = compile(pattern)
    {
        faults.invalid(&path.field("pattern"), pattern, error);
    }
    let properties = path.field("properties");
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        check_logic(&properties.key(name), property, faults, depth + 1);
    }
    for key in ["items", "not"] {
        if map.contains_key(key) {
            check_logic(&path.field(key), &schema[key], faults, depth + 1);
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        let part = path.field(key);
        for (index, schema) in schema[key].as_array().into_iter().flatten().enumerate() {
            check_logic(&part.index(index), schema, faults, depth + 1);
        }
    }
}

/// Reads a schema that `check` found nothing wrong with.
pub(crate) fn read(schema: &Value) -> Schema {
    Schema {
        shape: read_shape(schema),
        nullable: is_set(schema, "nullable"),
        default: schema.get("default").cloned(),
        enumeration: schema["enum"].as_array().cloned().unwrap_or_default(),
        list: read_list_kind(schema),
        map: if text(schema, "x-kubernetes-map-type") == "atomic" {
            MapKind::Atomic
        } else {
            MapKind::Granular
        },
        preserve_unknown: is_set(schema, "x-kubernetes-preserve-unknown-fields"),
        embedded_resource: is_set(schema, "x-kubernetes-embedded-resource"),
        rules: read_rules(schema).map(Box::new),
        ..Schema::default()
    }
}

fn read_shape(schema: &Value) -> Shape {
    if is_set(schema, "x-kubernetes-int-or-string") {
        return Shape::IntOrString;
    }
    match text(schema, "type") {
        "array" => Shape::List(Box::new(read(&schema["items"]))),
        "boolean" => Shape::Bool,
        "integer" if text(schema, "format") == "int32" => Shape::Int32,
        "integer" => Shape::Int64,
        "number" => Shape::Number,
        "string" => Shape::String,
        "object" => read_object(schema),
        _ if schema["properties"].is_object() => read_object(schema),
        _ => Shape::Any,
    }
}

fn read_object(schema: &Value) -> Shape {
    match &schema["additionalProperties"] {
        Value::Null | Value::Bool(false) => {}
        Value::Bool(true) => return Shape::AnyObject,
        of => return Shape::Map(Box::new(read(of))),
    }
    let fields = read_fields(schema);
    Shape::Object(if is_set(schema, "x-kubernetes-embedded-resource") {
        with_object_fields(fields)
    } else {
        fields
    })
}

fn read_fields(schema: &Value) -> Vec<Field> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut fields: Vec<Field> = properties
        .map(|(name, property)| Field {
            name: name.as_str().into(),
            required: required.contains(&name.as_str()),
            lenient: false,
            schema: read(property),
            wire: None,
        })
        .collect();
    // A required field that no property describes still has to be there.
    for name in required {
        if !fields.iter().any(|field| field.name.as_ref() == name)
            && is_set(schema, "x-kubernetes-preserve-unknown-fields")
        {
            fields.push(Field {
                name: name.into(),
                required: true,
                lenient: false,
                schema: Schema::default(),
                wire: None,
            });
        }
    }
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    fields
}

fn read_list_kind(schema: &Value) -> ListKind {
    let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
    match text(schema, "x-kubernetes-list-type") {
        "set" => ListKind::Set,
        "map" => ListKind::Map(keys.filter_map(Value::as_str).map(str::to_owned).collect()),
        _ => ListKind::Atomic,
    }
}

const RULES: [&str; 17] = [
    "pattern",
    "format",
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "exclusiveMinimum",
    "exclusiveMaximum",
];

fn read_rules(schema: &Value) -> Option<Rules> {
    let map: &Map<String, Value> = schema.as_object()?;
    if !RULES.iter().any(|key| map.contains_key(*key)) {
        return None;
    }
    let number = |key: &str| schema[key].as_f64();
    let count = |key: &str| schema[key].as_u64();
    let parts = |key: &str| schema[key].as_array().into_iter().flatten().map(read_logic).collect();
    Some(Rules {
        pattern: schema["pattern"].as_str().and_then(|pattern| compile(pattern).ok()),
        format: schema["format"].as_str().map(str::to_owned),
        minimum: number("minimum").map(|bound| (bound, is_set(schema, "exclusiveMinimum"))),
        maximum: number("maximum").map(|bound| (bound, is_set(schema, "exclusiveMaximum"))),
        multiple_of: number("multipleOf"),
        length_min: count("minLength"),
        length_max: count("maxLength"),
        items_min: count("minItems"),
        items_max: count("maxItems"),
        properties_min: count("minProperties"),
        properties_max: count("maxProperties"),
        all_of: parts("allOf"),
        any_of: parts("anyOf"),
        one_of: parts("oneOf"),
        not: map.get("not").map(|not| Box::new(read_logic(not))),
    })
}

/// Reads a logical part: its fields only restrict, so unknown ones are of no concern to it.
fn read_logic(schema: &Value) -> Schema {
    let mut out = Schema { preserve_unknown: true, ..read(schema) };
    if matches!(out.shape, Shape::Any) {
        if schema["required"].is_array() || schema["properties"].is_object() {
            out.shape = Shape::Object(read_logic_fields(schema));
        } else if schema["items"].is_object() {
            out.shape = Shape::List(Box::new(read_logic(&schema["items"])));
        }
    } else if schema["properties"].is_object() {
        out.shape = Shape::Object(read_logic_fields(schema));
    }
    out
}

fn read_logic_fields(schema: &Value) -> Vec<Field> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut fields: Vec<Field> = properties
        .map(|(name, property)| Field {
            name: name.as_str().into(),
            required: required.contains(&name.as_str()),
            lenient: false,
            schema: read_logic(property),
            wire: None,
        })
        .collect();
    let bare = required.iter().filter(|name| schema["properties"].get(**name).is_none());
    fields.extend(bare.map(|name| Field {
        name: (*name).into(),
        required: true,
        lenient: false,
        schema: Schema::default(),
        wire: None,
    }));
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    fields
}
