//! JSON, merge and strategic merge patches of objects.
//! It never reads or stores an object by itself.

mod directives;
mod error;
mod json;
mod merge;
mod strategic;

pub use error::PatchError;
pub use json::json_patch;
pub use merge::merge_patch;
pub use strategic::{FieldStrategy, ListMerge, MergeStrategy, strategic_merge};
