//! Speaking as somebody else: the `Impersonate-…` headers, each of which the real user must be allowed to use.
//! Source: Kubernetes apiserver pkg/endpoints/filters/impersonation.go.

use crate::access;
use crate::address::decode;
use crate::cluster::Cluster;
use crate::request::User;
use crate::status::{Answer, Failure};
use ambit_access::Request;
use http::HeaderMap;

const PREFIX: &str = "impersonate-";
const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
/// The group of everybody's own identity, users and groups aside.
const AUTHENTICATION: &str = "authentication.k8s.io";
/// Names of service accounts as users.
const ACCOUNT: &str = "system:serviceaccount:";

/// Whom `user` speaks as in this request: themselves, unless the headers say otherwise.
pub(crate) fn apply(cluster: &Cluster, user: User, headers: &HeaderMap) -> Answer<User> {
    if !headers.keys().any(|name| name.as_str().starts_with(PREFIX)) {
        return Ok(user);
    }
    let wanted = wanted(headers)?;
    for request in requests(&wanted) {
        if let Err(why) = access::decide(cluster, &user, &request) {
            let resource = if request.group.is_empty() {
                request.resource.clone()
            } else {
                format!("{}.{}", request.resource, request.group)
            };
            return Err(match user.is_anonymous() {
                true => Failure::unauthorized(),
                false => Failure::forbidden(format!("{resource} {:?} is forbidden: {why}", request.name)),
            });
        }
    }
    tracing::debug!(user = user.name, impersonated = wanted.name, "request in another's name");
    Ok(completed(wanted))
}

/// Whom the headers name.
fn wanted(headers: &HeaderMap) -> Answer<User> {
    let texts = |name: &str| -> Answer<Vec<String>> {
        let values = headers.get_all(name).iter().map(|value| {
            let text =
                value.to_str().map_err(|_| Failure::bad_request(format!("the header {name} is not text")))?;
            Ok(text.to_owned())
        });
        values.collect()
    };
    let name = texts(USER)?.into_iter().next().unwrap_or_default();
    if name.is_empty() {
        return Err(Failure::bad_request(
            "the request names groups, a uid or extras to impersonate, but no user",
        ));
    }
    let mut user = User::new(name, texts(GROUP)?);
    user.uid = texts(UID)?.into_iter().next().unwrap_or_default();
    for header in headers.keys() {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            let key = decode(key)
                .ok_or_else(|| Failure::bad_request(format!("the header {header} is not UTF-8")))?;
            user.extra.push((key, texts(header.as_str())?));
        }
    }
    Ok(user)
}

/// Namespace and name of a service account's user.
fn account(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(ACCOUNT)?
        .split_once(':')
        .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
}

/// What somebody must be allowed to, to speak as `wanted`.
fn requests(wanted: &User) -> Vec<Request> {
    let about = |group: &str, resource: &str, name: &str| Request {
        verb: "impersonate".into(),
        group: group.into(),
        resource: resource.into(),
        name: name.into(),
        ..Request::default()
    };
    let mut requests = vec![match account(&wanted.name) {
        Some((namespace, name)) => {
            Request { namespace: namespace.into(), ..about("", "serviceaccounts", name) }
        }
        None => about("", "users", &wanted.name),
    }];
    requests.extend(wanted.groups.iter().map(|group| about("", "groups", group)));
    if !wanted.uid.is_empty() {
        requests.push(about(AUTHENTICATION, "uids", &wanted.uid));
    }
    for (key, values) in &wanted.extra {
        requests.extend(
            values.iter().map(|value| Request {
                subresource: key.clone(),
                ..about(AUTHENTICATION, "userextras", value)
            }),
        );
    }
    requests
}

/// Adds the groups that come with a name.
fn completed(mut user: User) -> User {
    if user.groups.is_empty()
        && let Some((namespace, _)) = account(&user.name)
    {
        let of_namespace = format!("system:serviceaccounts:{namespace}");
        user.groups = vec!["system:serviceaccounts".into(), of_namespace];
    }
    if user.is_anonymous() {
        if !user.is_in("system:unauthenticated") {
            user.groups.push("system:unauthenticated".into());
        }
        return user;
    }
    access::authenticated(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, groups: &[&str], expected: &[&str]) {
        assert_eq!(completed(User::new(name, groups.iter().copied())).groups, expected);
    }

    #[test]
    fn groups_come_with_names() {
        check("ann", &[], &["system:authenticated"]);
        check("ann", &["dev"], &["dev", "system:authenticated"]);
        let own = ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"];
        check("system:serviceaccount:a:b", &[], &own);
        check("system:serviceaccount:a:b", &["x"], &["x", "system:authenticated"]);
        check("system:anonymous", &[], &["system:unauthenticated"]);
    }

    #[test]
    fn every_claim_is_asked_for() {
        let mut user = User::new("system:serviceaccount:a:b", ["dev"]);
        user.uid = "7".into();
        user.extra = vec![("scopes".into(), vec!["view".into(), "x".into()])];
        let asked: Vec<String> = requests(&user)
            .into_iter()
            .map(|r| format!("{}|{}|{}|{}", r.group, r.full_resource(), r.namespace, r.name))
            .collect();
        assert_eq!(
            asked,
            [
                "|serviceaccounts|a|b",
                "|groups||dev",
                "authentication.k8s.io|uids||7",
                "authentication.k8s.io|userextras/scopes||view",
                "authentication.k8s.io|userextras/scopes||x",
            ]
        );
    }
}
