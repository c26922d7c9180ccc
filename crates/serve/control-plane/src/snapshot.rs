//! Immutable state of all resources, shared by all streams.

use crate::chunks::Chunks;
use crate::table::{Name, Table};
use ambit_collect::{Collection, Commit};
use ambit_mesh::{Facts, Outputs, Resource};
use std::sync::{Arc, OnceLock};

/// Writes and (without a value) removals of resources.
type Changes = Vec<(Name, Option<Arc<Resource>>)>;

/// All resources at one moment.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// Type `Address`.
    pub(crate) addresses: Arc<Table>,
    /// Type `Authorization`.
    pub(crate) policies: Arc<Table>,
    /// Made when the first stream asks on demand, and kept up from then on.
    postings: OnceLock<Postings>,
}

impl Snapshot {
    /// The snapshot after a batch, if the batch changed anything in it.
    pub(crate) fn next(&self, commit: &Commit<'_>, outputs: &Outputs) -> Option<Self> {
        self.with(&changes(commit, outputs.addresses), &changes(commit, outputs.authorizations))
    }

    fn with(&self, addresses: &Changes, policies: &Changes) -> Option<Self> {
        if addresses.is_empty() && policies.is_empty() {
            return None;
        }
        let next = |table: &Arc<Table>, changes: &Changes| match changes.is_empty() {
            true => table.clone(),
            false => Arc::new(table.with(changes)),
        };
        let postings = self.postings.get().map(|postings| postings.with(&self.addresses, addresses));
        Some(Self {
            addresses: next(&self.addresses, addresses),
            policies: next(&self.policies, policies),
            postings: postings.map_or_else(OnceLock::new, OnceLock::from),
        })
    }

    /// Names of the resources that a lookup on demand leads to: a resource's name, or an address as `network/ip`.
    /// An address leads to all workloads that have it, else to the service; a service comes with its workloads.
    pub(crate) fn resolve(&self, name: &str) -> Vec<Name> {
        let postings = self.postings();
        let mut found: Vec<Name> = match self.addresses.get(name) {
            Some((name, _)) => vec![name.clone()],
            None => postings.of(By::Address, name).cloned().collect(),
        };
        if found.is_empty() {
            found = postings.of(By::ServiceAddress, name).cloned().collect();
        }
        let endpoints: Vec<Name> =
            found.iter().flat_map(|name| postings.of(By::Service, name)).cloned().collect();
        found.extend(endpoints);
        found
    }

    /// Names of the workloads on a node.
    pub(crate) fn on_node(&self, node: &str) -> impl Iterator<Item = &Name> {
        self.postings().of(By::Node, node)
    }

    fn postings(&self) -> &Postings {
        self.postings.get_or_init(|| Postings::of_all(&self.addresses))
    }
}

fn changes(commit: &Commit<'_>, of: Collection<String, Resource>) -> Changes {
    commit.changes(of).map(|change| (change.key.as_str().into(), change.after.cloned())).collect()
}

/// Names of resources by something else.
#[derive(Default)]
struct Postings(Chunks<Posting, ()>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Address,
    ServiceAddress,
    Service,
    Node,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Posting {
    by: By,
    term: Box<str>,
    name: Name,
}

impl Postings {
    fn of_all(table: &Table) -> Self {
        let mut all = Self::default();
        table
            .iter()
            .flat_map(|(name, resource)| postings(name, resource))
            .for_each(|one| all.0.write(one, ()));
        all
    }

    /// These postings after changes to the table they are of.
    fn with(&self, table: &Table, changes: &Changes) -> Self {
        let mut next = self.0.clone();
        for (name, after) in changes {
            let before = table.get(name).map(|(_, resource)| resource);
            if before.map(|resource| &resource.facts) == after.as_ref().map(|resource| &resource.facts) {
                continue;
            }
            before
                .into_iter()
                .flat_map(|resource| postings(name, resource))
                .for_each(|one| next.remove(&one));
            after.iter().flat_map(|resource| postings(name, resource)).for_each(|one| next.write(one, ()));
        }
        Self(next)
    }

    fn of(&self, by: By, term: &str) -> impl Iterator<Item = &Name> {
        let from = self.0.from(move |posting| (posting.by, &*posting.term).cmp(&(by, term)));
        let term: Box<str> = term.into();
        from.map(|(posting, ())| posting)
            .take_while(move |posting| posting.by == by && posting.term == term)
            .map(|posting| &posting.name)
    }
}

/// What a resource is found by.
fn postings(name: &Name, resource: &Resource) -> Vec<Posting> {
    let mut all = Vec::new();
    let mut add = |by: By, term: Box<str>| all.push(Posting { by, term, name: name.clone() });
    match &resource.facts {
        Facts::Workload { addresses, node, services, .. } => {
            addresses.iter().for_each(|address| add(By::Address, address.to_string().into()));
            services.iter().for_each(|service| add(By::Service, service.as_str().into()));
            if !node.is_empty() {
                add(By::Node, node.as_str().into());
            }
        }
        Facts::Service { addresses } => {
            addresses.iter().for_each(|address| add(By::ServiceAddress, address.to_string().into()));
        }
        Facts::Policy => {}
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambit_mesh::NetworkIp;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn ip(last: u8) -> NetworkIp {
        NetworkIp { network: String::new(), ip: Ipv4Addr::new(10, 0, 0, last).into() }
    }

    fn resource() -> impl Strategy<Value = Arc<Resource>> {
        let addresses = || prop::collection::vec((0..3_u8).prop_map(ip), 0..3);
        let services = prop::collection::vec(prop::sample::select(vec!["r0", "r1", "r2"]), 0..3);
        let workload =
            (addresses(), 0..3_u8, services).prop_map(|(addresses, node, services)| Facts::Workload {
                addresses,
                node: if node == 0 { String::new() } else { format!("n{node}") },
                services: services.into_iter().map(str::to_owned).collect(),
                workload_at: 0,
            });
        let service = addresses().prop_map(|addresses| Facts::Service { addresses });
        let facts = prop_oneof![workload, service, Just(Facts::Policy)];
        facts.prop_map(|facts| Arc::new(Resource { body: Vec::new().into(), version: 0, facts }))
    }

    proptest! {
        /// INV-05 for what is found on demand: kept up equals made anew.
        #[test]
        fn inv_05_what_is_found_on_demand_follows_the_table(
            history in prop::collection::vec(prop::collection::btree_map(0..5_u8, prop::option::of(resource()), 0..4), 1..8)
        ) {
            let mut kept = Snapshot::default();
            kept.postings();
            for step in history {
                let changes: Changes =
                    step.into_iter().map(|(n, value)| (format!("r{n}").into(), value)).collect();
                if let Some(next) = kept.with(&changes, &Changes::new()) {
                    prop_assert!(next.postings.get().is_some(), "they are kept up");
                    kept = next;
                }
                let fresh = Snapshot { addresses: kept.addresses.clone(), ..Snapshot::default() };
                for name in ["r0", "r1", "r4", "/10.0.0.0", "/10.0.0.1", "/10.0.0.2", "other"] {
                    prop_assert_eq!(kept.resolve(name), fresh.resolve(name), "{}", name);
                }
                for node in ["n1", "n2", ""] {
                    prop_assert!(kept.on_node(node).eq(fresh.on_node(node)));
                }
            }
        }
    }
}
