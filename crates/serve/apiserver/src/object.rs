//! Objects as the store holds them, and what readers of one write share.

use ambit_store::Revision;
use bytes::Bytes;
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// A stored object: its canonical JSON, and its labels for selectors.
#[derive(Debug)]
pub(crate) struct Object {
    json: Bytes,
    labels: Box<[(Box<str>, Box<str>)]>,
}

/// A write to an object.
pub(crate) type Event = ambit_store::Event<Arc<Object>, EventCache>;

/// A stored object with the revision that wrote it.
pub(crate) type Stored = ambit_store::Version<Arc<Object>>;

impl Object {
    /// The object as written at a revision, which becomes its resourceVersion.
    pub(crate) fn written(mut value: Value, revision: Revision) -> Arc<Self> {
        set_revision(&mut value, revision);
        Arc::new(Self { json: encode(&value), labels: labels_of(&value) })
    }

    /// The object as read back from where it was persisted.
    pub(crate) fn parse(json: Vec<u8>) -> Result<Arc<Self>, serde_json::Error> {
        let value: Value = serde_json::from_slice(&json)?;
        Ok(Arc::new(Self { labels: labels_of(&value), json: json.into() }))
    }

    /// Canonical JSON.
    pub(crate) fn json(&self) -> &Bytes {
        &self.json
    }

    /// Labels, for selectors.
    pub(crate) fn labels(&self) -> &[(Box<str>, Box<str>)] {
        &self.labels
    }

    /// The object's fields. Parses: not for hot paths.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.json).expect("only valid JSON is ever stored")
    }
}

/// Encodings of one write that all watchers share. Each is made by the first watcher that needs it.
#[derive(Debug, Default)]
pub(crate) struct EventCache {
    old: OnceLock<Value>,
    new: OnceLock<Value>,
    /// Indexed by format and event type.
    lines: [OnceLock<Bytes>; Self::LINES],
}

impl EventCache {
    /// Two formats (whole objects, metadata only) times three event types.
    const LINES: usize = 6;

    /// The encoded line of a slot, made once.
    pub(crate) fn line(&self, slot: usize, make: impl FnOnce() -> Bytes) -> Bytes {
        match self.lines.get(slot) {
            Some(cell) => cell.get_or_init(make).clone(),
            None => make(),
        }
    }

    /// The fields before the write, parsed once.
    pub(crate) fn old_value<'a>(&'a self, object: &Object) -> &'a Value {
        self.old.get_or_init(|| object.value())
    }

    /// The fields after the write, parsed once.
    pub(crate) fn new_value<'a>(&'a self, object: &Object) -> &'a Value {
        self.new.get_or_init(|| object.value())
    }
}

/// Sets metadata.resourceVersion.
pub(crate) fn set_revision(value: &mut Value, revision: Revision) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".into(), Value::String(revision.to_string()));
    }
}

/// Compact JSON.
pub(crate) fn encode(value: &Value) -> Bytes {
    serde_json::to_vec(value).expect("a JSON value with string keys can be written to memory").into()
}

fn labels_of(value: &Value) -> Box<[(Box<str>, Box<str>)]> {
    let labels = value.pointer("/metadata/labels").and_then(Value::as_object);
    let pair = |(key, value): (&String, &Value)| Some((key.as_str().into(), value.as_str()?.into()));
    labels.map(|labels| labels.iter().filter_map(pair).collect()).unwrap_or_default()
}
