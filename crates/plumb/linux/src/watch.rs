//! Changes of the files in a directory (inotify(7)).

use crate::Error;
use nix::errno::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tokio::io::unix::AsyncFd;

/// Room for the changes read at once. The kernel queues the others.
const BUFFER_BYTES: usize = 4096;
/// Whatever can give a file of the directory another content or name, and the end of the directory itself.
const MASK: u32 = libc::IN_CLOSE_WRITE
    | libc::IN_MODIFY
    | libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF
    | libc::IN_ONLYDIR;

/// A watched directory.
///
/// It tells only that something has changed: a queue that overflowed says the same, so that nothing is ever missed by
/// somebody who looks at the whole directory after each change.
#[derive(Debug)]
pub struct DirectoryWatch {
    fd: AsyncFd<OwnedFd>,
}

impl DirectoryWatch {
    /// Watches a directory.
    ///
    /// # Errors
    /// It does not exist, is no directory, or the machine's number of watches is used up.
    pub fn new(directory: &Path) -> Result<Self, Error> {
        let failed = |e: io::Error| Error::system(format!("watch {}", directory.display()), e);
        let path = CString::new(directory.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
        // SAFETY: the call takes no pointers.
        let raw = Errno::result(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })
            .map_err(|e| failed(e.into()))?;
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: `path` is a NUL-terminated string that outlives the call.
        Errno::result(unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), MASK) })
            .map_err(|e| failed(e.into()))?;
        // SAFETY: an owned descriptor stays the same one and open as long as it is registered.
        let fd = unsafe { AsyncFd::register(fd) }.map_err(|e| failed(e.into()))?;
        Ok(Self { fd })
    }

    /// Waits for a change since the last call. Cancel safe: what was not waited for is told at the next call.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub async fn changed(&self) -> Result<(), Error> {
        let failed = |e| Error::system("read the changes of a directory".to_owned(), e);
        let mut buffer = [0; BUFFER_BYTES];
        loop {
            let mut ready = self.fd.readable().await.map_err(failed)?;
            let read = ready.try_io(|fd| nix::unistd::read(fd.get_ref(), &mut buffer).map_err(Into::into));
            match read {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(e)) => return Err(failed(e)),
                Err(_) => {}
            }
        }
    }
}

impl DirectoryWatch {
    /// Forgets the changes so far, for somebody who has made them and looks at the directory after this.
    pub fn forget(&self) {
        let mut buffer = [0; BUFFER_BYTES];
        while nix::unistd::read(self.fd.get_ref(), &mut buffer).is_ok_and(|read| read > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    #[tokio::test]
    async fn changes_are_told_also_when_they_came_before_the_question() {
        let dir = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new(dir.path()).unwrap();
        let limit = Duration::from_secs(10);
        std::fs::write(dir.path().join("a"), "1").unwrap();
        tokio::time::timeout(limit, watch.changed()).await.unwrap().unwrap();
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        tokio::time::timeout(limit, watch.changed()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_queue_that_overflowed_still_tells_of_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new(dir.path()).unwrap();
        let limit: usize = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let mut files = ["a", "b"].map(|name| std::fs::File::create(dir.path().join(name)).unwrap());
        // Two files in turn, since equal changes that follow each other are told once.
        for _ in 0..limit {
            for file in &mut files {
                file.write_all(b"1").unwrap();
            }
        }
        tokio::time::timeout(Duration::from_secs(10), watch.changed()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_is_no_directory_is_refused() {
        let error = DirectoryWatch::new(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent"), "{error}");
        assert!(DirectoryWatch::new(Path::new("/proc/version")).is_err());
    }
}
