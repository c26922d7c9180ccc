//! Validation of metadata and of label selectors. Source: apimachinery `pkg/api/validation/objectmeta.go`.

use serde_json::Value;

use super::names::{self, Syntax};
use super::{items, text};
use crate::catalog::ResourceType;
use crate::fault::Faults;
use crate::path::Path;

/// Bytes of all annotations of an object together, at most.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// How objects of a type may be named.
fn name_syntax(of: &ResourceType) -> Syntax {
    match (of.group.as_str(), of.kind.as_str()) {
        ("", "Namespace") => names::dns_label,
        ("", "Service") => names::dns_1035_label,
        ("" | "events.k8s.io", "Event") | ("rbac.authorization.k8s.io", _) => names::path_segment,
        _ => names::dns_subdomain,
    }
}

/// Checks the metadata of an object that is stored. Reviews and the like are not, and need no name.
pub(super) fn object_metadata(of: &ResourceType, object: &Value, faults: &mut Faults) {
    if !of.has_verb("get") {
        return;
    }
    let metadata = &object["metadata"];
    let root = Path::Root;
    let path = root.field("metadata");
    let name = text(metadata, "name");
    let generate_name = text(metadata, "generateName");
    let syntax = name_syntax(of);
    if name.is_empty() && generate_name.is_empty() {
        faults.required(&path.field("name"), "name or generateName is required");
    }
    if !name.is_empty()
        && let Err(message) = syntax(name)
    {
        faults.invalid(&path.field("name"), name, message);
    }
    // What is generated follows a dash, so the dash at the end does no harm.
    if !generate_name.is_empty()
        && name.is_empty()
        && let Err(message) = syntax(&format!("{generate_name}a"))
    {
        faults.invalid(&path.field("generateName"), generate_name, message);
    }
    namespace(of, metadata, &path, faults);
    labels(metadata, &path.field("labels"), faults);
    annotations(metadata, &path.field("annotations"), faults);
    owner_references(metadata, &path.field("ownerReferences"), faults);
    for (index, finalizer) in items(metadata, "finalizers") {
        let finalizer = finalizer.as_str().unwrap_or_default();
        if let Err(message) = names::qualified_name(finalizer) {
            faults.invalid(&path.field("finalizers").index(index), finalizer, message);
        }
    }
}

fn namespace(of: &ResourceType, metadata: &Value, path: &Path<'_>, faults: &mut Faults) {
    let namespace = text(metadata, "namespace");
    let path = path.field("namespace");
    match (of.is_namespaced(), namespace) {
        (true, "") => faults.required(&path, ""),
        (true, namespace) => {
            if let Err(message) = names::dns_label(namespace) {
                faults.invalid(&path, namespace, message);
            }
        }
        (false, "") => {}
        (false, _) => faults.forbidden(&path, "not allowed on this type"),
    }
}

/// Checks the labels in some metadata.
pub(super) fn labels(metadata: &Value, path: &Path<'_>, faults: &mut Faults) {
    label_map(&metadata["labels"], path, faults);
}

/// Checks a map of labels.
pub(super) fn label_map(labels: &Value, path: &Path<'_>, faults: &mut Faults) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        if let Err(message) = names::qualified_name(key) {
            faults.invalid(path, key.as_str(), message);
        }
        let value = value.as_str().unwrap_or_default();
        if let Err(message) = names::label_value(value) {
            faults.invalid(path, value, message);
        }
    }
}

/// Checks the annotations in some metadata.
pub(super) fn annotations(metadata: &Value, path: &Path<'_>, faults: &mut Faults) {
    let mut bytes = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        // Upstream lowers the key first, so that the prefix may have capitals.
        if let Err(message) = names::qualified_name(&key.to_lowercase()) {
            faults.invalid(path, key.as_str(), message);
        }
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        faults.too_long(path, ANNOTATIONS_BYTES_MAX);
    }
}

fn owner_references(metadata: &Value, path: &Path<'_>, faults: &mut Faults) {
    let mut controller: Option<&str> = None;
    for (index, reference) in items(metadata, "ownerReferences") {
        let path = path.index(index);
        let need = [("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")];
        for (field, word) in need {
            if text(reference, field).is_empty() {
                faults.invalid(&path.field(field), "", format!("{word} must not be empty"));
            }
        }
        if reference["controller"] != true {
            continue;
        }
        if let Some(first) = controller {
            let message = format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}",
                text(reference, "name")
            );
            faults.invalid(&path.field("controller"), true, message);
        }
        controller = Some(text(reference, "name"));
    }
}

/// Checks what metadata may not change in an update.
pub(super) fn metadata_update(new: &Value, old: &Value, faults: &mut Faults) {
    let (new, old) = (&new["metadata"], &old["metadata"]);
    let root = Path::Root;
    let path = root.field("metadata");
    for field in ["name", "namespace", "uid", "creationTimestamp"] {
        if new[field] != old[field] {
            faults.invalid(&path.field(field), new[field].clone(), "field is immutable");
        }
    }
    let deletion = ["deletionTimestamp", "deletionGracePeriodSeconds"];
    for field in deletion {
        if new[field] != old[field] {
            let message = "field is immutable; delete the object to set it";
            faults.invalid(&path.field(field), new[field].clone(), message);
        }
    }
    if old["deletionTimestamp"].is_null() {
        return;
    }
    let known = old["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    let added: Vec<_> =
        items(new, "finalizers").map(|(_, finalizer)| finalizer).filter(|of| !known.contains(of)).collect();
    if !added.is_empty() {
        let added: Vec<_> = added.iter().map(ToString::to_string).collect();
        let message = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers [{}]",
            added.join(", ")
        );
        faults.forbidden(&path.field("finalizers"), message);
    }
}

/// Checks a label selector.
pub(super) fn label_selector(selector: &Value, path: &Path<'_>, faults: &mut Faults) {
    label_map(&selector["matchLabels"], &path.field("matchLabels"), faults);
    for (index, expression) in items(selector, "matchExpressions") {
        let list = path.field("matchExpressions");
        let path = list.index(index);
        let values = expression["values"].as_array().map_or(0, Vec::len);
        match text(expression, "operator") {
            "In" | "NotIn" if values == 0 => {
                faults
                    .required(&path.field("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                faults.forbidden(&path.field("values"), message);
            }
            _ => {}
        }
        let key = text(expression, "key");
        if !key.is_empty()
            && let Err(message) = names::qualified_name(key)
        {
            faults.invalid(&path.field("key"), key, message);
        }
    }
}

/// Whether a label selector selects the labels. Source: apimachinery `metav1.LabelSelectorAsSelector`.
#[must_use]
pub fn selects(selector: &Value, labels: &Value) -> bool {
    let has = |key: &str| labels.get(key);
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    wanted.into_iter().all(|(key, value)| has(key) == Some(value))
        && items(selector, "matchExpressions").all(|(_, expression)| {
            let found = has(text(expression, "key"));
            let listed =
                found.is_some_and(|found| items(expression, "values").any(|(_, value)| value == found));
            match text(expression, "operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}
