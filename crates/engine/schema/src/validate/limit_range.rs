//! Validation of LimitRanges. Source: Kubernetes `pkg/apis/core/validation/validation.go`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{names, text};
use crate::fault::Faults;
use crate::path::Path;
use crate::quantity::Quantity;

const FIELDS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
/// Fields of which the first must not be greater than the second, and what they are called; the fault is at the third.
const ORDERED: [([&str; 2], [&str; 2], &str); 6] = [
    (["min", "max"], ["min value", "max value"], "min"),
    (["min", "defaultRequest"], ["min value", "default request value"], "defaultRequest"),
    (["defaultRequest", "max"], ["default request value", "max value"], "defaultRequest"),
    (["defaultRequest", "default"], ["default request value", "default limit value"], "defaultRequest"),
    (["min", "default"], ["min value", "default value"], "default"),
    (["default", "max"], ["default value", "max value"], "default"),
];

/// Checks the spec of a LimitRange.
pub(super) fn limit_range_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let path = path.field("limits");
    let mut types = BTreeSet::new();
    for (index, item) in spec["limits"].as_array().into_iter().flatten().enumerate() {
        let path = path.index(index);
        if !types.insert(text(item, "type")) {
            faults.duplicate(&path.field("type"), item["type"].clone());
        }
        limit_range_item(item, &path, faults);
    }
}

fn limit_range_item(item: &Value, path: &Path<'_>, faults: &mut Faults) {
    let of = text(item, "type");
    if let Err(message) = names::qualified_name(of) {
        faults.invalid(&path.field("type"), of, message);
    }
    if of == "Pod" {
        for field in ["default", "defaultRequest"] {
            if item[field].as_object().is_some_and(|amounts| !amounts.is_empty()) {
                faults.forbidden(&path.field(field), "may not be specified when `type` is 'Pod'");
            }
        }
    }
    let of_storage = |field: &str| item[field].get("storage").is_some();
    if of == "PersistentVolumeClaim" && !of_storage("min") && !of_storage("max") {
        let message = "either minimum or maximum storage value is required, but neither was provided";
        faults.required(&path.field("limits"), message);
    }
    let resources: BTreeSet<&String> = FIELDS
        .iter()
        .filter_map(|field| item[field].as_object())
        .flat_map(|amounts| amounts.keys())
        .collect();
    for resource in resources {
        let amount = |field: &str| Quantity::of(item[field].get(resource)?);
        let shown = |field: &str| match &item[field][resource.as_str()] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        for ([less, more], [less_name, more_name], at) in ORDERED {
            if let (Some(low), Some(high)) = (amount(less), amount(more))
                && low > high
            {
                let message =
                    format!("{less_name} {} is greater than {more_name} {}", shown(less), shown(more));
                faults.invalid(&path.field(at).key(resource), json!(shown(at)), message);
            }
        }
        const RATIO: &str = "maxLimitRequestRatio";
        if amount(RATIO).is_some_and(|ratio| ratio.as_f64() < 1.0) {
            let message = format!("ratio {} is less than 1", shown(RATIO));
            faults.invalid(&path.field(RATIO).key(resource), json!(shown(RATIO)), message);
        }
    }
}
