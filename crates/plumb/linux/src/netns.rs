//! Network namespaces: opening, identifying, and running code inside one.

use crate::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What tells one namespace from another while either is alive: device and inode of its nsfs file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetNsId {
    /// Device of the namespace file system.
    pub device: u64,
    /// Inode, unique on that device.
    pub inode: u64,
}

impl fmt::Display for NetNsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net:[{}]", self.inode)
    }
}

/// An open network namespace. It lives at least as long as this handle.
#[derive(Debug)]
pub struct NetNs {
    file: File,
    id: NetNsId,
}

impl NetNs {
    /// Opens the namespace at `path` (`/proc/PID/ns/net` or a bind mount of it).
    ///
    /// # Errors
    /// The file cannot be opened, or is not a network namespace.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // Non-blocking: whoever names the path must not be able to make the open hang on a pipe.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)
            .map_err(|e| Error::system(format!("open the network namespace {}", path.display()), e))?;
        Self::from_file(file, path)
    }

    /// Takes over a descriptor, for example one received from a peer.
    ///
    /// # Errors
    /// It is not a network namespace.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, Error> {
        Self::from_file(File::from(fd), Path::new("the received descriptor"))
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub fn current() -> Result<Self, Error> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// A new namespace that nothing else uses, with its loopback interface up.
    ///
    /// # Errors
    /// The process may not create namespaces.
    pub fn create_private() -> Result<Self, Error> {
        on_thread(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
                .map_err(|e| Error::system("create a network namespace", e))?;
            crate::route::set_up("lo")?;
            Self::current()
        })
    }

    /// Takes over an open file. `path` is for messages.
    ///
    /// # Errors
    /// It is not a network namespace.
    pub fn from_file(file: File, path: &Path) -> Result<Self, Error> {
        let not_one = || Error::NotANetworkNamespace { path: path.to_owned() };
        // SAFETY: the descriptor is open for the whole call, and NS_GET_NSTYPE takes no argument.
        let kind = unsafe { libc::ioctl(file.as_raw_fd(), libc::NS_GET_NSTYPE) };
        if kind != libc::CLONE_NEWNET {
            return Err(not_one());
        }
        let meta = file.metadata().map_err(|e| Error::system("read a namespace's identity", e))?;
        Ok(Self { id: NetNsId { device: meta.dev(), inode: meta.ino() }, file })
    }

    /// Device and inode.
    pub fn id(&self) -> NetNsId {
        self.id
    }

    /// Inode.
    pub fn inode(&self) -> u64 {
        self.id.inode
    }

    /// A second handle on the same namespace.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { file: self.file.try_clone()?, id: self.id })
    }

    /// Runs `work` inside the namespace, on a thread of its own that ends with it, and waits for it. Sockets made by
    /// `work` stay in the namespace. Blocks the caller: call it through `spawn_blocking` from async code.
    ///
    /// # Errors
    /// The thread cannot be made or may not enter the namespace.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        on_thread(|| {
            nix::sched::setns(self.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET)
                .map_err(|e| Error::system(format!("enter the network namespace {}", self.id), e))?;
            Ok(work())
        })
    }
}

/// Runs `work` on a fresh thread, whose namespace may change without touching any other.
fn on_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, work)
            .map_err(|e| Error::system("start a thread", e))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_inside_and_the_caller_stays_outside() {
        let outside = NetNs::current().unwrap();
        let inside = NetNs::create_private().unwrap();
        assert_ne!(outside.id(), inside.id());
        let seen = inside.run(|| NetNs::current().map(|ns| ns.id())).unwrap().unwrap();
        assert_eq!(seen, inside.id());
        assert_eq!(NetNs::current().unwrap().id(), outside.id());
        assert_eq!(inside.try_clone().unwrap().inode(), inside.inode());
    }

    #[track_caller]
    fn check_refused(path: &str, expected: &str) {
        let error = NetNs::open(Path::new(path)).expect_err(path);
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn other_files_are_refused() {
        check_refused("/proc/self/ns/mnt", "/proc/self/ns/mnt is not a network namespace");
        check_refused("/dev/null", "/dev/null is not a network namespace");
        check_refused("/nowhere", "cannot open the network namespace /nowhere");
    }

    #[test]
    fn a_new_namespace_has_a_working_loopback() {
        let inside = NetNs::create_private().unwrap();
        let echoed = inside.run(|| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            std::net::TcpStream::connect(listener.local_addr()?).map(drop)
        });
        echoed.unwrap().unwrap();
    }
}
