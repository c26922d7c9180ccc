//! Finds the network namespaces of pods that run already, through the processes of this node.

use crate::Error;
use crate::capture::is_of;
use ambit_linux::netns::{NetNs, NetNsId};
use ambit_linux::own_mounts::OwnMounts;
use ambit_linux::{Error as LinuxError, process};
use ambit_runtime::Clock;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a look at all processes serves other pods as well: many pods are enrolled at once at the start or with a
/// namespace's label, and each look reads three files of every process. What is found is proven again when it is used.
const SCAN_AGE_MAX: Duration = Duration::from_secs(1);

/// Where to look for the processes of pods. Clones share what was seen last.
#[derive(Debug, Clone)]
pub(crate) struct Finder {
    proc_root: Arc<Path>,
    /// The node's own network namespace, which is no pod's.
    node: NetNsId,
    /// The process's own view of the files, past which the runtime's names of namespaces are looked up.
    mounts: Option<Arc<OwnMounts>>,
    clock: Clock,
    last: Arc<Mutex<Option<Scan>>>,
}

#[derive(Debug, Clone)]
struct Scan {
    begun: Instant,
    found: Arc<Found>,
}

/// Processes of pods at one moment.
#[derive(Debug)]
pub(crate) struct Found {
    proc_root: Arc<Path>,
    /// By the pod's UID, oldest first.
    processes: HashMap<String, Vec<process::PodProcess>>,
}

impl Finder {
    pub(crate) fn new(proc_root: &Path, node: NetNsId, mounts: Option<Arc<OwnMounts>>) -> Self {
        Self { proc_root: proc_root.into(), node, mounts, clock: Clock, last: Arc::default() }
    }

    /// The namespace that a runtime names by a path: as the runtime sees it, since it may have been mounted there just now.
    pub(crate) fn open(&self, path: &Path) -> Result<NetNs, LinuxError> {
        let Some(mounts) = &self.mounts else { return NetNs::open(path) };
        let file = mounts
            .open_outside(path)
            .map_err(|e| LinuxError::system(format!("open the network namespace {}", path.display()), e))?;
        NetNs::from_file(file, path)
    }

    /// The network namespace of the node itself.
    pub(crate) fn node(&self) -> NetNsId {
        self.node
    }

    /// Looks at all processes. Those who ask at the same time share one look.
    pub(crate) fn scan(&self) -> Result<Arc<Found>, Error> {
        let asked = self.clock.now();
        self.scan_since(asked)
    }

    /// The namespace of a running pod: in what was seen lately, else in a new look.
    pub(crate) fn find(&self, pod: &str, uid: &str, addresses: &[IpAddr]) -> Result<NetNs, Error> {
        let asked = self.clock.now();
        let lately = self.scan_since(asked.checked_sub(SCAN_AGE_MAX).unwrap_or(asked))?;
        match lately.namespace(pod, uid, addresses) {
            Ok(netns) => Ok(netns),
            Err(_) => self.scan_since(asked)?.namespace(pod, uid, addresses),
        }
    }

    fn scan_since(&self, since: Instant) -> Result<Arc<Found>, Error> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scan) = last.as_ref().filter(|scan| scan.begun >= since) {
            return Ok(scan.found.clone());
        }
        let begun = self.clock.now();
        let listed = process::pod_processes(&self.proc_root, self.node)
            .map_err(Error::kernel("look for the processes of pods"))?;
        let mut processes: HashMap<String, Vec<_>> = HashMap::new();
        for process in listed {
            processes.entry(process.pod_uid.clone()).or_default().push(process);
        }
        let found = Arc::new(Found { proc_root: self.proc_root.clone(), processes });
        *last = Some(Scan { begun, found: found.clone() });
        Ok(found)
    }
}

impl Found {
    /// The one namespace in which processes of the pod live and which holds one of the pod's addresses. Refuses when
    /// there are two of them: rules in the wrong one would capture somebody else. `pod` is for messages.
    pub(crate) fn namespace(&self, pod: &str, uid: &str, addresses: &[IpAddr]) -> Result<NetNs, Error> {
        let mut tried = HashSet::new();
        let mut proven: Option<NetNs> = None;
        for process in self.processes.get(uid).into_iter().flatten() {
            if tried.contains(&process.netns) {
                continue;
            }
            let path = process::netns_path(&self.proc_root, process.pid);
            // A process that has ended since is no reason to give up on the others, nor is one whose id now belongs
            // to a process that lives elsewhere.
            let Ok(netns) = NetNs::open(&path) else { continue };
            if netns.id() != process.netns {
                continue;
            }
            tried.insert(process.netns);
            if !is_of(&netns, addresses) {
                continue;
            }
            if let Some(first) = &proven {
                let namespaces = [first.id().to_string(), netns.id().to_string()];
                return Err(Error::TwoNamespaces { pod: pod.to_owned(), namespaces });
            }
            proven = Some(netns);
        }
        let pod = pod.to_owned();
        proven.ok_or_else(|| match tried.is_empty() {
            true => Error::NoProcess { pod, proc_root: self.proc_root.to_path_buf() },
            false => Error::NotThePods { pod, addresses: addresses.to_vec() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Node, shell};
    use std::os::fd::{AsFd, AsRawFd};

    const WEB: &str = "3b1f1ca4-1f0b-4a3e-9d53-0b0a4d9c8e71";
    const DB: &str = "9c2e7b10-55aa-4f0e-8a11-2f4e6d8c0b3a";

    /// A /proc in which a process of pod `uid` lives in `netns`.
    fn proc_of(root: &Path, pid: u32, started: u64, uid: &str, netns: &NetNs) {
        let directory = root.join(pid.to_string());
        std::fs::create_dir_all(directory.join("ns")).unwrap();
        let target = format!("/proc/self/fd/{}", netns.as_fd().as_raw_fd());
        std::os::unix::fs::symlink(target, directory.join("ns/net")).unwrap();
        std::fs::write(directory.join("cgroup"), format!("0::/kubepods/pod{uid}/c{pid}\n")).unwrap();
        std::fs::write(directory.join("stat"), format!("{pid} (x) S {}{started}", "0 ".repeat(18))).unwrap();
    }

    /// Descriptors of this process that are open on one of the namespaces; those of other tests do not count.
    fn descriptors(of: &[&NetNs]) -> usize {
        let names: Vec<String> = of.iter().map(|netns| netns.id().to_string()).collect();
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        // One that was closed meanwhile has no target any more.
        let targets = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        targets.filter(|target| names.iter().any(|name| target.as_os_str() == name.as_str())).count()
    }

    #[test]
    fn a_pod_whose_processes_live_in_two_namespaces_gets_its_own() {
        let mut node = Node::new();
        let (pod, other) = (node.add_pod(), node.add_pod());
        let proc = tempfile::tempdir().unwrap();
        // The oldest process with the pod's UID is in a namespace that is not the pod's.
        proc_of(proc.path(), 10, 1, WEB, &other.netns);
        proc_of(proc.path(), 11, 2, WEB, &pod.netns);
        let finder = Finder::new(proc.path(), node.netns.id(), None);
        let found = finder.scan().unwrap();
        assert_eq!(found.namespace("shop/web", WEB, &[pod.address]).unwrap().id(), pod.netns.id());
        let nowhere = [IpAddr::from([10, 9, 9, 9])];
        let refused = |uid: &str| found.namespace("shop/web", uid, &nowhere).unwrap_err().to_string();
        assert!(refused(WEB).contains("holds none of its addresses [10.9.9.9]"), "{}", refused(WEB));
        assert!(refused(DB).starts_with("no process of pod shop/web was found below"), "{}", refused(DB));
    }

    #[test]
    fn a_process_of_one_pod_inside_another_s_namespace_never_enrolls_it_there() {
        let mut node = Node::new();
        let (web, db) = (node.add_pod(), node.add_pod());
        let proc = tempfile::tempdir().unwrap();
        proc_of(proc.path(), 10, 1, WEB, &web.netns);
        // A process of the database that entered the web pod's network, and nothing else of it.
        proc_of(proc.path(), 11, 2, DB, &web.netns);
        let finder = Finder::new(proc.path(), node.netns.id(), None);
        let refused = finder.find("shop/db", DB, &[db.address]).unwrap_err();
        assert!(matches!(refused, Error::NotThePods { .. }), "{refused}");
        assert_eq!(finder.find("shop/web", WEB, &[web.address]).unwrap().id(), web.netns.id());
        // Its own process comes up: what was seen before is not believed for ever.
        proc_of(proc.path(), 12, 3, DB, &db.netns);
        assert_eq!(finder.find("shop/db", DB, &[db.address]).unwrap().id(), db.netns.id());
    }

    #[test]
    fn two_namespaces_with_the_pod_s_address_are_refused() {
        let mut node = Node::new();
        let pod = node.add_pod();
        let twin = NetNs::create_private().unwrap();
        twin.run(|| shell(&format!("ip link set lo up; ip addr add {}/32 dev lo", pod.address))).unwrap();
        let proc = tempfile::tempdir().unwrap();
        proc_of(proc.path(), 10, 1, WEB, &pod.netns);
        proc_of(proc.path(), 11, 2, WEB, &twin);
        let finder = Finder::new(proc.path(), node.netns.id(), None);
        let refused = finder.find("shop/web", WEB, &[pod.address]).unwrap_err();
        assert!(matches!(refused, Error::TwoNamespaces { .. }), "{refused}");
        assert!(refused.to_string().contains(&twin.id().to_string()), "{refused}");
    }

    #[test]
    fn the_node_s_own_namespace_and_reused_process_ids_are_no_pod_s() {
        let mut node = Node::new();
        let (pod, other) = (node.add_pod(), node.add_pod());
        let proc = tempfile::tempdir().unwrap();
        proc_of(proc.path(), 9, 1, WEB, &node.netns);
        proc_of(proc.path(), 10, 2, WEB, &pod.netns);
        let finder = Finder::new(proc.path(), node.netns.id(), None);
        let found = finder.scan().unwrap();
        // The id now belongs to a process of another pod.
        std::fs::remove_dir_all(proc.path().join("10")).unwrap();
        proc_of(proc.path(), 10, 3, DB, &other.netns);
        let refused = found.namespace("shop/web", WEB, &[pod.address]).unwrap_err();
        assert!(matches!(refused, Error::NoProcess { .. }), "{refused}");
        assert_eq!(finder.find("shop/db", DB, &[other.address]).unwrap().id(), other.netns.id());
    }

    #[test]
    fn looking_for_pods_leaves_no_descriptor_open() {
        let mut node = Node::new();
        let (pod, other) = (node.add_pod(), node.add_pod());
        let proc = tempfile::tempdir().unwrap();
        proc_of(proc.path(), 10, 1, WEB, &other.netns);
        proc_of(proc.path(), 11, 2, WEB, &pod.netns);
        proc_of(proc.path(), 12, 2, DB, &other.netns);
        let finder = Finder::new(proc.path(), node.netns.id(), None);
        let namespaces = [&*pod.netns, &*other.netns];
        let before = descriptors(&namespaces);
        assert_eq!(before, 2, "those of the test itself");
        for _ in 0..1_000 {
            drop(finder.scan().unwrap());
        }
        for _ in 0..50 {
            let found = finder.find("shop/web", WEB, &[pod.address]).unwrap();
            assert_eq!(descriptors(&namespaces), before + 1);
            drop(found);
            drop(finder.find("shop/db", DB, &[pod.address]).unwrap_err());
        }
        assert_eq!(descriptors(&namespaces), before);
    }
}
