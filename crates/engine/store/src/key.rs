//! Names of objects and points in time.

use std::fmt;
use std::sync::Arc;

/// A point in the store's history: the number of its writes so far, over all collections. Never goes back.
pub type Revision = u64;

/// Where an object lives. Orders as (collection, namespace, name).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The kind of object, for example `pods` or `apps/deployments`.
    pub collection: Arc<str>,
    /// Empty for objects outside namespaces.
    pub namespace: Arc<str>,
    /// Name within collection and namespace.
    pub name: Arc<str>,
}

impl Key {
    /// Key of an object; `namespace` is empty for objects outside namespaces.
    pub fn new(
        collection: impl Into<Arc<str>>,
        namespace: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
    ) -> Self {
        Self { collection: collection.into(), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.collection)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}
