//! Parts of the program that run side by side, start in order and stop in the opposite order.

use ambit_runtime::Shutdown;
use anyhow::{Context as _, Result, anyhow};
use futures::future::select_all;
use std::time::Duration;
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// How long one part may take to stop; the node ends all its pods within it.
const STOP_WAIT: Duration = Duration::from_secs(40);

/// Running parts, in the order of their start.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    running: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    name: &'static str,
    shutdown: Shutdown,
    task: JoinHandle<Result<()>>,
}

impl Parts {
    /// Starts a part; `run` gets the token that tells it to stop.
    pub(crate) fn start<F, E>(&mut self, name: &'static str, run: impl FnOnce(Shutdown) -> F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<anyhow::Error>,
    {
        let shutdown = Shutdown::new();
        let future = run(shutdown.clone());
        let task = tokio::spawn(async move { future.await.map_err(Into::into) });
        self.running.push(Part { name, shutdown, task });
    }

    /// Waits until a part ends by itself, which none should.
    ///
    /// Cancel safety: nothing is lost; the ended part is reported again by [`Self::stop`].
    pub(crate) async fn any_end(&mut self) -> anyhow::Error {
        if self.running.is_empty() {
            return std::future::pending().await;
        }
        let (ended, index, _) = select_all(self.running.iter_mut().map(|p| &mut p.task)).await;
        let part = self.running.remove(index);
        match outcome(ended) {
            Ok(()) => anyhow!("{} ended unasked", part.name),
            Err(error) => error.context(format!("{} failed", part.name)),
        }
    }

    /// Runs `work` unless a part ends first.
    ///
    /// # Errors
    /// That of `work`, or of the part.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            error = self.any_end() => Err(error),
        }
    }

    /// Stops all parts, the last started first, each before the next.
    ///
    /// # Errors
    /// The first error of a part; the others are logged.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let mut first = Ok(());
        while let Some(part) = self.running.pop() {
            part.shutdown.cancel();
            let mut task = part.task;
            let ended = match tokio::time::timeout(STOP_WAIT, &mut task).await {
                Ok(ended) => outcome(ended).with_context(|| format!("{} failed", part.name)),
                Err(_) => {
                    task.abort();
                    Err(anyhow!("{} did not stop within {STOP_WAIT:?}", part.name))
                }
            };
            match ended {
                Ok(()) => info!(part = part.name, "stopped part"),
                Err(error) if first.is_ok() => first = Err(error),
                Err(error) => {
                    warn!(part = part.name, error = format!("{error:#}"), "part stopped with an error")
                }
            }
        }
        first
    }
}

fn outcome(ended: Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    ended.unwrap_or_else(|e| Err(anyhow!("it panicked: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn parts_stop_in_the_opposite_order() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut parts = Parts::default();
        for name in ["first", "second", "third"] {
            let order = order.clone();
            parts.start(name, |stop| async move {
                stop.cancelled().await;
                order.lock().unwrap().push(name);
                anyhow::Ok(())
            });
        }
        parts.stop().await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["third", "second", "first"]);
    }

    #[tokio::test]
    async fn a_part_that_ends_is_named() {
        let mut parts = Parts::default();
        parts.start("stays", |stop| async move {
            stop.cancelled().await;
            anyhow::Ok(())
        });
        parts.start("breaks", |_| async { Err(anyhow!("no such thing")) });
        assert_eq!(format!("{:#}", parts.any_end().await), "breaks failed: no such thing");
        parts.stop().await.unwrap();
    }
}
