//! Parts of objects that are acted on rather than stored: binding, eviction and tokens.

use crate::answer::{self, Body};
use crate::cluster::Cluster;
use crate::create::decode;
use crate::delete;
use crate::disruption;
use crate::modify::change;
use crate::ownership::Record;
use crate::request::{Call, Part, Target, text};
use crate::status::{Answer, Failure};
use crate::tokens::{Claims, Reference, Subject};
use ambit_schema::{GroupVersionKind, Parsed, decode_kind};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// Validity of a token that does not ask for one, and the limits. Source: pkg/registry/core/serviceaccount/storage.
const TOKEN_SECONDS_DEFAULT: i64 = 3600;
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

/// Reads the body of a kind that belongs to a subresource.
pub(crate) fn body(call: &Call, (group, version, kind): (&str, &str, &str)) -> Answer<Value> {
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

/// Answers a POST to `pods/NAME/eviction`: a deletion that the pod's disruption budget allows.
pub(crate) async fn evict(cluster: &Arc<Cluster>, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let eviction = body(call, ("policy", "v1", "Eviction"))?;
    let options = eviction.get("deleteOptions").cloned().unwrap_or(Value::Null);
    let options = delete::Options::of(&options, call)?;
    let pod = cluster.stored(target)?.value.value();
    disruption::allow(cluster, call.effect()?, target, &pod).await?;
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

/// Reads a review: an object that is answered, not stored.
pub(crate) fn review_body(call: &Call, target: &Target) -> Answer<Value> {
    Ok(decode(&target.kind, call.parsed_body(&target.kind.group_version_kind())?, call.field_validation()?)?
        .object)
}
