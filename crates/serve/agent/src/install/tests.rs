use super::files::{WriteStep, sweep, write_steps};
use super::*;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// Longest wait for what must come, on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
const LIST: &str = "{\"name\": \"n\", \"cniVersion\": \"1.0.0\", \"plugins\": [{\"type\": \"calico\"}]}\n";
const SINGLE: &str = "{ \"name\": \"s\", \"cniVersion\": \"0.4.0\", \"type\": \"bridge\" }\n";

fn entry() -> Entry {
    Entry { run_dir: "/run/x".into(), exclude_namespaces: vec![], pod_namespace: "istio-system".into() }
}

/// Directories of a node, and an installer that works on them.
struct Node {
    dir: TempDir,
    settings: Settings,
    readiness: Readiness,
    registry: prometheus_client::registry::Registry,
    metrics: Metrics,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["conf", "bin", "results"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("plugin"), "#!/bin/false\n").unwrap();
        let at = |name: &str| dir.path().join(name);
        let settings = Settings {
            conf_dir: at("conf"),
            bin_dir: at("bin"),
            results_dir: at("results"),
            ..Settings::new(at("plugin"))
        };
        let (metrics, registry) = Metrics::new();
        Self { dir, settings, readiness: Readiness::default(), registry, metrics }
    }

    fn conf(&self, name: &str) -> PathBuf {
        self.settings.conf_dir.join(name)
    }

    fn installer(&self) -> Installer {
        let seen = Seen { readiness: self.readiness.clone(), metrics: self.metrics.clone() };
        Installer::new(self.settings.clone(), entry(), None, seen)
    }

    fn start(&self) -> Running {
        let installer = self.installer();
        let stop = Shutdown::new();
        let task = tokio::spawn(installer.run(stop.clone()));
        Running { stop, task }
    }

    fn has_entry(&self, name: &str) -> bool {
        let text = fs::read_to_string(self.conf(name)).unwrap_or_default();
        ambit_cni_conf::list::has_entry(&text)
    }

    fn is_ready(&self) -> bool {
        self.readiness.waiting_for().is_empty()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.settings.conf_dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

struct Running {
    stop: Shutdown,
    task: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Running {
    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// Looks until nothing is left to be done.
fn settle(installer: &mut Installer) {
    while installer.look(installer.now()).is_none() {}
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, waited).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

#[tokio::test]
async fn the_configuration_is_waited_for_edited_repaired_and_left_at_the_stop() {
    let node = Node::new();
    let running = node.start();
    until("the absence is told", || {
        node.readiness.waiting_for().iter().any(|w| w.contains("there is no CNI configuration in "))
    })
    .await;
    fs::write(node.conf("10-a.conflist"), LIST).unwrap();
    fs::set_permissions(node.conf("10-a.conflist"), fs::Permissions::from_mode(0o644)).unwrap();
    until("the entry is there", || node.has_entry("10-a.conflist") && node.is_ready()).await;
    fs::write(node.conf("10-a.conflist"), LIST).unwrap();
    until("the entry is there again", || node.has_entry("10-a.conflist")).await;
    let plugin = node.settings.bin_dir.join("ambit-cni");
    assert_eq!(fs::metadata(&plugin).unwrap().permissions().mode() & 0o777, 0o755);
    fs::remove_file(&plugin).unwrap();
    until("the plugin is there again", || plugin.exists()).await;
    fs::write(&plugin, "another").unwrap();
    until("the plugin is ours again", || fs::read_to_string(&plugin).is_ok_and(|t| t.contains("false")))
        .await;
    running.stop().await;
    assert!(node.has_entry("10-a.conflist") && plugin.exists());
    assert_eq!(node.names(), ["10-a.conflist"]);
}

#[tokio::test]
async fn a_later_file_that_sorts_first_is_followed() {
    let node = Node::new();
    fs::write(node.conf("20-b.conflist"), LIST).unwrap();
    let running = node.start();
    until("the entry is there", || node.has_entry("20-b.conflist")).await;
    fs::write(node.conf("10-a.conf"), SINGLE).unwrap();
    until("it is followed", || node.has_entry("10-a.conflist") && !node.conf("10-a.conf").exists()).await;
    fs::remove_file(node.conf("10-a.conflist")).unwrap();
    until("the old one serves", || node.has_entry("20-b.conflist") && node.is_ready()).await;
    running.stop().await;
    assert_eq!(node.names(), ["20-b.conflist"]);
}

#[tokio::test]
async fn a_directory_that_comes_later_and_is_replaced_is_followed() {
    let node = Node::new();
    fs::remove_dir(&node.settings.conf_dir).unwrap();
    let running = node.start();
    until("the absence is told", || node.readiness.waiting_for().iter().any(|w| w.contains("No such file")))
        .await;
    fs::create_dir(&node.settings.conf_dir).unwrap();
    fs::write(node.conf("10-a.conflist"), LIST).unwrap();
    until("the entry is there", || node.has_entry("10-a.conflist") && node.is_ready()).await;
    fs::rename(&node.settings.conf_dir, node.dir.path().join("old")).unwrap();
    fs::create_dir(&node.settings.conf_dir).unwrap();
    fs::write(node.conf("10-a.conflist"), LIST).unwrap();
    until("the entry is in the new one", || node.has_entry("10-a.conflist")).await;
    running.stop().await;
}

#[tokio::test]
async fn a_file_of_ones_own_follows_the_primary_one() {
    let mut node = Node::new();
    node.settings.place = Place::OwnFile("02-own.conflist".into());
    fs::write(node.conf("10-a.conflist"), LIST).unwrap();
    let running = node.start();
    until("the file is there", || node.has_entry("02-own.conflist") && node.is_ready()).await;
    assert_eq!(fs::read_to_string(node.conf("10-a.conflist")).unwrap(), LIST);
    assert_eq!(fs::metadata(node.conf("02-own.conflist")).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(node.conf("10-a.conflist"), LIST.replace("calico", "cilium-cni")).unwrap();
    let own = node.conf("02-own.conflist");
    until("it follows", || fs::read_to_string(&own).is_ok_and(|text| text.contains("cilium-cni"))).await;
    fs::write(node.conf("01-first.conflist"), LIST).unwrap();
    until("the file before it is told", || {
        node.readiness.waiting_for().iter().any(|w| w.contains("01-first.conflist, which sorts before"))
    })
    .await;
    running.stop().await;
}

/// One line of the installer's metrics.
fn count(node: &Node, result: &str) -> u64 {
    let text = crate::metrics::text(&node.registry);
    let name = format!("istio_cni_installs_total{{result=\"{result}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |number| number.parse().unwrap())
}

#[test]
fn a_writer_every_200_ms_for_30_s_meets_few_repairs_and_one_warning_and_the_entry_is_back_within_a_second() {
    let node = Node::new();
    let path = node.conf("10-a.conflist");
    fs::write(&path, LIST).unwrap();
    let mut installer = node.installer();
    settle(&mut installer);
    let mut now = installer.now();
    let end = now + Duration::from_secs(30);
    while now < end {
        now += Duration::from_millis(200);
        fs::write(&path, LIST).unwrap();
        installer.rivalry.note_change(now);
        while installer.look(now).is_none() {}
    }
    // The first of them is the one before the other writer came.
    assert_eq!(count(&node, "SUCCESS"), ambit_cni_conf::rivalry::REPAIRS_MAX as u64);
    assert_eq!(count(&node, "CREATE_CNI_CONFIG_FAILURE"), 1, "one warning");
    let waiting = node.readiness.waiting_for().join(" ");
    for part in ["10-a.conflist", "Calico", "--cni-own-file"] {
        assert!(waiting.contains(part), "{waiting}");
    }
    // It stops: the entry is back when the installer looks again, and that is soon.
    let wait = installer.look(now).unwrap();
    assert!(wait < Duration::from_secs(1), "{wait:?}");
    assert!(!node.has_entry("10-a.conflist"));
    while installer.look(now + wait).is_none() {}
    assert!(node.has_entry("10-a.conflist") && node.is_ready());
    assert_eq!(node.names(), ["10-a.conflist"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_entry_is_back_once_another_writer_has_stopped() {
    let node = Node::new();
    let path = node.conf("10-a.conflist");
    fs::write(&path, LIST).unwrap();
    let running = node.start();
    until("the entry is there", || node.is_ready()).await;
    for _ in 0..80 {
        fs::write(&path, LIST).unwrap();
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    until("the entry is back", || node.has_entry("10-a.conflist") && node.is_ready()).await;
    running.stop().await;
    assert_eq!(node.names(), ["10-a.conflist"]);
}

/// One thread: the installer notices nothing while the test does not let it.
#[tokio::test]
async fn a_change_among_more_notices_than_the_kernel_keeps_is_not_missed() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let node = Node::new();
    let path = node.conf("10-a.conflist");
    fs::write(&path, LIST).unwrap();
    let running = node.start();
    until("the entry is there", || node.has_entry("10-a.conflist") && node.is_ready()).await;
    // Two files in turn, since equal notices that follow each other are one.
    let mut files = ["a", "b"].map(|name| fs::File::create(node.conf(name)).unwrap());
    for _ in 0..limit {
        for file in &mut files {
            io::Write::write_all(file, b"1").unwrap();
        }
    }
    // The kernel has no room for the notice of this one.
    fs::write(&path, LIST).unwrap();
    until("the entry is back", || node.has_entry("10-a.conflist")).await;
    running.stop().await;
}

#[test]
fn a_write_that_ends_at_any_step_leaves_the_old_or_the_new_file_and_nothing_else() {
    let steps =
        [WriteStep::Create, WriteStep::Fill, WriteStep::Sync, WriteStep::Rename, WriteStep::SyncDirectory];
    for last in steps {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-a.conflist");
        fs::write(&path, LIST).unwrap();
        let crash = |step| if step == last { Err(io::Error::other("crash")) } else { Ok(()) };
        write_steps(&path, b"new", 0o600, crash).unwrap_err();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, if last == WriteStep::SyncDirectory { "new" } else { LIST }, "{last:?}");
        sweep(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{last:?}");
    }
}

#[test]
fn a_crash_between_the_list_and_the_removal_of_the_single_plugin_is_healed() {
    let node = Node::new();
    fs::write(node.conf("10-a.conf"), SINGLE).unwrap();
    let mut installer = node.installer();
    settle(&mut installer);
    assert_eq!(node.names(), ["10-a.conflist"]);
    fs::write(node.conf("10-a.conf"), SINGLE).unwrap();
    settle(&mut installer);
    assert_eq!(node.names(), ["10-a.conflist"]);
    uninstall(&node.settings).unwrap();
    assert_eq!(node.names(), ["10-a.conf"]);
    assert_eq!(fs::read_to_string(node.conf("10-a.conf")).unwrap(), SINGLE);
}

#[test]
fn a_full_disk_leaves_the_old_file_and_is_told() {
    // A mount namespace of this thread's own: nothing is mounted for anybody else.
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let node = Node::new();
        ambit_linux::mount::tmpfs(&node.settings.conf_dir, Some(8192), 0o755).unwrap();
        fs::write(node.conf("10-a.conflist"), LIST).unwrap();
        let filler = node.conf("filler");
        let mut size = 8192;
        while fs::write(&filler, vec![b'x'; size]).is_err() {
            size -= 1024;
        }
        let mut installer = node.installer();
        settle(&mut installer);
        assert_eq!(fs::read_to_string(node.conf("10-a.conflist")).unwrap(), LIST);
        assert_eq!(node.names(), ["10-a.conflist", "filler"]);
        let waiting = node.readiness.waiting_for().join(" ");
        assert!(waiting.contains("No space left"), "{waiting}");
        fs::remove_file(&filler).unwrap();
        settle(&mut installer);
        assert!(node.has_entry("10-a.conflist") && node.is_ready());
        ambit_linux::mount::unmount(&node.settings.conf_dir).unwrap();
    })
    .join()
    .unwrap();
}

fn record(config: &str) -> String {
    use base64::Engine as _;
    let config = base64::engine::general_purpose::STANDARD.encode(config);
    format!(r#"{{"kind":"cniCacheV1","containerId":"c","config":"{config}","ifName":"eth0"}}"#)
}

#[test]
fn the_plugin_stays_while_sandboxes_live_that_were_made_with_it() {
    let node = Node::new();
    fs::write(node.conf("10-a.conflist"), LIST).unwrap();
    let mut installer = node.installer();
    settle(&mut installer);
    let edited = fs::read_to_string(node.conf("10-a.conflist")).unwrap();
    let results = &node.settings.results_dir;
    fs::write(results.join("other"), record(LIST)).unwrap();
    for text in [record(&edited), "garbage".to_owned(), "{}".to_owned()] {
        fs::write(results.join("ours"), text).unwrap();
        let removed = uninstall(&node.settings).unwrap();
        assert!(removed.binary_kept_for.is_some_and(|file| file.ends_with("ours")));
        assert!(node.settings.bin_dir.join("ambit-cni").exists());
        assert_eq!(fs::read_to_string(node.conf("10-a.conflist")).unwrap(), LIST);
    }
    fs::remove_file(results.join("ours")).unwrap();
    let removed = uninstall(&node.settings).unwrap();
    assert_eq!((removed.binary_kept_for, removed.configurations), (None, Vec::new()));
    assert!(!node.settings.bin_dir.join("ambit-cni").exists());
    uninstall(&node.settings).unwrap();
}

#[test]
fn a_plugin_that_is_missing_is_told() {
    let node = Node::new();
    fs::write(node.conf("10-a.conflist"), LIST).unwrap();
    fs::remove_file(node.dir.path().join("plugin")).unwrap();
    let mut installer = node.installer();
    assert_eq!(installer.look(Duration::ZERO), Some(RETRY_PERIOD));
    let waiting = node.readiness.waiting_for().join(" ");
    assert!(waiting.contains("cannot read the plugin"), "{waiting}");
    assert!(!node.has_entry("10-a.conflist"), "no entry without a plugin");
}
