//! Readiness of a process: ready when nothing blocks it any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a process still waits for. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    blockers: Arc<Mutex<BTreeMap<u64, String>>>,
    next: Arc<std::sync::atomic::AtomicU64>,
}

/// Blocks readiness until dropped.
#[derive(Debug)]
pub struct Blocker {
    id: u64,
    of: Readiness,
}

impl Readiness {
    /// Blocks readiness under `name` until the returned guard is dropped.
    pub fn block(&self, name: impl Into<String>) -> Blocker {
        let id = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.blockers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, name.into());
        Blocker { id, of: self.clone() }
    }

    /// Names of what still blocks; empty means ready.
    pub fn waiting_for(&self) -> Vec<String> {
        self.blockers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl Drop for Blocker {
    fn drop(&mut self) {
        self.of.blockers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_guard_is_gone() {
        let readiness = Readiness::default();
        let (a, b) = (readiness.block("a"), readiness.block("b"));
        assert_eq!(readiness.waiting_for(), ["a", "b"]);
        drop(a);
        assert_eq!(readiness.waiting_for(), ["b"]);
        drop(b);
        assert!(readiness.waiting_for().is_empty());
    }
}
