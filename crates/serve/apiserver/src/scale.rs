//! The subresource `scale`: the number of replicas of whatever has one, in one form for all.

use crate::answer::{self, Body};
use crate::apply::{self, APPLY};
use crate::cluster::Cluster;
use crate::modify::{Patch, change};
use crate::ownership::{Author, Record};
use crate::request::{Call, Effect, Part, Target, text};
use crate::status::{Answer, Failure};
use crate::subresources::body;
use ambit_schema::{FieldValidation, decode_kind};
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// Answers requests for `deployments/NAME/scale` and the like.
pub(crate) async fn scale(cluster: &Arc<Cluster>, call: &Call, target: &Target) -> Answer<Response<Body>> {
    if call.method == Method::GET {
        let stored = cluster.stored(target)?;
        return answer::plain(
            call,
            StatusCode::OK,
            &View::of(target)?.shown(&stored.value.value_as(&target.kind)),
        );
    }
    let view = View::of(target)?;
    if call.method == Method::PATCH && call.content_type() == APPLY {
        return apply_scale(cluster, call, target).await;
    }
    let patch = if call.method == Method::PATCH { Some(Patch::parse(call, &target.kind)?) } else { None };
    let put = if patch.is_none() { Some(body(call, ("autoscaling", "v1", "Scale"))?) } else { None };
    let effect: Effect = call.effect()?;
    let record = Record::By(Author { manager: call.field_manager()?, subresource: "scale" });
    let changed = change(cluster, target, (Part::Main, effect, &record), |old| {
        let scale = match (&patch, &put) {
            (Some(patch), _) => patch.apply(&target.kind, &view.shown(old))?,
            (None, Some(put)) => put.clone(),
            (None, None) => Value::Null,
        };
        let replicas = checked_replicas(&target.name, &scale)?;
        let mut new = old.clone();
        new["metadata"]["resourceVersion"] = scale["metadata"]["resourceVersion"].clone();
        view.set_replicas(&mut new, replicas);
        Ok(new)
    });
    let object = changed.await?;
    answer::plain(call, StatusCode::OK, &View::of(target)?.shown(&object.value_as(&target.kind)))
}

/// Answers an apply to a scale: of the workload, that applies the number of its replicas.
async fn apply_scale(cluster: &Arc<Cluster>, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let parsed = apply::body(call)?;
    let expected = ("autoscaling/v1", "Scale");
    let given = (text(&parsed.value, "/apiVersion"), text(&parsed.value, "/kind"));
    if given != expected {
        return Err(Failure::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {}, Kind={}, expected: {}, Kind={}",
            given.0, given.1, expected.0, expected.1
        )));
    }
    let decoded = decode_kind(("autoscaling", "v1", "Scale"), parsed, FieldValidation::Strict)
        .ok_or_else(|| Failure::internal("no definition of Scale"))?
        .map_err(|e| Failure::bad_request(e.to_string()))?;
    let scale = decoded.object;
    let kind = &target.kind;
    let mut workload = json!({
        "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": target.name},
    });
    View::of(target)?.set_replicas(&mut workload, checked_replicas(&target.name, &scale)?);
    let revision = text(&scale, "/metadata/resourceVersion");
    if !revision.is_empty() {
        workload["metadata"]["resourceVersion"] = revision.into();
    }
    let author = Author { manager: call.field_manager()?, subresource: "scale" };
    let configuration = apply::configuration(call, author, workload)?;
    let (object, _) = apply::lay(cluster, call, target, (Part::Main, &configuration)).await?;
    answer::plain(call, StatusCode::OK, &View::of(target)?.shown(&object.value_as(&target.kind)))
}

fn checked_replicas(name: &str, scale: &Value) -> Answer<i64> {
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        return Err(Failure::unprocessable(format!(
            "Scale.autoscaling {name:?} is invalid: spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0"
        )));
    }
    Ok(replicas)
}

/// Where a kind keeps what its Scale shows.
struct View {
    replicas: String,
    status_replicas: String,
    /// A selector as text; `None`: the kind's `spec.selector`.
    selector: Option<String>,
    /// Whether that is labels alone.
    plain_selector: bool,
}

impl View {
    fn of(target: &Target) -> Answer<Self> {
        let kind = &target.kind;
        let Some(custom) = &kind.custom else {
            return Ok(Self {
                replicas: "spec.replicas".into(),
                status_replicas: "status.replicas".into(),
                selector: None,
                plain_selector: kind.kind == "ReplicationController",
            });
        };
        let paths = custom.scale.clone().ok_or_else(Failure::no_such_resource)?;
        Ok(Self {
            replicas: paths.spec_replicas,
            status_replicas: paths.status_replicas,
            selector: Some(paths.label_selector.unwrap_or_default()),
            plain_selector: false,
        })
    }

    fn set_replicas(&self, object: &mut Value, replicas: i64) {
        let mut place = object;
        for part in self.replicas.split('.') {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[part];
        }
        *place = replicas.into();
    }

    fn shown(&self, object: &Value) -> Value {
        let metadata = &object["metadata"];
        let at = |path: &str| path.split('.').fold(object, |value, part| &value[part]);
        let selector = match &self.selector {
            Some(path) if path.is_empty() => String::new(),
            Some(path) => at(path).as_str().unwrap_or_default().to_owned(),
            None if self.plain_selector => labels_text(&object["spec"]["selector"]),
            None => labels_text(&object["spec"]["selector"]["matchLabels"]),
        };
        json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
                         "resourceVersion": metadata["resourceVersion"],
                         "creationTimestamp": metadata["creationTimestamp"]},
            "spec": {"replicas": at(&self.replicas).as_i64().unwrap_or(0)},
            "status": {"replicas": at(&self.status_replicas).as_i64().unwrap_or(0), "selector": selector},
        })
    }
}

fn labels_text(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    pairs.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect::<Vec<_>>().join(",")
}
