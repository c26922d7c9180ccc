//! The newest revision, asked once for all who want it at the same time.

use super::call::{Calls, message, one};
use super::layout::Layout;
use super::unsigned;
use crate::memory::WriteError;
use ambit_store::Revision;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Askers that may wait at once; more wait for a place.
const WAITING_MAX: usize = 1024;

type Answer = Result<Revision, String>;

/// Asks for the newest revision.
pub(super) struct Fresh(mpsc::Sender<oneshot::Sender<Answer>>);

impl Fresh {
    /// The asker, and the task that does its work.
    pub(super) fn new(calls: Calls, layout: Arc<Layout>) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, mut waiting) = mpsc::channel(WAITING_MAX);
        let work = async move {
            let mut all: Vec<oneshot::Sender<Answer>> = Vec::new();
            // Whoever comes while a question is under way waits for the next: an answer must not be older than its question.
            while waiting.recv_many(&mut all, WAITING_MAX).await > 0 {
                let found = calls.range(one(layout.marker())).await;
                let newest = found
                    .map(|range| range.kvs.first().map_or(0, |kv| unsigned(kv.mod_revision)))
                    .map_err(|status| message(&status));
                for asker in all.drain(..) {
                    // Who has gone needs no answer.
                    let _ = asker.send(newest.clone());
                }
            }
        };
        (Self(sender), work)
    }

    /// The revision of the newest write, of whatever server, done before the call.
    pub(super) async fn newest(&self) -> Result<Revision, WriteError> {
        let stopped = || WriteError::Unreachable("the store was closed".into());
        let (answer, answered) = oneshot::channel();
        self.0.send(answer).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?.map_err(WriteError::Unreachable)
    }
}
