//! What a controller has written and its view does not show yet.
//!
//! A view lags behind the controller's own writes. Counting only what the view shows would create twice and delete
//! twice. Where upstream counts events (pkg/controller/controller_utils.go), this remembers the very objects: those
//! created count as there until the view has shown them once, those deleted count as gone.

use std::collections::{BTreeMap, BTreeSet};

/// Unconfirmed writes of one owner. Feed every event of its objects to the `saw_` functions.
#[derive(Debug, Clone, Default)]
pub struct Expectations {
    /// Created, not seen yet; with the tick at which the answer arrived.
    created: BTreeMap<String, u64>,
    /// Deleted, still shown as if nothing had happened.
    deleted: BTreeMap<String, u64>,
    /// Creates sent and not answered. An event may overtake the answer: who was seen meanwhile is kept.
    creating: usize,
    seen_meanwhile: BTreeSet<String>,
}

impl Expectations {
    /// Before a create is sent.
    pub fn creating(&mut self) {
        self.creating += 1;
    }

    /// A create was answered. `tick` is a time of the caller's choosing, for [`Expectations::older_than`].
    pub fn created(&mut self, uid: &str, tick: u64) {
        if !self.seen_meanwhile.contains(uid) {
            self.created.insert(uid.to_owned(), tick);
        }
        self.answered();
    }

    /// A create was refused: nothing came of it.
    pub fn create_failed(&mut self) {
        self.answered();
    }

    fn answered(&mut self) {
        self.creating = self.creating.saturating_sub(1);
        if self.creating == 0 {
            self.seen_meanwhile.clear();
        }
    }

    /// Before a delete is sent.
    pub fn deleting(&mut self, uid: &str, tick: u64) {
        self.deleted.insert(uid.to_owned(), tick);
    }

    /// A delete was refused: the object stays.
    pub fn delete_failed(&mut self, uid: &str) {
        self.deleted.remove(uid);
    }

    /// The view showed this object, in whatever state.
    pub fn saw(&mut self, uid: &str) {
        self.created.remove(uid);
        if self.creating > 0 {
            self.seen_meanwhile.insert(uid.to_owned());
        }
    }

    /// The view showed that this object is being deleted or has gone.
    pub fn saw_deletion(&mut self, uid: &str) {
        self.saw(uid);
        self.deleted.remove(uid);
    }

    /// Objects that exist although the view has not shown them. Creates without an answer count, one each.
    pub fn unseen_creates(&self) -> usize {
        self.created.len() + self.creating
    }

    /// Whether the object is going although the view shows it as staying.
    pub fn is_deleted(&self, uid: &str) -> bool {
        self.deleted.contains_key(uid)
    }

    /// Whether something has been waited for since before `tick`: the view may have missed the object altogether,
    /// because it was created and deleted between two lists. The caller then has to look for itself.
    pub fn older_than(&self, tick: u64) -> bool {
        self.created.values().chain(self.deleted.values()).any(|&since| since < tick)
    }

    /// Whether the view shows every write.
    pub fn is_empty(&self) -> bool {
        self.created.is_empty() && self.deleted.is_empty() && self.creating == 0
    }

    /// Forgets everything: the caller has looked at the store itself.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_object_counts_until_it_was_seen() {
        let mut expectations = Expectations::default();
        expectations.creating();
        assert_eq!(expectations.unseen_creates(), 1);
        expectations.created("a", 0);
        assert_eq!(expectations.unseen_creates(), 1);
        expectations.saw("a");
        assert!(expectations.is_empty());
    }

    #[test]
    fn an_event_may_overtake_the_answer() {
        let mut expectations = Expectations::default();
        expectations.creating();
        expectations.creating();
        expectations.saw("a");
        expectations.created("b", 0);
        expectations.created("a", 0);
        assert_eq!(expectations.unseen_creates(), 1, "b was not seen");
        expectations.saw_deletion("b");
        assert!(expectations.is_empty());
    }

    #[test]
    fn a_deleted_object_counts_as_gone_until_the_view_agrees() {
        let mut expectations = Expectations::default();
        expectations.deleting("a", 7);
        expectations.saw("a");
        assert!(expectations.is_deleted("a"));
        assert!(!expectations.older_than(7) && expectations.older_than(8));
        expectations.saw_deletion("a");
        assert!(!expectations.is_deleted("a"));
    }

    #[test]
    fn refused_writes_leave_nothing() {
        let mut expectations = Expectations::default();
        expectations.creating();
        expectations.create_failed();
        expectations.deleting("a", 0);
        expectations.delete_failed("a");
        assert!(expectations.is_empty());
    }
}
