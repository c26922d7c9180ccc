//! Versions of an object and the writes between them.

use crate::{Key, Revision};

/// One state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version<V> {
    /// The write that made it.
    pub revision: Revision,
    /// The value.
    pub value: V,
}

/// One write: what was there before and what is there since.
///
/// `C` is whatever readers want to keep with the write for each other, such as its encodings.
#[derive(Debug)]
pub struct Event<V, C = ()> {
    /// The revision this write made.
    pub revision: Revision,
    /// The object.
    pub key: Key,
    /// The state it replaced; `None` when the write created the object.
    pub old: Option<Version<V>>,
    /// The new value; `None` when the write deleted the object.
    pub new: Option<V>,
    /// Shared by all readers of this event.
    pub cache: C,
}
