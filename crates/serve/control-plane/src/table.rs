//! The resources of one type, shared by many readers while they change.
//!
//! A table is a list of small sorted chunks. The next table shares all chunks in which nothing changed, so that a
//! change costs a chunk, not the table, and a reader that holds an old table holds little besides the new one.

use ambit_mesh::Resource;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Name of a resource.
pub(crate) type Name = Arc<str>;

/// Entries of a chunk: near the square root of the tens of thousands there can be, which makes the copy of one chunk
/// and the copy of the list of chunks cost about the same.
const CHUNK_MAX: usize = 128;
/// A chunk with fewer entries is joined with its neighbour.
const CHUNK_MIN: usize = CHUNK_MAX / 4;
/// Steps back for which a table knows what changed. Readers further behind compare chunks.
const STEPS_MAX: usize = 64;

type Entry = (Name, Arc<Resource>);
type Chunk = Vec<Entry>;

/// The resources of one type.
#[derive(Default)]
pub(crate) struct Table {
    /// Never empty ones, in the order of names.
    chunks: Vec<Arc<Chunk>>,
    len: usize,
    revision: u64,
    /// Names written by each of the last steps, the newest last.
    steps: VecDeque<Arc<[Name]>>,
}

/// What a reader of one table lacks of another.
#[derive(Default)]
pub(crate) struct Difference<'a> {
    pub(crate) changed: Vec<(&'a Name, &'a Arc<Resource>)>,
    pub(crate) removed: Vec<(&'a Name, &'a Arc<Resource>)>,
}

impl Table {
    pub(crate) fn get(&self, name: &str) -> Option<(&Name, &Arc<Resource>)> {
        let chunk = self.chunks.get(self.chunk_of(name))?;
        let at = position(chunk, name).ok()?;
        chunk.get(at).map(|(name, resource)| (name, resource))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Name, &Arc<Resource>)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(name, resource)| (name, resource))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// This table with some entries written or (without a value) removed.
    pub(crate) fn with(&self, changes: Vec<(Name, Option<Arc<Resource>>)>) -> Self {
        let mut steps = self.steps.clone();
        if steps.len() == STEPS_MAX {
            steps.pop_front();
        }
        steps.push_back(changes.iter().map(|(name, _)| name.clone()).collect());
        let mut next =
            Self { chunks: self.chunks.clone(), len: self.len, revision: self.revision + 1, steps };
        for (name, value) in changes {
            match value {
                Some(value) => next.write(name, value),
                None => next.remove(&name),
            }
        }
        next
    }

    /// The chunk that has, or should have, a name; the list's length when there are no chunks.
    fn chunk_of(&self, name: &str) -> usize {
        let after =
            self.chunks.partition_point(|chunk| chunk.first().is_some_and(|(first, _)| **first <= *name));
        after.saturating_sub(1)
    }

    fn write(&mut self, name: Name, value: Arc<Resource>) {
        let at = self.chunk_of(&name);
        let Some(shared) = self.chunks.get_mut(at) else {
            self.chunks.push(Arc::new(vec![(name, value)]));
            self.len += 1;
            return;
        };
        let chunk = Arc::make_mut(shared);
        match position(chunk, &name) {
            Ok(found) => chunk[found].1 = value,
            Err(free) => {
                chunk.insert(free, (name, value));
                self.len += 1;
            }
        }
        if chunk.len() > CHUNK_MAX {
            let upper = chunk.split_off(chunk.len() / 2);
            self.chunks.insert(at + 1, Arc::new(upper));
        }
    }

    fn remove(&mut self, name: &str) {
        let at = self.chunk_of(name);
        let Some(shared) = self.chunks.get_mut(at) else { return };
        let Ok(found) = position(shared, name) else { return };
        let chunk = Arc::make_mut(shared);
        chunk.remove(found);
        self.len -= 1;
        if chunk.is_empty() {
            self.chunks.remove(at);
        } else if chunk.len() < CHUNK_MIN {
            self.join(at.saturating_sub(1));
        }
    }

    /// Joins a chunk with the one after it, if both fit into one with room to spare.
    fn join(&mut self, at: usize) {
        let (Some(lower), Some(upper)) = (self.chunks.get(at), self.chunks.get(at + 1)) else { return };
        if lower.len() + upper.len() <= CHUNK_MAX / 2 {
            let both = lower.iter().chain(upper.iter()).cloned().collect();
            self.chunks[at] = Arc::new(both);
            self.chunks.remove(at + 1);
        }
    }

    /// What a reader of `old`, an earlier state of this table, lacks.
    pub(crate) fn since<'a>(&'a self, old: &'a Self) -> Difference<'a> {
        let mut difference = Difference::default();
        let behind = usize::try_from(self.revision.saturating_sub(old.revision)).unwrap_or(usize::MAX);
        if behind <= self.steps.len() {
            let written = self.steps.iter().rev().take(behind).flat_map(|names| names.iter());
            // One step has each name once: only several of them have to be brought together.
            let names: Vec<&Name> = match behind {
                0 | 1 => written.collect(),
                _ => written.collect::<BTreeSet<_>>().into_iter().collect(),
            };
            for name in names {
                difference.add(old.get(name), self.get(name));
            }
            return difference;
        }
        // The reader was slow: compare everything that is not shared.
        let (fresh, stale) = (self.apart_from(old), old.apart_from(self));
        for (name, resource) in fresh {
            difference.add(old.get(name), Some((name, resource)));
        }
        for (name, resource) in stale {
            if self.get(name).is_none() {
                difference.removed.push((name, resource));
            }
        }
        difference
    }

    /// The entries in chunks that the other table does not share.
    fn apart_from<'a>(&'a self, other: &Self) -> impl Iterator<Item = &'a Entry> {
        let shared: BTreeSet<*const Chunk> = other.chunks.iter().map(Arc::as_ptr).collect();
        let own = self.chunks.iter().filter(move |chunk| !shared.contains(&Arc::as_ptr(chunk)));
        own.flat_map(|chunk| chunk.iter())
    }
}

/// Where a name is in a chunk, or where it belongs.
fn position(chunk: &Chunk, name: &str) -> Result<usize, usize> {
    chunk.binary_search_by(|(other, _)| (**other).cmp(name))
}

impl<'a> Difference<'a> {
    fn add(
        &mut self,
        old: Option<(&'a Name, &'a Arc<Resource>)>,
        new: Option<(&'a Name, &'a Arc<Resource>)>,
    ) {
        match (old, new) {
            (Some((_, old)), Some((_, new))) if Arc::ptr_eq(old, new) => {}
            (_, Some(new)) => self.changed.push(new),
            (Some(old), None) => self.removed.push(old),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambit_mesh::Facts;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Step = BTreeMap<u16, Option<u8>>;

    fn resource(version: u8) -> Arc<Resource> {
        Arc::new(Resource { body: Vec::new().into(), version: version.into(), facts: Facts::Policy })
    }

    fn name(number: u16) -> Name {
        format!("{number:05}").into()
    }

    fn next(table: &Table, step: &Step) -> Table {
        table.with(step.iter().map(|(n, value)| (name(*n), value.map(resource))).collect())
    }

    fn shown<'a>(entries: impl IntoIterator<Item = (&'a Name, &'a Arc<Resource>)>) -> Vec<(String, u64)> {
        entries.into_iter().map(|(name, resource)| (name.to_string(), resource.version)).collect()
    }

    /// Histories long enough to outrun what a table remembers, with steps that fill and empty chunks.
    fn history() -> impl Strategy<Value = Vec<Step>> {
        let step =
            || prop::collection::btree_map(0..600_u16, prop::option::weighted(0.6, any::<u8>()), 0..80);
        let bulk = (0..600_u16, 0..600_u16, prop::option::of(any::<u8>()))
            .prop_map(|(a, b, value)| (a.min(b)..a.max(b)).map(|n| (n, value)).collect());
        prop::collection::vec(prop_oneof![3 => step(), 1 => bulk], 0..(STEPS_MAX + 20))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_table_is_a_map_whose_differences_lead_from_any_state_to_the_last(history in history()) {
            let mut tables = vec![Table::default()];
            let mut model = BTreeMap::new();
            for step in &history {
                tables.push(next(tables.last().unwrap(), step));
                for (n, value) in step {
                    match value {
                        Some(value) => model.insert(name(*n).to_string(), u64::from(*value)),
                        None => model.remove(&*name(*n)),
                    };
                }
            }
            let last = tables.last().unwrap();
            prop_assert_eq!(shown(last.iter()), model.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(last.len(), model.len());
            for n in (0..600).step_by(7) {
                prop_assert_eq!(last.get(&name(n)).map(|(_, r)| r.version), model.get(&*name(n)).copied());
            }
            for old in &tables {
                let difference = last.since(old);
                let mut mirror: BTreeMap<String, u64> = shown(old.iter()).into_iter().collect();
                for (name, version) in shown(difference.removed) {
                    prop_assert_eq!(mirror.remove(&name), Some(version));
                }
                mirror.extend(shown(difference.changed));
                prop_assert_eq!(&mirror, &model);
            }
        }
    }

    #[test]
    fn a_change_leaves_the_other_chunks_shared() {
        let full = next(&Table::default(), &(0..10_000).map(|n| (n, Some(0))).collect());
        let changed = next(&full, &[(5_000, Some(1)), (5_001, None)].into());
        assert!(changed.apart_from(&full).count() <= CHUNK_MAX);
        let difference = changed.since(&full);
        assert_eq!((difference.changed.len(), difference.removed.len()), (1, 1));
    }

    #[test]
    fn chunks_that_empty_are_joined() {
        let full = next(&Table::default(), &(0..10_000).map(|n| (n, Some(0))).collect());
        let sparse = next(&full, &(0..10_000).filter(|n| n % 20 != 0).map(|n| (n, None)).collect());
        assert_eq!(sparse.len(), 500);
        assert!(sparse.chunks.len() <= 500 / (CHUNK_MIN / 2), "{} chunks", sparse.chunks.len());
        let empty = next(&sparse, &(0..10_000).map(|n| (n, None)).collect());
        assert!(empty.chunks.is_empty());
    }
}
