//! Keeps the mesh's plugin and its entry in the node's CNI configuration, whatever others do to it.
//!
//! The directory is looked at as a whole after every change, so that a file that comes later and sorts first is followed.

mod files;
mod uninstall;

pub use uninstall::{Removed, uninstall};

use crate::Error;
use crate::error::with_causes;
use crate::metrics::Metrics;
use ambit_cni_conf::list::PLUGIN_TYPE;
use ambit_cni_conf::rivalry::{Move, Rivalry, suspect};
use ambit_cni_conf::{Entry, File, Place, Plan, Step, Wanted, plan};
use ambit_linux::own_mounts::OwnMounts;
use ambit_linux::watch::DirectoryWatch;
use ambit_runtime::readiness::{Blocker, Readiness};
use ambit_runtime::{Clock, Shutdown};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between looks when nothing changes: a net below the kernel's notices, which it does not give for the target of a
/// symbolic link, for example.
const CHECK_PERIOD: Duration = Duration::from_secs(5);
/// Time between looks while something is missing or fails.
const RETRY_PERIOD: Duration = Duration::from_millis(500);
/// Where runtimes keep the results and configurations of the sandboxes that live.
const RESULTS: &str = "/var/lib/cni/results";

/// Settings of the installation.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The runtime's directory of configurations.
    pub conf_dir: PathBuf,
    /// The runtime's directory of plugins.
    pub bin_dir: PathBuf,
    /// The plugin's binary, which is copied.
    pub plugin: PathBuf,
    /// Where the entry goes.
    pub place: Place,
    /// Name of the configuration to use; by default the one that the runtime uses.
    pub conf_name: Option<String>,
    /// Whether the group may read a file that is made.
    pub group_read: bool,
    /// Where the runtime keeps the results of the sandboxes that live.
    pub results_dir: PathBuf,
}

impl Settings {
    /// The settings for the field's usual directories.
    pub fn new(plugin: impl Into<PathBuf>) -> Self {
        Self {
            conf_dir: "/etc/cni/net.d".into(),
            bin_dir: "/opt/cni/bin".into(),
            plugin: plugin.into(),
            place: Place::Primary,
            conf_name: None,
            group_read: false,
            results_dir: RESULTS.into(),
        }
    }

    fn mode_if_new(&self) -> u32 {
        if self.group_read { 0o640 } else { 0o600 }
    }
}

/// What a node's CNI configuration looks like to the installer, which changes nothing here.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The files that runtimes look at.
    pub files: Vec<File>,
    /// What would be done.
    pub plan: Plan,
}

/// Looks at the configuration directory as the installer does.
///
/// # Errors
/// The directory or a file cannot be read, or the runtime's configuration cannot be edited.
pub fn inspect(settings: &Settings, entry: Entry) -> Result<Inspection, Error> {
    let wanted = Wanted { entry, place: settings.place.clone(), name: settings.conf_name.clone() };
    let files = files::read_all(&settings.conf_dir)?;
    let edit = |source| Error::Edit { directory: settings.conf_dir.clone(), source };
    let plan = plan(&files, &wanted).map_err(edit)?;
    Ok(Inspection { files, plan })
}

/// What a look at the directory found.
#[derive(Debug)]
enum Found {
    /// All in place.
    InPlace,
    /// In place, but of no use: why.
    Useless(String),
    /// No configuration yet.
    Absent(String),
    /// A file was written.
    Wrote,
    /// A contested file is left alone for this time.
    Contested { wait: Duration, problem: String },
}

/// Where the installation is seen from outside.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Metrics,
}

/// Keeps everything in place until `shutdown`.
pub(crate) struct Installer {
    settings: Settings,
    entry: Entry,
    /// The process's own view of the files, in which a directory that replaces another is read-only at first.
    mounts: Option<Arc<OwnMounts>>,
    seen: Seen,
    started: Instant,
    rivalry: Rivalry,
    copied: files::Copied,
    /// What keeps the agent from being ready, with the problem that was reported.
    blocked: Option<(Blocker, String)>,
    ignored: Vec<ambit_cni_conf::choice::Ignored>,
}

impl Installer {
    pub(crate) fn new(settings: Settings, entry: Entry, mounts: Option<Arc<OwnMounts>>, seen: Seen) -> Self {
        let waiting = "the CNI configuration".to_owned();
        let blocked = Some((seen.readiness.block(waiting.clone()), waiting));
        Self {
            settings,
            entry,
            mounts,
            seen,
            started: Clock.now(),
            rivalry: Rivalry::default(),
            copied: files::Copied::default(),
            blocked,
            ignored: Vec::new(),
        }
    }

    fn now(&self) -> Duration {
        Clock.now().saturating_duration_since(self.started)
    }

    /// Works until `shutdown`; leaves everything in place, so that no pod starts past the plugin while another agent
    /// takes over.
    pub(crate) async fn run(mut self, shutdown: Shutdown) -> Result<(), Error> {
        let mut watch = None;
        for directory in [&self.settings.conf_dir, &self.settings.bin_dir] {
            if let Err(error) = files::sweep(directory) {
                tracing::warn!(error = %with_causes(&error), "could not remove what a crash may have left");
            }
        }
        while !shutdown.is_cancelled() {
            // Before the look, so that whatever changes after it is told.
            if watch.is_none() {
                watch = Watches::new(&self.settings).map_err(|e| self.block(with_causes(&e))).ok();
            }
            let looked = tokio::task::spawn_blocking(move || {
                let next = self.look(self.now());
                (self, next)
            });
            let next = match looked.await {
                Ok((installer, next)) => {
                    self = installer;
                    next
                }
                Err(panic) if panic.is_panic() => std::panic::resume_unwind(panic.into_panic()),
                Err(_) => return Err(Error::Unavailable { state: "stopping" }),
            };
            let Some(pause) = next else {
                // Our own changes; the look that follows sees those of others.
                watch.iter().for_each(Watches::forget);
                continue;
            };
            let changed = async {
                match &watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            // All branches are cancel safe.
            tokio::select! {
                () = shutdown.cancelled() => {}
                outcome = tokio::time::timeout(pause, changed) => match outcome {
                    Ok(Ok(())) => self.rivalry.note_change(self.now()),
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "lost the watch of the CNI directories");
                        watch = None;
                    }
                    // The directory may have been replaced by another of its name, which only a new watch sees.
                    Err(_) => watch = None,
                }
            }
        }
        Ok(())
    }

    /// Looks once, repairs what may be repaired, and tells how long to wait for a change; not at all after a write. `now`
    /// counts from the installer's start.
    fn look(&mut self, now: Duration) -> Option<Duration> {
        let target = self.settings.bin_dir.join(PLUGIN_TYPE);
        match files::copy_plugin(&self.settings.plugin, &target, &mut self.copied) {
            Ok(true) => {
                tracing::info!(path = %target.display(), "copied the plugin");
                return None;
            }
            Ok(false) => {}
            Err(error) => return Some(self.failed("COPY_BINARIES_FAILURE", &error)),
        }
        match self.repair(now) {
            Ok(Found::Wrote) => {
                self.seen.metrics.count_install("SUCCESS");
                None
            }
            Ok(Found::InPlace) => Some(self.in_place(now)),
            Ok(Found::Useless(problem)) => {
                self.block(problem);
                Some(CHECK_PERIOD)
            }
            Ok(Found::Absent(problem)) => {
                self.block(problem);
                Some(RETRY_PERIOD)
            }
            Ok(Found::Contested { wait, problem }) => {
                self.block(problem);
                Some(wait)
            }
            Err(error) => Some(self.failed("CREATE_CNI_CONFIG_FAILURE", &error)),
        }
    }

    /// A failure is tried again soon, since what causes it (a full disk, a directory that is not there) gives no notice when it ends.
    fn failed(&mut self, result: &'static str, error: &Error) -> Duration {
        self.seen.metrics.count_install(result);
        if let (Some(mounts), Error::File { path, source, .. }) = (&self.mounts, error)
            && source.kind() == io::ErrorKind::ReadOnlyFilesystem
            && let Some(directory) = path.parent()
            && let Err(refused) = mounts.let_write(directory)
        {
            tracing::debug!(error = %refused, "a directory stays read-only");
        }
        self.block(with_causes(error));
        RETRY_PERIOD
    }

    fn in_place(&mut self, now: Duration) -> Duration {
        if self.blocked.take().is_some() {
            tracing::info!(directory = %self.settings.conf_dir.display(), "the plugin and its entry are in place");
        }
        self.seen.metrics.set_installed(true);
        if self.rivalry.held(now) {
            tracing::info!("the other writer of the CNI configuration has stopped");
        }
        // Some more than the time, which would otherwise be short by a rounding.
        let peace = self.rivalry.peace_in(now).map(|peace| peace + Duration::from_millis(1));
        peace.map_or(CHECK_PERIOD, |peace| peace.min(CHECK_PERIOD))
    }

    /// Not ready, and why. The same problem is reported once.
    fn block(&mut self, problem: String) {
        self.seen.metrics.set_installed(false);
        if self.blocked.as_ref().is_some_and(|(_, known)| *known == problem) {
            return;
        }
        tracing::warn!(%problem, "the plugin is not in place");
        self.blocked = Some((self.seen.readiness.block(format!("CNI plugin: {problem}")), problem));
    }

    fn repair(&mut self, now: Duration) -> Result<Found, Error> {
        let directory = self.settings.conf_dir.clone();
        let Inspection { files, plan } = inspect(&self.settings, self.entry.clone())?;
        self.report_ignored(&plan);
        match &plan.step {
            Step::Wait => Ok(Found::Absent(format!(
                "there is no CNI configuration in {} that a runtime could use{}",
                directory.display(),
                plan.ignored.first().map_or(String::new(), |i| format!("; {}: {}", i.name, i.problem)),
            ))),
            Step::Rest => Ok(match &plan.preempted_by {
                None => Found::InPlace,
                Some(other) => Found::Useless(format!(
                    "the runtime uses {}, which sorts before the file with the mesh's plugin: {}",
                    directory.join(other).display(),
                    "rename one of the two, or set neither --cni-conf-name nor --cni-own-file"
                )),
            }),
            Step::Write { name, text, replaces } => {
                self.write(now, &files, (name, text), replaces.as_deref())
            }
        }
    }

    fn write(
        &mut self,
        now: Duration,
        files: &[File],
        (name, text): (&str, &str),
        replaces: Option<&str>,
    ) -> Result<Found, Error> {
        let before = self.rivalry.is_contested();
        let path = self.settings.conf_dir.join(name);
        let decided = self.rivalry.lost(now);
        if self.rivalry.is_contested() {
            let there = files.iter().find(|file| file.name == name || Some(file.name.as_str()) == replaces);
            let there = there.map(|file| String::from_utf8_lossy(&file.bytes)).unwrap_or_default();
            let (writer, remedy) = suspect(name, &there);
            let problem = format!(
                "{} is rewritten again and again without the mesh's plugin, probably by {writer}: {remedy}",
                path.display()
            );
            if !before {
                self.seen.metrics.count_install("CREATE_CNI_CONFIG_FAILURE");
            }
            if let Move::Wait(wait) = decided {
                return Ok(Found::Contested { wait, problem });
            }
        }
        let source = self.settings.conf_dir.join(replaces.unwrap_or(name));
        let mode = mode_of(&source).unwrap_or(self.settings.mode_if_new());
        files::write(&path, text.as_bytes(), mode)?;
        if let Some(replaced) = replaces {
            files::remove(&self.settings.conf_dir.join(replaced))?;
        }
        tracing::info!(path = %path.display(), ?replaces, "put the plugin into the CNI configuration");
        Ok(Found::Wrote)
    }

    fn report_ignored(&mut self, plan: &Plan) {
        if plan.ignored == self.ignored {
            return;
        }
        for ignored in &plan.ignored {
            let path = self.settings.conf_dir.join(&ignored.name);
            tracing::warn!(path = %path.display(), problem = %ignored.problem, "passed over a CNI configuration; runtimes may stop at it");
        }
        self.ignored.clone_from(&plan.ignored);
    }
}

fn mode_of(path: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).ok().map(|metadata| metadata.permissions().mode() & 0o777)
}

/// The watched directories.
struct Watches {
    conf: DirectoryWatch,
    bin: DirectoryWatch,
}

impl Watches {
    fn new(settings: &Settings) -> Result<Self, ambit_linux::Error> {
        Ok(Self {
            conf: DirectoryWatch::new(&settings.conf_dir)?,
            bin: DirectoryWatch::new(&settings.bin_dir)?,
        })
    }

    /// Cancel safe.
    async fn changed(&self) -> Result<(), ambit_linux::Error> {
        tokio::select! {
            outcome = self.conf.changed() => outcome,
            outcome = self.bin.changed() => outcome,
        }
    }

    fn forget(&self) {
        self.conf.forget();
        self.bin.forget();
    }
}

#[cfg(test)]
mod tests;
