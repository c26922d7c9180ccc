//! A cluster started by the program itself, as a user starts it.

use crate::wait::POLL;
use anyhow::{Context, Result, anyhow, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the cluster may take until its API answers and its node is ready.
const START_WAIT: Duration = Duration::from_secs(120);
/// How long the cluster may take to clean up after Ctrl-C.
const STOP_WAIT: Duration = Duration::from_secs(60);

/// Where the built programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Folder with `ambit`, `ambit-cni`, `ambit-pause` and `ambit-demo-app`.
    pub dir: PathBuf,
}

impl Programs {
    /// Checks that all programs are there.
    ///
    /// # Errors
    /// One is missing; the message says how to build it.
    pub fn find(dir: &Path) -> Result<Self> {
        for name in ["ambit", "ambit-cni", "ambit-pause", "ambit-demo-app"] {
            if !dir.join(name).is_file() {
                bail!(
                    "{} is missing: build the programs with `make programs` (or `make demo`, `make test`)",
                    dir.join(name).display()
                );
            }
        }
        Ok(Self { dir: dir.to_owned() })
    }
}

/// A running cluster; killed when dropped, stopped cleanly by [`Cluster::stop`].
#[derive(Debug)]
pub struct Cluster {
    command: Command,
    child: Child,
    state: PathBuf,
    /// When `ambit up` was started.
    pub started: Instant,
}

impl Cluster {
    /// Starts `ambit up` on `state` with the manifests, and with another node proxy's program if one is given.
    ///
    /// # Errors
    /// The program or its log file cannot be started.
    #[expect(clippy::disallowed_methods, reason = "the demo measures what a user sees")]
    pub fn start(programs: &Programs, state: &Path, manifests: &Path, proxy: Option<&Path>) -> Result<Self> {
        let mut command = Command::new(programs.dir.join("ambit"));
        command.arg("up").arg("--state").arg(state.join("cluster"));
        command.arg("--write-kubeconfig").arg(state.join("kubeconfig"));
        command.arg("--image").arg(state.join("demo-app.tar"));
        command.args(proxy.into_iter().flat_map(|p| [OsStr::new("--proxy"), p.as_os_str()]));
        let child = spawn(&command, state, &[OsStr::new("-f"), manifests.as_os_str()])?;
        Ok(Self { command, child, state: state.to_owned(), started: Instant::now() })
    }

    /// Kills `ambit up` without any warning and starts it again on the same state, without manifests.
    ///
    /// # Errors
    /// It cannot be killed or started.
    #[expect(clippy::disallowed_methods, reason = "the demo measures what a user sees")]
    pub fn kill_and_start(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill ambit up")?;
        self.child.wait()?;
        // Whoever reads it next waits for the one that the new process writes.
        std::fs::remove_file(self.kubeconfig()).context("cannot remove the old kubeconfig")?;
        self.started = Instant::now();
        self.child = spawn(&self.command, &self.state, &[])?;
        Ok(())
    }

    /// Packs the demo workload into an image that `ambit up` imports.
    ///
    /// # Errors
    /// The program fails.
    pub fn pack_image(programs: &Programs, state: &Path) -> Result<()> {
        let packed = Command::new(programs.dir.join("ambit"))
            .args(["image", "pack", "--name", "ambit.local/demo-app:1", "--output"])
            .arg(state.join("demo-app.tar"))
            .arg(programs.dir.join("ambit-demo-app"))
            .output()
            .context("cannot start ambit image pack")?;
        if !packed.status.success() {
            bail!("ambit image pack failed: {}", String::from_utf8_lossy(&packed.stderr));
        }
        Ok(())
    }

    /// Process id of `ambit up`.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The kubeconfig that the cluster wrote.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// Folder of the cluster's own state.
    pub fn state_dir(&self) -> PathBuf {
        self.state.join("cluster")
    }

    /// Waits until the API answers, and connects to it with the kubeconfig over TLS.
    ///
    /// # Errors
    /// `ambit up` ended, or did not answer in time; the message holds the end of its log.
    pub async fn client(&mut self) -> Result<kube::Client> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("ambit up ended with {status}:\n{}", self.log_tail());
            }
            if self.started.elapsed() > START_WAIT {
                bail!("ambit up did not get ready in {START_WAIT:?}:\n{}", self.log_tail());
            }
            if let Ok(client) = self.try_client().await {
                return Ok(client);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn try_client(&self) -> Result<kube::Client> {
        let config = Kubeconfig::read_from(self.kubeconfig())?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let client = kube::Client::try_from(config)?;
        client.apiserver_version().await?;
        Ok(client)
    }

    /// The last lines of the log of `ambit up`.
    pub fn log_tail(&self) -> String {
        tail(&self.state.join("up.log"), 30)
    }

    /// Lines of the node proxy's log that hold all of `words`.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn proxy_log(&self, words: &[&str]) -> Result<Vec<String>> {
        let path = self.state_dir().join("log/proxy.log");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.lines().filter(|l| words.iter().all(|w| l.contains(w))).map(str::to_owned).collect())
    }

    /// Process id of a part that `ambit up` runs as a process of its own: the child whose arguments hold `word`.
    ///
    /// # Errors
    /// There is none.
    pub fn part(&self, word: &str) -> Result<Pid> {
        children_of(self.child.id())
            .into_iter()
            .find(|pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.split(|b| *b == 0).any(|a| a == word.as_bytes())
            })
            .map(|pid| Pid::from_raw(pid.cast_signed()))
            .ok_or_else(|| anyhow!("ambit up runs no process with the argument {word:?}"))
    }

    /// Ends the cluster as Ctrl-C does, and waits for it.
    ///
    /// # Errors
    /// It does not end in time, or ends with an error.
    #[expect(clippy::disallowed_methods, reason = "the demo measures what a user sees")]
    pub fn stop(mut self) -> Result<Duration> {
        let asked = Instant::now();
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT)
            .context("cannot signal ambit up")?;
        while asked.elapsed() < STOP_WAIT {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!("ambit up ended with {status}:\n{}", self.log_tail());
                }
                return Ok(asked.elapsed());
            }
            std::thread::sleep(POLL);
        }
        bail!("ambit up did not end within {STOP_WAIT:?}:\n{}", self.log_tail())
    }

    /// Lets the cluster run on after this process.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A check that panicked must leave nothing running: first the clean way, then the hard one.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT);
            for _ in 0..300 {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(POLL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Starts `ambit up` with more arguments; its output goes to the log file.
fn spawn(command: &Command, state: &Path, more: &[&OsStr]) -> Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(state.join("up.log"))
        .context("cannot write the log file")?;
    let mut once = Command::new(command.get_program());
    once.args(command.get_args()).args(more).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    once.spawn().context("cannot start ambit up")
}

/// Direct children of a process.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok())
        .flat_map(|line| line.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// The last `count` lines of a file; empty when it cannot be read.
fn tail(path: &Path, count: usize) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
