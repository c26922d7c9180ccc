//! Immutable state of all resources, shared by all streams.

use crate::table::{Name, Table};
use ambit_collect::{Collection, Commit};
use ambit_mesh::{Facts, NetworkIp, Outputs, Resource};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

/// All resources at one moment.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// Type `Address`.
    pub(crate) addresses: Arc<Table>,
    /// Type `Authorization`.
    pub(crate) policies: Arc<Table>,
    indexes: OnceLock<Indexes>,
}

impl Snapshot {
    /// The snapshot after a batch, if the batch changed anything in it.
    pub(crate) fn next(&self, commit: &Commit<'_>, outputs: &Outputs) -> Option<Self> {
        let addresses = next(&self.addresses, commit, outputs.addresses);
        let policies = next(&self.policies, commit, outputs.authorizations);
        if addresses.is_none() && policies.is_none() {
            return None;
        }
        Some(Self {
            addresses: addresses.unwrap_or_else(|| self.addresses.clone()),
            policies: policies.unwrap_or_else(|| self.policies.clone()),
            indexes: OnceLock::new(),
        })
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

/// The next table, if a batch changed anything in it.
fn next(last: &Table, commit: &Commit<'_>, of: Collection<String, Resource>) -> Option<Arc<Table>> {
    let changes: Vec<(Name, Option<Arc<Resource>>)> =
        commit.changes(of).map(|change| (change.key.as_str().into(), change.after.cloned())).collect();
    (!changes.is_empty()).then(|| Arc::new(last.with(changes)))
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
