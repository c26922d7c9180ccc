//! Who may have put a file where a socket is to be.

use crate::Error;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `S_IWOTH`: everyone may write.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Refuses a place for a socket that another user prepared or can change: whoever owns the directory can put a socket of
/// their own in the place of ours, and would be sent what is meant for us.
///
/// # Errors
/// The directory of `socket` is missing, belongs to neither root nor the calling user, or can be written by everyone; or
/// the file at `socket` belongs to another user.
pub fn check_place(socket: &Path) -> Result<(), Error> {
    let directory = match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |path: &Path, e| Error::system(format!("look at the owner of {}", path.display()), e);
    let metadata = std::fs::metadata(directory).map_err(|e| failed(directory, e))?;
    check_owner(directory, metadata.uid())?;
    if metadata.mode() & WRITABLE_BY_ALL != 0 {
        let problem = "everyone can write to it".to_owned();
        return Err(Error::NotOurs { path: directory.to_owned(), problem });
    }
    match std::fs::symlink_metadata(socket) {
        Ok(metadata) => check_owner(socket, metadata.uid()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(failed(socket, e)),
    }
}

fn check_owner(path: &Path, owner: u32) -> Result<(), Error> {
    if owner == 0 || owner == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    Err(Error::NotOurs { path: path.to_owned(), problem: format!("it belongs to user {owner}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    const NOBODY: u32 = 65534;

    #[track_caller]
    fn check(prepare: impl FnOnce(&Path), expected: Option<&str>) {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let problem = match check_place(&directory.path().join("socket")) {
            Ok(()) => None,
            Err(Error::NotOurs { problem, .. }) => Some(problem),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(problem.as_deref(), expected);
    }

    #[test]
    fn only_places_of_our_own_are_taken() {
        check(|_| {}, None);
        check(|directory| std::fs::write(directory.join("socket"), "").unwrap(), None);
        check(
            |directory| {
                std::fs::write(directory.join("socket"), "").unwrap();
                chown(directory.join("socket"), Some(NOBODY), None).unwrap();
            },
            Some("it belongs to user 65534"),
        );
        check(|directory| chown(directory, Some(NOBODY), None).unwrap(), Some("it belongs to user 65534"));
        check(
            |directory| std::fs::set_permissions(directory, PermissionsExt::from_mode(0o1777)).unwrap(),
            Some("everyone can write to it"),
        );
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let error = check_place(&directory.path().join("none/socket")).unwrap_err();
        assert!(matches!(error, Error::System { .. }), "{error}");
    }
}
