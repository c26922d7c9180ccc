//! Objects as the store holds them, and what readers of one write share.

use ambit_schema::ResourceType;
use ambit_store::Revision;
use bytes::Bytes;
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// A stored object: its canonical JSON, its version, and its labels for selectors.
#[derive(Debug)]
pub(crate) struct Object {
    json: Bytes,
    api_version: Box<str>,
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
        Arc::new(Self::new(encode(&value), &value))
    }

    /// The object as read back from where it was persisted.
    pub(crate) fn parse(json: Vec<u8>) -> Result<Arc<Self>, serde_json::Error> {
        let value: Value = serde_json::from_slice(&json)?;
        Ok(Arc::new(Self::new(json.into(), &value)))
    }

    fn new(json: Bytes, value: &Value) -> Self {
        Self {
            json,
            api_version: value["apiVersion"].as_str().unwrap_or_default().into(),
            labels: labels_of(value),
        }
    }

    /// Whether the object is stored as `kind` has it. Objects written while another version was the stored one are
    /// not, nor are those of resources that share the objects of another.
    pub(crate) fn is_of(&self, kind: &ResourceType) -> bool {
        *self.api_version == kind.api_version()
    }

    /// The object's JSON in the version of `kind`.
    pub(crate) fn json_as(&self, kind: &ResourceType) -> Bytes {
        if self.is_of(kind) { self.json.clone() } else { encode(&self.value_as(kind)) }
    }

    /// The object's fields in the version of `kind`. Parses: not for hot paths.
    pub(crate) fn value_as(&self, kind: &ResourceType) -> Value {
        kind.from_stored(self.value())
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
    /// Three formats (whole objects, metadata only, whole objects in protobuf) times three event types.
    const LINES: usize = 9;

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
