//! The informers of a registry without the types of their objects.

use crate::informer::Synced;
use std::sync::{Mutex, PoisonError};

/// One informer.
pub(crate) struct Listed {
    pub(crate) synced: Synced,
    pub(crate) selector: String,
    pub(crate) count: Box<dyn Fn() -> usize + Send>,
}

/// All that were ever asked for.
#[derive(Default)]
pub(crate) struct Roll(Mutex<Vec<Listed>>);

impl Roll {
    pub(crate) fn add(&self, one: Listed) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }

    /// Looks at each.
    pub(crate) fn each(&self, look: impl FnMut(&Listed)) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(look);
    }

    pub(crate) fn synced(&self) -> Vec<Synced> {
        let mut all = Vec::new();
        self.each(|one| all.push(one.synced.clone()));
        all
    }
}
