//! The cluster's roles and bindings, kept as a policy that follows the store.

use crate::access::refusal;
use crate::cluster::Cluster;
use crate::database::Database;
use crate::request::User;
use ambit_access::{Kind, Policy, Request};
use ambit_store::{Compacted, Range, Revision};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Events read at once.
const EVENTS_MAX: usize = 1024;
/// Members of this group may do all, whatever the bindings say: nobody can lock them out.
const MASTERS: &str = "system:masters";

/// The policy of a database. A write that has been answered is seen by the next decision.
pub(crate) struct Rbac(RwLock<State>);

struct State {
    policy: Policy,
    followed: Vec<Followed>,
}

/// One collection and how far it has been taken up.
struct Followed {
    kind: Kind,
    collection: Arc<str>,
    changes: watch::Receiver<Revision>,
    upto: Revision,
}

impl Rbac {
    /// Takes up what is stored.
    pub(crate) fn new(db: &Database) -> Self {
        let followed = Kind::ALL.map(|kind| {
            let collection: Arc<str> = format!("{}/{}", ambit_access::defaults::GROUP, kind.plural()).into();
            Followed { kind, changes: db.subscribe(&collection), collection, upto: 0 }
        });
        let mut state = State { policy: Policy::default(), followed: followed.into() };
        state.read_all(db);
        Self(RwLock::new(state))
    }

    /// Asks the newest policy.
    pub(crate) fn read<T>(&self, db: &Database, ask: impl FnOnce(&Policy) -> T) -> T {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if !state.is_behind() {
            return ask(&state.policy);
        }
        drop(state);
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if state.catch_up(db).is_err() {
            state.read_all(db);
        }
        ask(&state.policy)
    }
}

impl State {
    fn is_behind(&self) -> bool {
        self.followed.iter().any(|followed| followed.changes.has_changed().unwrap_or(true))
    }

    fn catch_up(&mut self, db: &Database) -> Result<(), Compacted> {
        for followed in &mut self.followed {
            // Marked as seen before the events are read: what comes later marks it again.
            followed.changes.mark_unchanged();
            loop {
                let (events, upto) = db.events(&followed.collection, followed.upto, EVENTS_MAX)?;
                for event in &events {
                    let value = event.new.as_ref().map(|object| object.value());
                    let place = (&*event.key.namespace, &*event.key.name);
                    self.policy.set(followed.kind, place, value.as_ref());
                }
                followed.upto = upto;
                if events.len() < EVENTS_MAX {
                    break;
                }
            }
        }
        Ok(())
    }

    fn read_all(&mut self, db: &Database) {
        self.policy = Policy::default();
        for followed in &mut self.followed {
            followed.changes.mark_unchanged();
            // Nothing newer than now is asked for, so nothing can be too old.
            let Ok(page) = db.list(&Range::new(followed.collection.clone(), None), None) else { continue };
            for ((namespace, name), stored) in page.items {
                let value = stored.value.value();
                self.policy.set(followed.kind, (&namespace, &name), Some(&value));
            }
            followed.upto = page.revision;
        }
    }
}

impl User {
    /// This user as bindings see it.
    pub(crate) fn subject(&self) -> ambit_access::User<'_> {
        ambit_access::User { name: &self.name, groups: &self.groups }
    }

    /// Whether this user may do all, whatever the bindings say.
    pub(crate) fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }
}

impl Cluster {
    /// Whether `user` may do this, and why; the error says why not.
    pub(crate) fn decide(&self, user: &User, request: &Request) -> Result<String, String> {
        if user.is_master() {
            return Ok(format!("allowed to the group {MASTERS:?}"));
        }
        self.rbac.read(&self.db, |policy| match policy.allows(user.subject(), request) {
            Some(grant) => Ok(grant.to_string()),
            None => {
                let missing = policy.rules_of(user.subject(), &request.namespace).missing;
                let missing: String = missing.iter().map(|why| format!(": RBAC: {why}")).collect();
                Err(refusal(user, request) + &missing)
            }
        })
    }

    /// Whether `user` may do this.
    pub(crate) fn allows(&self, user: &User, request: &Request) -> bool {
        self.decide(user, request).is_ok()
    }
}

/// A request about an object of the RBAC group.
pub(crate) fn about(verb: &str, kind: Kind, (namespace, name): (&str, &str)) -> Request {
    Request {
        verb: verb.to_owned(),
        group: ambit_access::defaults::GROUP.to_owned(),
        resource: kind.plural().to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Request::default()
    }
}
