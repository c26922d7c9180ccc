//! Discovery: which groups, versions and resources are served, in the aggregated and in the legacy form.

use crate::answer::{self, Body, encoded};
use crate::cluster::Cluster;
use crate::negotiate::{self, Discovery};
use crate::object::encode;
use crate::request::Call;
use crate::status::{Answer, Failure};
use ambit_schema::{Catalog, ResourceType, Scope, Subresource};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderValue, Response, StatusCode, header};
use indexmap::IndexMap;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256, Sha512};
use std::cmp::Reverse;
use std::sync::Arc;

/// Versions of one group, best first, each with its resources.
type Versions = IndexMap<String, Vec<Arc<ResourceType>>>;

/// Answers `/api` and `/apis`.
pub(crate) fn groups(cluster: &Cluster, call: &Call) -> Answer<Response<Body>> {
    let catalog = cluster.catalog();
    let core = call.path.trim_matches('/') == "api";
    match negotiate::discovery(call.header(header::ACCEPT)) {
        Discovery::Aggregated(version) => aggregated(call, &catalog, core, version),
        Discovery::Legacy if core => {
            let list = json!({"kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]});
            answer::plain(call, StatusCode::OK, &list)
        }
        Discovery::Legacy => {
            let groups: Vec<Value> = by_group(&catalog)
                .iter()
                .filter(|(name, _)| !name.is_empty())
                .map(|(name, versions)| group_of(name, versions))
                .collect();
            answer::plain(
                call,
                StatusCode::OK,
                &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
            )
        }
    }
}

/// Answers `/apis/{group}`.
pub(crate) fn group(cluster: &Cluster, call: &Call, name: &str) -> Answer<Response<Body>> {
    let groups = by_group(&cluster.catalog());
    let versions = groups.get(name).filter(|_| !name.is_empty()).ok_or_else(Failure::no_such_resource)?;
    let mut group = group_of(name, versions);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    answer::plain(call, StatusCode::OK, &group)
}

/// Answers `/api/v1` and `/apis/{group}/{version}`.
pub(crate) fn version(cluster: &Cluster, call: &Call, group: &str, version: &str) -> Answer<Response<Body>> {
    let groups = by_group(&cluster.catalog());
    let kinds = groups.get(group).and_then(|v| v.get(version)).ok_or_else(Failure::no_such_resource)?;
    let resources: Vec<Value> = kinds.iter().flat_map(|kind| rows(kind)).collect();
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
                      "resources": resources});
    answer::plain(call, StatusCode::OK, &list)
}

/// All kinds by group and version: groups in the order of the catalog, versions best first.
fn by_group(catalog: &Catalog) -> IndexMap<String, Versions> {
    let mut groups: IndexMap<String, Versions> = IndexMap::new();
    for kind in catalog.resources() {
        let versions = groups.entry(kind.group.clone()).or_default();
        versions.entry(kind.version.clone()).or_default().push(kind.clone());
    }
    for versions in groups.values_mut() {
        versions.sort_by_key(|name, _| rank(name));
    }
    groups
}

/// GA before beta before alpha, higher numbers first, other names last and by alphabet. Source: apimachinery version.
fn rank(version: &str) -> (u8, Reverse<(u64, u64)>, String) {
    let other = (3, Reverse((0, 0)), version.to_owned());
    let Some(rest) = version.strip_prefix('v') else { return other };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, stage) = rest.split_at(digits);
    let Ok(major) = major.parse() else { return other };
    let (level, minor) = match (stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (2, minor),
        _ if stage.is_empty() => return (0, Reverse((major, 0)), String::new()),
        _ => return other,
    };
    minor.parse().map_or(other, |minor| (level, Reverse((major, minor)), String::new()))
}

fn group_of(name: &str, versions: &Versions) -> Value {
    let entries: Vec<Value> =
        versions.keys().map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": v})).collect();
    json!({"name": name, "preferredVersion": entries.first(), "versions": entries})
}

/// The rows of a resource and its subresources in the legacy form.
fn rows(kind: &ResourceType) -> Vec<Value> {
    let mut row = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.scope == Scope::Namespaced,
        "kind": kind.kind, "verbs": kind.verbs,
    });
    if !kind.short_names.is_empty() {
        row["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        row["categories"] = json!(kind.categories);
    }
    if kind.has_verb("get") {
        row["storageVersionHash"] = storage_hash(kind).into();
    }
    let sub = |sub: &Subresource| {
        let of = &sub.group_version_kind;
        let mut row = json!({
            "name": format!("{}/{}", kind.plural, sub.name), "singularName": "",
            "namespaced": kind.scope == Scope::Namespaced, "kind": of.kind, "verbs": sub.verbs,
        });
        if (&of.group, &of.version) != (&kind.group, &kind.version) {
            row["group"] = of.group.as_str().into();
            row["version"] = of.version.as_str().into();
        }
        row
    };
    std::iter::once(row).chain(kind.subresources.iter().map(sub)).collect()
}

/// Source: apiserver discovery.StorageVersionHash.
fn storage_hash(kind: &ResourceType) -> String {
    let of = &kind.stored_as;
    let digest = Sha256::digest(format!("{}/{}/{}", of.group, of.version, of.kind));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

fn aggregated(call: &Call, catalog: &Catalog, core: bool, version: &'static str) -> Answer<Response<Body>> {
    let groups = by_group(catalog);
    let items: Vec<Value> = groups
        .iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|(version, kinds)| {
                    let resources: Vec<Value> = kinds.iter().map(|kind| entry(kind)).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
                      "metadata": {}, "items": items});
    let body = encode(&list);
    // The order of the parameters is what clients compare.
    let media_type = match version {
        "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    };
    Ok(tagged(call, media_type, body))
}

/// An answer with an ETag; 304 when the client has it already.
pub(crate) fn tagged(call: &Call, media_type: &'static str, body: bytes::Bytes) -> Response<Body> {
    let tag = format!("\"{}\"", STANDARD_NO_PAD.encode(&Sha512::digest(&body)[..24]));
    let known = call.header(header::IF_NONE_MATCH).split(',').any(|known| known.trim() == tag);
    let mut response = match known {
        true => {
            let mut response = Response::new(answer::full(bytes::Bytes::new()));
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
        false => answer::response(StatusCode::OK, media_type, body),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn entry(kind: &ResourceType) -> Value {
    let of =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let scope = if kind.scope == Scope::Namespaced { "Namespaced" } else { "Cluster" };
    let mut entry = json!({
        "resource": kind.plural, "responseKind": of(&kind.group, &kind.version, &kind.kind), "scope": scope,
        "singularResource": kind.singular, "verbs": kind.verbs,
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
    let sub = |sub: &Subresource| {
        let k = &sub.group_version_kind;
        json!({"subresource": sub.name, "responseKind": of(&k.group, &k.version, &k.kind), "verbs": sub.verbs})
    };
    if !kind.subresources.is_empty() {
        entry["subresources"] = kind.subresources.iter().map(sub).collect();
    }
    entry
}

/// Answers `/openapi/v3` and the documents below it.
pub(crate) fn openapi(cluster: &Cluster, call: &Call, document: Option<&str>) -> Answer<Response<Body>> {
    let catalog = cluster.catalog();
    let Some(path) = document else {
        let index = encode(&ambit_schema::openapi_v3_index(&catalog));
        return Ok(tagged(call, "application/json", index));
    };
    let document = ambit_schema::openapi_v3(&catalog, path).ok_or_else(Failure::no_such_resource)?;
    Ok(tagged(call, "application/json", encode(&document)))
}

/// The media type of a version 2 document in protobuf.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Answers `/openapi/v2`: a document without types. All are published as version 3; kubectl looks here for kinds it
/// did not find there, and must learn that they are not here either.
pub(crate) fn openapi_v2(call: &Call) -> Response<Body> {
    const TITLE: &str = "Kubernetes";
    const VERSION: &str = "v1.35.0";
    if call.header(header::ACCEPT).contains(V2_PROTOBUF) {
        // Document { 1: swagger, 2: Info { 1: title, 2: version } }, all texts shorter than 128 bytes.
        let field = |tag: u8, bytes: &[u8]| {
            let length = u8::try_from(bytes.len()).expect("the texts are the constants above");
            [&[tag << 3 | 2, length], bytes].concat()
        };
        let info = [field(1, TITLE.as_bytes()), field(2, VERSION.as_bytes())].concat();
        let document = [field(1, b"2.0"), field(2, &info)].concat();
        // Answered with the dotted form: the other one is no legal media type. Source: kube-openapi handler.go.
        return tagged(call, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", document.into());
    }
    let info = json!({"title": TITLE, "version": VERSION});
    let document = json!({"swagger": "2.0", "info": info, "paths": {}, "definitions": {}});
    tagged(call, "application/json", encode(&document))
}

/// Answers `/version`.
pub(crate) fn product(call: &Call) -> Answer<Response<Body>> {
    let version = json!({
        "major": "1", "minor": "35", "gitVersion": concat!("v1.35.0+ambit-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "",
        "compiler": "rustc", "platform": format!("linux/{}", match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }),
    });
    encoded(StatusCode::OK, negotiate::encoding(call.header(header::ACCEPT))?, encode(&version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_maturity_then_number() {
        let mut versions =
            ["foo10", "v1", "v3beta1", "v12alpha1", "v10", "v2", "foo1", "v11alpha2", "v3beta2"];
        versions.sort_by_key(|v| rank(v));
        let expected = ["v10", "v2", "v1", "v3beta2", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"];
        assert_eq!(versions, expected);
    }
}
