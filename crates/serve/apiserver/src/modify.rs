//! Changing objects: updates and patches, of the object or of one of its parts.

use crate::admit;
use crate::answer::{self, Body, View};
use crate::cluster::Cluster;
use crate::create::decode;
use crate::delete;
use crate::escalation;
use crate::memory::WriteError;
use crate::metadata;
use crate::object::{Object, Stored, set_revision};
use crate::ownership::{Author, Record};
use crate::request::{Call, Effect, Part, Target, text};
use crate::status::{Answer, Failure};
use crate::strategy::Strategy;
use ambit_apply::{PatchError, json_patch, merge_patch, strategic_merge};
use ambit_schema::{Decoded, Parsed, ResourceType, parse_json};
use ambit_store::{Conflict, Expect};
use http::{Response, StatusCode};
use serde_json::Value;
use std::sync::Arc;

/// Tries of a change that does not insist on a revision. Source: apiserver handlers/patch.go.
const TRIES: usize = 5;

/// Answers a PUT.
pub(crate) async fn update(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    part: Part,
) -> Answer<Response<Body>> {
    let record = Record::By(author(call, part)?);
    let decoded =
        decode(&target.kind, call.parsed_body(&target.kind.group_version_kind())?, call.field_validation()?)?;
    let Decoded { object, warnings } = decoded;
    let changed = change(cluster, target, (part, call.effect()?, &record), |old| {
        escalation::check(cluster, &call.user, &target.kind, (&object, Some(old)), &target.namespace)?;
        Ok(object.clone())
    });
    let changed = changed.await?;
    respond(cluster, call, target, &changed, &warnings)
}

/// Answers a PATCH.
pub(crate) async fn patch(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    part: Part,
) -> Answer<Response<Body>> {
    let record = Record::By(author(call, part)?);
    let validation = call.field_validation()?;
    let patch = Patch::parse(call, &target.kind)?;
    let mut warnings = Vec::new();
    let changed = change(cluster, target, (part, call.effect()?, &record), |old| {
        let value = patch.apply(&target.kind, old)?;
        let parsed = Parsed { value, duplicates: patch.body.duplicates.clone() };
        let decoded = decode(&target.kind, parsed, validation)?;
        warnings = decoded.warnings;
        let both = (&decoded.object, Some(old));
        escalation::check(cluster, &call.user, &target.kind, both, &target.namespace)?;
        Ok(decoded.object)
    });
    let changed = changed.await?;
    respond(cluster, call, target, &changed, &warnings)
}

/// Who writes to a part of an object.
pub(crate) fn author(call: &Call, part: Part) -> Answer<Author> {
    let subresource = match part {
        Part::Main | Part::Whole => "",
        Part::Status => "status",
        Part::Finalize => "finalize",
    };
    Ok(Author { manager: call.field_manager()?, subresource })
}

pub(crate) fn respond(
    cluster: &Cluster,
    call: &Call,
    target: &Target,
    object: &Object,
    warnings: &[String],
) -> Answer<Response<Body>> {
    let view = View::of(call, &target.kind, cluster.clock.timestamp())?;
    let mut response = answer::encoded(StatusCode::OK, view.encoding, view.object(&target.kind, object))?;
    answer::warn(&mut response, warnings);
    Ok(response)
}

/// A patch, read but not applied.
pub(crate) struct Patch {
    form: PatchForm,
    body: Parsed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchForm {
    Json,
    Merge,
    Strategic,
}

impl Patch {
    /// Reads the body by its media type.
    pub(crate) fn parse(call: &Call, kind: &ResourceType) -> Answer<Self> {
        let form = match call.content_type() {
            "application/json-patch+json" => PatchForm::Json,
            "application/merge-patch+json" => PatchForm::Merge,
            "application/strategic-merge-patch+json" if kind.is_custom() => {
                return Err(Failure::unsupported_media_type(
                    "custom resources take application/json-patch+json and application/merge-patch+json, \
                     not application/strategic-merge-patch+json",
                ));
            }
            "application/strategic-merge-patch+json" => PatchForm::Strategic,
            other => {
                return Err(Failure::unsupported_media_type(format!(
                    "the body of the request was in an unknown format ({other}) - accepted media types include: \
                     application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
                     application/apply-patch+yaml"
                )));
            }
        };
        if call.query.on("force") {
            let what = "Forbidden: may not be specified for non-apply patch";
            return Err(Failure::invalid_options("PatchOptions", "force", what));
        }
        let body = parse_json(&call.body).map_err(|e| Failure::bad_request(e.to_string()))?;
        Ok(Self { form, body })
    }

    /// The object as the patch makes it.
    pub(crate) fn apply(&self, kind: &ResourceType, old: &Value) -> Answer<Value> {
        let patch = &self.body.value;
        let patched = match self.form {
            PatchForm::Json => json_patch(old.clone(), patch.clone()),
            PatchForm::Merge => merge_patch(old.clone(), patch),
            PatchForm::Strategic => strategic_merge(old.clone(), patch, &Strategy(kind.schema())),
        };
        patched.map_err(|error| {
            let message = error.to_string();
            match error {
                PatchError::Malformed(_) | PatchError::Strategic { .. } => Failure::bad_request(message),
                PatchError::TooManyOperations { .. } | PatchError::TooLarge { .. } => {
                    Failure::patch_too_large(message)
                }
                PatchError::TestFailed { .. } | PatchError::Unfitting { .. } => {
                    Failure::unprocessable(message)
                }
            }
        })
    }
}

/// Changes an object: `edit` makes the new state (in the target's version) from the old one. Answers what is stored
/// afterwards; when the change let the object go, its last state.
///
/// Retries when another write comes between, unless the new state insists on a revision.
pub(crate) async fn change(
    cluster: &Arc<Cluster>,
    target: &Target,
    (part, effect, record): (Part, Effect, &Record),
    mut edit: impl FnMut(&Value) -> Answer<Value>,
) -> Answer<Arc<Object>> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let head = cluster.head(target)?;
        let old = head.value.value_as(&target.kind);
        let new = edit(&old)?;
        match replace(cluster, target, (part, effect, record), (&head, &old, new)).await? {
            Err(WriteError::Conflict(Conflict::Changed { .. }) | WriteError::Overtaken(_)) if tries > 0 => {}
            outcome => return outcome.map_err(|e| Failure::of_write(&target.kind, &target.name, e)),
        }
    }
}

async fn replace(
    cluster: &Arc<Cluster>,
    target: &Target,
    (part, effect, record): (Part, Effect, &Record),
    (head, old, mut new): (&Stored, &Value, Value),
) -> Answer<Result<Arc<Object>, WriteError>> {
    let kind = &target.kind;
    let wanted = text(&new, "/metadata/resourceVersion");
    if !wanted.is_empty() && wanted != "0" && wanted != head.revision.to_string() {
        return Err(Failure::modified(kind, &target.name));
    }
    let start = record.start(&new, old);
    metadata::prepare_update(kind, &mut new, old)?;
    keep_part(kind, part, &mut new, old);
    set_revision(&mut new, head.revision);
    kind.default(&mut new);
    record.settle(cluster, kind, (&mut new, Some(old)), start);
    let held = admit::update(cluster, kind, &mut new, old, part == Part::Main).await?;
    metadata::bump_generation(kind, &mut new, old);
    metadata::check_finalizers(kind, &new, old)?;
    if new == *old {
        // Nothing to write; the state just read must not be taken back by a crash after it was answered.
        return Ok(cluster.db.durable(head.revision).await.map(|()| head.value.clone()));
    }
    // The server's own changes (a pod's node, say) may touch what clients may not.
    let faults = if part == Part::Whole { Vec::new() } else { kind.validate_update(&new, old) };
    if !faults.is_empty() {
        return Err(Failure::invalid(kind, &target.name, &faults));
    }
    let finished = metadata::is_finished(&new);
    let new = kind.to_stored(new);
    if effect == Effect::DryRun {
        return Ok(Ok(Object::written(new, head.revision)));
    }
    let (key, expect) = (target.key(), Expect::Revision(head.revision));
    let written = match finished {
        true => cluster.db.delete(key, expect).await.map(|event| Object::written(new, event.revision)),
        false => {
            let make = |revision| Object::written(new, revision);
            let put = match &held {
                Some(turn) => cluster.db.put_while(&turn.unchanged, (key, expect), make).await,
                None => cluster.db.put(key, expect, make).await,
            };
            put.map(|event| event.new.clone().expect("a put leaves a value"))
        }
    };
    if written.is_ok() && finished {
        delete::after_removal(cluster, kind).await;
    }
    Ok(written)
}

/// Leaves the parts as they are that this write is not about.
fn keep_part(kind: &ResourceType, part: Part, new: &mut Value, old: &Value) {
    match part {
        Part::Main => {
            metadata::keep_status(kind, new, old);
            if kind.kind == "Namespace" && kind.group.is_empty() {
                new["spec"]["finalizers"] = old["spec"]["finalizers"].clone();
            }
        }
        Part::Status => metadata::status_only(kind, new, old),
        Part::Finalize => {
            let finalizers = new["spec"]["finalizers"].take();
            *new = old.clone();
            new["spec"]["finalizers"] =
                if finalizers.is_null() { Value::Array(Vec::new()) } else { finalizers };
        }
        Part::Whole => {}
    }
}
