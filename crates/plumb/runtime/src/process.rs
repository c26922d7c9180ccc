//! Child processes that are started again when they end.

use crate::{Backoff, Clock, Shutdown};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tracing::{info, warn};

/// How long a child may take from SIGTERM to its end before it is killed.
pub const TERM_WAIT: Duration = Duration::from_secs(5);
/// A child that ran this long starts over with the shortest delay.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Pause between two looks at a process that was killed.
const LEFTOVER_POLL: Duration = Duration::from_millis(10);
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
    /// File that names the running process, for [`end_leftover`] after a crash of this one.
    pub pid_file: PathBuf,
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
            self.note(&child)?;
            info!(program = %self.name, pid = child.id(), "started program");
            tokio::select! {
                ended = child.wait() => {
                    let status = ended?;
                    std::fs::remove_file(&self.pid_file)?;
                    warn!(program = %self.name, %status, log = %self.log.display(), "program ended, starting it again");
                }
                () = shutdown.cancelled() => {
                    let stopped = stop(&mut child).await;
                    return stopped.and(std::fs::remove_file(&self.pid_file));
                }
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

    /// Writes the process's id and start to the pid file; together they name it for ever.
    fn note(&self, child: &Child) -> io::Result<()> {
        let Some(pid) = child.id() else { return Ok(()) };
        let started = start_time(pid).unwrap_or_default();
        std::fs::write(&self.pid_file, format!("{pid} {started}\n"))
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

/// Kills the process that a pid file names, if it still runs: its parent died without stopping it. The file is removed.
///
/// It is killed, not asked: a program that cleans up at its end would undo what the one after it takes over.
///
/// # Errors
/// The process does not end, or the file cannot be removed.
pub async fn end_leftover(pid_file: &Path) -> io::Result<()> {
    let Ok(noted) = std::fs::read_to_string(pid_file) else { return Ok(()) };
    if let Some(pid) = running(&noted) {
        warn!(pid, file = %pid_file.display(), "ending a process that an earlier run left behind");
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        let gone = async {
            while running(&noted).is_some() {
                tokio::time::sleep(LEFTOVER_POLL).await;
            }
        };
        tokio::time::timeout(TERM_WAIT, gone).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("process {pid} of an earlier run does not end"))
        })?;
    }
    std::fs::remove_file(pid_file)
}

/// The process that a pid file's content names, unless it has ended.
fn running(noted: &str) -> Option<u32> {
    let (pid, started) = noted.trim().split_once(' ')?;
    let pid = pid.parse().ok()?;
    (start_time(pid)? == started.parse::<u64>().ok()?).then_some(pid)
}

/// When a process started, in ticks since boot; none if it does not run. Source: proc(5), field 22 of stat, which is
/// the 20th behind the name in parentheses.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // A zombie has ended, its parent has only not asked yet. But its first thread becomes one before the others have
    // ended, and until then they hold its sockets.
    if fields.next()? == "Z" && std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1
    {
        return None;
    }
    fields.nth(18)?.parse().ok()
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
            pid_file: dir.join("pid"),
        };
        let shutdown = Shutdown::new();
        let task = tokio::spawn(program.keep_running(Clock, shutdown.clone()));
        while std::fs::read_to_string(&log).unwrap_or_default().lines().count() < 2 {
            tokio::task::yield_now().await;
        }
        shutdown.cancel();
        task.await.expect("no panic").expect("no error");
        assert!(!dir.join("pid").exists());
        std::fs::remove_dir_all(dir).expect("it was made above");
    }

    #[tokio::test]
    async fn a_left_process_is_ended_and_another_of_its_id_is_not() {
        let dir = std::env::temp_dir().join(format!("ambit-leftover-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory can be written");
        let file = dir.join("pid");
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep is there");
        let pid = child.id().expect("it runs");
        let started = start_time(pid).expect("it runs");
        std::fs::write(&file, format!("{pid} {}\n", started + 1)).expect("written");
        end_leftover(&file).await.expect("nothing to end");
        assert!(child.try_wait().expect("it can be asked").is_none(), "another process was ended");
        std::fs::write(&file, format!("{pid} {started}\n")).expect("written");
        end_leftover(&file).await.expect("it ends");
        assert!(!child.wait().await.expect("it can be asked").success());
        assert!(!file.exists());
        end_leftover(&file).await.expect("no file, nothing to do");
        std::fs::remove_dir_all(dir).expect("it was made above");
    }
}
