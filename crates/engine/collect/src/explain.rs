//! Looks into a graph: figures on collections, and the causes of a value.

use crate::dump::{CollectionDump, Explanation};
use crate::handle::Id;
use crate::node::{Entry, Nodes};

/// Steps from a value down to inputs that an explanation follows.
const DEPTH_MAX: usize = 16;
/// Values that an explanation names in all, so that it stays readable and ends soon.
const EXPLAINED_MAX: usize = 500;
/// Keys that are offered when a question fits more than one.
const CANDIDATES_MAX: usize = 20;

/// Figures on one collection; none while it is updated.
pub(crate) fn figures(id: Id, entry: &Entry, scope: Option<String>) -> Option<CollectionDump> {
    let node = entry.node.as_deref()?;
    let from = node.from();
    Some(CollectionDump {
        id,
        name: node.name(),
        kind: node.kind(),
        scope,
        len: node.store().count(),
        shallow_bytes: node.store().shallow_bytes(),
        indexes: node.store().index_sizes(),
        runs: node.runs(),
        reads: node.reads(),
        bookkeeping: node.bookkeeping(),
        faults: entry.faults,
        last_run: entry.last_run,
        last_change: entry.last_change,
        read_from: node.read_from().into_iter().filter(|id| !from.contains(id)).collect(),
        from,
    })
}

/// Explains the value of a key of the collection of that name.
pub(crate) fn explain(nodes: &Nodes, collection: &str, key: &str) -> Result<Explanation, Vec<String>> {
    let mut candidates = Vec::new();
    for (id, entry) in nodes.iter() {
        let Some(node) = entry.node.as_deref().filter(|node| node.name() == collection) else { continue };
        let fits = node.store().keys_where(&|text| text == key || text.trim_matches('"') == key);
        if let Some(exact) = fits.first() {
            let mut left = EXPLAINED_MAX;
            return Ok(explain_one(nodes, id, exact, DEPTH_MAX, &mut left));
        }
        candidates
            .extend(node.store().keys_where(&|text| text.contains(key)).into_iter().map(|text| (id, text)));
    }
    match candidates.as_slice() {
        [(id, only)] => Ok(explain_one(nodes, *id, only, DEPTH_MAX, &mut { EXPLAINED_MAX })),
        many => Err(many.iter().take(CANDIDATES_MAX).map(|(_, text)| text.clone()).collect()),
    }
}

fn explain_one(nodes: &Nodes, id: Id, key: &str, depth: usize, left: &mut usize) -> Explanation {
    let entry = nodes.entries.get(&id);
    let (name, causes) = match entry.and_then(|entry| Some((entry, entry.node.as_deref()?))) {
        Some((entry, node)) => (node.name(), node.causes(key, nodes.before(entry.position))),
        None => ("(gone)", Vec::new()),
    };
    let mut because = Vec::new();
    for (cause, found) in causes.iter().flat_map(|cause| cause.found.iter().map(move |found| (cause, found)))
    {
        if depth == 0 || *left == 0 {
            break;
        }
        *left -= 1;
        because.push(explain_one(nodes, cause.id, found, depth - 1, left));
    }
    Explanation { collection: name, key: key.to_owned(), causes, because }
}
