//! Validation of custom resources against the schema of their definition. The texts are those of kube-openapi's
//! validator and apiextensions' `pkg/apiserver/validation`.

use serde_json::Value;

use crate::decode::shape_name;
use crate::fault::Faults;
use crate::path::Path;
use crate::schema::{Field, ListKind, Rules, Schema, Shape};

/// Checks a whole object: everything but its metadata, which has checks of its own.
pub(super) fn root(schema: &Schema, object: &Value, faults: &mut Faults) {
    let path = Path::Root;
    if let Shape::Object(fields) = &schema.shape {
        for field in fields.iter().filter(|field| field.name.as_ref() != "metadata") {
            member(&path, field, object, faults);
        }
    }
    rules(&path, schema, object, faults);
}

fn member(path: &Path<'_>, field: &Field, object: &Value, faults: &mut Faults) {
    let path = path.field(&field.name);
    match object.get(field.name.as_ref()) {
        None if field.required => faults.required(&path, ""),
        None => {}
        Some(of) => value(&path, &field.schema, of, faults),
    }
}

/// Checks a value, and all within.
fn value(path: &Path<'_>, schema: &Schema, of: &Value, faults: &mut Faults) {
    // Built-in types inside custom ones (metadata of embedded objects) were checked when they were decoded.
    if matches!(schema.shape, Shape::Definition(_)) || of.is_null() && schema.nullable {
        return;
    }
    if !has_shape(&schema.shape, of) {
        let shown = if of.is_string() || of.is_number() { of.clone() } else { type_word(of).into() };
        let text = shown.as_str().map_or_else(|| shown.to_string(), str::to_owned);
        let message = format!("{path} in body must be of type {}: \"{text}\"", json_type(&schema.shape));
        faults.type_invalid(path, text, message);
        return;
    }
    match (&schema.shape, of) {
        (Shape::Object(fields), Value::Object(_)) => {
            fields.iter().for_each(|field| member(path, field, of, faults))
        }
        (Shape::Map(of_value), Value::Object(map)) => {
            map.iter().for_each(|(key, item)| value(&path.field(key), of_value, item, faults));
        }
        (Shape::List(of_item), Value::Array(items)) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| value(&path.index(index), of_item, item, faults));
            unique(path, &schema.list, items, faults);
        }
        _ => {}
    }
    if !schema.enumeration.is_empty() && !schema.enumeration.contains(of) {
        faults.not_supported(path, of.clone(), &schema.enumeration);
    }
    rules(path, schema, of, faults);
}

fn has_shape(shape: &Shape, value: &Value) -> bool {
    match shape {
        Shape::Any | Shape::Definition(_) => true,
        Shape::Object(_) | Shape::Map(_) | Shape::AnyObject => value.is_object(),
        Shape::List(_) => value.is_array(),
        Shape::Bool => value.is_boolean(),
        Shape::Number => value.is_number(),
        Shape::Int32 => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
        Shape::Int64 => value.is_i64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Shape::IntOrString | Shape::Quantity => value.is_i64() || value.is_string(),
        Shape::String | Shape::Bytes | Shape::Time | Shape::MicroTime => value.is_string(),
    }
}

fn json_type(shape: &Shape) -> &'static str {
    match shape {
        Shape::Int32 | Shape::Int64 => "integer",
        Shape::IntOrString => "integer,string",
        other => shape_name(other),
    }
}

fn type_word(value: &Value) -> &'static str {
    crate::decode::value_name(value)
}

fn unique(path: &Path<'_>, kind: &ListKind, items: &[Value], faults: &mut Faults) {
    let identity = |item: &Value| match kind {
        ListKind::Map(keys) => {
            Value::from(keys.iter().map(|key| item[key.as_str()].clone()).collect::<Vec<_>>())
        }
        _ => item.clone(),
    };
    if *kind == ListKind::Atomic {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    for (index, item) in items.iter().enumerate() {
        if !seen.insert(identity(item).to_string()) {
            let shown = match kind {
                ListKind::Map(keys) => {
                    Value::Object(keys.iter().map(|key| (key.clone(), item[key.as_str()].clone())).collect())
                }
                _ => item.clone(),
            };
            faults.duplicate(&path.index(index), shown);
        }
    }
}

fn rules(path: &Path<'_>, schema: &Schema, of: &Value, faults: &mut Faults) {
    let Some(rules) = schema.rules.as_deref() else { return };
    match of {
        Value::String(text) => text_rules(path, rules, text, faults),
        Value::Number(number) => number_rules(path, rules, number.as_f64().unwrap_or_default(), of, faults),
        Value::Array(items) => {
            count_rules(path, (rules.items_min, rules.items_max), items.len(), ("items", of), faults);
        }
        Value::Object(map) => {
            let bounds = (rules.properties_min, rules.properties_max);
            count_rules(path, bounds, map.len(), ("properties", of), faults);
        }
        _ => {}
    }
    logic(path, rules, of, faults);
}

fn text_rules(path: &Path<'_>, rules: &Rules, text: &str, faults: &mut Faults) {
    let characters = text.chars().count() as u64;
    if let Some(min) = rules.length_min.filter(|min| characters < *min) {
        faults.invalid(path, text, format!("{path} in body should be at least {min} chars long"));
    }
    if let Some(max) = rules.length_max.filter(|max| characters > *max) {
        faults.too_long(path, usize::try_from(max).unwrap_or(usize::MAX));
    }
    if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
        faults.invalid(path, text, format!("{path} in body should match '{pattern}'"));
    }
    if let Some(format) = rules.format.as_ref().filter(|format| !super::format::has_format(format, text)) {
        faults.invalid(path, text, format!("{path} in body must be of type {format}: \"{text}\""));
    }
}

fn number_rules(path: &Path<'_>, rules: &Rules, number: f64, shown: &Value, faults: &mut Faults) {
    if let Some((bound, excluded)) =
        rules.minimum.filter(|(bound, excluded)| number < *bound || *excluded && number <= *bound)
    {
        let words = if excluded { "greater than" } else { "greater than or equal to" };
        faults.invalid(path, shown.clone(), format!("{path} in body should be {words} {bound}"));
    }
    if let Some((bound, excluded)) =
        rules.maximum.filter(|(bound, excluded)| number > *bound || *excluded && number >= *bound)
    {
        let words = if excluded { "less than" } else { "less than or equal to" };
        faults.invalid(path, shown.clone(), format!("{path} in body should be {words} {bound}"));
    }
    if let Some(of) = rules.multiple_of.filter(|of| *of > 0.0 && (number / of).fract() != 0.0) {
        faults.invalid(path, shown.clone(), format!("{path} in body should be a multiple of {of}"));
    }
}

fn count_rules(
    path: &Path<'_>,
    (min, max): (Option<u64>, Option<u64>),
    count: usize,
    (word, shown): (&str, &Value),
    faults: &mut Faults,
) {
    if let Some(min) = min.filter(|min| (count as u64) < *min) {
        faults.invalid(path, shown.clone(), format!("{path} in body should have at least {min} {word}"));
    }
    if let Some(max) = max.filter(|max| count as u64 > *max) {
        faults.too_many(path, count, usize::try_from(max).unwrap_or(usize::MAX));
    }
}

fn holds(path: &Path<'_>, schema: &Schema, of: &Value) -> bool {
    let mut faults = Faults::default();
    part(path, schema, of, &mut faults);
    faults.is_empty()
}

/// A logical part says nothing about values of another type than it has in mind, unless it names the type.
fn part(path: &Path<'_>, schema: &Schema, of: &Value, faults: &mut Faults) {
    match (&schema.shape, of) {
        (Shape::Object(_), Value::Object(_)) | (Shape::List(_), Value::Array(_)) => {
            value(path, schema, of, faults)
        }
        (Shape::Object(_) | Shape::List(_), _) => rules(path, schema, of, faults),
        _ => value(path, schema, of, faults),
    }
}

fn logic(path: &Path<'_>, rules: &Rules, of: &Value, faults: &mut Faults) {
    for schema in &rules.all_of {
        part(path, schema, of, faults);
    }
    if !rules.any_of.is_empty() && !rules.any_of.iter().any(|schema| holds(path, schema, of)) {
        let message = format!("{path} in body must validate at least one schema (anyOf)");
        faults.invalid(path, of.clone(), message);
    }
    if !rules.one_of.is_empty() {
        let matched = rules.one_of.iter().filter(|schema| holds(path, schema, of)).count();
        if matched != 1 {
            let found = if matched == 0 { "Found none valid" } else { "Found more than one valid" };
            let message = format!("{path} in body must validate one and only one schema (oneOf). {found}");
            faults.invalid(path, of.clone(), message);
        }
    }
    if let Some(not) = &rules.not
        && holds(path, not, of)
    {
        faults.invalid(path, of.clone(), format!("{path} in body must not validate the schema (not)"));
    }
}
