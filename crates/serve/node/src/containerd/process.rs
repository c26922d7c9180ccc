//! Starts containerd, waits for it, starts it again when it ends, and ends it.

use super::config::{self, Host, Snapshotter};
use super::{Programs, cleanup};
use crate::cri::Cri;
use crate::error::Error;
use crate::layout::Layout;
use ambit_linux::mount;
use ambit_runtime::{Backoff, Clock, Shutdown};
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tracing::{info, warn};

/// How long containerd may take to answer after its start.
const START_WAIT: Duration = Duration::from_secs(30);
/// Between two looks at whether it answers.
const START_POLL: Duration = Duration::from_millis(20);
/// Lines of the log that an error shows.
const LOG_TAIL_LINES: usize = 15;
/// Bytes of the log that are searched for them.
const LOG_TAIL_BYTES_MAX: u64 = 64 * 1024;
/// Size at which the log is started anew at the next start.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Delays between restarts.
const RESTART_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A running containerd.
#[derive(Debug)]
pub(crate) struct Runtime {
    layout: Layout,
    programs: Programs,
    child: Child,
}

impl Runtime {
    /// Writes the configuration, starts containerd and waits until it answers. One that an earlier process left is ended
    /// first; its containers go on and are found again.
    ///
    /// # Errors
    /// The files cannot be written, or containerd does not answer in time.
    pub(crate) async fn start(
        layout: Layout,
        programs: Programs,
        sandbox_image: &str,
        cri: &Cri,
    ) -> Result<Self, Error> {
        cleanup::end_left_runtime(&layout).await?;
        let directories = [layout.runtime_root(), layout.runtime_state(), layout.run_dir().join("tmp")];
        for dir in &directories {
            std::fs::create_dir_all(dir).map_err(Error::file("make the directory", dir))?;
        }
        let host = Host {
            snapshotter: choose_snapshotter(&layout.runtime_root()),
            may_lower_oom_score: may_lower_oom_score(),
        };
        let text = config::render(&layout, &programs, sandbox_image, host);
        let path = layout.runtime_config();
        std::fs::write(&path, text).map_err(Error::file("write", &path))?;
        let child = spawn(&layout, &programs)?;
        let mut runtime = Self { layout, programs, child };
        runtime.wait_until_it_answers(cri).await?;
        info!(pid = runtime.child.id(), ?host, "started containerd");
        Ok(runtime)
    }

    async fn wait_until_it_answers(&mut self, cri: &Cri) -> Result<(), Error> {
        let answers = async {
            loop {
                if cri.version().await.is_ok() {
                    return true;
                }
                if matches!(self.child.try_wait(), Ok(Some(_))) {
                    return false;
                }
                tokio::time::sleep(START_POLL).await;
            }
        };
        if tokio::time::timeout(START_WAIT, answers).await == Ok(true) {
            return Ok(());
        }
        let log = self.layout.runtime_log();
        let tail = log_tail(&log);
        let _ = self.child.kill().await;
        Err(Error::RuntimeStart { seconds: START_WAIT.as_secs(), log, tail })
    }

    /// Keeps containerd running until `shutdown`; it goes on running after that, for the pods to be ended.
    pub(crate) async fn watch(&mut self, clock: Clock, shutdown: &Shutdown) -> Result<(), Error> {
        let mut delays = Backoff::new(RESTART_DELAYS.0, RESTART_DELAYS.1);
        let mut started = clock.now();
        loop {
            tokio::select! {
                // Waiting for a child is cancel safe.
                ended = self.child.wait() => warn!(status = ?ended.ok(), "containerd ended, starting it again"),
                () = shutdown.cancelled() => return Ok(()),
            }
            if clock.now().duration_since(started) > RESTART_DELAYS.1 {
                delays.reset();
            }
            tokio::select! {
                () = tokio::time::sleep(delays.next_delay()) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
            started = clock.now();
            self.child = spawn(&self.layout, &self.programs)?;
        }
    }

    /// Ends containerd.
    pub(crate) async fn stop(&mut self) {
        if let Err(error) = ambit_runtime::process::stop(&mut self.child).await {
            warn!(%error, "cannot wait for containerd");
        }
        let _ = std::fs::remove_file(self.layout.runtime_pid());
    }
}

fn spawn(layout: &Layout, programs: &Programs) -> Result<Child, Error> {
    let log_path = layout.runtime_log();
    let large = std::fs::metadata(&log_path).is_ok_and(|m| m.len() > LOG_BYTES_MAX);
    let log = OpenOptions::new()
        .create(true)
        .append(!large)
        .write(true)
        .truncate(large)
        .open(&log_path)
        .map_err(Error::file("open", &log_path))?;
    let second = log.try_clone().map_err(Error::file("open", &log_path))?;
    let path = format!("{}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", programs.shim_dir.display());
    let child = Command::new(&programs.containerd)
        .arg("--config")
        .arg(layout.runtime_config())
        .env_clear()
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second)
        // A Ctrl-C on the terminal is for the process that starts it, which ends the pods first.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(Error::file("start", &programs.containerd))?;
    if let Some(pid) = child.id() {
        let path = layout.runtime_pid();
        std::fs::write(&path, pid.to_string()).map_err(Error::file("write", &path))?;
    }
    Ok(child)
}

/// Overlay, unless the file system below cannot hold one (an overlay itself, say).
fn choose_snapshotter(root: &Path) -> Snapshotter {
    let try_overlay = || -> Result<(), Error> {
        let dir = root.join("overlay-check");
        let [lower, upper, work, target] = ["lower", "upper", "work", "merged"].map(|name| dir.join(name));
        for path in [&lower, &upper, &work, &target] {
            std::fs::create_dir_all(path).map_err(Error::file("make the directory", path))?;
        }
        let tried = mount::overlay(&lower, &upper, &work, &target).and_then(|()| mount::unmount(&target));
        std::fs::remove_dir_all(&dir).map_err(Error::file("remove", &dir))?;
        Ok(tried?)
    };
    match try_overlay() {
        Ok(()) => Snapshotter::Overlay,
        Err(error) => {
            warn!(error = %error.full_text(), "no overlay mounts below the state directory: layers are copied");
            Snapshotter::Native
        }
    }
}

/// Whether this process has CAP_SYS_RESOURCE, bit 24 of the effective set. Source: proc(5), capabilities(7).
fn may_lower_oom_score() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set & (1 << 24) != 0)
}

/// The last lines of the log, of those that tell of a fault if there are any.
fn log_tail(path: &Path) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    let is_fault = |line: &&str| !line.contains("level=info") && !line.contains("level=debug");
    let faults: Vec<&str> = all.iter().copied().filter(is_fault).collect();
    let lines = if faults.is_empty() { all } else { faults };
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}
