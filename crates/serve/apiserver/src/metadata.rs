//! The rules of metadata: what the server sets, what clients may not change, and when generation rises.

use crate::request::text;
use crate::status::{Answer, Failure};
use ambit_schema::ResourceType;
use serde_json::{Map, Value, json};

/// A generated name is this long at most, its suffix included. Source: apiserver storage/names.
const GENERATED_NAME_BASE_MAX: usize = 58;
/// An object's name is this long at most.
const NAME_BYTES_MAX: usize = 253;
/// metadata fields that only the server writes, and that keep their value.
const KEPT: [&str; 5] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"];

/// The identity of a new object.
pub(crate) struct Birth<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) uid: String,
    pub(crate) now: String,
    pub(crate) suffix: String,
}

/// The metadata of an object; made when it is missing.
pub(crate) fn of(value: &mut Value) -> Answer<&mut Map<String, Value>> {
    let object = value.as_object_mut().ok_or_else(|| Failure::bad_request("the body is not an object"))?;
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_null() {
        *metadata = json!({});
    }
    metadata.as_object_mut().ok_or_else(|| Failure::bad_request("metadata is not an object"))
}

/// Sets what the server sets on a new object. Answers its name.
pub(crate) fn prepare_create(kind: &ResourceType, value: &mut Value, birth: Birth<'_>) -> Answer<String> {
    let metadata = of(value)?;
    if metadata.get("resourceVersion").and_then(Value::as_str).is_some_and(|rv| !rv.is_empty()) {
        // The text is what client-go's callers match.
        return Err(Failure::internal("resourceVersion should not be set on objects to be created"));
    }
    check_namespace(kind, metadata, birth.namespace)?;
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
        metadata.remove(field);
    }
    let name = match metadata.get("name").and_then(Value::as_str).unwrap_or_default() {
        "" => {
            let base = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
            let cut = base
                .char_indices()
                .map(|(i, c)| i + c.len_utf8())
                .take_while(|end| *end <= GENERATED_NAME_BASE_MAX);
            let base = &base[..cut.last().unwrap_or(0)];
            if base.is_empty() { String::new() } else { format!("{base}{}", birth.suffix) }
        }
        name => name.to_owned(),
    };
    check_name(&name)?;
    metadata.insert("name".into(), name.clone().into());
    metadata.insert("uid".into(), birth.uid.into());
    metadata.insert("creationTimestamp".into(), birth.now.into());
    metadata.remove("generation");
    if tracks_generation(kind) {
        metadata.insert("generation".into(), 1.into());
    }
    Ok(name)
}

/// Names that no path can address are refused whatever the kind; the rest is for the kind's own rules.
fn check_name(name: &str) -> Answer<()> {
    if name.is_empty() {
        return Err(Failure::unprocessable(
            "name or generateName is required: metadata.name: Required value",
        ));
    }
    let addressable = !matches!(name, "." | "..") && !name.contains(['/', '%', '\0']);
    if !addressable || name.len() > NAME_BYTES_MAX {
        return Err(Failure::unprocessable(format!(
            "metadata.name: Invalid value: {name:?} is not a legal name"
        )));
    }
    Ok(())
}

fn check_namespace(kind: &ResourceType, metadata: &mut Map<String, Value>, namespace: &str) -> Answer<()> {
    let found = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if !kind.is_namespaced() {
        metadata.remove("namespace");
        return Ok(());
    }
    if !found.is_empty() && found != namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    metadata.insert("namespace".into(), namespace.into());
    Ok(())
}

/// Carries over what a client may not change, and lets generation follow the change.
pub(crate) fn prepare_update(kind: &ResourceType, new: &mut Value, old: &Value) -> Answer<()> {
    let name = text(old, "/metadata/name").to_owned();
    let old_metadata = &old["metadata"];
    let metadata = of(new)?;
    let given = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    if given != name {
        return Err(Failure::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    check_namespace(kind, metadata, old_metadata["namespace"].as_str().unwrap_or_default())?;
    let uid = metadata.get("uid").and_then(Value::as_str).unwrap_or_default();
    if !uid.is_empty() && uid != text(old, "/metadata/uid") {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            text(old, "/metadata/uid")
        );
        return Err(Failure::conflict(kind, &name, &why));
    }
    metadata.remove("selfLink");
    for field in KEPT {
        match old_metadata.get(field) {
            Some(value) => metadata.insert(field.into(), value.clone()),
            None => metadata.remove(field),
        };
    }
    Ok(())
}

/// Raises generation when what it tracks has changed.
pub(crate) fn bump_generation(kind: &ResourceType, new: &mut Value, old: &Value) {
    if tracks_generation(kind) && wanted(kind, new) != wanted(kind, old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        new["metadata"]["generation"] = generation.into();
    }
}

/// What a generation stands for: the specification, for custom resources everything but metadata and status.
fn wanted<'a>(kind: &ResourceType, value: &'a Value) -> Vec<(&'a String, &'a Value)> {
    let counts = |field: &str| {
        !matches!(field, "metadata" | "apiVersion" | "kind")
            && (field != "status" || kind.subresource("status").is_none())
    };
    value.as_object().map(|o| o.iter().filter(|(field, _)| counts(field)).collect()).unwrap_or_default()
}

/// Whether the objects of a kind have a generation. Source: PrepareForCreate of the kinds' strategies.
fn tracks_generation(kind: &ResourceType) -> bool {
    kind.is_custom()
        || matches!(
            &*kind.group,
            "apps" | "batch" | "policy" | "networking.k8s.io" | "apiextensions.k8s.io" | "discovery.k8s.io"
        )
        || (kind.group.is_empty() && kind.kind == "Pod")
}

/// A write to `/status`: everything else stays as it is, except the metadata that the kind lets through.
pub(crate) fn status_only(kind: &ResourceType, new: &mut Value, old: &Value) {
    let mut merged = old.clone();
    match new.get("status") {
        Some(status) => merged["status"] = status.clone(),
        None => {
            merged.as_object_mut().map(|o| o.remove("status"));
        }
    }
    // Pods, nodes and namespaces take labels and annotations here too (the node agent relies on it); workloads and
    // custom resources do not. Source: PrepareForUpdate of their status strategies.
    if kind.group.is_empty() {
        for field in ["labels", "annotations"] {
            match new["metadata"].get(field) {
                Some(value) => merged["metadata"][field] = value.clone(),
                None => {
                    merged["metadata"].as_object_mut().map(|o| o.remove(field));
                }
            }
        }
    }
    *new = merged;
}

/// A write to the object itself: status stays as it is.
pub(crate) fn keep_status(kind: &ResourceType, new: &mut Value, old: &Value) {
    if kind.subresource("status").is_none() {
        return;
    }
    match old.get("status") {
        Some(status) => new["status"] = status.clone(),
        None => {
            new.as_object_mut().map(|o| o.remove("status"));
        }
    }
}

/// Whether an object may go now: it was marked for deletion and nothing holds it back.
pub(crate) fn is_finished(value: &Value) -> bool {
    let metadata = &value["metadata"];
    let held = metadata["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    // A namespace is held back by its specification too.
    let namespace_held =
        value["kind"] == "Namespace" && value["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    metadata.get("deletionTimestamp").is_some()
        && !held
        && !namespace_held
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
}

/// Finalizers may only go while an object is being deleted.
pub(crate) fn check_finalizers(kind: &ResourceType, new: &Value, old: &Value) -> Answer<()> {
    if old["metadata"].get("deletionTimestamp").is_none() {
        return Ok(());
    }
    let list = |v: &Value| v["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = list(old);
    let added: Vec<String> = list(new)
        .iter()
        .filter(|f| !before.contains(f))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if added.is_empty() {
        return Ok(());
    }
    let fault = ambit_schema::FieldFault {
        path: "metadata.finalizers".into(),
        kind: ambit_schema::FaultKind::Forbidden,
        message: format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
        ),
        bad_value: None,
    };
    Err(Failure::invalid(kind, text(old, "/metadata/name"), &[fault]))
}
