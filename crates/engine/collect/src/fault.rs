//! Panics of the functions that a graph is given.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A function given to the graph that panicked. Its key keeps what it had; it runs again when something it read changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name of the collection.
    pub collection: &'static str,
    /// The key at which the function panicked.
    pub key: String,
    /// The panic's message.
    pub message: String,
}

/// Runs a function that may panic; what it has changed by then is in order whenever it stops.
pub(crate) fn contain<T>(
    collection: &'static str,
    key: &dyn Debug,
    run: impl FnOnce() -> T,
) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Fault { collection, key: format!("{key:?}"), message }
    })
}
