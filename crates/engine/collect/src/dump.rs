//! What a graph looks like inside, for people who ask why.

use crate::handle::Id;
use serde::Serialize;
use std::fmt::{Debug, Write as _};
use std::time::Duration;

/// Keys that one read names; the others are counted.
const FOUND_MAX: usize = 50;

/// How a collection comes about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Written from outside.
    Input,
    /// Written once.
    Fixed,
    /// A function of one collection and of what it reads.
    Derived,
    /// Two collections by their common keys.
    Join,
    /// Several collections as one.
    Merge,
    /// A merge whose sources come and go.
    Union,
}

/// When something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stamp {
    /// Number of the batch, from 1.
    pub batch: u64,
    /// The batch's time, since the Unix epoch, if the batch had one.
    pub at: Option<Duration>,
}

/// All collections of a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dump {
    /// Batches applied so far.
    pub batches: u64,
    /// The collections, in the order in which they are updated.
    pub collections: Vec<CollectionDump>,
}

/// Figures on one collection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CollectionDump {
    /// Names it within the graph.
    pub id: u64,
    /// Its name.
    pub name: &'static str,
    /// How it comes about.
    pub kind: Kind,
    /// The scope that owns it, if it is not the graph itself.
    pub scope: Option<String>,
    /// Values in it.
    pub len: usize,
    /// Bytes of keys and values themselves, without what they point to.
    pub shallow_bytes: usize,
    /// Entries of each of its indexes.
    pub indexes: Vec<usize>,
    /// How often its function has run.
    pub runs: u64,
    /// Recorded reads.
    pub reads: usize,
    /// Entries kept besides, to know what came of what.
    pub bookkeeping: usize,
    /// Panics of its functions so far.
    pub faults: u64,
    /// The last batch in which its function ran.
    pub last_run: Option<Stamp>,
    /// The last batch that changed it.
    pub last_change: Option<Stamp>,
    /// Ids of the collections it was made from.
    pub from: Vec<u64>,
    /// Ids of the other collections that its function has read.
    pub read_from: Vec<u64>,
}

impl Dump {
    /// The picture of the graph, in the DOT language of Graphviz. Dashed arrows are reads.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph collections {\n  rankdir=LR;\n  node [shape=box];\n");
        for one in &self.collections {
            let scope = one.scope.as_ref().map(|scope| format!(" ({scope})")).unwrap_or_default();
            let label = format!("{}{scope}\n{:?}, {} values", one.name, one.kind, one.len);
            // Writing to a string cannot fail.
            let _ = writeln!(dot, "  n{} [label={label:?}];", one.id);
            for from in &one.from {
                let _ = writeln!(dot, "  n{from} -> n{};", one.id);
            }
            for from in &one.read_from {
                let _ = writeln!(dot, "  n{from} -> n{} [style=dashed];", one.id);
            }
        }
        dot.push_str("}\n");
        dot
    }
}

/// How a value was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// It is what the collection is computed from.
    Input,
    /// By its key.
    Key,
    /// By a bucket of an index.
    Index,
    /// By labels it carries.
    Labels,
    /// By labels it selects.
    Selectors,
    /// With the whole collection.
    All,
}

/// One thing that a value was computed from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    #[serde(skip)]
    pub(crate) id: Id,
    /// The collection that was read.
    pub collection: &'static str,
    /// How it was read.
    pub how: How,
    /// What was asked for; empty for inputs and whole collections.
    pub asked: String,
    /// Keys of what was found, at most a few dozen of them.
    pub found: Vec<String>,
    /// How many were found.
    pub found_count: usize,
}

impl Cause {
    pub(crate) fn new<K: Debug>(
        id: Id,
        collection: &'static str,
        how: How,
        asked: &dyn Debug,
        found: &[K],
    ) -> Self {
        let asked = match how {
            How::Input | How::All => String::new(),
            _ => format!("{asked:?}"),
        };
        let keys = found.iter().take(FOUND_MAX).map(|key| format!("{key:?}")).collect();
        Self { id, collection, how, asked, found: keys, found_count: found.len() }
    }
}

/// Why a value is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The collection.
    pub collection: &'static str,
    /// The key in it.
    pub key: String,
    /// What it was computed from; empty for what was written from outside.
    pub causes: Vec<Cause>,
    /// The explanations of what was found, in the order of `causes`.
    pub because: Vec<Explanation>,
}
