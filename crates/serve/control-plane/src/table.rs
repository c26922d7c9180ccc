//! The resources of one type, and what changed in them lately.

use crate::chunks::Chunks;
use ambit_mesh::Resource;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Name of a resource.
pub(crate) type Name = Arc<str>;

/// Steps back for which a table knows what changed. Readers further behind compare chunks.
const STEPS_MAX: usize = 64;

/// The resources of one type.
#[derive(Default)]
pub(crate) struct Table {
    entries: Chunks<Name, Arc<Resource>>,
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
        self.entries.find(|other| (**other).cmp(name))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Name, &Arc<Resource>)> {
        self.entries.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// This table with some entries written or (without a value) removed.
    pub(crate) fn with(&self, changes: &[(Name, Option<Arc<Resource>>)]) -> Self {
        let mut steps = self.steps.clone();
        if steps.len() == STEPS_MAX {
            steps.pop_front();
        }
        steps.push_back(changes.iter().map(|(name, _)| name.clone()).collect());
        let mut entries = self.entries.clone();
        for (name, value) in changes {
            match value {
                Some(value) => entries.write(name.clone(), value.clone()),
                None => entries.remove(name),
            }
        }
        Self { entries, revision: self.revision + 1, steps }
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
        let (fresh, stale) = (self.entries.apart_from(&old.entries), old.entries.apart_from(&self.entries));
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
        let changes: Vec<_> = step.iter().map(|(n, value)| (name(*n), value.map(resource))).collect();
        table.with(&changes)
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
}
