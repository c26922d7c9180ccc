//! Creating objects.

use crate::admit;
use crate::answer::{self, Body, View};
use crate::cluster::Cluster;
use crate::escalation;
use crate::memory::WriteError;
use crate::metadata::{self, Birth};
use crate::object::Object;
use crate::ownership::{Author, Record};
use crate::request::{Call, Effect, Target, text};
use crate::status::{Answer, Failure};
use ambit_schema::{Decoded, FieldValidation, Parsed, ResourceType};
use ambit_store::{Conflict, Expect};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// Tries to find a free generated name. Source: apiserver registry/generic, since 1.30.
const GENERATED_NAME_TRIES: usize = 8;
/// Tries under a given name, when servers side by side choose addresses at the same time.
const OVERTAKEN_TRIES: usize = 20;

/// Answers a POST to a collection.
pub(crate) async fn create(cluster: &Arc<Cluster>, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let view = View::of(call, &target.kind, cluster.clock.timestamp())?;
    let author = Author { manager: call.field_manager()?, subresource: "" };
    let effect = call.effect()?;
    let kind = &target.kind;
    if kind.is_namespaced() && target.namespace.is_empty() {
        return Err(Failure::bad_request("an empty namespace may not be set during creation"));
    }
    let decoded = decode(kind, call.parsed_body(&kind.group_version_kind())?, call.field_validation()?)?;
    escalation::check(cluster, &call.user, kind, (&decoded.object, None), &target.namespace)?;
    let decoded_type = text(&decoded.object, "/spec/type").to_owned();
    let object = create_object(cluster, target, decoded.object, (effect, &Record::By(author))).await?;
    let mut response = answer::encoded(StatusCode::CREATED, view.encoding, view.object(kind, &object))?;
    answer::warn(&mut response, &decoded.warnings);
    if let Some(warning) = unattended(kind, &decoded_type) {
        answer::warn(&mut response, &[warning]);
    }
    Ok(response)
}

/// What a client should know of an object on which, wholly or in part, nothing here acts; `of` is its `spec.type`.
fn unattended(kind: &ResourceType, of: &str) -> Option<String> {
    if kind.is_unattended {
        return Some(format!(
            "no part of Ambit acts on {}: it is kept for whoever does",
            kind.group_resource()
        ));
    }
    let exposes =
        kind.kind == "Service" && kind.group.is_empty() && matches!(of, "NodePort" | "LoadBalancer");
    exposes.then(|| {
        format!("nodes of Ambit do not serve {of} yet: the service is reached by its cluster address")
    })
}

/// Reads the body of a write: it must be of the target's kind.
pub(crate) fn decode(
    kind: &ResourceType,
    mut parsed: Parsed,
    validation: FieldValidation,
) -> Answer<Decoded> {
    let object =
        parsed.value.as_object_mut().ok_or_else(|| Failure::bad_request("the body is not an object"))?;
    for (field, expected) in [("apiVersion", kind.api_version()), ("kind", kind.kind.clone())] {
        match object.get(field).and_then(Value::as_str).unwrap_or_default() {
            "" => {
                object.insert(field.into(), expected.into());
            }
            found if found == expected => {}
            found => {
                let given = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
                return Err(Failure::bad_request(format!(
                    "the {field} in the data ({found}) does not match the expected {field} ({expected}) \
                     of {} (the data is {given})",
                    kind.group_resource()
                )));
            }
        }
    }
    kind.decode(parsed, validation).map_err(|e| Failure::bad_request(e.to_string()))
}

/// Creates an object from its decoded form.
pub(crate) async fn create_object(
    cluster: &Arc<Cluster>,
    target: &Target,
    value: Value,
    (effect, record): (Effect, &Record),
) -> Answer<Arc<Object>> {
    let generated = text(&value, "/metadata/name").is_empty();
    let mut tries = if generated { GENERATED_NAME_TRIES } else { OVERTAKEN_TRIES };
    loop {
        tries -= 1;
        let (name, outcome) = attempt(cluster, target, value.clone(), (effect, record)).await?;
        match outcome {
            Ok(object) => return Ok(object),
            Err(WriteError::Conflict(Conflict::Exists { .. })) if generated && tries > 0 => {}
            Err(WriteError::Overtaken(_)) if tries > 0 => {}
            Err(WriteError::Conflict(Conflict::Exists { .. })) if generated => {
                return Err(Failure::already_exists(&target.kind, &name).retry_after(1));
            }
            Err(error) => return Err(Failure::of_write(&target.kind, &name, error)),
        }
    }
}

/// One try under one name.
async fn attempt(
    cluster: &Arc<Cluster>,
    target: &Target,
    mut value: Value,
    (effect, record): (Effect, &Record),
) -> Answer<(String, Result<Arc<Object>, WriteError>)> {
    let kind = &target.kind;
    let birth = Birth {
        namespace: &target.namespace,
        uid: uuid::Uuid::new_v4().to_string(),
        now: cluster.now_text(),
        suffix: cluster.name_suffix(),
    };
    let start = record.start(&value, &Value::Null);
    let name = metadata::prepare_create(kind, &mut value, birth)?;
    reset_status(kind, &mut value);
    kind.default(&mut value);
    // What admission adds belongs to nobody.
    record.settle(cluster, kind, (&mut value, None), start);
    let held = admit::create(cluster, kind, &mut value).await?;
    kind.default(&mut value);
    let faults = kind.validate_create(&value);
    if !faults.is_empty() {
        return Err(Failure::invalid(kind, &name, &faults));
    }
    let key = Target::new(kind, &target.namespace, &name).key();
    let value = kind.to_stored(value);
    if effect == Effect::DryRun {
        let exists = cluster.db.head(&key).map(|_| WriteError::Conflict(Conflict::Exists { key }));
        return Ok((name, exists.map_or_else(|| Ok(Object::written(value, 0)), Err)));
    }
    let make = |revision| Object::written(value, revision);
    let written = match &held {
        Some(turn) => cluster.db.put_while(&turn.unchanged, (key, Expect::Absent), make).await,
        None => cluster.db.put(key, Expect::Absent, make).await,
    };
    Ok((name, written.map(|event| event.new.clone().expect("a put leaves a value"))))
}

/// New objects have no status yet, whatever the client sent. Nodes report theirs when they register.
fn reset_status(kind: &ResourceType, value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    if kind.subresource("status").is_none() || kind.kind == "Node" {
        return;
    }
    if kind.is_custom() {
        object.remove("status");
    } else {
        object.insert("status".into(), json!({}));
    }
}
