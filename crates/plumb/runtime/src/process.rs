//! Child processes that are started again when they end.

use crate::{Backoff, Clock, Shutdown};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tracing::{info, warn};

/// How long a child may take from SIGTERM to its end before it is killed.
pub const TERM_WAIT: Duration = Duration::from_secs(5);
/// A child that ran this long starts over with the shortest delay.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Delays between restarts.
const RESTART_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A program to run and keep running.
#[derive(Debug, Clone)]
pub struct Program {
    /// Name in logs.
    pub name: String,
    /// Executable.
    pub path: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// File that receives both output streams, appended to.
    pub log: PathBuf,
}

impl Program {
    /// Runs the program until `shutdown`, starting it again with growing delays whenever it ends.
    ///
    /// Cancel safety: dropping the future kills the child.
    ///
    /// # Errors
    /// The program cannot be started at all, or its log file cannot be opened.
    pub async fn keep_running(self, clock: Clock, shutdown: Shutdown) -> io::Result<()> {
        let mut delays = Backoff::new(RESTART_DELAYS.0, RESTART_DELAYS.1);
        loop {
            let started = clock.now();
            let mut child = self.start()?;
            info!(program = %self.name, pid = child.id(), "started program");
            tokio::select! {
                ended = child.wait() => {
                    let status = ended?;
                    warn!(program = %self.name, %status, log = %self.log.display(), "program ended, starting it again");
                }
                () = shutdown.cancelled() => return stop(&mut child).await,
            }
            if clock.now().duration_since(started) > STABLE_AFTER {
                delays.reset();
            }
            tokio::select! {
                () = tokio::time::sleep(delays.next_delay()) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    fn start(&self) -> io::Result<Child> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        Command::new(&self.path)
            .args(&self.args)
            .env_clear()
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            // Ctrl-C at a terminal goes to the whole process group: who stops this child, and when, is decided here.
            .process_group(0)
            .spawn()
            .map_err(|e| {
                io::Error::new(e.kind(), format!("{}: cannot start {}: {e}", self.name, self.path.display()))
            })
    }
}

/// Ends a child: SIGTERM, then SIGKILL after [`TERM_WAIT`].
///
/// # Errors
/// The child cannot be waited for.
pub async fn stop(child: &mut Child) -> io::Result<()> {
    let Some(pid) = child.id() else { return Ok(()) };
    // An error here means that the child has just ended, which the wait below sees.
    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
    if tokio::time::timeout(TERM_WAIT, child.wait()).await.is_err() {
        child.kill().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_ended_program_is_started_again_until_shutdown() {
        let dir = std::env::temp_dir().join(format!("ambit-process-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory can be written");
        let log = dir.join("log");
        let program = Program {
            name: "echo".into(),
            path: "/bin/sh".into(),
            args: vec!["-c".into(), "echo run".into()],
            env: vec![],
            log: log.clone(),
        };
        let shutdown = Shutdown::new();
        let task = tokio::spawn(program.keep_running(Clock, shutdown.clone()));
        while std::fs::read_to_string(&log).unwrap_or_default().lines().count() < 2 {
            tokio::task::yield_now().await;
        }
        shutdown.cancel();
        task.await.expect("no panic").expect("no error");
        std::fs::remove_dir_all(dir).expect("it was made above");
    }
}
