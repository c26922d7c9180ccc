//! Reading objects: get, list, and the rules of resourceVersion.

use crate::answer::{self, Body, View, metadata_of, table};
use crate::cluster::Cluster;
use crate::negotiate::Form;
use crate::object::{Object, Stored, encode};
use crate::request::{Call, Target, collection};
use crate::selector::Selector;
use crate::status::{Answer, Failure};
use ambit_schema::ResourceType;
use ambit_store::{Key, Place, Revision};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// How long a read waits for a revision that this server has not reached. Source: apiserver storage/cacher.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// Answers one object.
pub(crate) async fn get(cluster: &Cluster, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let view = View::of(call, &target.kind, cluster.clock.timestamp())?;
    if let Some(at_least) = revision(call.query.value("resourceVersion"))? {
        reach(cluster, at_least).await?;
    }
    let stored = cluster.stored(target)?;
    answer::encoded(StatusCode::OK, view.encoding, view.object(&target.kind, &stored.value))
}

/// Answers the objects of a collection.
pub(crate) async fn list(cluster: &Cluster, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let view = View::of(call, &target.kind, cluster.clock.timestamp())?;
    let query = ListQuery::parse(call, &target.kind)?;
    let page = query.read(cluster, target).await?;
    answer::encoded(StatusCode::OK, view.encoding, render(&view, &target.kind, &page))
}

/// The objects of a collection that a call selects, all of them, newest state.
pub(crate) fn selected(cluster: &Cluster, call: &Call, target: &Target) -> Answer<Vec<(Key, Stored)>> {
    let kind = &target.kind;
    let selector =
        Selector::parse(kind, call.query.value("labelSelector"), call.query.value("fieldSelector"))?;
    let page = cluster.db.list(&Cluster::range(target), None).map_err(Failure::expired)?;
    let of = collection(kind);
    let keyed =
        page.items.into_iter().map(|((namespace, name), v)| (Key::new(of.clone(), namespace, name), v));
    Ok(keyed.filter(|(key, v)| matches(&selector, kind, key, &v.value)).collect())
}

/// Whether an object is selected.
pub(crate) fn matches(selector: &Selector, kind: &ResourceType, key: &Key, object: &Object) -> bool {
    selector.matches(kind, key, object, || Cow::Owned(object.value_as(kind)))
}

/// A resourceVersion parameter; empty and 0 mean any.
pub(crate) fn revision(text: Option<&str>) -> Answer<Option<Revision>> {
    match text.unwrap_or_default() {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            Failure::bad_request(format!(
                "Invalid value: {text:?}: resourceVersion is not a revision of this server"
            ))
        }),
    }
}

/// Waits for a revision that a client has seen elsewhere.
pub(crate) async fn reach(cluster: &Cluster, wanted: Revision) -> Answer<()> {
    match tokio::time::timeout(REVISION_WAIT, cluster.db.durable(wanted)).await {
        Ok(reached) => reached.map_err(Failure::of_store),
        Err(_) => Err(Failure::revision_too_large(wanted, cluster.db.revision())),
    }
}

/// What a list asks for.
struct ListQuery {
    selector: Selector,
    limit: usize,
    position: Position,
}

/// Where and when a list begins.
enum Position {
    Newest {
        at_least: Option<Revision>,
    },
    Exactly(Revision),
    /// `at` is `None` for a token that gave up consistency.
    After {
        at: Option<Revision>,
        place: Place,
    },
}

struct ListPage {
    revision: Revision,
    items: Vec<(Place, Stored)>,
    continue_token: String,
    remaining: Option<usize>,
}

impl ListQuery {
    fn parse(call: &Call, kind: &ResourceType) -> Answer<Self> {
        let query = &call.query;
        if query.value("sendInitialEvents").is_some() {
            let what = "Forbidden: sendInitialEvents is forbidden for list";
            return Err(Failure::invalid_options("ListOptions", "sendInitialEvents", what));
        }
        let limit = query.value("limit").unwrap_or("0");
        let limit =
            limit.parse().map_err(|_| Failure::bad_request(format!("limit {limit:?} is not a number")))?;
        Ok(Self {
            selector: Selector::parse(kind, query.value("labelSelector"), query.value("fieldSelector"))?,
            limit,
            position: Self::position(call, limit)?,
        })
    }

    fn position(call: &Call, limit: usize) -> Answer<Position> {
        let text = |name| call.query.value(name).unwrap_or_default();
        let (version, how, token) = (text("resourceVersion"), text("resourceVersionMatch"), text("continue"));
        let invalid = |what: &str| Failure::invalid_options("ListOptions", "resourceVersionMatch", what);
        let wanted = revision(Some(version))?;
        match (how, version, token) {
            ("", _, "") => Ok(match wanted {
                Some(exactly) if limit > 0 => Position::Exactly(exactly),
                at_least => Position::Newest { at_least },
            }),
            ("", "" | "0", token) => parse_token(token),
            ("", _, _) => {
                Err(Failure::bad_request("specifying resource version is not allowed when using continue"))
            }
            (_, _, token) if !token.is_empty() => {
                Err(invalid("Forbidden: resourceVersionMatch is forbidden when continue is provided"))
            }
            (_, "", _) => Err(invalid(
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            )),
            ("NotOlderThan", ..) => Ok(Position::Newest { at_least: wanted }),
            ("Exact", ..) => match wanted {
                Some(exactly) => Ok(Position::Exactly(exactly)),
                None => Err(invalid(
                    "Forbidden: resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
                )),
            },
            (other, ..) => Err(invalid(&format!(
                "Unsupported value: {other:?}: supported values: \"\", \"Exact\", \"NotOlderThan\""
            ))),
        }
    }

    async fn read(&self, cluster: &Cluster, target: &Target) -> Answer<ListPage> {
        let mut range = Cluster::range(target);
        let (at, expired): (_, fn(_) -> Failure) = match &self.position {
            Position::Newest { at_least } => {
                if let Some(at_least) = at_least {
                    reach(cluster, *at_least).await?;
                }
                (None, Failure::expired)
            }
            Position::Exactly(at) => {
                reach(cluster, *at).await?;
                (Some(*at), Failure::expired)
            }
            Position::After { at, place } => {
                range.after = Some(place.clone());
                (*at, |_| Failure::expired_continue())
            }
        };
        let mut page = cluster.db.list(&range, at).map_err(expired)?;
        let of = collection(&target.kind);
        if !self.selector.is_everything() {
            page.items.retain(|((namespace, name), v)| {
                let key = Key::new(of.clone(), namespace.clone(), name.clone());
                matches(&self.selector, &target.kind, &key, &v.value)
            });
        }
        let mut listed = ListPage {
            revision: page.revision,
            items: page.items,
            continue_token: String::new(),
            remaining: None,
        };
        if self.limit > 0 && listed.items.len() > self.limit {
            let left = listed.items.len() - self.limit;
            listed.items.truncate(self.limit);
            listed.remaining = self.selector.is_everything().then_some(left);
            if let Some((place, _)) = listed.items.last() {
                listed.continue_token = token(listed.revision, place);
            }
        }
        Ok(listed)
    }
}

/// The token that continues a list after a place. Source: the form of apiserver storage/continue.go.
fn token(revision: Revision, (namespace, name): &Place) -> String {
    let start = if namespace.is_empty() { format!("{name}\0") } else { format!("{namespace}/{name}\0") };
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
}

fn parse_token(token: &str) -> Answer<Position> {
    let parsed = || -> Option<Position> {
        let value: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let start = value["start"].as_str()?.trim_end_matches('\0');
        let (namespace, name) = start.split_once('/').unwrap_or(("", start));
        let at = match value["rv"].as_i64()? {
            -1 => None,
            at => Some(at.try_into().ok()?),
        };
        Some(Position::After { at, place: (Arc::from(namespace), Arc::from(name)) })
    };
    parsed()
        .ok_or_else(|| Failure::bad_request("continue key is not valid: it is not a token of this server"))
}

fn render(view: &View, kind: &ResourceType, page: &ListPage) -> Bytes {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if !page.continue_token.is_empty() {
        metadata["continue"] = page.continue_token.as_str().into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    let values = || page.items.iter().map(|(_, v)| v.value.value_as(kind));
    match view.form {
        Form::Whole => {
            let items = page.items.iter().map(|(_, v)| v.value.json_as(kind));
            list_of(&kind.list_kind, &kind.api_version(), &metadata, items)
        }
        Form::Metadata(version) => {
            let items = values().map(|v| encode(&metadata_of(&v, version)));
            list_of("PartialObjectMetadataList", &format!("meta.k8s.io/{version}"), &metadata, items)
        }
        Form::Table(version) => {
            let rows = values().map(|v| view.row(kind, &v, version)).collect();
            encode(&table(version, &metadata, Some(kind), rows))
        }
    }
}

/// A list put together from objects that are JSON already.
fn list_of(kind: &str, api_version: &str, metadata: &Value, items: impl Iterator<Item = Bytes>) -> Bytes {
    let mut out = BytesMut::new();
    let head = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}).to_string();
    out.put_slice(head.as_bytes().strip_suffix(b"}").unwrap_or_default());
    out.put_slice(b",\"items\":[");
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        out.put_slice(&item);
    }
    out.put_slice(b"]}");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(namespace: &str, name: &str) {
        let place: Place = (Arc::from(namespace), Arc::from(name));
        let Position::After { at, place: found } = parse_token(&token(7, &place)).unwrap() else {
            panic!("a place")
        };
        assert_eq!((at, found), (Some(7), place));
    }

    #[test]
    fn a_continue_token_reads_back_to_the_place_it_was_made_for() {
        check("", "node-1");
        check("default", "pod.1");
    }

    #[test]
    fn foreign_continue_tokens_are_refused() {
        for bad in
            ["x", "!!", &URL_SAFE_NO_PAD.encode("{}"), &URL_SAFE_NO_PAD.encode(r#"{"rv":-9,"start":"a"}"#)]
        {
            assert!(parse_token(bad).is_err(), "{bad}");
        }
    }
}
