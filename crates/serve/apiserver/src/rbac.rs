//! The cluster's roles and bindings, kept as a policy that follows the store.

use crate::database::Database;
use ambit_access::{Kind, Policy};
use ambit_store::{Compacted, Range, Revision};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Events read at once.
const EVENTS_MAX: usize = 1024;

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
