//! A sorted map that many readers share while it changes.
//!
//! It is a list of small sorted chunks. A copy shares all chunks, and a change copies only the chunk that it is in, so that
//! a change costs a chunk, not the map, and a reader that holds an old state holds little besides the new one.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries of a chunk: near the square root of the tens of thousands there can be, which makes the copy of one chunk
/// and the copy of the list of chunks cost about the same.
pub(crate) const CHUNK_MAX: usize = 128;
/// A chunk with fewer entries is joined with its neighbour.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

/// The map. Keys are looked for by how they compare with what is looked for.
pub(crate) struct Chunks<K, V> {
    /// Never empty ones, in the order of keys.
    chunks: Vec<Arc<Vec<(K, V)>>>,
    len: usize,
}

impl<K, V> Clone for Chunks<K, V> {
    fn clone(&self) -> Self {
        Self { chunks: self.chunks.clone(), len: self.len }
    }
}

impl<K, V> Default for Chunks<K, V> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> Chunks<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }

    /// The first entry that does not compare as less, and all after it.
    pub(crate) fn from(&self, order: impl Fn(&K) -> Ordering) -> impl Iterator<Item = (&K, &V)> {
        let before = |key: &K| order(key) == Ordering::Less;
        let first = self.chunks.partition_point(|chunk| chunk.last().is_some_and(|(key, _)| before(key)));
        let skipped = self.chunks.get(first).map_or(0, |chunk| chunk.partition_point(|(key, _)| before(key)));
        self.chunks[first..]
            .iter()
            .flat_map(|chunk| chunk.iter())
            .skip(skipped)
            .map(|(key, value)| (key, value))
    }

    pub(crate) fn find(&self, order: impl Fn(&K) -> Ordering) -> Option<(&K, &V)> {
        self.from(&order).next().filter(|(key, _)| order(key) == Ordering::Equal)
    }

    pub(crate) fn write(&mut self, key: K, value: V) {
        let at = self.chunk_of(&key);
        let Some(shared) = self.chunks.get_mut(at) else {
            self.chunks.push(Arc::new(vec![(key, value)]));
            self.len += 1;
            return;
        };
        let chunk = Arc::make_mut(shared);
        match chunk.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(found) => chunk[found].1 = value,
            Err(free) => {
                chunk.insert(free, (key, value));
                self.len += 1;
            }
        }
        if chunk.len() > CHUNK_MAX {
            let upper = chunk.split_off(chunk.len() / 2);
            self.chunks.insert(at + 1, Arc::new(upper));
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        let at = self.chunk_of(key);
        let Some(shared) = self.chunks.get_mut(at) else { return };
        let Ok(found) = shared.binary_search_by(|(other, _)| other.cmp(key)) else { return };
        let chunk = Arc::make_mut(shared);
        chunk.remove(found);
        self.len -= 1;
        if chunk.is_empty() {
            self.chunks.remove(at);
        } else if chunk.len() < CHUNK_MIN {
            self.join(at.saturating_sub(1));
        }
    }

    /// The chunk that has, or should have, a key; the list's length when there are no chunks.
    fn chunk_of(&self, key: &K) -> usize {
        let after = self.chunks.partition_point(|chunk| chunk.first().is_some_and(|(first, _)| first <= key));
        after.saturating_sub(1)
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

    /// The entries in chunks that the other map does not share.
    pub(crate) fn apart_from<'a>(&'a self, other: &Self) -> impl Iterator<Item = (&'a K, &'a V)> {
        let shared: BTreeSet<*const Vec<(K, V)>> = other.chunks.iter().map(Arc::as_ptr).collect();
        let own = self.chunks.iter().filter(move |chunk| !shared.contains(&Arc::as_ptr(chunk)));
        own.flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..600_u16, prop::option::weighted(0.55, any::<u8>())), 0..3000)) {
            let (mut chunks, mut model) = (Chunks::default(), BTreeMap::new());
            for (key, value) in steps {
                match value {
                    Some(value) => {
                        chunks.write(key, value);
                        model.insert(key, value);
                    }
                    None => {
                        chunks.remove(&key);
                        model.remove(&key);
                    }
                }
            }
            prop_assert!(chunks.iter().eq(model.iter()));
            prop_assert_eq!(chunks.len(), model.len());
            for key in 0..600 {
                prop_assert_eq!(chunks.find(|other| other.cmp(&key)).map(|(_, v)| v), model.get(&key));
                prop_assert!(chunks.from(|other| other.cmp(&key)).eq(model.range(key..)));
            }
        }
    }

    fn full() -> Chunks<u16, ()> {
        let mut full = Chunks::default();
        (0..10_000).for_each(|key| full.write(key, ()));
        full
    }

    #[test]
    fn a_change_leaves_the_other_chunks_shared() {
        let full = full();
        let mut changed = full.clone();
        changed.remove(&5_000);
        assert!(changed.apart_from(&full).count() <= CHUNK_MAX);
        assert_eq!(full.len(), 10_000, "the copy is apart");
    }

    #[test]
    fn chunks_that_empty_are_joined() {
        let mut map = full();
        (0..10_000).filter(|key| key % 20 != 0).for_each(|key| map.remove(&key));
        assert_eq!(map.len(), 500);
        assert!(map.chunks.len() <= 500 / (CHUNK_MIN / 2), "{} chunks", map.chunks.len());
        (0..10_000).for_each(|key| map.remove(&key));
        assert!(map.chunks.is_empty());
    }
}
