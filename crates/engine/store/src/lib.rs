//! The multi-version object store: revisions, snapshots, watch windows, conflicts and compaction.
//! It never knows how an object is encoded.
