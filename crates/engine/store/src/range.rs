//! Which objects a list asks for, and what it answers.

use crate::{Revision, Version};
use std::sync::Arc;

/// Objects of one collection, in the order of (namespace, name).
#[derive(Debug, Clone)]
pub struct Range {
    /// The collection.
    pub collection: Arc<str>,
    /// Only this namespace.
    pub namespace: Option<Arc<str>>,
    /// Begin after this (namespace, name).
    pub after: Option<(Arc<str>, Arc<str>)>,
}

impl Range {
    /// All objects of a collection, in one namespace or in all.
    pub fn new(collection: impl Into<Arc<str>>, namespace: Option<&str>) -> Self {
        Self { collection: collection.into(), namespace: namespace.map(Arc::from), after: None }
    }
}

/// The state of a range at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<V> {
    /// The revision at which these were read.
    pub revision: Revision,
    /// The objects, in order.
    pub items: Vec<(Place, Version<V>)>,
}

/// (namespace, name) of an object within its collection.
pub type Place = (Arc<str>, Arc<str>);
