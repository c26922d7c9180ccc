//! The thread that persists writes in groups.

use super::Disk;
use crate::memory::{Memory, WriteError};
use crate::object::Event;
use ambit_store::{Conflict, Revision};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// Writes that may wait for the disk at once; more wait for a place before they take effect.
const WRITES_WAITING_MAX: usize = 1024;
/// Time between looks whether there is room again for what could not be persisted.
const FULL_RETRY: Duration = Duration::from_millis(500);

/// Hands writes to the thread, in the order of their revisions.
pub(crate) struct Writer {
    memory: Arc<Memory>,
    queue: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Write(Arc<Event>),
    Compact(Revision),
}

impl Writer {
    /// Starts the thread. It publishes in `memory` what it has persisted.
    pub(crate) fn start(disk: Disk, memory: Arc<Memory>) -> Self {
        let (queue, jobs) = mpsc::channel(WRITES_WAITING_MAX);
        let of_thread = memory.clone();
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || write_all(disk, jobs, &of_thread))
            .expect("the system can start one more thread at start-up");
        Self { memory, queue: Some(queue), thread: Some(thread) }
    }

    /// Does a write; returns once it is durable and visible.
    pub(crate) async fn write(
        &self,
        change: impl FnOnce(&mut crate::memory::Objects) -> Result<Arc<Event>, Conflict>,
    ) -> Result<Arc<Event>, WriteError> {
        let stopped = || WriteError::Failed("the writer has stopped".into());
        // A place in the queue comes first: a write that has taken effect must reach the disk.
        let place = match &self.queue {
            Some(queue) => {
                queue.reserve().await.map_err(|_| self.memory.healthy().err().unwrap_or_else(stopped))?
            }
            None => return Err(stopped()),
        };
        let event = {
            let mut store = self.memory.write();
            // Looked at under the lock: no write takes effect after the disk is known to be full.
            self.memory.healthy()?;
            let event = change(&mut store)?;
            // Queued under the lock, so that the disk sees the order of revisions.
            place.send(Job::Write(event.clone()));
            event
        };
        self.memory.reach(event.revision).await?;
        Ok(event)
    }

    /// Forgets history before a revision.
    pub(crate) fn compact(&self, revision: Revision) {
        if let Some(queue) = &self.queue {
            // A full queue means busy times: the next round of compaction covers this one.
            let _ = queue.try_send(Job::Compact(revision));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Persists what is queued, as one commit for all that has come in since the last one, until the queue is closed.
fn write_all(mut disk: Disk, mut jobs: mpsc::Receiver<Job>, memory: &Memory) {
    while let Some(first) = jobs.blocking_recv() {
        let (mut events, mut compact) = (Vec::new(), None);
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Write(event) => events.push(event),
                Job::Compact(revision) => compact = Some(revision),
            }
            next = if events.len() < WRITES_WAITING_MAX { jobs.try_recv().ok() } else { None };
        }
        match persist(disk, (&events, compact), &jobs, memory) {
            Some(open) => disk = open,
            None => return,
        }
        memory.publish(&events);
    }
}

/// Commits, if need be as soon as there is room. `None`: nothing more can be written.
fn persist(
    mut disk: Disk,
    (events, compact): (&[Arc<Event>], Option<Revision>),
    jobs: &mpsc::Receiver<Job>,
    memory: &Memory,
) -> Option<Disk> {
    let mut waited = false;
    loop {
        let Err(error) = disk.commit(events, compact) else { break };
        if !error.is_full() {
            fail(memory, &error);
            return None;
        }
        if !waited {
            tracing::error!(%error, "no space left, refusing writes until there is");
        }
        waited = true;
        // Who waits is told; what they wrote takes effect if there is room again.
        memory.full(Some(error.to_string()));
        disk = reopen(disk, jobs, memory)?;
    }
    if waited {
        tracing::info!("there is space again, taking writes");
        memory.full(None);
    }
    Some(disk)
}

/// Opens the file anew, which every failed commit demands, after a while.
fn reopen(disk: Disk, jobs: &mpsc::Receiver<Job>, memory: &Memory) -> Option<Disk> {
    let mut closed = disk.close();
    loop {
        if jobs.is_closed() {
            tracing::error!(
                "stopped while there was no space left: the last writes, none of them answered, are lost"
            );
            return None;
        }
        std::thread::sleep(FULL_RETRY);
        match closed.open() {
            Ok(open) => return Some(open),
            Err((still, error)) if error.is_full() => closed = still,
            Err((_, error)) => {
                fail(memory, &error);
                return None;
            }
        }
    }
}

fn fail(memory: &Memory, error: &super::DiskError) {
    tracing::error!(%error, source = ?std::error::Error::source(error), "store failed, refusing all further writes");
    memory.fail(error.to_string());
}
