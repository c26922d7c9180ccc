//! Deleting objects: grace, finalizers, propagation, and collections.

use crate::admit;
use crate::answer::{self, Body};
use crate::cluster::{Cluster, DEFINITIONS, seconds_text};
use crate::memory::WriteError;
use crate::metadata;
use crate::object::{Object, Stored};
use crate::read;
use crate::request::{Call, Effect, Target, collection, text};
use crate::status::{Answer, Failure};
use ambit_schema::{GroupVersionKind, ResourceType};
use ambit_store::{Conflict, Expect};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// Grace of a pod that does not say. Source: core/v1 DefaultTerminationGracePeriodSeconds.
const POD_GRACE_SECONDS: i64 = 30;
/// Tries when other writes come between.
const TRIES: usize = 5;
/// Events removed for their age in one round at most.
const EXPIRED_MAX: usize = 1_000;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// How an object is to be deleted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    grace_seconds: Option<i64>,
    uid: Option<String>,
    resource_version: Option<String>,
    policy: Option<Policy>,
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Background,
    Foreground,
    Orphan,
}

/// What came of a deletion.
pub(crate) enum Deleted {
    /// The object is gone; its last state.
    Gone(Value),
    /// The object is marked and goes later.
    Marked(Arc<Object>),
}

impl Options {
    /// Reads the options from the body, else from the query.
    pub(crate) fn parse(call: &Call) -> Answer<Self> {
        let expected = GroupVersionKind::new("meta.k8s.io", "v1", "DeleteOptions");
        let body = if call.body.is_empty() { Value::Null } else { call.parsed_body(&expected)?.value };
        Self::of(&body, call)
    }

    /// Reads options that a body holds; what it does not say, the query may.
    pub(crate) fn of(body: &Value, call: &Call) -> Answer<Self> {
        let query = |name| call.query.value(name).filter(|v| !v.is_empty());
        let grace_seconds =
            match (body["gracePeriodSeconds"].as_i64(), query("gracePeriodSeconds")) {
                (None, Some(text)) => Some(text.parse().map_err(|_| {
                    Failure::bad_request(format!("gracePeriodSeconds {text:?} is not a number"))
                })?),
                (body, _) => body,
            };
        let policy = match body["propagationPolicy"].as_str().or_else(|| query("propagationPolicy")) {
            None => None,
            Some("Background") => Some(Policy::Background),
            Some("Foreground") => Some(Policy::Foreground),
            Some("Orphan") => Some(Policy::Orphan),
            Some(other) => {
                let what = format!(
                    "Unsupported value: {other:?}: supported values: \"Background\", \"Foreground\", \"Orphan\""
                );
                return Err(Failure::invalid_options("DeleteOptions", "propagationPolicy", &what));
            }
        };
        let orphan = body["orphanDependents"].as_bool().or(query("orphanDependents").map(|v| v == "true"));
        let policy = match (policy, orphan) {
            (Some(_), Some(_)) => {
                let what = "Invalid value: orphanDependents and propagationPolicy cannot be both set";
                return Err(Failure::invalid_options("DeleteOptions", "propagationPolicy", what));
            }
            (None, Some(true)) => Some(Policy::Orphan),
            (policy, _) => policy,
        };
        let dry_run = match &body["dryRun"] {
            Value::Array(values) if !values.is_empty() => match values.iter().all(|v| v == "All") {
                true => true,
                false => {
                    let what = "Unsupported value: supported values: \"All\"";
                    return Err(Failure::invalid_options("DeleteOptions", "dryRun", what));
                }
            },
            _ => call.effect()? == Effect::DryRun,
        };
        let precondition = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        Ok(Self {
            // A negative grace means at once, but not by force. Source: apiserver registry/rest/delete.go.
            grace_seconds: grace_seconds.map(|grace: i64| if grace < 0 { 1 } else { grace }),
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            policy,
            dry_run,
        })
    }
}

/// Answers the DELETE of an object.
pub(crate) async fn delete(cluster: &Arc<Cluster>, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let options = Options::parse(call)?;
    let kind = &target.kind;
    match delete_object(cluster, target, &options).await? {
        Deleted::Marked(object) => {
            let json = object.json_as(kind);
            answer::encoded(StatusCode::OK, crate::negotiate::encoding("")?, json)
        }
        Deleted::Gone(last) => {
            let details = json!({"name": target.name, "group": kind.group, "kind": kind.plural,
                                 "uid": last["metadata"]["uid"]});
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                                "details": details});
            Ok(answer::response(StatusCode::OK, "application/json", status.to_string()))
        }
    }
}

/// Answers the DELETE of a collection.
pub(crate) async fn delete_collection(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
) -> Answer<Response<Body>> {
    let options = Options::parse(call)?;
    let kind = &target.kind;
    let mut items = Vec::new();
    for (key, _) in read::selected(cluster, call, target)? {
        let one = Target::new(kind, &key.namespace, &key.name);
        match delete_object(cluster, &one, &options).await {
            Ok(Deleted::Gone(last)) => items.push(kind.from_stored(last)),
            Ok(Deleted::Marked(object)) => items.push(object.value_as(kind)),
            // Somebody else was faster.
            Err(failure) if failure.code == StatusCode::NOT_FOUND => {}
            Err(failure) => return Err(failure),
        }
    }
    let list = json!({"kind": kind.list_kind, "apiVersion": kind.api_version(),
                      "metadata": {"resourceVersion": cluster.db.revision().to_string()}, "items": items});
    answer::plain(call, StatusCode::OK, &list)
}

/// Deletes an object, or marks it when something holds it back.
pub(crate) async fn delete_object(
    cluster: &Arc<Cluster>,
    target: &Target,
    options: &Options,
) -> Answer<Deleted> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let head = cluster.head(target)?;
        match attempt(cluster, target, options, &head).await? {
            Err(WriteError::Conflict(Conflict::Changed { .. })) if tries > 0 => {}
            outcome => return outcome.map_err(|e| Failure::of_write(&target.kind, &target.name, e)),
        }
    }
}

async fn attempt(
    cluster: &Arc<Cluster>,
    target: &Target,
    options: &Options,
    head: &Stored,
) -> Answer<Result<Deleted, WriteError>> {
    let kind = &target.kind;
    let old = head.value.value();
    check_preconditions(target, options, &old, head)?;
    if is_protected(kind, &target.name) {
        return Err(Failure::forbidden(format!(
            "namespaces {:?} is forbidden: this namespace may not be deleted",
            target.name
        ))
        .about(kind, &target.name));
    }
    let new = marked(cluster, kind, options, &old);
    let finished = metadata::is_finished(&new);
    if options.dry_run {
        return Ok(Ok(if finished {
            Deleted::Gone(old)
        } else {
            Deleted::Marked(Object::written(new, head.revision))
        }));
    }
    let (key, expect) = (target.key(), Expect::Revision(head.revision));
    if finished {
        let outcome = cluster.db.delete(key, expect).await;
        if outcome.is_ok() {
            after_removal(cluster, kind).await;
        }
        return Ok(outcome.map(|_| Deleted::Gone(old)));
    }
    if new == old {
        return Ok(cluster.db.durable(head.revision).await.map(|()| Deleted::Marked(head.value.clone())));
    }
    let put = cluster.db.put(key, expect, |revision| Object::written(new, revision)).await;
    if put.is_ok() && &*collection(kind) == DEFINITIONS {
        Box::pin(remove_instances(cluster, &target.name)).await;
    }
    Ok(put.map(|event| Deleted::Marked(event.new.clone().expect("a put leaves a value"))))
}

fn check_preconditions(target: &Target, options: &Options, old: &Value, head: &Stored) -> Answer<()> {
    let uid = text(old, "/metadata/uid");
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}");
        return Err(Failure::conflict(&target.kind, &target.name, &why));
    }
    let revision = head.revision.to_string();
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != revision) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {revision}"
        );
        return Err(Failure::conflict(&target.kind, &target.name, &why));
    }
    Ok(())
}

/// Namespaces that always exist. Source: the NamespaceLifecycle admission plugin.
fn is_protected(kind: &ResourceType, name: &str) -> bool {
    kind.kind == "Namespace"
        && kind.group.is_empty()
        && matches!(name, "default" | "kube-system" | "kube-public")
}

/// The object as this deletion leaves it.
fn marked(cluster: &Cluster, kind: &ResourceType, options: &Options, old: &Value) -> Value {
    let mut new = old.clone();
    set_finalizers(cluster, kind, options, &mut new);
    let already = old["metadata"].get("deletionTimestamp").is_some();
    let before = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    let grace = match (grace(kind, options, old), already) {
        // Grace only ever gets shorter.
        (_, true) if options.grace_seconds.is_none() => before,
        (wanted, true) => wanted.min(before),
        (wanted, false) => wanted,
    };
    if !already || grace < before {
        let time = cluster.clock.timestamp() + jiff::SignedDuration::from_secs(grace);
        new["metadata"]["deletionTimestamp"] = seconds_text(time).into();
        new["metadata"]["deletionGracePeriodSeconds"] = grace.into();
    }
    if !already && let Some(generation) = new["metadata"]["generation"].as_i64() {
        new["metadata"]["generation"] = (generation + 1).into();
    }
    if kind.kind == "Namespace" && kind.group.is_empty() {
        new["status"]["phase"] = "Terminating".into();
    }
    new
}

/// Seconds until the object goes: only pods are given any.
fn grace(kind: &ResourceType, options: &Options, old: &Value) -> i64 {
    if kind.kind != "Pod" || !kind.group.is_empty() {
        return 0;
    }
    let ended = matches!(text(old, "/status/phase"), "Succeeded" | "Failed");
    if text(old, "/spec/nodeName").is_empty() || ended {
        return 0;
    }
    options.grace_seconds.unwrap_or_else(|| {
        old["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(POD_GRACE_SECONDS).max(0)
    })
}

/// Finalizers that carry the propagation policy to the garbage collector, and the one that cleans up after a
/// definition.
fn set_finalizers(cluster: &Cluster, kind: &ResourceType, options: &Options, new: &mut Value) {
    let mut finalizers: Vec<Value> = new["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let collected = !matches!(&*kind.kind, "Event" | "Lease");
    if let Some(policy) = options.policy.filter(|_| collected) {
        finalizers.retain(|f| f != ORPHAN && f != FOREGROUND);
        match policy {
            Policy::Background => {}
            Policy::Foreground => finalizers.push(FOREGROUND.into()),
            Policy::Orphan => finalizers.push(ORPHAN.into()),
        }
    }
    if &*collection(kind) == DEFINITIONS {
        finalizers.retain(|f| f != admit::CLEANUP);
        if !cluster.is_empty(&admit::instances_of(new)) {
            finalizers.push(admit::CLEANUP.into());
        }
    }
    if let Some(metadata) = new["metadata"].as_object_mut() {
        match finalizers.is_empty() {
            true => metadata.remove("finalizers"),
            false => metadata.insert("finalizers".into(), finalizers.into()),
        };
    }
}

/// What follows from an object being gone.
pub(crate) async fn after_removal(cluster: &Arc<Cluster>, kind: &Arc<ResourceType>) {
    if let Some(custom) = &kind.custom
        && cluster.is_empty(&collection(kind))
    {
        let definitions = cluster.built_in("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let definition = Target::new(&definitions, "", &custom.definition_name);
        if let Ok(head) = cluster.head(&definition)
            && head.value.value()["metadata"].get("deletionTimestamp").is_some()
            && let Err(failure) = Box::pin(delete_object(cluster, &definition, &Options::default())).await
        {
            tracing::warn!(definition = %custom.definition_name, ?failure, "definition could not be removed after its objects");
        }
    }
}

/// Deletes all objects of a definition that is going away; the last one to go takes the definition with it.
async fn remove_instances(cluster: &Arc<Cluster>, definition: &str) {
    let catalog = cluster.catalog();
    let of =
        |kind: &&Arc<ResourceType>| kind.custom.as_ref().is_some_and(|c| c.definition_name == definition);
    let Some(kind) = catalog.resources().find(of) else { return };
    let target = Target::new(kind, "", "");
    let Ok(page) = cluster.db.list(&Cluster::range(&target), None) else { return };
    for ((namespace, name), _) in page.items {
        let one = Target::new(kind, &namespace, &name);
        if let Err(failure) = delete_object(cluster, &one, &Options::default()).await
            && failure.code != StatusCode::NOT_FOUND
        {
            tracing::warn!(definition, %namespace, %name, ?failure, "custom object could not be deleted");
        }
    }
}

/// Removes events that nobody has repeated for `age`, at most a batch per call.
pub(crate) async fn expire_events(cluster: &Arc<Cluster>, age: std::time::Duration) {
    let kind = cluster.built_in("", "v1", "Event");
    let Ok(page) = cluster.db.list(&Cluster::range(&Target::new(&kind, "", "")), None) else { return };
    let now = cluster.clock.timestamp();
    let expired = page.items.into_iter().filter(|(_, stored)| {
        let event = stored.value.value();
        let last =
            ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"]
                .into_iter()
                .find_map(|field| text(&event, field).parse::<jiff::Timestamp>().ok());
        last.is_none_or(|last| {
            now.duration_since(last).try_into().is_ok_and(|since: std::time::Duration| since > age)
        })
    });
    for ((namespace, name), _) in expired.take(EXPIRED_MAX) {
        let target = Target::new(&kind, &namespace, &name);
        // Gone already or changed meanwhile: the next round sees it.
        let _ = delete_object(cluster, &target, &Options::default()).await;
    }
}
