//! Owner garbage collection: what nobody owns any more goes. Source of behaviour: upstream pkg/controller/garbagecollector.
//!
//! The graph is fed with the metadata of every object. It decides about one object at a time; where it does not know
//! an owner it says so, and the caller asks the server: nothing is deleted because a view has not seen something.

use ambit_api::meta::{ObjectMeta, OwnerReference};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Finalizer of an object whose dependents go first.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an object whose dependents stay.
pub const ORPHAN: &str = "orphan";

/// One object, with the caller's handle `R` on its resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Node<R> {
    /// How the caller reaches the object's kind.
    pub resource: R,
    /// Namespace; none for cluster-scoped objects.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Its owners.
    pub owners: Vec<OwnerReference>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
}

impl<R> Node<R> {
    /// The node of an object with this metadata.
    pub fn new(resource: R, meta: &ObjectMeta) -> Self {
        Self {
            resource,
            namespace: meta.namespace.clone(),
            name: meta.name.clone().unwrap_or_default(),
            owners: meta.owner_references.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        }
    }

    fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|known| known == finalizer)
    }

    fn deletes_dependents(&self) -> bool {
        self.deleting && self.has(FOREGROUND)
    }

    fn blocking(&self) -> impl Iterator<Item = &OwnerReference> {
        self.owners.iter().filter(|owner| owner.block_owner_deletion == Some(true))
    }

    fn owned_by(&self, uid: &str) -> Option<&OwnerReference> {
        self.owners.iter().find(|owner| owner.uid == uid)
    }
}

/// What the server said about an owner that the graph does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// It exists with that uid.
    Present,
    /// It exists and waits for its dependents to go.
    Waiting,
    /// No object of that kind and name has that uid where the reference may point.
    Absent,
    /// Nobody can say, for example because the server does not know the kind.
    Unknown,
}

/// What becomes of the dependents when an object is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They are found and deleted afterwards.
    Background,
    /// They go first.
    Foreground,
    /// They stay.
    Orphan,
}

/// What to do about one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Nothing.
    Leave,
    /// Look again later: an owner's state is not known.
    Wait,
    /// Delete it, on the condition that its uid is still the same.
    Delete(Propagation),
    /// Delete it, but first let go of its owners: it is part of a circle in which each waits for the other.
    UnblockAndDelete(Propagation),
    /// Write these owner references: the others are gone.
    KeepOwners(Vec<OwnerReference>),
    /// Remove this finalizer: what it stood for is done.
    RemoveFinalizer(&'static str),
    /// Look at these objects first, by uid: they have to go before this one.
    Dependents(Vec<String>),
    /// Remove this object from the owners of these objects, by uid, then look again.
    Release(Vec<String>),
}

/// All objects by uid, and who depends on whom.
#[derive(Debug)]
pub struct Graph<R> {
    nodes: HashMap<String, Node<R>>,
    /// By owner's uid, known or not.
    dependents: HashMap<String, BTreeSet<String>>,
}

impl<R> Default for Graph<R> {
    fn default() -> Self {
        Self { nodes: HashMap::new(), dependents: HashMap::new() }
    }
}

impl<R: Clone> Graph<R> {
    /// Takes the state of an object; returns the uids to decide about.
    pub fn observe(&mut self, uid: &str, node: Node<R>) -> Vec<String> {
        let before = self.nodes.get(uid);
        let changed = before.is_none_or(|before| {
            before.owners != node.owners
                || before.deleting != node.deleting
                || before.finalizers != node.finalizers
        });
        let owners_before: BTreeSet<String> = before.map(owner_uids).unwrap_or_default();
        let owners = owner_uids(&node);
        // An owner that this object no longer holds up can go on.
        let blocked_before: Vec<&OwnerReference> = before.into_iter().flat_map(Node::blocking).collect();
        let unblocked = blocked_before.iter().map(|owner| owner.uid.clone());
        let unblocked =
            unblocked.filter(|uid| !node.blocking().any(|owner| owner.uid == *uid) && self.waits(uid));
        let mut affected: Vec<String> = unblocked.collect();
        for gone in owners_before.difference(&owners) {
            self.unlink(gone, uid);
            // An owner that lets its dependents stay waits for each to be released.
            if self.waits(gone) && !affected.contains(gone) {
                affected.push(gone.clone());
            }
        }
        for new in owners.difference(&owners_before) {
            self.dependents.entry(new.clone()).or_default().insert(uid.to_owned());
        }
        let of_interest =
            !node.owners.is_empty() || (node.deleting && (node.has(FOREGROUND) || node.has(ORPHAN)));
        if changed && of_interest {
            affected.push(uid.to_owned());
        }
        self.nodes.insert(uid.to_owned(), node);
        affected
    }

    /// Takes the disappearance of an object; returns the uids to decide about.
    pub fn forget(&mut self, uid: &str) -> Vec<String> {
        let owners = self.nodes.remove(uid).map(|node| owner_uids(&node)).unwrap_or_default();
        for owner in &owners {
            self.unlink(owner, uid);
        }
        let dependents = self.dependents.get(uid).into_iter().flatten().cloned();
        dependents.chain(owners.iter().filter(|owner| self.waits(owner)).cloned()).collect()
    }

    /// The object of that uid.
    pub fn node(&self, uid: &str) -> Option<&Node<R>> {
        self.nodes.get(uid)
    }

    /// Owners of the object that the graph cannot judge: ask the server about each.
    pub fn unknown_owners(&self, uid: &str) -> Vec<OwnerReference> {
        let owners = self.nodes.get(uid).into_iter().flat_map(|node| &node.owners);
        owners.filter(|owner| !self.nodes.contains_key(&owner.uid)).cloned().collect()
    }

    /// Owners that the object may not have, because they live in another namespace. They count as absent.
    pub fn misplaced_owners(&self, uid: &str) -> Vec<OwnerReference> {
        let Some(node) = self.nodes.get(uid) else { return Vec::new() };
        node.owners.iter().filter(|owner| self.is_misplaced(node, owner)).cloned().collect()
    }

    fn is_misplaced(&self, node: &Node<R>, owner: &OwnerReference) -> bool {
        let known = self.nodes.get(&owner.uid);
        known.is_some_and(|owner| owner.namespace.is_some() && owner.namespace != node.namespace)
    }

    /// Decides about one object. `answers` holds the server's word on its unknown owners, by uid.
    pub fn decide(&self, uid: &str, answers: &HashMap<String, Owner>) -> Action {
        let Some(node) = self.nodes.get(uid) else { return Action::Leave };
        if node.deletes_dependents() {
            return self.decide_foreground(uid);
        }
        if node.deleting {
            return if node.has(ORPHAN) { self.decide_orphan(uid) } else { Action::Leave };
        }
        let mut by_state: BTreeMap<u8, Vec<&OwnerReference>> = BTreeMap::new();
        for owner in &node.owners {
            let state = self.state_of(node, owner, answers);
            if state == Owner::Unknown {
                return Action::Wait;
            }
            by_state.entry(state as u8).or_default().push(owner);
        }
        let of = |state: Owner| by_state.get(&(state as u8)).map_or(0, Vec::len);
        let (solid, waiting, absent) = (of(Owner::Present), of(Owner::Waiting), of(Owner::Absent));
        match (solid, waiting, absent) {
            (_, 0, 0) => Action::Leave,
            (0, _, _) => self.decide_unowned(uid, node, waiting),
            _ => {
                let kept = by_state.remove(&(Owner::Present as u8)).unwrap_or_default();
                Action::KeepOwners(kept.into_iter().cloned().collect())
            }
        }
    }

    fn decide_unowned(&self, uid: &str, node: &Node<R>, waiting: usize) -> Action {
        let dependents = self.dependents.get(uid);
        if waiting > 0 && dependents.is_some_and(|dependents| !dependents.is_empty()) {
            let mut dependents = dependents.into_iter().flatten();
            let circle = dependents.any(|uid| self.nodes.get(uid).is_some_and(Node::deletes_dependents));
            return match circle {
                true => Action::UnblockAndDelete(Propagation::Foreground),
                false => Action::Delete(Propagation::Foreground),
            };
        }
        // What somebody asked for earlier, by a finalizer, is kept.
        Action::Delete(match (node.has(ORPHAN), node.has(FOREGROUND)) {
            (true, _) => Propagation::Orphan,
            (false, true) => Propagation::Foreground,
            (false, false) => Propagation::Background,
        })
    }

    fn decide_foreground(&self, uid: &str) -> Action {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        let blocking = dependents.filter(|dependent| {
            let owner = self.nodes.get(*dependent).and_then(|node| node.owned_by(uid));
            owner.is_some_and(|owner| owner.block_owner_deletion == Some(true))
        });
        let blocking: Vec<&String> = blocking.collect();
        if blocking.is_empty() {
            return Action::RemoveFinalizer(FOREGROUND);
        }
        let undecided =
            |dependent: &&&String| !self.nodes.get(**dependent).is_some_and(Node::deletes_dependents);
        Action::Dependents(blocking.iter().filter(undecided).map(|uid| (*uid).clone()).collect())
    }

    fn decide_orphan(&self, uid: &str) -> Action {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        let held: Vec<String> = dependents.filter(|uid| self.nodes.contains_key(*uid)).cloned().collect();
        if held.is_empty() { Action::RemoveFinalizer(ORPHAN) } else { Action::Release(held) }
    }

    fn state_of(&self, node: &Node<R>, owner: &OwnerReference, answers: &HashMap<String, Owner>) -> Owner {
        match self.nodes.get(&owner.uid) {
            Some(_) if self.is_misplaced(node, owner) => Owner::Absent,
            Some(known) if known.deletes_dependents() => Owner::Waiting,
            Some(_) => Owner::Present,
            None => answers.get(&owner.uid).copied().unwrap_or(Owner::Unknown),
        }
    }

    fn waits(&self, uid: &str) -> bool {
        self.nodes.get(uid).is_some_and(|node| node.deleting && (node.has(FOREGROUND) || node.has(ORPHAN)))
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}

fn owner_uids<R>(node: &Node<R>) -> BTreeSet<String> {
    node.owners.iter().map(|owner| owner.uid.clone()).collect()
}

#[cfg(test)]
mod tests;
