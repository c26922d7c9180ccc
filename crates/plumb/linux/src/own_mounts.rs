//! A view of the file systems of the calling thread's own, in which only named directories can be written.
//!
//! Mounts that others make later are not seen in it where the machine does not share them; whoever must see them, such
//! as the namespaces of pods below /run/netns, opens them as seen from outside.

use crate::mount::{Mount, MountError};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The calling thread's own mounts, and a way to look past them.
#[derive(Debug)]
pub struct OwnMounts {
    /// The root directory as it was before.
    outside: OwnedFd,
    /// Keeps the mounts below `outside` where they are, should this process have been the only one that saw them.
    _namespace: OwnedFd,
}

impl OwnMounts {
    /// Gives the calling thread, and those that it starts later, mounts of its own, of which all are read-only but those at
    /// and below `writable`. What was read-only stays so. Mounts of pods are left out. Other threads are not touched: call it before there are any.
    ///
    /// # Errors
    /// A directory is missing, or the kernel refuses (it needs CAP_SYS_ADMIN, and Linux 5.12 or later). The thread may
    /// have mounts of its own by then, which are as they were outside.
    pub fn enter(writable: &[PathBuf]) -> Result<Self, MountError> {
        let root = Path::new("/");
        let look = |path: &str, flags| {
            let path = Path::new(path);
            open(path, flags | OFlag::O_CLOEXEC, Mode::empty()).map_err(|e| failed("a view", path, e))
        };
        let own = Self {
            outside: look("/", OFlag::O_PATH | OFlag::O_DIRECTORY)?,
            _namespace: look("/proc/thread-self/ns/mnt", OFlag::O_RDONLY)?,
        };
        unshare(CloneFlags::CLONE_NEWNS).map_err(|e| failed("a view", root, e))?;
        // What is mounted outside is still to be seen here where it is shared; nothing is ever to be seen there.
        let none: Option<&str> = None;
        let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
        mount(none, root, none, slave, none).map_err(|e| failed("a view", root, e))?;
        for mount in crate::mount::mounts()?.into_iter().rev().filter(is_of_a_pod) {
            match crate::mount::unmount(&mount.point) {
                // It went away with a mount above it, or by its owner's hand.
                Ok(()) | Err(MountError::Unmount { source: Errno::EINVAL | Errno::ENOENT, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let writable = writable.iter().map(|path| canonical(path)).collect::<Result<Vec<_>, _>>()?;
        for directory in outermost(writable.clone()) {
            crate::mount::bind(&directory, &directory, crate::mount::Access::ReadWrite)?;
        }
        let open: Vec<PathBuf> = crate::mount::mounts()?
            .into_iter()
            .filter(|mount| mount.writable && writable.iter().any(|path| mount.point.starts_with(path)))
            .map(|mount| mount.point)
            .collect();
        set_access(root, libc::AT_RECURSIVE, Change::Close)?;
        open.iter().try_for_each(|point| set_access(point, 0, Change::Open))?;
        Ok(own)
    }

    /// Opens a file for reading, as it is seen from outside. Paths below /proc are this process's own either way.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open_outside(&self, path: &Path) -> std::io::Result<File> {
        // Non-blocking: whoever names the path must not be able to make the open hang on a pipe.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        if path.starts_with("/proc") {
            return Ok(File::from(open(path, flags, Mode::empty())?));
        }
        // Absolute symbolic links (/var/run, for one) are those of the outside as well.
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        Ok(File::from(openat2(&self.outside, path, how)?))
    }

    /// Lets a directory be written that has taken the place of one that could be.
    ///
    /// # Errors
    /// It is missing, the kernel refuses, or it lies on a file system that cannot be written.
    pub fn let_write(&self, directory: &Path) -> Result<(), MountError> {
        let directory = canonical(directory)?;
        crate::mount::bind(&directory, &directory, crate::mount::Access::ReadWrite)?;
        set_access(&directory, 0, Change::Open)
    }
}

/// Whether a mount belongs to a pod: its namespaces, the files of its containers, its volumes. A view that holds one keeps it
/// in being after the pod, where the machine does not share its mounts: an address that is not given back, a disk that cannot
/// be detached. Source of the paths: containerd, CRI-O, Docker, kubelet.
fn is_of_a_pod(mount: &Mount) -> bool {
    let parts: Vec<&str> = mount.point.iter().filter_map(|part| part.to_str()).collect();
    let root_of_container = mount.kind == "overlay" && matches!(parts.last(), Some(&("rootfs" | "merged")));
    let volume = parts
        .windows(3)
        .any(|three| three[0] == "pods" && (three[2].starts_with("volume") || three[2] == "plugins"));
    mount.kind == "nsfs" || root_of_container || volume
}

#[derive(Clone, Copy)]
enum Change {
    Open,
    Close,
}

fn failed(what: &str, target: &Path, source: Errno) -> MountError {
    MountError::Mount { what: what.to_owned(), target: target.to_owned(), source }
}

fn canonical(path: &Path) -> Result<PathBuf, MountError> {
    let errno = |e: std::io::Error| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO));
    path.canonicalize().map_err(|e| failed("a directory on itself", path, errno(e)))
}

/// The directories that lie below none of the others.
fn outermost(mut directories: Vec<PathBuf>) -> Vec<PathBuf> {
    directories.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for directory in directories {
        if !kept.last().is_some_and(|outer| directory.starts_with(outer)) {
            kept.push(directory);
        }
    }
    kept
}

/// Makes the mount at `point` read-only or writable; with `AT_RECURSIVE` those below it too. Source: mount_setattr(2).
fn set_access(point: &Path, flags: libc::c_int, change: Change) -> Result<(), MountError> {
    let read_only = libc::MOUNT_ATTR_RDONLY;
    let (attr_set, attr_clr, what) = match change {
        Change::Open => (0, read_only, "write access"),
        Change::Close => (read_only, 0, "read-only access"),
    };
    let attributes = libc::mount_attr { attr_set, attr_clr, propagation: 0, userns_fd: 0 };
    let path = CString::new(point.as_os_str().as_bytes()).map_err(|_| failed(what, point, Errno::EINVAL))?;
    // SAFETY: the path is NUL-terminated and the attributes have the size that is told; both outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(done).map(drop).map_err(|e| failed(what, point, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::{Access, bind, tmpfs, unmount_below};
    use crate::netns::NetNs;
    use std::fs;
    use std::io::ErrorKind;

    /// On a thread of its own, with mounts that no one else sees.
    #[track_caller]
    fn apart(test: impl FnOnce(&Path) + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root");
                let none: Option<&str> = None;
                mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
                let dir = tempfile::tempdir().unwrap();
                test(dir.path());
            });
        });
    }

    fn folders<const N: usize>(dir: &Path, names: [&str; N]) -> [PathBuf; N] {
        names.map(|name| {
            fs::create_dir_all(dir.join(name)).unwrap();
            dir.join(name)
        })
    }

    #[track_caller]
    fn check_writable(directory: &Path, expected: bool) {
        let written = fs::write(directory.join("file"), "x").map_err(|e| e.kind());
        let expected = if expected { Ok(()) } else { Err(ErrorKind::ReadOnlyFilesystem) };
        assert_eq!(written, expected, "{}", directory.display());
    }

    #[test]
    fn only_the_named_directories_can_be_written() {
        apart(|dir| {
            let [open, inner, mounted, closed, read_only] =
                folders(dir, ["open", "open/inner", "open/mounted", "closed", "open/read-only"]);
            tmpfs(&mounted, None, 0o755).unwrap();
            bind(&closed, &read_only, Access::ReadOnly).unwrap();
            // On a thread within this one, which sees its mounts: the clean-up is done by this one.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let own = OwnMounts::enter(&[inner.clone(), open.clone()]).unwrap();
                    for folder in [&open, &inner, &mounted] {
                        check_writable(folder, true);
                    }
                    for folder in [&closed, &read_only, dir, Path::new("/")] {
                        check_writable(folder, false);
                    }
                    own.let_write(&closed).unwrap();
                    check_writable(&closed, true);
                });
            });
            check_writable(&closed, true);
            unmount_below(dir).unwrap();
        });
    }

    #[test]
    fn mounts_made_outside_later_are_seen_by_who_looks_outside() {
        apart(|dir| {
            let [namespaces] = folders(dir, ["real/netns"]);
            std::os::unix::fs::symlink(dir.join("real"), dir.join("link")).unwrap();
            let name = namespaces.join("pod");
            fs::write(&name, "").unwrap();
            let path = dir.join("link/netns/pod");
            let pod = NetNs::create_private().unwrap();
            let (entered, is_entered) = std::sync::mpsc::channel();
            let (mounted, is_mounted) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                let (path, id) = (&path, pod.id());
                scope.spawn(move || {
                    let own = OwnMounts::enter(&[]).unwrap();
                    entered.send(()).unwrap();
                    is_mounted.recv().unwrap();
                    // It is no mount in this view, and the pod's namespace in the other.
                    assert!(fs::metadata(path).unwrap().is_file());
                    NetNs::open(path).unwrap_err();
                    let file = own.open_outside(path).unwrap();
                    assert_eq!(NetNs::from_fd(file.into()).unwrap().id(), id);
                    let own_netns = own.open_outside(Path::new("/proc/thread-self/ns/net")).unwrap();
                    NetNs::from_fd(own_netns.into()).unwrap();
                    let missing = own.open_outside(Path::new("/nowhere/at/all")).unwrap_err();
                    assert_eq!(missing.kind(), ErrorKind::NotFound);
                });
                is_entered.recv().unwrap();
                use std::os::fd::{AsFd, AsRawFd};
                let source = format!("/proc/thread-self/fd/{}", pod.as_fd().as_raw_fd());
                bind(Path::new(&source), &name, Access::ReadWrite).unwrap();
                mounted.send(()).unwrap();
            });
            unmount_below(dir).unwrap();
        });
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        apart(|dir| {
            let error = OwnMounts::enter(&[dir.join("none")]).unwrap_err().to_string();
            assert!(error.contains("none: ENOENT"), "{error}");
        });
    }

    #[test]
    fn mounts_of_pods_are_not_held_by_a_view() {
        apart(|dir| {
            let [namespaces, volume, other] = folders(dir, ["netns", "pods/uid/volumes/disk", "other"]);
            let name = namespaces.join("pod");
            fs::write(&name, "").unwrap();
            let pod = NetNs::create_private().unwrap();
            use std::os::fd::{AsFd, AsRawFd};
            let source = format!("/proc/thread-self/fd/{}", pod.as_fd().as_raw_fd());
            bind(Path::new(&source), &name, Access::ReadWrite).unwrap();
            tmpfs(&volume, None, 0o755).unwrap();
            tmpfs(&other, None, 0o755).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let own = OwnMounts::enter(&[]).unwrap();
                    assert_eq!(crate::mount::mount_points_below(dir).unwrap(), std::slice::from_ref(&other));
                    let file = own.open_outside(&name).unwrap();
                    assert_eq!(NetNs::from_fd(file.into()).unwrap().id(), pod.id());
                });
            });
            assert_eq!(unmount_below(dir).unwrap(), 3, "nothing was taken away outside");
        });
    }

    #[track_caller]
    fn check_of_a_pod(kind: &str, point: &str, expected: bool) {
        let mount = Mount { point: point.into(), writable: true, kind: kind.to_owned() };
        assert_eq!(is_of_a_pod(&mount), expected, "{kind} {point}");
    }

    #[test]
    fn mounts_of_pods_are_known_by_their_type_and_place() {
        check_of_a_pod("nsfs", "/run/netns/cni-1", true);
        check_of_a_pod("overlay", "/run/containerd/io.containerd.runtime.v2.task/k8s.io/1/rootfs", true);
        check_of_a_pod("overlay", "/var/lib/containers/storage/overlay/1/merged", true);
        check_of_a_pod("tmpfs", "/var/lib/kubelet/pods/1/volumes/kubernetes.io~secret/token", true);
        check_of_a_pod("ext4", "/var/lib/kubelet/pods/1/volume-subpaths/data/app/0", true);
        check_of_a_pod("overlay", "/", false);
        check_of_a_pod("overlay", "/etc", false);
        check_of_a_pod("tmpfs", "/run", false);
        check_of_a_pod("ext4", "/var/lib/kubelet/pods", false);
        check_of_a_pod("ext4", "/srv/rootfs", false);
    }

    #[track_caller]
    fn check_outermost(directories: &[&str], expected: &[&str]) {
        let directories = directories.iter().map(PathBuf::from).collect();
        assert_eq!(outermost(directories), expected.iter().map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn directories_below_others_are_left_out() {
        check_outermost(&["/run/b", "/run/a", "/run/a/b", "/run/a"], &["/run/a", "/run/b"]);
        check_outermost(&["/run/ab", "/run/a"], &["/run/a", "/run/ab"]);
        check_outermost(&["/x", "/"], &["/"]);
        check_outermost(&[], &[]);
    }
}
