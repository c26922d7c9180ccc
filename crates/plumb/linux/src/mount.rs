//! Mounts: bind, tmpfs, and the removal of everything mounted below a directory.

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Rounds of [`unmount_below`]: mounts may be stacked, and each round removes one layer of all of them.
const UNMOUNT_ROUNDS_MAX: usize = 64;

/// A mount operation failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Mounting failed.
    #[error("cannot mount {what} on {}: {source}", target.display())]
    Mount {
        /// What was to be mounted.
        what: String,
        /// Where.
        target: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
    /// Unmounting failed.
    #[error("cannot unmount {}: {source}", target.display())]
    Unmount {
        /// Where.
        target: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The mount table could not be read.
    #[error("cannot read the mount table: {0}")]
    Table(#[source] io::Error),
    /// More layers of mounts than [`unmount_below`] is willing to remove.
    #[error("mounts below {} keep coming back", .0.display())]
    Endless(PathBuf),
}

/// Whether a bind mount may be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes.
    ReadWrite,
    /// Reads only.
    ReadOnly,
}

/// Shows `source` at `target` too; both must exist.
///
/// # Errors
/// The kernel refuses the mount.
pub fn bind(source: &Path, target: &Path, access: Access) -> Result<(), MountError> {
    let fail = |e| mount_error(&source.display().to_string(), target, e);
    let none: Option<&str> = None;
    mount(Some(source), target, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).map_err(fail)?;
    if access == Access::ReadOnly {
        // A bind mount takes its flags only from a second, remounting call.
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, target, none, flags, none).map_err(fail)?;
    }
    Ok(())
}

/// Mounts an empty tmpfs of at most `size_bytes` (half of memory if unset) with `mode` on `target`.
///
/// # Errors
/// The kernel refuses the mount.
pub fn tmpfs(target: &Path, size_bytes: Option<u64>, mode: u32) -> Result<(), MountError> {
    let size = size_bytes.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    let options = format!("mode={mode:o}{size}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options.as_str()))
        .map_err(|e| mount_error("tmpfs", target, e))
}

/// Mounts an overlay of `lower` and `upper` (with `work` beside it) on `target`.
///
/// # Errors
/// The kernel, or the file system below, does not support it.
pub fn overlay(lower: &Path, upper: &Path, work: &Path, target: &Path) -> Result<(), MountError> {
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    mount(Some("overlay"), target, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|e| mount_error("overlay", target, e))
}

/// Removes the topmost mount on `target`; one that is still in use goes away with its last user.
///
/// # Errors
/// `target` is no mount point or may not be unmounted.
pub fn unmount(target: &Path) -> Result<(), MountError> {
    umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
        .map_err(|source| MountError::Unmount { target: target.to_owned(), source })
}

/// Removes every mount at or below `dir`, deepest first, and returns how many there were.
///
/// # Errors
/// The mount table cannot be read, or a mount cannot be removed.
pub fn unmount_below(dir: &Path) -> Result<usize, MountError> {
    let mut removed = 0;
    for _ in 0..UNMOUNT_ROUNDS_MAX {
        let points = mount_points_below(dir)?;
        if points.is_empty() {
            return Ok(removed);
        }
        for point in points.iter().rev() {
            match unmount(point) {
                Ok(()) => removed += 1,
                // It went away with a mount above it, or by another hand.
                Err(MountError::Unmount { source: Errno::EINVAL | Errno::ENOENT, .. }) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Err(MountError::Endless(dir.to_owned()))
}

/// The mount points at or below `dir`, in the order they were mounted.
///
/// # Errors
/// The mount table cannot be read.
pub fn mount_points_below(dir: &Path) -> Result<Vec<PathBuf>, MountError> {
    Ok(mounts()?.into_iter().map(|mount| mount.point).filter(|point| point.starts_with(dir)).collect())
}

/// A mount, as the mount table shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where it is.
    pub(crate) point: PathBuf,
    /// Whether the mount lets its file system be written.
    pub(crate) writable: bool,
    /// Type of its file system.
    pub(crate) kind: String,
}

/// All mounts, in the order they were made.
pub(crate) fn mounts() -> Result<Vec<Mount>, MountError> {
    // The calling thread's own table: threads may live in different mount namespaces.
    let table = std::fs::read("/proc/thread-self/mountinfo").map_err(MountError::Table)?;
    Ok(table.split(|b| *b == b'\n').filter_map(parse_mount).collect())
}

/// Whether `dir` is itself a mount point.
///
/// # Errors
/// The mount table cannot be read.
pub fn is_mount_point(dir: &Path) -> Result<bool, MountError> {
    Ok(mount_points_below(dir)?.iter().any(|p| p == dir))
}

/// Size and free space of the file system that holds `path`, in bytes.
///
/// # Errors
/// The file system cannot be asked.
pub fn filesystem_bytes(path: &Path) -> io::Result<(u64, u64)> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    let unit = stat.fragment_size();
    Ok((stat.blocks().saturating_mul(unit), stat.blocks_available().saturating_mul(unit)))
}

/// The mount point is the fifth field, the options of the mount are the sixth, and the type follows a hyphen. Source:
/// proc(5).
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ').skip(4);
    let point = unescape(fields.next()?);
    let writable = fields.next()?.split(|b| *b == b',').any(|option| option == b"rw");
    let kind = fields.skip_while(|field| *field != b"-").nth(1).unwrap_or_default();
    Some(Mount { point, writable, kind: String::from_utf8_lossy(kind).into_owned() })
}

/// Blanks and backslashes are octal escapes. Source: proc(5).
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            digits
                .iter()
                .try_fold(0_u32, |n, d| matches!(d, b'0'..=b'7').then(|| n * 8 + u32::from(d - b'0')))
        };
        match tail.get(..3).and_then(octal).and_then(|n| u8::try_from(n).ok()).filter(|_| byte == b'\\') {
            Some(decoded) => {
                path.push(decoded);
                rest = &tail[3..];
            }
            None => {
                path.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

fn mount_error(what: &str, target: &Path, source: Errno) -> MountError {
    MountError::Mount { what: what.to_owned(), target: target.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};

    /// Runs `test` on a thread with a mount table of its own, which ends with the thread.
    #[track_caller]
    fn in_own_mount_namespace(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root");
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            test();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn everything_below_a_directory_is_unmounted_and_nothing_beside_it() {
        in_own_mount_namespace(|| {
            let root = tempfile::tempdir().unwrap();
            let (inside, beside) = (root.path().join("a b"), root.path().join("a b2"));
            std::fs::create_dir_all(&inside).unwrap();
            std::fs::create_dir_all(&beside).unwrap();
            tmpfs(&inside, Some(1 << 20), 0o700).unwrap();
            std::fs::create_dir(inside.join("nested")).unwrap();
            tmpfs(&inside.join("nested"), None, 0o755).unwrap();
            tmpfs(&inside.join("nested"), None, 0o755).unwrap();
            bind(&inside, &beside, Access::ReadOnly).unwrap();
            assert!(is_mount_point(&inside).unwrap());
            assert!(std::fs::write(beside.join("x"), "").is_err(), "the bind mount is read-only");

            assert_eq!(unmount_below(&inside).unwrap(), 3);
            assert_eq!(mount_points_below(&inside).unwrap(), Vec::<PathBuf>::new());
            assert!(is_mount_point(&beside).unwrap());
            unmount_below(&beside).unwrap();
        });
    }

    #[test]
    fn a_mount_that_the_kernel_refuses_names_its_target() {
        let error = tmpfs(Path::new("/no/such/dir"), None, 0o755).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot mount tmpfs on /no/such/dir: ENOENT: No such file or directory"
        );
        let error = unmount(Path::new("/no/such/dir")).unwrap_err();
        assert_eq!(error.to_string(), "cannot unmount /no/such/dir: ENOENT: No such file or directory");
    }

    #[track_caller]
    fn check(line: &str, expected: Option<&str>) {
        let found = parse_mount(line.as_bytes()).map(|mount| mount.point);
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn mount_points_are_decoded() {
        check("36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw", Some("/mnt2"));
        check(r"36 35 98:0 / /a\040b\134c rw - tmpfs none rw", Some(r"/a b\c"));
        check(r"36 35 98:0 / /a\04 rw - tmpfs none rw", Some(r"/a\04"));
        check(r"36 35 98:0 / /a\777 rw - tmpfs none rw", Some(r"/a\777"));
        check("36 35", None);
        check("", None);
    }
}
