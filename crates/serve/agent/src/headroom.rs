//! Descriptors that are kept free: an agent whose pods have taken all of them could not even say so, because an answer
//! on a socket takes one.

use crate::Error;
use crate::metrics::Metrics;
use ambit_linux::descriptors;
use ambit_runtime::{Blocker, Readiness, Shutdown};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Descriptors kept free at most: for the plugin's and the proxies' sockets, the API server, health and metrics.
const KEPT_FREE_MAX: u64 = 128;
/// Part of all descriptors that is kept free where they are few.
const KEPT_FREE_PART: u64 = 4;
/// Time between two looks at whether there is room again.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Watches over the free descriptors. Clones share the watch.
#[derive(Debug, Clone)]
pub(crate) struct Headroom(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: u64,
    kept_free: u64,
    readiness: Readiness,
    metrics: Metrics,
    /// The agent is not ready while it must turn pods away.
    alarm: Mutex<Option<Blocker>>,
}

impl Headroom {
    /// Lets the process open as many files as it may, and keeps some of them free.
    pub(crate) fn new(readiness: Readiness, metrics: Metrics) -> Result<Self, Error> {
        let limit = descriptors::raise_limit().map_err(Error::kernel("prepare for many pods"))?;
        Ok(Self::of(limit, readiness, metrics))
    }

    fn of(limit: u64, readiness: Readiness, metrics: Metrics) -> Self {
        let kept_free = KEPT_FREE_MAX.min(limit / KEPT_FREE_PART);
        Self(Arc::new(Inner { limit, kept_free, readiness, metrics, alarm: Mutex::default() }))
    }

    /// Whether another pod may take descriptors.
    ///
    /// # Errors
    /// Those that are left are kept for the sockets.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Inner { limit, kept_free, readiness, metrics, alarm } = &*self.0;
        // One that cannot even be opened for the count is none that is left.
        let open = descriptors::open().unwrap_or(*limit);
        metrics.set_descriptors(open, *limit);
        let mut alarm = alarm.lock().unwrap_or_else(PoisonError::into_inner);
        if open.saturating_add(*kept_free) <= *limit {
            if alarm.take().is_some() {
                tracing::info!(open, limit, "there are free descriptors again, taking pods");
            }
            return Ok(());
        }
        if alarm.is_none() {
            tracing::error!(open, limit, kept_free, "hardly a descriptor is free, turning pods away");
            *alarm = Some(readiness.block(format!("free descriptors ({open} of {limit} are open)")));
        }
        Err(Error::Descriptors { open, limit: *limit, kept_free: *kept_free })
    }

    /// Looks from time to time until `shutdown`, so that the alarm ends with its cause.
    pub(crate) async fn watch(self, shutdown: Shutdown) -> Result<(), Error> {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
            // What it finds is shown already.
            let _ = self.check();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_turned_away_before_the_last_descriptors_are_taken_and_taken_when_some_are_free() {
        let open = descriptors::open().unwrap();
        let (readiness, (metrics, registry)) = (Readiness::default(), Metrics::new());
        // Other tests of this process open some meanwhile; there is room for them on either side.
        let limit = open + KEPT_FREE_MAX + 300;
        let headroom = Headroom::of(limit, readiness.clone(), metrics);
        headroom.check().unwrap();
        assert!(readiness.waiting_for().is_empty());
        let held: Vec<_> = (0..600).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        for _ in 0..2 {
            let refused = headroom.check().unwrap_err().to_string();
            assert!(refused.contains(&format!("of {limit}")) && refused.contains("raise"), "{refused}");
        }
        assert_eq!(readiness.waiting_for().len(), 1, "{:?}", readiness.waiting_for());
        assert!(crate::metrics::text(&registry).contains(&format!("ambit_agent_descriptors_limit {limit}")));
        drop(held);
        headroom.check().unwrap();
        assert!(readiness.waiting_for().is_empty());
    }
}
