//! Parts of objects that are acted on rather than stored: binding, eviction, scale and tokens.

use crate::answer::{self, Body};
use crate::apply::{self, APPLY};
use crate::cluster::Cluster;
use crate::create::decode;
use crate::delete;
use crate::modify::{Patch, change};
use crate::ownership::{Author, Record};
use crate::request::{Call, Effect, Part, Target, text};
use crate::status::{Answer, Failure};
use crate::tokens::{Claims, Reference, Subject};
use ambit_schema::{FieldValidation, GroupVersionKind, Parsed, decode_kind};
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// Validity of a token that does not ask for one, and the limits. Source: pkg/registry/core/serviceaccount/storage.
const TOKEN_SECONDS_DEFAULT: i64 = 3600;
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

/// Reads the body of a kind that belongs to a subresource.
fn body(call: &Call, (group, version, kind): (&str, &str, &str)) -> Answer<Value> {
    let Parsed { value, duplicates } = call.parsed_body(&GroupVersionKind::new(group, version, kind))?;
    let found = text(&value, "/kind");
    if !found.is_empty() && found != kind {
        return Err(Failure::bad_request(format!("the body is a {found}, not a {kind}")));
    }
    let decoded = decode_kind((group, version, kind), Parsed { value, duplicates }, call.field_validation()?)
        .ok_or_else(|| Failure::internal(format!("no definition of {kind}")))?;
    Ok(decoded.map_err(|e| Failure::bad_request(e.to_string()))?.object)
}

fn success(code: StatusCode) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()});
    answer::response(code, "application/json", status.to_string())
}

/// Answers a POST to `pods/NAME/binding` or to `bindings`: puts a pod on a node.
pub(crate) async fn bind(
    cluster: &Arc<Cluster>,
    call: &Call,
    namespace: &str,
    name: &str,
) -> Answer<Response<Body>> {
    let binding = body(call, ("", "v1", "Binding"))?;
    let name = if name.is_empty() { text(&binding, "/metadata/name") } else { name };
    let node = text(&binding, "/target/name");
    if node.is_empty() || !matches!(text(&binding, "/target/kind"), "" | "Node") {
        return Err(Failure::bad_request("target of a binding must be a Node by name"));
    }
    let pods = cluster.built_in("", "v1", "Pod");
    let target = Target::new(&pods, namespace, name);
    let wanted_uid = text(&binding, "/metadata/uid");
    let now = cluster.now_text();
    let bound = change(cluster, &target, (Part::Whole, call.effect()?, &Record::Keep), |pod| {
        let conflict = |why: String| Err(Failure::conflict(&pods, name, &why));
        if !wanted_uid.is_empty() && wanted_uid != text(pod, "/metadata/uid") {
            return conflict(format!("the pod's UID is {}, not {wanted_uid}", text(pod, "/metadata/uid")));
        }
        if pod["metadata"].get("deletionTimestamp").is_some() {
            return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        let before = text(pod, "/spec/nodeName");
        if !before.is_empty() {
            return conflict(format!("pod {name} is already assigned to node {before:?}"));
        }
        let mut pod = pod.clone();
        pod["spec"]["nodeName"] = node.into();
        for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
            pod["metadata"]["annotations"][key] = value.clone();
        }
        let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|c| c["type"] != "PodScheduled");
        conditions.push(json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now}));
        pod["status"]["conditions"] = conditions.into();
        Ok(pod)
    });
    bound.await?;
    Ok(success(StatusCode::CREATED))
}

/// Answers a POST to `pods/NAME/eviction`. No disruption budgets are served, so nothing stands against it.
pub(crate) async fn evict(cluster: &Arc<Cluster>, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let eviction = body(call, ("policy", "v1", "Eviction"))?;
    let options = eviction.get("deleteOptions").cloned().unwrap_or(Value::Null);
    let options = delete::Options::of(&options, call)?;
    delete::delete_object(cluster, target, &options).await?;
    Ok(success(StatusCode::CREATED))
}

/// Answers a POST to `serviceaccounts/NAME/token`.
pub(crate) fn token(cluster: &Arc<Cluster>, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let mut request = body(call, ("authentication.k8s.io", "v1", "TokenRequest"))?;
    let account = cluster.stored(target)?.value.value();
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(TOKEN_SECONDS_DEFAULT);
    if !(TOKEN_SECONDS_MIN..=TOKEN_SECONDS_MAX).contains(&seconds) {
        return Err(Failure::unprocessable(format!(
            "spec.expirationSeconds: Invalid value: {seconds}: may not be less than 10 minutes or more than 2^32 seconds"
        )));
    }
    let audiences: Vec<String> = request["spec"]["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let audiences = if audiences.is_empty() { vec![cluster.tokens.issuer().to_owned()] } else { audiences };
    let (pod, secret, node) = bound_object(cluster, target, &request["spec"]["boundObjectRef"])?;
    let now = cluster.clock.timestamp();
    let claims = Claims {
        aud: audiences.clone(),
        iat: now.as_second(),
        nbf: now.as_second(),
        exp: now.as_second() + seconds,
        iss: cluster.tokens.issuer().to_owned(),
        jti: uuid::Uuid::new_v4().to_string(),
        sub: format!("system:serviceaccount:{}:{}", target.namespace, target.name),
        kubernetes: Subject {
            namespace: target.namespace.clone(),
            serviceaccount: Reference {
                name: target.name.clone(),
                uid: text(&account, "/metadata/uid").to_owned(),
            },
            pod,
            secret,
            node,
        },
    };
    let signed = cluster.tokens.sign(&claims).map_err(Failure::internal)?;
    let expires = jiff::Timestamp::from_second(claims.exp).map_err(|e| Failure::internal(e.to_string()))?;
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    request["kind"] = "TokenRequest".into();
    request["metadata"] =
        json!({"name": target.name, "namespace": target.namespace, "creationTimestamp": cluster.now_text()});
    request["spec"]["audiences"] = json!(audiences);
    request["spec"]["expirationSeconds"] = seconds.into();
    request["status"] = json!({"token": signed, "expirationTimestamp": expires.to_string()});
    answer::plain(call, StatusCode::CREATED, &request)
}

type Bound = (Option<Reference>, Option<Reference>, Option<Reference>);

/// What the token dies with: the named object must exist, and a pod must run as the account.
fn bound_object(cluster: &Cluster, target: &Target, reference: &Value) -> Answer<Bound> {
    let (kind, name, uid) = (text(reference, "/kind"), text(reference, "/name"), text(reference, "/uid"));
    if reference.is_null() {
        return Ok((None, None, None));
    }
    let (collection, namespace) = match kind {
        "Pod" => ("pods", target.namespace.as_str()),
        "Secret" => ("secrets", target.namespace.as_str()),
        "Node" => ("nodes", ""),
        other => {
            return Err(Failure::unprocessable(format!(
                "spec.boundObjectRef.kind: Unsupported value: {other:?}: supported values: \"Node\", \"Pod\", \"Secret\""
            )));
        }
    };
    let object = cluster
        .object(collection, namespace, name)
        .ok_or_else(|| Failure::not_found(&cluster.built_in("", "v1", kind), name))?
        .value();
    let found = text(&object, "/metadata/uid").to_owned();
    if !uid.is_empty() && uid != found {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record ({found})"
        );
        return Err(Failure::conflict(&target.kind, &target.name, &why));
    }
    let reference = Some(Reference { name: name.to_owned(), uid: found });
    Ok(match kind {
        "Pod" => {
            if text(&object, "/spec/serviceAccountName") != target.name {
                return Err(Failure::bad_request(format!(
                    "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                    target.name
                )));
            }
            let node = text(&object, "/spec/nodeName");
            let node = cluster.object("nodes", "", node).map(|n| Reference {
                name: node.to_owned(),
                uid: text(&n.value(), "/metadata/uid").to_owned(),
            });
            (reference, None, node)
        }
        "Secret" => (None, reference, None),
        _ => (None, None, reference),
    })
}

/// Answers requests for `deployments/NAME/scale` and the like.
pub(crate) async fn scale(cluster: &Arc<Cluster>, call: &Call, target: &Target) -> Answer<Response<Body>> {
    if call.method == Method::GET {
        let stored = cluster.stored(target)?;
        return answer::plain(call, StatusCode::OK, &scale_of(&stored.value.value()));
    }
    if call.method == Method::PATCH && call.content_type() == APPLY {
        return apply_scale(cluster, call, target).await;
    }
    let patch = if call.method == Method::PATCH { Some(Patch::parse(call, &target.kind)?) } else { None };
    let put = if patch.is_none() { Some(body(call, ("autoscaling", "v1", "Scale"))?) } else { None };
    let effect: Effect = call.effect()?;
    let record = Record::By(Author { manager: call.field_manager()?, subresource: "scale" });
    let changed = change(cluster, target, (Part::Main, effect, &record), |old| {
        let scale = match (&patch, &put) {
            (Some(patch), _) => patch.apply(&target.kind, &scale_of(old))?,
            (None, Some(put)) => put.clone(),
            (None, None) => Value::Null,
        };
        let replicas = checked_replicas(&target.name, &scale)?;
        let mut new = old.clone();
        new["metadata"]["resourceVersion"] = scale["metadata"]["resourceVersion"].clone();
        new["spec"]["replicas"] = replicas.into();
        Ok(new)
    });
    let object = changed.await?;
    answer::plain(call, StatusCode::OK, &scale_of(&object.value()))
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
        "spec": {"replicas": checked_replicas(&target.name, &scale)?},
    });
    let revision = text(&scale, "/metadata/resourceVersion");
    if !revision.is_empty() {
        workload["metadata"]["resourceVersion"] = revision.into();
    }
    let author = Author { manager: call.field_manager()?, subresource: "scale" };
    let configuration = apply::configuration(call, author, workload)?;
    let (object, _) = apply::lay(cluster, call, target, (Part::Main, &configuration)).await?;
    answer::plain(call, StatusCode::OK, &scale_of(&object.value()))
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

/// The Scale view of workloads.
fn scale_of(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let labels = object["spec"]["selector"]["matchLabels"].as_object();
    let pairs = labels.map(|l| {
        l.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect::<Vec<_>>()
    });
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
                     "resourceVersion": metadata["resourceVersion"],
                     "creationTimestamp": metadata["creationTimestamp"]},
        "spec": {"replicas": object["spec"]["replicas"]},
        "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0),
                   "selector": pairs.unwrap_or_default().join(",")},
    })
}

/// Reads a review: an object that is answered, not stored.
pub(crate) fn review_body(call: &Call, target: &Target) -> Answer<Value> {
    Ok(decode(&target.kind, call.parsed_body(&target.kind.group_version_kind())?, call.field_validation()?)?
        .object)
}
