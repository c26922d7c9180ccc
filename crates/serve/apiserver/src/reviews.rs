//! Reviews: questions about identities and rights that are answered, not stored.

use crate::access;
use crate::answer::{self, Body};
use crate::cluster::Cluster;
use crate::request::{Call, Target, User, text};
use crate::status::{Answer, Failure};
use crate::subresources::review_body;
use ambit_access::{Request, Rule};
use http::{Response, StatusCode};
use serde_json::{Value, json};

/// Answers a POST to a collection of reviews; `None` when the kind is not a review.
pub(crate) fn answer(cluster: &Cluster, call: &Call, target: &Target) -> Option<Answer<Response<Body>>> {
    let fill: fn(&Cluster, &Call, &Target, &Value) -> Answer<Value> =
        match (&*target.kind.group, &*target.kind.kind) {
            ("authentication.k8s.io", "TokenReview") => token,
            ("authentication.k8s.io", "SelfSubjectReview") => own_identity,
            ("authorization.k8s.io", "SubjectAccessReview" | "LocalSubjectAccessReview") => access,
            ("authorization.k8s.io", "SelfSubjectAccessReview") => own_access,
            ("authorization.k8s.io", "SelfSubjectRulesReview") => own_rules,
            _ => return None,
        };
    Some(review_body(call, target).and_then(|mut review| {
        review["status"] = fill(cluster, call, target, &review["spec"])?;
        answer::plain(call, StatusCode::CREATED, &review)
    }))
}

fn token(cluster: &Cluster, _: &Call, _: &Target, spec: &Value) -> Answer<Value> {
    let asked: Vec<String> = spec["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|a| a.as_str().map(str::to_owned))
        .collect();
    let audiences = if asked.is_empty() { vec![cluster.tokens.issuer().to_owned()] } else { asked };
    let token = text(spec, "/token");
    if token.is_empty() {
        return Err(Failure::bad_request("token is required for TokenReview in authentication"));
    }
    Ok(match access::token_user(cluster, token, &audiences) {
        Ok((user, audiences)) => {
            json!({"authenticated": true, "user": user_info(&user), "audiences": audiences})
        }
        Err(error) => {
            tracing::debug!(error, "refused token under review");
            json!({"authenticated": false, "error": error})
        }
    })
}

fn own_identity(_: &Cluster, call: &Call, _: &Target, _: &Value) -> Answer<Value> {
    Ok(json!({"userInfo": user_info(&call.user)}))
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    for (name, values) in &user.extra {
        info["extra"][name] = json!(values);
    }
    info
}

fn access(cluster: &Cluster, _: &Call, target: &Target, spec: &Value) -> Answer<Value> {
    let groups = spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let user = User::new(text(spec, "/user"), groups);
    if user.name.is_empty() && user.groups.is_empty() {
        return Err(Failure::unprocessable(
            "spec.user: Required value: at least one of user or group must be specified",
        ));
    }
    let mut wanted = wanted(spec)?;
    if !target.namespace.is_empty() {
        if !wanted.namespace.is_empty() && wanted.namespace != target.namespace {
            return Err(Failure::bad_request(
                "spec.resourceAttributes.namespace must match the namespace of the request",
            ));
        }
        wanted.namespace.clone_from(&target.namespace);
    }
    Ok(verdict(cluster, &user, &wanted))
}

fn own_access(cluster: &Cluster, call: &Call, _: &Target, spec: &Value) -> Answer<Value> {
    Ok(verdict(cluster, &call.user, &wanted(spec)?))
}

fn verdict(cluster: &Cluster, user: &User, wanted: &Request) -> Value {
    match access::decide(cluster, user, wanted) {
        Ok(why) => json!({"allowed": true, "reason": why}),
        Err(why) => json!({"allowed": false, "reason": why}),
    }
}

/// What a review asks about.
fn wanted(spec: &Value) -> Answer<Request> {
    let of = |field: &str| text(spec, field).to_owned();
    match (spec["resourceAttributes"].is_object(), spec["nonResourceAttributes"].is_object()) {
        (true, false) => Ok(Request {
            verb: of("/resourceAttributes/verb"),
            group: of("/resourceAttributes/group"),
            resource: of("/resourceAttributes/resource"),
            subresource: of("/resourceAttributes/subresource"),
            namespace: of("/resourceAttributes/namespace"),
            name: of("/resourceAttributes/name"),
            path: String::new(),
        }),
        (false, true) => Ok(Request {
            verb: of("/nonResourceAttributes/verb"),
            path: of("/nonResourceAttributes/path"),
            ..Request::default()
        }),
        _ => Err(Failure::unprocessable(
            "spec: exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
    }
}

fn own_rules(cluster: &Cluster, call: &Call, _: &Target, spec: &Value) -> Answer<Value> {
    let namespace = text(spec, "/namespace");
    if namespace.is_empty() {
        return Err(Failure::bad_request("no namespace on request"));
    }
    let (rules, missing) = if call.user.is_master() {
        (vec![Rule::of("*", &["*"], &["*"]), Rule::of_paths(&["*"], &["*"])], Vec::new())
    } else {
        cluster.rbac.read(&cluster.db, |policy| {
            let found = policy.rules_of(call.user.subject(), namespace);
            (found.cloned(), found.missing)
        })
    };
    let (paths, resources): (Vec<Rule>, Vec<Rule>) =
        rules.into_iter().partition(|rule| !rule.non_resource_urls.is_empty());
    let mut status = json!({
        "resourceRules": resources, "nonResourceRules": paths, "incomplete": !missing.is_empty(),
    });
    if !missing.is_empty() {
        status["evaluationError"] = missing.join("; ").into();
    }
    Ok(status)
}
