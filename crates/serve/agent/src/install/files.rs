//! Files of the CNI directories: read whole, written whole or not at all.

use crate::Error;
use ambit_cni_conf::File;
use ambit_cni_conf::choice::{FILE_BYTES_MAX, is_candidate};
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Files of a configuration directory that are looked at. Real ones have a handful.
const FILES_MAX: usize = 256;
/// Beginning and ending of the names of files that are being written. No runtime reads them, and whatever a crash left
/// is found by them.
const TEMPORARY: (&str, &str) = (".ambit-cni-", ".tmp");
/// Largest plugin that is copied. Ours has a few hundred kilobytes, with debug information some megabytes.
const PLUGIN_BYTES_MAX: u64 = 256 << 20;

/// Steps of a write, told before each so that tests can end it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteStep {
    Create,
    Fill,
    Sync,
    Rename,
    SyncDirectory,
}

/// The candidates of a configuration directory. One that vanishes meanwhile is left out.
pub(super) fn read_all(directory: &Path) -> Result<Vec<File>, Error> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(Error::file("read the directory", directory))? {
        let entry = entry.map_err(Error::file("read the directory", directory))?;
        // A name that is not text is no name that a package gives.
        names.extend(entry.file_name().into_string().ok().filter(|name| is_candidate(name)));
    }
    names.sort();
    names.truncate(FILES_MAX);
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        let path = directory.join(&name);
        match read_bounded(&path, FILE_BYTES_MAX) {
            Ok(bytes) => files.push(File { name, bytes }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::file("read", &path)(e)),
        }
    }
    Ok(files)
}

fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // Not blocking, should the name be a pipe's.
    let file = OpenOptions::new().read(true).custom_flags(libc_nonblock()).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(Vec::new());
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// `O_NONBLOCK`, which has this value on every platform of Linux that we build for (x86-64, arm64).
const fn libc_nonblock() -> i32 {
    0o4000
}

/// Replaces a file atomically. A symbolic link's target is replaced, not the link.
pub(super) fn write(path: &Path, bytes: &[u8], mode_if_new: u32) -> Result<(), Error> {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mode = std::fs::metadata(&target).map_or(mode_if_new, |there| there.permissions().mode() & 0o777);
    replace(&target, bytes, mode).map_err(Error::file("write", &target))
}

fn replace(target: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let written = write_steps(target, bytes, mode, |_| Ok(()));
    if written.is_err() {
        // It may not exist, or the rename has happened: either way nothing is left.
        let _ = std::fs::remove_file(temporary(target));
    }
    written
}

/// The write, step by step; leaves everything as it is where `before` fails.
pub(super) fn write_steps(
    target: &Path,
    bytes: &[u8],
    mode: u32,
    mut before: impl FnMut(WriteStep) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = temporary(target);
    before(WriteStep::Create)?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
    // The process's mask must not take away what was asked for.
    file.set_permissions(Permissions::from_mode(mode))?;
    before(WriteStep::Fill)?;
    file.write_all(bytes)?;
    before(WriteStep::Sync)?;
    file.sync_all()?;
    drop(file);
    before(WriteStep::Rename)?;
    std::fs::rename(&temporary, target)?;
    before(WriteStep::SyncDirectory)?;
    std::fs::File::open(parent(target))?.sync_all()
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// One per file: a second writer of the same file is this program after a crash.
fn temporary(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    parent(target).join(format!("{}{name}{}", TEMPORARY.0, TEMPORARY.1))
}

/// Removes a file; one that is gone already is what was wanted.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Removes what a crash has left of files that were being written.
pub(super) fn sweep(directory: &Path) -> Result<(), Error> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::file("read the directory", directory)(e)),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(TEMPORARY.0) && name.ends_with(TEMPORARY.1) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// What tells that a file has not changed since it was last read: device, inode, size, mode and time of change.
type Stamp = (u64, u64, u64, u32, i64, i64);

/// Source and target of the plugin when they were last found to be equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Copied(Option<(Stamp, Stamp)>);

fn stamps(source: &Path, target: &Path) -> Option<(Stamp, Stamp)> {
    let stamp = |m: std::fs::Metadata| (m.dev(), m.ino(), m.len(), m.mode(), m.ctime(), m.ctime_nsec());
    Some((std::fs::metadata(source).map(stamp).ok()?, std::fs::symlink_metadata(target).map(stamp).ok()?))
}

/// Copies the plugin unless its bytes are there already. A running one keeps its own. Returns whether it was copied.
pub(super) fn copy_plugin(source: &Path, target: &Path, last: &mut Copied) -> Result<bool, Error> {
    const MODE: u32 = 0o755;
    // Taken before the contents are read, so that a change meanwhile is seen at the next look.
    let now = Copied(stamps(source, target));
    if now.0.is_some() && now == *last {
        return Ok(false);
    }
    let wanted = read_bounded(source, PLUGIN_BYTES_MAX).map_err(Error::file("read the plugin", source))?;
    if wanted.is_empty() {
        return Err(Error::file("use the plugin", source)(io::Error::other("it is empty or no file")));
    }
    let executable = |path: &Path| {
        std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o777 == MODE)
    };
    if executable(target) && read_bounded(target, PLUGIN_BYTES_MAX).is_ok_and(|there| there == wanted) {
        *last = now;
        return Ok(false);
    }
    replace(target, &wanted, MODE).map_err(Error::file("write the plugin", target))?;
    Ok(true)
}
