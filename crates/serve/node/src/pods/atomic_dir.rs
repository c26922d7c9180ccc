//! A directory whose files change all at once. Source: kubelet's `AtomicWriter`: the files are in a directory of their
//! own, `..data` is a link to it that is renamed into place, and each visible name is a link through `..data`.

use ambit_node_plan::pod::files::VolumeFile;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// The link to the current files.
const DATA: &str = "..data";

/// Makes `dir` show exactly `files`. `version` names this content and must be new for each call that changes it.
/// Nothing is written if the files are there already.
pub(super) fn write(dir: &Path, files: &[VolumeFile], version: &str) -> io::Result<()> {
    if is_current(dir, files) {
        return Ok(());
    }
    let name = format!("..{version}");
    let fresh = dir.join(&name);
    for file in files {
        let path = fresh.join(&file.path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, &file.contents)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(file.mode))?;
    }
    std::fs::create_dir_all(&fresh)?;
    let old = std::fs::read_link(dir.join(DATA)).ok();
    let temporary = dir.join("..data_tmp");
    let _ = std::fs::remove_file(&temporary);
    symlink(&name, &temporary)?;
    std::fs::rename(&temporary, dir.join(DATA))?;
    show(dir, files)?;
    if let Some(old) = old.filter(|old| old.as_os_str() != name.as_str()) {
        std::fs::remove_dir_all(dir.join(old))?;
    }
    Ok(())
}

/// Links for what is there, none for what is not.
fn show(dir: &Path, files: &[VolumeFile]) -> io::Result<()> {
    let heads: BTreeSet<&str> = files.iter().filter_map(|f| f.path.split('/').next()).collect();
    for head in &heads {
        match symlink(Path::new(DATA).join(head), dir.join(head)) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if !text.starts_with("..") && !heads.contains(text.as_ref()) {
            std::fs::remove_file(dir.join(&name))?;
        }
    }
    Ok(())
}

fn is_current(dir: &Path, files: &[VolumeFile]) -> bool {
    let data = dir.join(DATA);
    let same = |file: &VolumeFile| {
        let path = data.join(&file.path);
        let mode = std::fs::metadata(&path).map(|m| m.permissions().mode() & 0o777);
        mode.is_ok_and(|mode| mode == file.mode) && std::fs::read(path).is_ok_and(|c| c == file.contents)
    };
    data.is_dir() && files.iter().all(same) && count_files(&data) == Some(files.len())
}

fn count_files(dir: &Path) -> Option<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(dir).ok()? {
        let entry = entry.ok()?;
        count += if entry.file_type().ok()?.is_dir() { count_files(&entry.path())? } else { 1 };
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, contents: &str) -> VolumeFile {
        VolumeFile { path: path.into(), contents: contents.into(), mode: 0o640 }
    }

    #[track_caller]
    fn check(dir: &Path, files: &[VolumeFile]) {
        let mut visible: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with(".."))
            .collect();
        visible.sort();
        let mut heads: Vec<_> = files.iter().map(|f| f.path.split('/').next().unwrap().to_owned()).collect();
        heads.sort();
        heads.dedup();
        assert_eq!(visible, heads);
        for file in files {
            assert_eq!(std::fs::read(dir.join(&file.path)).unwrap(), file.contents);
            let mode = std::fs::metadata(dir.join(&file.path)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o640);
        }
        let versions = std::fs::read_dir(dir).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir());
        let real = versions.filter(|e| !e.as_ref().unwrap().file_type().unwrap().is_symlink());
        assert_eq!(real.count(), 1, "only the current files are left");
    }

    #[test]
    fn files_change_together_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let first = [file("a", "1"), file("x/y", "2"), file("x/z", "3")];
        write(dir.path(), &first, "v1").unwrap();
        check(dir.path(), &first);
        let second = [file("a", "changed"), file("b", "4")];
        write(dir.path(), &second, "v2").unwrap();
        check(dir.path(), &second);
        write(dir.path(), &second, "v3").unwrap();
        assert_eq!(std::fs::read_link(dir.path().join(DATA)).unwrap(), Path::new("..v2"));
        write(dir.path(), &[], "v4").unwrap();
        check(dir.path(), &[]);
    }
}
