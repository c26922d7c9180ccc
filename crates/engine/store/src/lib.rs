//! The multi-version object store: revisions, snapshots, watch windows, conflicts and compaction.
//! It never knows how an object is encoded.

mod event;
mod key;
mod range;
mod store;

pub use event::{Event, Version};
pub use key::{Key, Revision};
pub use range::{Page, Place, Range};
pub use store::{Compacted, Conflict, Expect, RestoreError, Saved, Store, Undo};
