//! The inbound connections of a pod, each evaluated again whenever policies or workloads change.

use ambit_runtime::Clock;
use ambit_traffic::{Denial, Peer, State, Workload};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long an open connection is kept when its workload begins to name a policy that has not arrived. Control planes
/// send workloads before policies: without it, every new policy would cut all connections of its pods.
const MISSING_POLICY_GRACE: Duration = Duration::from_secs(1);

/// Connections of one pod.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    tracked: Mutex<Tracked>,
}

#[derive(Debug, Default)]
struct Tracked {
    next: u64,
    open: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    close: Option<oneshot::Sender<Denial>>,
    missing_since: Option<Instant>,
}

/// Tracks a connection until dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    id: u64,
    of: Arc<Connections>,
    denied: oneshot::Receiver<Denial>,
}

impl Connections {
    /// Begins to track. To be called before the connection is authorised, so that no change falls in between.
    pub(crate) fn track(self: &Arc<Self>, peer: Peer) -> Guard {
        let (close, denied) = oneshot::channel();
        let mut tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        let id = tracked.next;
        tracked.next += 1;
        tracked.open.insert(id, Connection { peer, close: Some(close), missing_since: None });
        Guard { id, of: self.clone(), denied }
    }

    /// Closes what is not permitted any more; gives the time of the next evaluation, if one is due by itself.
    pub(crate) fn evaluate(&self, state: &State, workload: &Workload, clock: Clock) -> Option<Instant> {
        let now = clock.now();
        let mut due = None;
        let mut tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in tracked.open.values_mut() {
            let Some(denial) = state.authorize(workload, &connection.peer).denial else {
                connection.missing_since = None;
                continue;
            };
            if let Denial::PolicyMissing { .. } = denial {
                let end = *connection.missing_since.get_or_insert(now) + MISSING_POLICY_GRACE;
                if now < end {
                    due = due.map_or(Some(end), |earlier: Instant| Some(earlier.min(end)));
                    continue;
                }
            }
            if let Some(close) = connection.close.take() {
                // The connection may be ending by itself.
                let _ = close.send(denial);
            }
        }
        due
    }

    /// What is open, for the admin endpoint.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        let tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        tracked.open.values().map(|connection| connection.peer.clone()).collect()
    }
}

impl Guard {
    /// Ends when the connection is no longer permitted, and says why. Cancel safe; once only.
    pub(crate) async fn denied(&mut self) -> Denial {
        match (&mut self.denied).await {
            Ok(denial) => denial,
            // The sender lives as long as this guard, or has sent.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.of.tracked.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&self.id);
    }
}
