//! Decodes lists and watch events so that one object nobody can read does not hide all others.

use crate::error::WatchError;
use crate::informer::ObjectKey;
use kube::api::WatchEvent;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use std::collections::BTreeMap;

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
struct RawPage<T> {
    #[serde(default)]
    metadata: RawListMeta,
    items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// Decodes one page. Errors: the document as a whole is not a list.
pub(crate) fn page<K: DeserializeOwned>(bytes: &[u8]) -> Result<Page<K>, WatchError> {
    if let Ok(raw) = serde_json::from_slice::<RawPage<K>>(bytes) {
        return Ok(to_page(raw.metadata, raw.items.unwrap_or_default(), BTreeMap::new()));
    }
    let raw: RawPage<Value> = serde_json::from_slice(bytes).map_err(WatchError::Decode)?;
    let (mut objects, mut unreadable) = (Vec::new(), BTreeMap::new());
    for item in raw.items.unwrap_or_default() {
        let key = key_of(&item);
        match serde_json::from_value(item) {
            Ok(object) => objects.push(object),
            Err(error) => {
                unreadable.insert(key, error.to_string());
            }
        }
    }
    Ok(to_page(raw.metadata, objects, unreadable))
}

fn to_page<K>(metadata: RawListMeta, objects: Vec<K>, unreadable: BTreeMap<ObjectKey, String>) -> Page<K> {
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (resource_version, continue_token) = (some(metadata.resource_version), some(metadata.continue_token));
    Page { objects, unreadable, resource_version, continue_token }
}

/// The revision of a list, whatever is in it.
pub(crate) fn list_revision(bytes: &[u8]) -> Result<Option<String>, WatchError> {
    let raw: RawPage<IgnoredAny> = serde_json::from_slice(bytes).map_err(WatchError::Decode)?;
    Ok(raw.metadata.resource_version.filter(|text| !text.is_empty()))
}

/// Decodes one line of a watch. Errors: the line is not a watch event at all.
pub(crate) fn event<K>(line: &[u8]) -> Result<Event<K>, WatchError>
where
    K: DeserializeOwned + kube::Resource,
{
    match serde_json::from_slice::<WatchEvent<K>>(line) {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Ok(Event::Applied(object)),
        Ok(WatchEvent::Deleted(object)) => {
            let resource_version = object.meta().resource_version.clone();
            Ok(Event::Deleted { key: ObjectKey::of(&object), resource_version })
        }
        Ok(WatchEvent::Bookmark(mark)) => {
            let ends_state = mark.metadata.annotations.get(STATE_END).is_some_and(|value| value == "true");
            Ok(Event::Bookmark { resource_version: mark.metadata.resource_version, ends_state })
        }
        // Read once more, as a whole: it has more in it than the library's type shows.
        Ok(WatchEvent::Error(_)) => loose_event(line, "the server failed"),
        Err(error) => loose_event(line, &error.to_string()),
    }
}

/// Reads what can be read of an event whose object does not decode.
fn loose_event<K>(line: &[u8], cause: &str) -> Result<Event<K>, WatchError> {
    let raw: Value = serde_json::from_slice(line).map_err(WatchError::Decode)?;
    let object = &raw["object"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let resource_version = text(&object["metadata"]["resourceVersion"]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use ambit_api::core::v1::ConfigMap;

    #[track_caller]
    fn check_event(line: &str, expected: &str) {
        let seen = match event::<ConfigMap>(line.as_bytes()) {
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
        check_event("not json", "error the answer is not a Kubernetes document");
    }

    #[test]
    fn a_bad_item_does_not_hide_the_good_ones() {
        let text = r#"{"metadata":{"resourceVersion":"7","continue":""},"items":[
            {"metadata":{"namespace":"n","name":"good"}}, {"metadata":{"namespace":"n","name":"bad"},"data":"x"}]}"#;
        let page = page::<ConfigMap>(text.as_bytes()).expect("a list");
        assert_eq!(page.objects.len(), 1);
        assert_eq!(page.unreadable.into_keys().collect::<Vec<_>>(), [ObjectKey::namespaced("n", "bad")]);
        assert_eq!((page.resource_version.as_deref(), page.continue_token), (Some("7"), None));
    }
}
