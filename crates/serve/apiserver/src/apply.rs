//! Server-side apply: a patch that says all that its manager wants of an object.

use crate::answer::Body;
use crate::cluster::Cluster;
use crate::create::{create_object, decode};
use crate::escalation;
use crate::modify::{author, change, respond};
use crate::object::Object;
use crate::ownership::{self, Author, Record};
use crate::request::{Call, Effect, Part, Target, text};
use crate::status::{Answer, Failure};
use ambit_apply::OnConflict;
use ambit_schema::{FieldValidation, Parsed, parse_json, parse_yaml};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// The media type of such a patch.
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
/// Tries when an object comes and goes between two looks at it.
const TRIES: usize = 5;

/// An apply, read but not carried out.
pub(crate) struct Configuration {
    pub(crate) value: Value,
    author: Author,
    on_conflict: OnConflict,
    effect: Effect,
}

/// Answers an apply to an object or to a part of it.
pub(crate) async fn apply(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    part: Part,
) -> Answer<Response<Body>> {
    let configuration = read(call, target, author(call, part)?)?;
    let (object, created) = lay(cluster, call, target, (part, &configuration)).await?;
    let mut response = respond(cluster, call, target, &object, &[])?;
    if created {
        *response.status_mut() = StatusCode::CREATED;
    }
    Ok(response)
}

/// Reads the options and the body of an apply to an object of the target's kind.
fn read(call: &Call, target: &Target, author: Author) -> Answer<Configuration> {
    let kind = &target.kind;
    let parsed = body(call)?;
    let given = text(&parsed.value, "/apiVersion");
    if given != kind.api_version() {
        return Err(Failure::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {given}, expected: {}",
            kind.api_version()
        )));
    }
    if text(&parsed.value, "/kind").is_empty() {
        return Err(Failure::bad_request("Object 'Kind' is missing in the apply patch"));
    }
    let name = text(&parsed.value, "/metadata/name");
    if !name.is_empty() && name != target.name {
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )));
    }
    // Whoever applies must know all that they own, so that what this version does not know is an error at any level.
    let decoded = decode(kind, parsed, FieldValidation::Strict)?;
    configuration(call, author, decoded.object)
}

/// Reads the options of an apply.
pub(crate) fn configuration(call: &Call, author: Author, value: Value) -> Answer<Configuration> {
    if call.query.value("fieldManager").unwrap_or_default().is_empty() {
        let what = "Required value: is required for apply patch";
        return Err(Failure::invalid_options("PatchOptions", "fieldManager", what));
    }
    let unset = |list: &Value| list.is_null() || list.as_array().is_some_and(Vec::is_empty);
    if !unset(&value["metadata"]["managedFields"]) {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    let on_conflict = if call.query.on("force") { OnConflict::Force } else { OnConflict::Refuse };
    Ok(Configuration { value, author, on_conflict, effect: call.effect()? })
}

/// The body of an apply: YAML, of which JSON is a part.
pub(crate) fn body(call: &Call) -> Answer<Parsed> {
    let utf8 = std::str::from_utf8(&call.body)
        .map_err(|error| Failure::bad_request(format!("the body is not UTF-8: {error}")))?;
    // JSON is read as such: faster, and its errors name the place.
    let parsed = match utf8.trim_start().starts_with('{') {
        true => parse_json(&call.body).map_err(|error| error.to_string()),
        false => parse_yaml(utf8).map_err(|error| error.to_string()),
    };
    parsed.map_err(|error| Failure::bad_request(format!("error decoding YAML: {error}")))
}

/// Applies a configuration. Answers the object, and whether it is new.
pub(crate) async fn lay(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    (part, configuration): (Part, &Configuration),
) -> Answer<(Arc<Object>, bool)> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let outcome = match change_existing(cluster, call, target, (part, configuration)).await {
            Err(failure)
                if failure.code == StatusCode::NOT_FOUND && configuration.author.subresource.is_empty() =>
            {
                create(cluster, call, target, configuration).await.map(|object| (object, true))
            }
            changed => changed.map(|object| (object, false)),
        };
        match outcome {
            // Somebody else created it meanwhile.
            Err(failure) if failure.reason() == "AlreadyExists" && tries > 0 => {}
            outcome => return outcome,
        }
    }
}

async fn change_existing(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    (part, configuration): (Part, &Configuration),
) -> Answer<Arc<Object>> {
    let Configuration { value, author, on_conflict, effect } = configuration;
    let changed = change(cluster, target, (part, *effect, &Record::Made), |old| {
        let laid = ownership::apply(cluster, &target.kind, (author, part), (Some(old), value), *on_conflict)?;
        if !laid.changed {
            return Ok(old.clone());
        }
        let both = (&laid.object, Some(old));
        escalation::check(cluster, &call.user, &target.kind, both, &target.namespace)?;
        Ok(laid.object)
    });
    changed.await
}

async fn create(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    configuration: &Configuration,
) -> Answer<Arc<Object>> {
    let Configuration { value, author, on_conflict, effect } = configuration;
    let kind = &target.kind;
    let conflict = |why: &str| Err(Failure::conflict(kind, &target.name, why));
    match (text(value, "/metadata/uid"), text(value, "/metadata/resourceVersion")) {
        ("", "") => {}
        ("", _) => return conflict("a resourceVersion was specified, and no existing object was found"),
        (uid, _) => {
            return conflict(&format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            ));
        }
    }
    let laid = ownership::apply(cluster, kind, (author, Part::Main), (None, value), *on_conflict)?;
    let mut object = laid.object;
    if text(&object, "/metadata/name").is_empty() {
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        object["metadata"]["name"] = target.name.as_str().into();
    }
    escalation::check(cluster, &call.user, kind, (&object, None), &target.namespace)?;
    create_object(cluster, target, object, (*effect, &Record::Made)).await
}
