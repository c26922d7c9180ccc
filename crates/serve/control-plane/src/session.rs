//! The state of one discovery stream: what its client has, what it lacks. No I/O.
//!
//! Policies go out before the workloads that name them, and go away after the workloads no longer do, so that a
//! client never sees a workload with a policy that it does not hold.

use crate::snapshot::Snapshot;
use crate::table::{Name, Table};
use ambit_mesh::{Facts, Resource};
use ambit_names::type_url;
use ambit_proto::discovery::{self, DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use prost_types::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tonic::Status;
use tracing::{debug, warn};

#[cfg(test)]
mod tests;

/// Names that one stream may ask for on demand: more than the addresses a node can talk to at a time.
const NAMES_MAX: usize = 50_000;
/// How much of a client's complaint is logged. Characters.
const COMPLAINT_CHARS: usize = 500;
/// Stands for all resources of a type.
const WILDCARD: &str = "*";

/// A type of resources, in the order in which changes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Authorization,
    Address,
    Workload,
}

impl Kind {
    fn of(type_url: &str) -> Option<Self> {
        match type_url {
            type_url::AUTHORIZATION => Some(Self::Authorization),
            type_url::ADDRESS => Some(Self::Address),
            type_url::WORKLOAD => Some(Self::Workload),
            _ => None,
        }
    }

    fn type_url(self) -> &'static str {
        match self {
            Self::Authorization => type_url::AUTHORIZATION,
            Self::Address => type_url::ADDRESS,
            Self::Workload => type_url::WORKLOAD,
        }
    }

    fn table(self, snapshot: &Snapshot) -> &Arc<Table> {
        match self {
            Self::Authorization => &snapshot.policies,
            Self::Address | Self::Workload => &snapshot.addresses,
        }
    }

    /// Whether a resource of the table is one of this type.
    fn has(self, resource: &Resource) -> bool {
        self != Self::Workload || matches!(resource.facts, Facts::Workload { .. })
    }
}

enum Subscription {
    /// Everything; the client has what is in this table.
    All(Arc<Table>),
    /// What these names lead to; the client has these versions.
    Named { names: BTreeSet<String>, sent: BTreeMap<Name, u64> },
}

/// What one response holds.
#[derive(Default)]
struct Content {
    changed: Vec<(Name, Arc<Resource>)>,
    removed: Vec<String>,
}

impl Content {
    fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// The state of one stream.
pub(crate) struct Session {
    /// For logs.
    client: String,
    /// Workloads of this node are sent to clients that ask on demand, asked for or not.
    node: String,
    subscriptions: BTreeMap<Kind, Subscription>,
    nonce: u64,
}

impl Session {
    pub(crate) fn new(client: String, node: String) -> Self {
        Self { client, node, subscriptions: BTreeMap::new(), nonce: 0 }
    }

    /// Answers a request: a subscription, a change of one, or an acknowledgement, which has no answer.
    pub(crate) fn on_request(
        &mut self,
        request: &DeltaDiscoveryRequest,
        snapshot: &Snapshot,
    ) -> Result<Option<DeltaDiscoveryResponse>, Status> {
        if let Some(detail) = &request.error_detail {
            let complaint: String = detail.message.chars().take(COMPLAINT_CHARS).collect();
            warn!(client = %self.client, type_url = %request.type_url, complaint, "client rejected resources");
        }
        let Some(kind) = Kind::of(&request.type_url) else {
            // Not ours to say whether there are such resources elsewhere: there are none here.
            let asks = request.response_nonce.is_empty();
            return Ok(asks.then(|| self.respond(&request.type_url, Content::default(), Aliases::None)));
        };
        match self.subscriptions.remove(&kind) {
            None => self.subscribe(kind, request, snapshot).map(Some),
            Some(subscription) => self.resubscribe(kind, subscription, request, snapshot),
        }
    }

    /// The first request for a type.
    fn subscribe(
        &mut self,
        kind: Kind,
        request: &DeltaDiscoveryRequest,
        snapshot: &Snapshot,
    ) -> Result<DeltaDiscoveryResponse, Status> {
        let known = &request.initial_resource_versions;
        let has = |list: &[String]| list.iter().any(|name| name == WILDCARD);
        let asks_all = request.resource_names_subscribe.is_empty() || has(&request.resource_names_subscribe);
        debug!(client = %self.client, ?kind, known = known.len(), "client subscribed");
        if asks_all && !has(&request.resource_names_unsubscribe) {
            let table = kind.table(snapshot);
            let content = lacking(kind, table, known);
            self.subscriptions.insert(kind, Subscription::All(table.clone()));
            return Ok(self.respond(kind.type_url(), content, Aliases::None));
        }
        let names = BTreeSet::new();
        let sent = BTreeMap::new();
        let mut named = Subscription::Named { names, sent };
        let mut content = named.add(kind, &request.resource_names_subscribe, snapshot)?;
        content.changed.extend(named.catch_up(kind, &self.node, snapshot).changed);
        content.changed.retain(|(name, resource)| known.get(&**name) != Some(&resource.version_text()));
        let table = kind.table(snapshot);
        content.removed.extend(known.keys().filter(|name| table.get(name).is_none()).cloned());
        self.subscriptions.insert(kind, named);
        Ok(self.respond(kind.type_url(), content, Aliases::of(kind)))
    }

    /// A later request for a type: names may be added and dropped.
    fn resubscribe(
        &mut self,
        kind: Kind,
        mut subscription: Subscription,
        request: &DeltaDiscoveryRequest,
        snapshot: &Snapshot,
    ) -> Result<Option<DeltaDiscoveryResponse>, Status> {
        subscription.drop_names(&request.resource_names_unsubscribe);
        let content = subscription.add(kind, &request.resource_names_subscribe, snapshot)?;
        self.subscriptions.insert(kind, subscription);
        let answer = !content.is_empty();
        Ok(answer.then(|| self.respond(kind.type_url(), content, Aliases::of(kind))))
    }

    /// What the client lacks of a new snapshot.
    pub(crate) fn on_snapshot(&mut self, snapshot: &Snapshot) -> Vec<DeltaDiscoveryResponse> {
        let mut contents = Vec::new();
        let mut late = Vec::new();
        for (&kind, subscription) in &mut self.subscriptions {
            let aliases = subscription.aliases(kind);
            let mut content = subscription.catch_up(kind, &self.node, snapshot);
            if kind == Kind::Authorization && !content.removed.is_empty() {
                let removed = std::mem::take(&mut content.removed);
                late.push((kind, Content { changed: Vec::new(), removed }, aliases));
            }
            contents.push((kind, content, aliases));
        }
        contents.append(&mut late);
        contents.retain(|(_, content, _)| !content.is_empty());
        contents
            .into_iter()
            .map(|(kind, content, aliases)| self.respond(kind.type_url(), content, aliases))
            .collect()
    }

    fn respond(&mut self, type_url: &str, content: Content, aliases: Aliases) -> DeltaDiscoveryResponse {
        self.nonce += 1;
        let resource = |(name, resource): (Name, Arc<Resource>)| discovery::Resource {
            version: resource.version_text(),
            resource: Some(Any { type_url: type_url.to_owned(), value: body(type_url, &resource) }),
            name: name.to_string(),
            aliases: aliases.list(&resource),
        };
        DeltaDiscoveryResponse {
            system_version_info: String::new(),
            resources: content.changed.into_iter().map(resource).collect(),
            type_url: type_url.to_owned(),
            nonce: self.nonce.to_string(),
            removed_resources: content.removed,
        }
    }
}

fn body(type_url: &str, resource: &Resource) -> Vec<u8> {
    let bare = (type_url == type_url::WORKLOAD).then(|| resource.workload_body()).flatten();
    bare.unwrap_or_else(|| resource.body.clone()).into()
}

/// Whether resources carry their other names, which clients that ask on demand need.
#[derive(Clone, Copy)]
enum Aliases {
    None,
    Addresses,
}

impl Aliases {
    fn of(kind: Kind) -> Self {
        if kind == Kind::Authorization { Self::None } else { Self::Addresses }
    }

    fn list(self, resource: &Resource) -> Vec<String> {
        match (self, &resource.facts) {
            (Self::Addresses, Facts::Workload { addresses, .. } | Facts::Service { addresses }) => {
                addresses.iter().map(ToString::to_string).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// What a client that has `known` (versions by name) lacks of everything.
fn lacking(kind: Kind, table: &Table, known: &HashMap<String, String>) -> Content {
    let of_kind = |name: &str| table.get(name).filter(|(_, resource)| kind.has(resource)).is_some();
    Content {
        changed: table
            .iter()
            .filter(|(name, resource)| {
                kind.has(resource) && known.get(&***name) != Some(&resource.version_text())
            })
            .map(|(name, resource)| (name.clone(), resource.clone()))
            .collect(),
        removed: known.keys().filter(|name| !of_kind(name)).cloned().collect(),
    }
}

/// What a name leads to, of one type.
fn resolve(kind: Kind, name: &str, snapshot: &Snapshot) -> Vec<(Name, Arc<Resource>)> {
    let table = kind.table(snapshot);
    let names = match kind {
        Kind::Authorization => table.get(name).map(|(name, _)| name.clone()).into_iter().collect(),
        Kind::Address | Kind::Workload => snapshot.resolve(name),
    };
    let found = names.iter().filter_map(|name| table.get(name)).filter(|(_, resource)| kind.has(resource));
    found.map(|(name, resource)| (name.clone(), resource.clone())).collect()
}

impl Subscription {
    fn aliases(&self, kind: Kind) -> Aliases {
        match self {
            Self::All(_) => Aliases::None,
            Self::Named { .. } => Aliases::of(kind),
        }
    }

    /// Takes up names; the answer holds what they lead to, and as removed those that lead to nothing.
    fn add(&mut self, kind: Kind, asked: &[String], snapshot: &Snapshot) -> Result<Content, Status> {
        let mut content = Content::default();
        let Self::Named { names, sent } = self else { return Ok(content) };
        for name in asked.iter().filter(|name| *name != WILDCARD) {
            names.insert(name.clone());
            let found = resolve(kind, name, snapshot);
            if found.is_empty() {
                content.removed.push(name.clone());
            }
            sent.extend(found.iter().map(|(name, resource)| (name.clone(), resource.version)));
            content.changed.extend(found);
        }
        if names.len() > NAMES_MAX {
            return Err(Status::resource_exhausted(format!("more than {NAMES_MAX} names on one stream")));
        }
        // Two names may lead to one resource.
        content.changed.sort_by(|a, b| a.0.cmp(&b.0));
        content.changed.dedup_by(|a, b| a.0 == b.0);
        Ok(content)
    }

    fn drop_names(&mut self, dropped: &[String]) {
        if let Self::Named { names, .. } = self {
            names.retain(|name| !dropped.contains(name));
        }
    }

    /// What the client lacks of a snapshot; from then on it counts as sent.
    fn catch_up(&mut self, kind: Kind, node: &str, snapshot: &Snapshot) -> Content {
        let table = kind.table(snapshot);
        match self {
            Self::All(sent) => {
                let difference = table.since(sent);
                let changed = difference.changed.into_iter().filter(|(_, resource)| kind.has(resource));
                let removed = difference.removed.into_iter().filter(|(_, resource)| kind.has(resource));
                let content = Content {
                    changed: changed.map(|(name, resource)| (name.clone(), resource.clone())).collect(),
                    removed: removed.map(|(name, _)| name.to_string()).collect(),
                };
                *sent = table.clone();
                content
            }
            Self::Named { names, sent } => {
                let mut wanted: BTreeMap<Name, Arc<Resource>> =
                    names.iter().flat_map(|name| resolve(kind, name, snapshot)).collect();
                if kind != Kind::Authorization {
                    let local = snapshot.on_node(node).filter_map(|name| table.get(name));
                    wanted.extend(local.map(|(name, resource)| (name.clone(), resource.clone())));
                }
                let gone = sent.keys().filter(|name| table.get(name).is_none());
                let removed = gone.map(ToString::to_string).collect();
                let lacks = |name: &Name, r: &Arc<Resource>| sent.get(name) != Some(&r.version);
                let changed: Vec<_> = wanted
                    .iter()
                    .filter(|(name, resource)| lacks(name, resource))
                    .map(|(name, resource)| (name.clone(), resource.clone()))
                    .collect();
                *sent = wanted.into_iter().map(|(name, resource)| (name, resource.version)).collect();
                Content { changed, removed }
            }
        }
    }
}
