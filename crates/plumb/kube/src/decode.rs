//! Decodes lists and watch events so that one object nobody can read does not hide all others.

use crate::error::WatchError;
use crate::informer::ObjectKey;
use crate::keep::{Keep, Kept};
use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// Annotation of the bookmark at the end of the state that a stream begins with (KEP-3157).
const STATE_END: &str = "k8s.io/initial-events-end";

/// One page of a list.
pub(crate) struct Page<K> {
    pub(crate) objects: Vec<K>,
    /// Objects that do not decode, with the reason: what is known of them stays in force.
    pub(crate) unreadable: BTreeMap<ObjectKey, String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) continue_token: Option<String>,
}

/// One event of a watch.
pub(crate) enum Event<K> {
    Applied(K),
    Deleted {
        key: ObjectKey,
        resource_version: Option<String>,
    },
    Bookmark {
        resource_version: String,
        /// It is the mark at the end of the state that a stream began with.
        ends_state: bool,
    },
    /// An object was applied that does not decode.
    Unreadable {
        key: ObjectKey,
        cause: String,
        resource_version: Option<String>,
    },
    Failed(WatchError),
}

#[derive(Deserialize)]
struct LoosePage<T> {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// What is read of an object of which only the name is needed.
#[derive(Deserialize)]
struct Named {
    metadata: NamedMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedMeta {
    namespace: Option<String>,
    name: Option<String>,
    resource_version: Option<String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Decodes one page, and of its objects what is kept. Errors: the document as a whole is not a list.
pub(crate) fn page<K: DeserializeOwned>(bytes: &[u8], keep: &Keep) -> Result<Page<K>, WatchError> {
    let kept = Kept::new(keep);
    if let Ok((metadata, objects)) = whole(bytes, PageSeed(kept)) {
        return Ok(to_page(metadata, objects, BTreeMap::new()));
    }
    // One object does not decode, or more: each by itself.
    let loose: LoosePage<Value> = serde_json::from_slice(bytes).map_err(WatchError::Decode)?;
    let (mut objects, mut unreadable) = (Vec::new(), BTreeMap::new());
    for item in loose.items.unwrap_or_default() {
        let key = key_of(&item);
        match kept.deserialize(item) {
            Ok(object) => objects.push(object),
            Err(error) => {
                unreadable.insert(key, error.to_string());
            }
        }
    }
    Ok(to_page(loose.metadata, objects, unreadable))
}

fn to_page<K>(metadata: ListMeta, objects: Vec<K>, unreadable: BTreeMap<ObjectKey, String>) -> Page<K> {
    let (resource_version, continue_token) = (some(metadata.resource_version), some(metadata.continue_token));
    Page { objects, unreadable, resource_version, continue_token }
}

fn some(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// The revision of a list, whatever is in it.
pub(crate) fn list_revision(bytes: &[u8]) -> Result<Option<String>, WatchError> {
    let page: LoosePage<IgnoredAny> = serde_json::from_slice(bytes).map_err(WatchError::Decode)?;
    Ok(some(page.metadata.resource_version))
}

/// Decodes one line of a watch, and of its object what is kept. Errors: the line is not a watch event at all.
pub(crate) fn event<K>(line: &[u8], keep: &Keep) -> Result<Event<K>, WatchError>
where
    K: DeserializeOwned + kube::Resource,
{
    // The type stands first, so that this reads little; should it not, the object is read twice.
    let kind: Option<String> = whole(line, MemberSeed("type", PhantomData)).map_err(WatchError::Decode)?;
    let named =
        || whole(line, MemberSeed("object", PhantomData::<Named>)).map(|named| named.map(|it| it.metadata));
    match kind.as_deref() {
        Some("ADDED" | "MODIFIED") => match whole(line, MemberSeed("object", Kept::<K>::new(keep))) {
            Ok(Some(object)) => Ok(Event::Applied(object)),
            Ok(None) => loose_event(line, "it has no object"),
            Err(error) => loose_event(line, &error.to_string()),
        },
        Some("DELETED") => match named() {
            Ok(Some(NamedMeta { namespace, name, resource_version, .. })) => Ok(Event::Deleted {
                key: ObjectKey { namespace, name: name.unwrap_or_default() },
                resource_version,
            }),
            _ => loose_event(line, "it names no object"),
        },
        Some("BOOKMARK") => match named() {
            Ok(Some(NamedMeta { resource_version: Some(resource_version), annotations, .. })) => {
                let ends_state = annotations.get(STATE_END).is_some_and(|value| value == "true");
                Ok(Event::Bookmark { resource_version, ends_state })
            }
            _ => Err(WatchError::NoResourceVersion),
        },
        _ => loose_event(line, "it is no watch event"),
    }
}

/// Reads what can be read of an event whose object does not decode.
fn loose_event<K>(line: &[u8], cause: &str) -> Result<Event<K>, WatchError> {
    let raw: Value = serde_json::from_slice(line).map_err(WatchError::Decode)?;
    let object = &raw["object"];
    let resource_version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    match raw["type"].as_str() {
        Some("ADDED" | "MODIFIED") => {
            Ok(Event::Unreadable { key: key_of(object), cause: cause.to_owned(), resource_version })
        }
        Some("DELETED") => Ok(Event::Deleted { key: key_of(object), resource_version }),
        // A server that fails before the first event may send a bare Status line.
        _ => {
            let status = if raw["kind"] == "Status" { &raw } else { object };
            Ok(Event::Failed(WatchError::of_status(status, cause)))
        }
    }
}

fn key_of(object: &Value) -> ObjectKey {
    let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
    ObjectKey { namespace: text("namespace"), name: text("name").unwrap_or_default() }
}

/// Decodes a whole document by a seed.
fn whole<'de, S: DeserializeSeed<'de>>(bytes: &'de [u8], seed: S) -> serde_json::Result<S::Value> {
    let mut document = serde_json::Deserializer::from_slice(bytes);
    let value = seed.deserialize(&mut document)?;
    document.end()?;
    Ok(value)
}

/// Reads a list: its metadata and its objects.
struct PageSeed<'a, K>(Kept<'a, K>);

impl<'de, K: DeserializeOwned> DeserializeSeed<'de> for PageSeed<'_, K> {
    type Value = (ListMeta, Vec<K>);

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Self::Value, D::Error> {
        document.deserialize_map(self)
    }
}

impl<'de, K: DeserializeOwned> Visitor<'de> for PageSeed<'_, K> {
    type Value = (ListMeta, Vec<K>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut metadata, mut objects) = (ListMeta::default(), Vec::new());
        while let Some(name) = list.next_key::<String>()? {
            match name.as_str() {
                "metadata" => metadata = list.next_value()?,
                "items" => objects = list.next_value_seed(ItemsSeed(self.0))?,
                _ => {
                    list.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok((metadata, objects))
    }
}

/// Reads the objects of a list, which may be null.
struct ItemsSeed<'a, K>(Kept<'a, K>);

impl<'de, K: DeserializeOwned> DeserializeSeed<'de> for ItemsSeed<'_, K> {
    type Value = Vec<K>;

    fn deserialize<D: Deserializer<'de>>(self, items: D) -> Result<Vec<K>, D::Error> {
        items.deserialize_any(self)
    }
}

impl<'de, K: DeserializeOwned> Visitor<'de> for ItemsSeed<'_, K> {
    type Value = Vec<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the objects of a list")
    }

    fn visit_unit<E: Error>(self) -> Result<Vec<K>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<K>, A::Error> {
        let mut objects = Vec::new();
        while let Some(object) = items.next_element_seed(self.0)? {
            objects.push(object);
        }
        Ok(objects)
    }
}

/// Reads one member of a map.
struct MemberSeed<S>(&'static str, S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for MemberSeed<S> {
    type Value = Option<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Self::Value, D::Error> {
        document.deserialize_map(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for MemberSeed<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a watch event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut event: A) -> Result<Self::Value, A::Error> {
        let Self(wanted, seed) = self;
        let (mut seed, mut value) = (Some(seed), None);
        while let Some(name) = event.next_key::<String>()? {
            match seed.take_if(|_| name == wanted) {
                Some(seed) => value = Some(event.next_value_seed(seed)?),
                None => {
                    event.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambit_api::core::v1::ConfigMap;

    #[track_caller]
    fn check_event(line: &str, expected: &str) {
        let seen = match event::<ConfigMap>(line.as_bytes(), &Keep::default()) {
            Ok(Event::Applied(object)) => format!("applied {}", ObjectKey::of(&object)),
            Ok(Event::Deleted { key, .. }) => format!("deleted {key}"),
            Ok(Event::Bookmark { resource_version, ends_state }) => {
                format!("bookmark {resource_version} {ends_state}")
            }
            Ok(Event::Unreadable { key, resource_version, .. }) => {
                format!("unreadable {key} {resource_version:?}")
            }
            Ok(Event::Failed(error)) => format!("failed: {error}"),
            Err(error) => format!("error {error}"),
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn events_decode_and_bad_objects_keep_their_name() {
        check_event(r#"{"type":"ADDED","object":{"metadata":{"namespace":"n","name":"a"}}}"#, "applied n/a");
        check_event(
            r#"{"type":"DELETED","object":{"metadata":{"namespace":"n","name":"a"},"data":3}}"#,
            "deleted n/a",
        );
        check_event(
            r#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"9"}}}"#,
            "bookmark 9 false",
        );
        check_event(
            r#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"9",
            "annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            "bookmark 9 true",
        );
        check_event(
            r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"4"},"data":[1]}}"#,
            r#"unreadable a Some("4")"#,
        );
        check_event(
            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old","reason":"Expired"}}"#,
            "failed: the server refused: too old (410)",
        );
        check_event(
            r#"{"kind":"Status","code":500,"message":"down"}"#,
            "failed: the server refused: down (500)",
        );
        // The type may stand last.
        check_event(
            r#"{"object":{"metadata":{"namespace":"n","name":"a"}},"type":"MODIFIED"}"#,
            "applied n/a",
        );
        check_event(r#"{"type":"ADDED"}"#, "unreadable  None");
        check_event(r#"{"type":"NEWS","object":{}}"#, "failed: the server refused: it is no watch event (0)");
        check_event(
            r#"{"type":"BOOKMARK","object":{}}"#,
            "error the answer has no metadata.resourceVersion to watch from",
        );
        check_event("not json", "error the answer is not a Kubernetes document");
    }

    #[test]
    fn a_bad_item_does_not_hide_the_good_ones() {
        let text = r#"{"metadata":{"resourceVersion":"7","continue":""},"items":[
            {"metadata":{"namespace":"n","name":"good"}}, {"metadata":{"namespace":"n","name":"bad"},"data":"x"}]}"#;
        let page = page::<ConfigMap>(text.as_bytes(), &Keep::default()).expect("a list");
        assert_eq!(page.objects.len(), 1);
        assert_eq!(page.unreadable.into_keys().collect::<Vec<_>>(), [ObjectKey::namespaced("n", "bad")]);
        assert_eq!((page.resource_version.as_deref(), page.continue_token), (Some("7"), None));
    }
}
