//! Open files of this process, and how many it may have.

use crate::Error;
use std::io;

/// What holds the descriptors of this process.
const OPEN: &str = "/proc/self/fd";

/// Open descriptors of this process.
///
/// # Errors
/// No /proc is mounted, or no descriptor is left to look with.
pub fn open() -> Result<u64, Error> {
    let failed = |e| Error::system(format!("count the open files in {OPEN}"), e);
    let listed = std::fs::read_dir(OPEN).map_err(failed)?.count() as u64;
    // One of them was open for the count alone.
    Ok(listed.saturating_sub(1))
}

/// Lets this process open as many files as its hard limit grants, and returns that number.
///
/// # Errors
/// The kernel refuses to tell or to change the limit.
pub fn raise_limit() -> Result<u64, Error> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the structure that the pointer is to, which outlives the call.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if told != 0 {
        return Err(Error::system("read the limit of open files", io::Error::last_os_error()));
    }
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the kernel only reads the structure that the pointer is to, which outlives the call.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        if done != 0 {
            return Err(Error::system("raise the limit of open files", io::Error::last_os_error()));
        }
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Not a test of its own: runs alone in a process that may open few files.
    #[test]
    fn child_that_may_open_few_files() {
        if std::env::var("AMBIT_TEST_FEW_FILES").is_err() {
            return;
        }
        assert_eq!(raise_limit().unwrap(), 100, "from the soft limit of 50");
        let before = open().unwrap();
        let held: Vec<_> = (0..7).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        assert_eq!(open().unwrap(), before + 7);
        drop(held);
        assert_eq!(open().unwrap(), before);
    }

    #[test]
    fn open_files_are_counted_and_their_limit_raised() {
        let program = std::env::current_exe().unwrap();
        let script = format!(
            "ulimit -S -n 50 && ulimit -H -n 100 && exec {} --exact descriptors::tests::child_that_may_open_few_files",
            program.display()
        );
        let ran = Command::new("sh").args(["-c", &script]).env("AMBIT_TEST_FEW_FILES", "1").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
}
