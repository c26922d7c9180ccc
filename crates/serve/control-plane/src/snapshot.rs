//! Immutable state of all resources, shared by all streams.

use ambit_mesh::{Facts, NetworkIp, Resource};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

/// Name of a resource.
pub(crate) type Name = Arc<str>;

/// All resources at one moment.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// Type `Address`.
    pub(crate) addresses: Arc<Table>,
    /// Type `Authorization`.
    pub(crate) policies: Arc<Table>,
    indexes: OnceLock<Indexes>,
}

/// The resources of one type.
#[derive(Default)]
pub(crate) struct Table {
    entries: BTreeMap<Name, Arc<Resource>>,
    revision: u64,
    /// Names that differ from the table one revision earlier.
    changed: Vec<Name>,
}

/// What a reader of one table lacks of another.
#[derive(Default)]
pub(crate) struct Difference<'a> {
    pub(crate) changed: Vec<(&'a Name, &'a Arc<Resource>)>,
    pub(crate) removed: Vec<(&'a Name, &'a Arc<Resource>)>,
}

impl Table {
    pub(crate) fn get(&self, name: &str) -> Option<(&Name, &Arc<Resource>)> {
        self.entries.get_key_value(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Name, &Arc<Resource>)> {
        self.entries.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// This table with some entries written or (without a value) removed.
    pub(crate) fn with(&self, changes: Vec<(Name, Option<Arc<Resource>>)>) -> Self {
        let mut entries = self.entries.clone();
        let mut changed = Vec::with_capacity(changes.len());
        for (name, value) in changes {
            match value {
                Some(value) => entries.insert(name.clone(), value),
                None => entries.remove(&name),
            };
            changed.push(name);
        }
        Self { entries, revision: self.revision + 1, changed }
    }

    /// What a reader of `old` lacks.
    pub(crate) fn since<'a>(&'a self, old: &'a Self) -> Difference<'a> {
        let mut difference = Difference::default();
        if self.revision == old.revision {
            return difference;
        }
        if self.revision == old.revision + 1 {
            for name in &self.changed {
                difference.add(old.entries.get_key_value(name), self.entries.get_key_value(name));
            }
            return difference;
        }
        // The reader was slow: compare everything, which is cheap for what is shared.
        for (name, value) in &self.entries {
            difference.add(old.entries.get_key_value(name), Some((name, value)));
        }
        for (name, value) in &old.entries {
            if !self.entries.contains_key(name) {
                difference.removed.push((name, value));
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

impl Snapshot {
    pub(crate) fn new(addresses: Arc<Table>, policies: Arc<Table>) -> Self {
        Self { addresses, policies, indexes: OnceLock::new() }
    }

    /// Names of the resources that a lookup on demand leads to: a resource's name, or an address as `network/ip`.
    /// An address leads to all workloads that have it, else to the service; a service comes with its workloads.
    pub(crate) fn resolve(&self, name: &str) -> Vec<Name> {
        let indexes = self.indexes();
        let mut found: Vec<Name> = match self.addresses.get(name) {
            Some((name, _)) => vec![name.clone()],
            None => indexes.by_address.get(name).cloned().unwrap_or_default(),
        };
        if found.is_empty() {
            found = indexes.service_by_address.get(name).cloned().unwrap_or_default();
        }
        let endpoints: Vec<Name> = found
            .iter()
            .flat_map(|name| indexes.by_service.get(name).into_iter().flatten())
            .cloned()
            .collect();
        found.extend(endpoints);
        found
    }

    /// Names of the workloads on a node.
    pub(crate) fn on_node(&self, node: &str) -> impl Iterator<Item = &Name> {
        self.indexes().by_node.get(node).into_iter().flatten()
    }

    /// Only streams that ask on demand need them: they are made when the first one asks.
    fn indexes(&self) -> &Indexes {
        self.indexes.get_or_init(|| Indexes::of(&self.addresses))
    }
}

#[derive(Default)]
struct Indexes {
    by_address: HashMap<String, Vec<Name>>,
    service_by_address: HashMap<String, Vec<Name>>,
    by_service: HashMap<Name, Vec<Name>>,
    by_node: HashMap<String, Vec<Name>>,
}

impl Indexes {
    fn of(table: &Table) -> Self {
        let mut indexes = Self::default();
        for (name, resource) in table.iter() {
            match &resource.facts {
                Facts::Workload { addresses, node, services, .. } => {
                    add(&mut indexes.by_address, addresses, name);
                    let known: BTreeSet<&str> = services.iter().map(String::as_str).collect();
                    for service in known {
                        indexes.by_service.entry(service.into()).or_default().push(name.clone());
                    }
                    if !node.is_empty() {
                        indexes.by_node.entry(node.clone()).or_default().push(name.clone());
                    }
                }
                Facts::Service { addresses } => add(&mut indexes.service_by_address, addresses, name),
                Facts::Policy => {}
            }
        }
        indexes
    }
}

fn add(index: &mut HashMap<String, Vec<Name>>, addresses: &[NetworkIp], name: &Name) {
    for address in addresses {
        index.entry(address.to_string()).or_default().push(name.clone());
    }
}
