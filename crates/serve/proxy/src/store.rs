//! The proxy's knowledge, shared with every connection: one writer, any number of readers and waiters.

use ambit_traffic::{LocalName, State, Workload};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a connection waits for its own workload, or for a policy that its workload names.
/// Source: the field's node proxy, which waits as long for the workload.
pub(crate) const KNOWLEDGE_WAIT: Duration = Duration::from_secs(5);

/// The writing side.
#[derive(Debug)]
pub(crate) struct Writer(watch::Sender<State>);

/// The reading side.
#[derive(Debug, Clone)]
pub(crate) struct Store(watch::Receiver<State>);

/// Nothing known yet.
pub(crate) fn new() -> (Writer, Store) {
    let (sender, receiver) = watch::channel(State::default());
    (Writer(sender), Store(receiver))
}

impl Writer {
    /// Replaces the knowledge by a changed copy; readers see all of the change or nothing.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.borrow().clone();
        let outcome = change(&mut state);
        self.0.send_replace(state);
        outcome
    }
}

impl Store {
    /// What is known now.
    pub(crate) fn now(&self) -> State {
        self.0.borrow().clone()
    }

    /// Waits for a change after the last one this handle saw. False when there will be none any more. Cancel safe.
    pub(crate) async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }

    /// The workload of that name, waiting for it for at most [`KNOWLEDGE_WAIT`]. Cancel safe.
    pub(crate) async fn local_workload(&self, name: &LocalName) -> Option<Arc<Workload>> {
        self.wait_for(|state| state.local_workload(name).cloned()).await
    }

    /// What `find` gives, waiting until it gives something for at most [`KNOWLEDGE_WAIT`]. Cancel safe.
    pub(crate) async fn wait_for<T>(&self, find: impl Fn(&State) -> Option<T>) -> Option<T> {
        let mut changes = self.0.clone();
        let search = async {
            loop {
                let found = find(&changes.borrow_and_update());
                if found.is_some() {
                    return found;
                }
                changes.changed().await.ok()?;
            }
        };
        tokio::time::timeout(KNOWLEDGE_WAIT, search).await.ok().flatten()
    }
}
