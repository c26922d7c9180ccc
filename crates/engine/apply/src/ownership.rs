//! Who owns which field, and what an apply makes of an object.
//!
//! The semantics are those of KEP-555 and of upstream's structured-merge-diff and apimachinery `managedfields`: the
//! names of their parts stand in the comments, so that the two can be read side by side.

mod apply;
mod compare;
mod conflict;
mod element;
mod error;
mod fields_v1;
mod last_applied;
mod managers;
mod merge;
mod prune;
mod reconcile;
mod set;
#[cfg(test)]
mod tests;
mod validate;
mod value_type;
mod writer;

pub use apply::{Applied, OnConflict};
pub use compare::{Comparison, compare};
pub use conflict::{Conflict, Conflicts};
pub use element::PathElement;
pub use error::{ApplyError, ManagersError};
pub use managers::{Managers, Operation, Owned, Owner};
pub use set::FieldSet;
pub use validate::ConfigFault;
pub use value_type::{ListType, ValueType};
pub use writer::Writer;
