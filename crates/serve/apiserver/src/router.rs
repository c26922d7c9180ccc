//! From a request to its handler: address, authorisation, verb.

use crate::access;
use crate::address::{Address, ResourceAddress};
use crate::answer::{self, Body};
use crate::apply;
use crate::cluster::Cluster;
use crate::create;
use crate::delete;
use crate::discovery;
use crate::modify;
use crate::node_logs;
use crate::read;
use crate::request::{Call, Part, Target, User};
use crate::reviews;
use crate::scale;
use crate::selector::Selector;
use crate::status::{Answer, Failure};
use crate::subresources;
use crate::watch;
use ambit_access::Request;
use ambit_runtime::Shutdown;
use http::{Method, Response, StatusCode, header};
use serde_json::json;
use std::sync::Arc;

/// Answers a request.
pub(crate) async fn answer(
    cluster: &Arc<Cluster>,
    call: &Call,
    stopping: &Shutdown,
) -> Answer<Response<Body>> {
    let address = Address::parse(&call.path);
    // What others have written before the request came is seen by it, unless it says that it need not be.
    let settled = matches!(call.method, Method::GET | Method::HEAD)
        && call.query.value("resourceVersion").is_some_and(|version| !version.is_empty());
    if matches!(address, Address::Resource(_)) && !settled {
        cluster.db.fresh().await.map_err(Failure::of_store)?;
    }
    if let Address::Resource(resource) = &address {
        return resources(cluster, call, resource, stopping).await;
    }
    let request =
        Request { verb: call.method.as_str().to_lowercase(), path: call.path.clone(), ..Request::default() };
    authorise(cluster, &call.user, &request)?;
    if !matches!(call.method, Method::GET | Method::HEAD) {
        return Err(Failure::bad_request(format!("{} is not supported at {}", call.method, call.path)));
    }
    match address {
        Address::Root => answer::plain(call, StatusCode::OK, &json!({"paths": root_paths(cluster)})),
        Address::Health(check) => Ok(health(cluster, call, &check)),
        Address::Version => discovery::product(call),
        Address::Metrics => Ok(metrics(cluster)),
        Address::OpenApiV3(document) => discovery::openapi(cluster, call, document.as_deref()),
        Address::OpenApiV2 => Ok(discovery::openapi_v2(call)),
        Address::OpenIdConfiguration => {
            let issuer = cluster.tokens.issuer();
            let configuration = json!({
                "issuer": issuer, "jwks_uri": format!("{issuer}/openid/v1/jwks"),
                "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            });
            answer::plain(call, StatusCode::OK, &configuration)
        }
        Address::Keys => Ok(answer::response(
            StatusCode::OK,
            "application/jwk-set+json",
            cluster.tokens.key_set().to_string(),
        )),
        Address::CoreVersions | Address::Groups => discovery::groups(cluster, call),
        Address::Group(name) => discovery::group(cluster, call, &name),
        Address::Version1 { group, version } => discovery::version(cluster, call, &group, &version),
        Address::Resource(_) | Address::Unknown => {
            Ok(answer::response(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n"))
        }
    }
}

fn authorise(cluster: &Cluster, user: &User, request: &Request) -> Answer<()> {
    let Err(why) = access::decide(cluster, user, request) else { return Ok(()) };
    if user.is_anonymous() {
        return Err(Failure::unauthorized());
    }
    let subject = match (&*request.path, &*request.group) {
        ("", "") => format!("{} {:?} is forbidden: ", request.resource, request.name),
        ("", group) => format!("{}.{group} {:?} is forbidden: ", request.resource, request.name),
        _ => "forbidden: ".to_owned(),
    };
    Err(Failure::forbidden(subject + &why))
}

/// Answers a request about a resource.
async fn resources(
    cluster: &Arc<Cluster>,
    call: &Call,
    address: &ResourceAddress,
    stopping: &Shutdown,
) -> Answer<Response<Body>> {
    let catalog = cluster.catalog();
    let kind = catalog.resource(&address.group, &address.version, &address.plural).cloned();
    let verb = verb(call, address);
    let target = kind.as_ref().map(|kind| {
        Target::new(
            kind,
            address.namespace.as_deref().unwrap_or_default(),
            address.name.as_deref().unwrap_or_default(),
        )
    });
    authorise(cluster, &call.user, &wanted(call, address, target.as_ref(), verb))?;
    let target = target.ok_or_else(Failure::no_such_resource)?;
    if target.kind.is_namespaced() != address.namespace.is_some()
        && (address.namespace.is_some() || address.name.is_some())
    {
        return Err(Failure::no_such_resource());
    }
    if address.subresource.is_some() {
        return subresource(cluster, call, &target, address).await;
    }
    // Collections are created in, objects are changed.
    let misplaced = matches!(verb, "update" | "patch") && target.name.is_empty()
        || verb == "create" && !target.name.is_empty();
    if misplaced || !target.kind.has_verb(verb) {
        return Err(Failure::method_not_allowed(&target.kind, verb));
    }
    let mut response = act(cluster, call, &target, verb, stopping).await?;
    if let Some(warning) = target.kind.custom.as_ref().and_then(|custom| custom.deprecation_warning.clone()) {
        answer::warn(&mut response, &[warning]);
    }
    Ok(response)
}

/// Carries out a verb on a collection or an object.
async fn act(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    verb: &str,
    stopping: &Shutdown,
) -> Answer<Response<Body>> {
    match verb {
        "get" => read::get(cluster, call, target).await,
        "list" => read::list(cluster, call, target).await,
        "watch" => watch::watch(cluster, call, target, stopping).await,
        "create" => {
            if let Some(answered) = reviews::answer(cluster, call, target) {
                return answered;
            }
            match (&*target.kind.group, &*target.kind.kind) {
                ("", "Binding") => subresources::bind(cluster, call, &target.namespace, "").await,
                _ => create::create(cluster, call, target).await,
            }
        }
        "update" => modify::update(cluster, call, target, Part::Main).await,
        "patch" => patch(cluster, call, target, Part::Main).await,
        "delete" => delete::delete(cluster, call, target).await,
        "deletecollection" => delete::delete_collection(cluster, call, target).await,
        _ => Err(Failure::method_not_allowed(&target.kind, verb)),
    }
}

/// Answers a PATCH, of whatever form.
async fn patch(cluster: &Arc<Cluster>, call: &Call, target: &Target, part: Part) -> Answer<Response<Body>> {
    match call.content_type() {
        apply::APPLY => apply::apply(cluster, call, target, part).await,
        _ => modify::patch(cluster, call, target, part).await,
    }
}

/// The verb of a request, as authorisation and discovery name it. Source: apiserver endpoints/request/requestinfo.go.
fn verb(call: &Call, address: &ResourceAddress) -> &'static str {
    match (&call.method, address.name.is_some()) {
        (&Method::GET | &Method::HEAD, _) if address.watch => "watch",
        (&Method::GET | &Method::HEAD, false) if call.query.on("watch") => "watch",
        (&Method::GET | &Method::HEAD, false) => "list",
        (&Method::GET | &Method::HEAD, true) => "get",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, false) => "deletecollection",
        (&Method::DELETE, true) => "delete",
        _ => "unknown",
    }
}

/// What a request about a resource wants, as roles speak of it.
fn wanted(call: &Call, address: &ResourceAddress, target: Option<&Target>, verb: &str) -> Request {
    // A list or watch of one name counts as a request for that object.
    let selected = |target: &Target| {
        let selector = Selector::parse(&target.kind, None, call.query.value("fieldSelector")).ok()?;
        selector.name().map(str::to_owned)
    };
    let name = address.name.clone().or_else(|| target.and_then(selected)).unwrap_or_default();
    // A namespace is in itself. Source: requestinfo.go.
    let own = (address.plural == "namespaces").then(|| name.clone());
    Request {
        verb: verb.to_owned(),
        group: address.group.clone(),
        resource: address.plural.clone(),
        subresource: address.subresource.clone().unwrap_or_default(),
        namespace: address.namespace.clone().or(own).unwrap_or_default(),
        name,
        path: String::new(),
    }
}

async fn subresource(
    cluster: &Arc<Cluster>,
    call: &Call,
    target: &Target,
    address: &ResourceAddress,
) -> Answer<Response<Body>> {
    let name = address.subresource.as_deref().unwrap_or_default();
    if address.group.is_empty()
        && address.plural == "pods"
        && matches!(name, "exec" | "attach" | "portforward" | "proxy")
    {
        return Err(Failure::not_implemented(format!("pods/{name} is not supported by this server yet")));
    }
    let known = target.kind.subresource(name).ok_or_else(Failure::no_such_resource)?;
    let verb = match verb(call, address) {
        "watch" => "get",
        verb => verb,
    };
    if !known.verbs.iter().any(|v| v == verb) {
        return Err(Failure::method_not_allowed(&target.kind, verb));
    }
    match (&*address.plural, name, verb) {
        (_, "status", "get") | ("pods", "resize" | "ephemeralcontainers", "get") => {
            read::get(cluster, call, target).await
        }
        (_, "status", "update") => modify::update(cluster, call, target, Part::Status).await,
        (_, "status", "patch") => patch(cluster, call, target, Part::Status).await,
        ("namespaces", "finalize", "update") => modify::update(cluster, call, target, Part::Finalize).await,
        ("pods", "binding", "create") => {
            subresources::bind(cluster, call, &target.namespace, &target.name).await
        }
        ("pods", "eviction", "create") => subresources::evict(cluster, call, target).await,
        ("pods", "log", "get") => node_logs::logs(cluster, call, target).await,
        ("serviceaccounts", "token", "create") => subresources::token(cluster, call, target),
        (_, "scale", _) => scale::scale(cluster, call, target).await,
        _ => Err(Failure::not_implemented(format!(
            "{verb} of {}/{name} is not supported by this server yet",
            target.kind.group_resource()
        ))),
    }
}

fn root_paths(cluster: &Cluster) -> Vec<String> {
    let mut paths: Vec<String> =
        ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v3", "/readyz", "/version"]
            .map(str::to_owned)
            .to_vec();
    for kind in cluster.catalog().resources().filter(|kind| !kind.group.is_empty()) {
        paths.push(format!("/apis/{}", kind.group));
        paths.push(format!("/apis/{}/{}", kind.group, kind.version));
    }
    paths.sort();
    paths.dedup();
    paths
}

/// Answers `/healthz`, `/livez` and `/readyz`. There is one check: the store. Bootstrap is over before anything is
/// answered.
fn health(cluster: &Cluster, call: &Call, check: &str) -> Response<Body> {
    let excluded = |name: &str| call.query.values("exclude").any(|excluded| excluded == name);
    if !matches!(check, "" | "ping" | "store" | "bootstrap") {
        return answer::response(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n");
    }
    let checks = [("ping", Ok(())), ("store", cluster.db.healthy()), ("bootstrap", Ok(()))];
    let (mut text, mut healthy) = (String::new(), true);
    for (name, state) in checks.iter().filter(|(name, _)| check.is_empty() || *name == check) {
        match state {
            _ if excluded(name) => text += &format!("[+]{name} excluded: ok\n"),
            Ok(()) => text += &format!("[+]{name} ok\n"),
            Err(error) => {
                healthy = false;
                text += &format!("[-]{name} failed: {error}\n");
            }
        }
    }
    let name = call.path.trim_matches('/').split('/').next().unwrap_or_default();
    let media_type = "text/plain; charset=utf-8";
    match (healthy, call.query.value("verbose").is_some()) {
        (true, false) => answer::response(StatusCode::OK, media_type, "ok"),
        (true, true) => answer::response(StatusCode::OK, media_type, format!("{text}{name} check passed\n")),
        (false, _) => answer::response(
            StatusCode::INTERNAL_SERVER_ERROR,
            media_type,
            format!("{text}{name} check failed\n"),
        ),
    }
}

/// Answers `/metrics`.
fn metrics(cluster: &Cluster) -> Response<Body> {
    let mut response = answer::response(StatusCode::OK, "", cluster.metrics.text(cluster.db.revision()));
    let media_type =
        header::HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, media_type);
    response
}
