//! JSON, merge and strategic merge patches of objects; server-side apply and who owns which field.
//! It never reads or stores an object by itself.

mod directives;
mod error;
mod json;
mod merge;
mod ownership;
mod strategic;

pub use error::PatchError;
pub use json::json_patch;
pub use merge::merge_patch;
pub use ownership::{
    Applied, ApplyError, Comparison, ConfigFault, Conflict, Conflicts, FieldSet, ListType, Managers,
    ManagersError, OnConflict, Operation, Owned, Owner, PathElement, ValueType, Writer, compare,
};
pub use strategic::{FieldStrategy, ListMerge, MergeStrategy, strategic_merge};
