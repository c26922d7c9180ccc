//! Unconfirmed writes of every owner of one controller, fed by events and by answers.

use ambit_runtime::Clock;
use ambit_workloads::expectations::Expectations;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Seconds that a view may lag before the controller looks at the store itself.
const LAG_SECONDS_MAX: u64 = 30;

/// Expectations by the owner's uid. Clones share one ledger.
#[derive(Clone)]
pub(crate) struct Ledger {
    started: Instant,
    owners: Arc<Mutex<HashMap<String, Expectations>>>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { started: Clock.now(), owners: Arc::default() }
    }

    /// Changes what is expected for an owner.
    pub(crate) fn update(&self, owner: &str, change: impl FnOnce(&mut Expectations, u64)) {
        let tick = self.tick();
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let expectations = owners.entry(owner.to_owned()).or_default();
        change(expectations, tick);
        if expectations.is_empty() {
            owners.remove(owner);
        }
    }

    /// An event showed an object of the owner.
    pub(crate) fn saw(&self, owner: &str, object: &str, going: bool) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(expectations) = owners.get_mut(owner) else { return };
        if going {
            expectations.saw_deletion(object);
        } else {
            expectations.saw(object);
        }
        if expectations.is_empty() {
            owners.remove(owner);
        }
    }

    /// What is expected for an owner now.
    pub(crate) fn snapshot(&self, owner: &str) -> Expectations {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.get(owner).cloned().unwrap_or_default()
    }

    /// Whether something has been waited for so long that the view cannot be trusted to show it.
    pub(crate) fn is_overdue(&self, owner: &str) -> bool {
        let limit = self.tick().saturating_sub(LAG_SECONDS_MAX);
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.get(owner).is_some_and(|expectations| expectations.older_than(limit))
    }

    /// The owner is gone, or its objects were read from the store.
    pub(crate) fn forget(&self, owner: &str) {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
    }

    fn tick(&self) -> u64 {
        Clock.now().duration_since(self.started).as_secs()
    }
}
