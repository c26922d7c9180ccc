//! The tunnel connections of one pod, shared by its connections to the same peer.

use crate::error::ConnectionError;
use crate::tunnel::{Lease, Tunnel};
use ambit_traffic::PoolKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;

/// Waiting for another's dial included.
pub(crate) const CHECKOUT_DEADLINE: Duration = Duration::from_secs(20);
/// Longest time between two looks for unused connections.
const SWEEP_INTERVAL_MAX: Duration = Duration::from_secs(30);

type Entry = Arc<Mutex<Vec<Arc<Tunnel>>>>;

/// A pool. One per pod: connections of one pod never travel in another's tunnel.
#[derive(Debug)]
pub(crate) struct Pool {
    entries: SyncMutex<HashMap<PoolKey, Entry>>,
    streams_max: usize,
    idle_max: Duration,
}

impl Pool {
    pub(crate) fn new(streams_max: usize, idle_max: Duration) -> Self {
        Self { entries: SyncMutex::default(), streams_max, idle_max }
    }

    /// A stream of a tunnel under `key`. If none is free, one caller dials and the others wait for it.
    pub(crate) async fn checkout<F>(&self, key: &PoolKey, dial: F) -> Result<Lease, ConnectionError>
    where
        F: Future<Output = Result<Tunnel, ConnectionError>>,
    {
        let work = async {
            let entry = self
                .entries
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(key.clone())
                .or_default()
                .clone();
            let mut tunnels = entry.lock().await;
            tunnels.retain(|tunnel| tunnel.is_alive());
            if let Some(lease) = tunnels.iter().find_map(|tunnel| tunnel.lease(self.streams_max)) {
                return Ok(lease);
            }
            let tunnel = Arc::new(dial.await?);
            let lease = tunnel.lease(self.streams_max.max(1)).ok_or_else(|| ConnectionError::Http2 {
                with: key.destination,
                detail: "the peer takes no stream".into(),
            })?;
            tunnels.push(tunnel);
            Ok(lease)
        };
        let late =
            ConnectionError::ConnectTimeout { to: key.destination, seconds: CHECKOUT_DEADLINE.as_secs() };
        tokio::time::timeout(CHECKOUT_DEADLINE, work).await.unwrap_or(Err(late))
    }

    /// Releases unused connections, for ever. Cancel safe.
    pub(crate) async fn sweep(&self) {
        loop {
            tokio::time::sleep(self.idle_max.clamp(Duration::from_millis(10), SWEEP_INTERVAL_MAX)).await;
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.retain(|_, entry| {
                // A held lock means that somebody is just taking a stream.
                let Ok(mut tunnels) = entry.try_lock() else { return true };
                tunnels.retain(|tunnel| tunnel.is_alive() && tunnel.idle() < self.idle_max);
                let empty = tunnels.is_empty();
                drop(tunnels);
                !empty || Arc::strong_count(entry) > 1
            });
        }
    }

    /// Lets go of all connections: each ends with its last stream.
    pub(crate) fn release(&self) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Number of live connections.
    pub(crate) fn connections(&self) -> usize {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.values().filter_map(|entry| entry.try_lock().ok().map(|tunnels| tunnels.len())).sum()
    }
}
