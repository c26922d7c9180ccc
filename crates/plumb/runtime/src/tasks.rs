//! Owned, named and joined tasks.

use crate::Shutdown;
use std::future::Future;
use tokio::task::JoinSet;

/// Named tasks that end together: the first one to fail or panic stops the group.
#[derive(Debug)]
pub struct TaskGroup<E> {
    shutdown: Shutdown,
    tasks: JoinSet<(&'static str, Result<(), E>)>,
}

/// Why a group ended early.
#[derive(Debug, thiserror::Error)]
pub enum TaskError<E: std::error::Error + 'static> {
    /// A task returned an error.
    #[error("{name} failed")]
    Failed {
        /// The task.
        name: &'static str,
        /// Its error.
        #[source]
        source: E,
    },
    /// A task panicked.
    #[error("a task panicked: {0}")]
    Panicked(String),
}

impl<E: std::error::Error + Send + 'static> TaskGroup<E> {
    /// An empty group that stops when `shutdown` is cancelled; a failing task cancels it too.
    pub fn new(shutdown: Shutdown) -> Self {
        Self { shutdown, tasks: JoinSet::new() }
    }

    /// The token that the tasks of this group watch.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Starts a task. It must return soon after the group's shutdown is cancelled; its own failure or panic cancels it
    /// at once, whether or not somebody joins.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = Result<(), E>> + Send + 'static) {
        let stop_all = self.shutdown.clone().drop_guard();
        self.tasks.spawn(async move {
            let outcome = task.await;
            if outcome.is_ok() {
                stop_all.disarm();
            }
            (name, outcome)
        });
    }

    /// Waits for all tasks; the first failure cancels the shutdown token and is returned once all have ended.
    ///
    /// # Errors
    /// The first failure or panic of a task.
    pub async fn join(mut self) -> Result<(), TaskError<E>> {
        let mut first = Ok(());
        while let Some(ended) = self.tasks.join_next().await {
            let outcome = match ended {
                Ok((_, Ok(()))) => continue,
                Ok((name, Err(source))) => Err(TaskError::Failed { name, source }),
                Err(e) if e.is_cancelled() => continue,
                Err(e) => Err(TaskError::Panicked(e.to_string())),
            };
            self.shutdown.cancel();
            if first.is_ok() {
                first = outcome;
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failing_task_stops_the_others_and_is_named() {
        let mut group = TaskGroup::<std::io::Error>::new(Shutdown::new());
        let stop = group.shutdown().clone();
        group.spawn("waits", async move {
            stop.cancelled().await;
            Ok(())
        });
        group.spawn("fails", async { Err(std::io::Error::other("broken")) });
        let error = group.join().await.expect_err("one task failed");
        assert_eq!(error.to_string(), "fails failed");
    }

    #[tokio::test]
    async fn a_failure_stops_the_group_before_anybody_joins() {
        let mut group = TaskGroup::<std::io::Error>::new(Shutdown::new());
        group.spawn("fails", async { Err(std::io::Error::other("broken")) });
        group.shutdown().cancelled().await;
        group.join().await.expect_err("one task failed");
    }
}
