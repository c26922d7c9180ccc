//! What a process may do that others may not (capabilities(7)), and giving it up for good.

use crate::Error;
use nix::errno::Errno;
use std::fmt;
use std::path::Path;

/// Version of the sets that [`held`] and [`keep_only`] exchange with the kernel: two words of 32 capabilities.
/// Source: linux/capability.h, `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;
/// Where the kernel tells its last capability.
const LAST: &str = "/proc/sys/kernel/cap_last_cap";
/// What root gets when it executes a program: nothing, for ever. Source: linux/securebits.h, `SECBIT_NOROOT` and its lock.
const ROOT_IS_NOBODY: libc::c_ulong = 0b11;

/// A capability that a part of this program needs. Source of the numbers: linux/capability.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Capability {
    /// Reads and writes files whatever their mode.
    DacOverride = 1,
    /// Changes the bounding set and what root means for programs: needed to give up the others for good.
    SetPcap = 8,
    /// Changes networks: links, addresses, routes, packet rules, marks.
    NetAdmin = 12,
    /// Looks into processes of other users.
    SysPtrace = 19,
    /// Enters namespaces, mounts.
    SysAdmin = 21,
}

impl Capability {
    const fn bit(self) -> u64 {
        1 << self as u8
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::DacOverride => "CAP_DAC_OVERRIDE",
            Capability::SetPcap => "CAP_SETPCAP",
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
        })
    }
}

/// A set of capabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Set(u64);

impl Set {
    /// Whether the capability is in it.
    pub fn has(self, capability: Capability) -> bool {
        self.0 & capability.bit() != 0
    }
}

impl FromIterator<Capability> for Set {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        Self(capabilities.into_iter().fold(0, |set, one| set | one.bit()))
    }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// One word of each set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// What the calling thread may do.
///
/// # Errors
/// The kernel does not tell.
pub fn held() -> Result<Set, Error> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut words = [Word::default(); 2];
    // SAFETY: both pointers are to values of the layout that this version of the call has, and outlive it.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
    Errno::result(done).map_err(|e| Error::system("read the capabilities of this process", e))?;
    Ok(Set(u64::from(words[0].permitted) | u64::from(words[1].permitted) << 32))
}

/// Gives up every capability but these, of all sets, for the calling thread and whatever it starts: threads have
/// the same, programs none at all. What is not held is not gained. There is no way back: executing a program does
/// not raise anything either (`no_new_privs`). Without CAP_SETPCAP the bounding set stays as whoever started this
/// process has made it.
///
/// Other threads that run already keep what they have: call it before there are any.
///
/// # Errors
/// The kernel refuses a step.
pub fn keep_only(wanted: Set) -> Result<(), Error> {
    let held = held()?;
    let kept = Set(held.0 & wanted.0);
    if held.has(Capability::SetPcap) {
        control("let root's programs have no capabilities", libc::PR_SET_SECUREBITS, ROOT_IS_NOBODY)?;
        for number in (0..=last()?).filter(|number| kept.0 & 1 << number == 0) {
            let attempt = "take a capability out of the bounding set";
            control(attempt, libc::PR_CAPBSET_DROP, libc::c_ulong::from(number))?;
        }
    }
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong;
    control("clear the ambient capabilities", libc::PR_CAP_AMBIENT, clear)?;
    set(kept)?;
    control("refuse new privileges", libc::PR_SET_NO_NEW_PRIVS, 1)
}

fn set(kept: Set) -> Result<(), Error> {
    let mut header = Header { version: VERSION, pid: 0 };
    let word = |bits: u64| {
        let bits = u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
        Word { effective: bits, permitted: bits, inheritable: 0 }
    };
    let words = [word(kept.0), word(kept.0 >> 32)];
    // SAFETY: both pointers are to values of the layout that this version of the call has, and outlive it.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) };
    Errno::result(done).map(drop).map_err(|e| Error::system("give up capabilities", e))
}

fn last() -> Result<u8, Error> {
    let text = std::fs::read_to_string(LAST).map_err(|e| Error::system(format!("read {LAST}"), e))?;
    let problem = || format!("{:?} is not the number of a capability", text.trim());
    let number: Option<u8> = text.trim().parse().ok().filter(|number| *number < 64);
    number.ok_or_else(|| Error::Malformed { path: Path::new(LAST).to_owned(), problem: problem() })
}

fn control(attempt: &str, option: libc::c_int, value: libc::c_ulong) -> Result<(), Error> {
    let unused: libc::c_ulong = 0;
    // SAFETY: none of the options used here takes a pointer.
    let done = unsafe { libc::prctl(option, value, unused, unused, unused) };
    Errno::result(done).map(drop).map_err(|e| Error::system(attempt, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of the calling thread's status file.
    fn status(name: &str) -> String {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim_start_matches(':')
            .trim()
            .to_owned()
    }

    /// On a thread of its own, which alone loses what it gives up.
    #[track_caller]
    fn apart(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn what_is_given_up_is_gone_from_every_set_and_does_not_come_back() {
        apart(|| {
            let wanted: Set = [Capability::NetAdmin, Capability::SysAdmin].into_iter().collect();
            keep_only(wanted).unwrap();
            let bits = format!("{:016x}", 1_u64 << 12 | 1 << 21);
            for (name, expected) in [("CapPrm", &*bits), ("CapEff", &bits), ("CapBnd", &bits)] {
                assert_eq!(status(name), expected, "{name}");
            }
            for name in ["CapInh", "CapAmb"] {
                assert_eq!(status(name), "0".repeat(16), "{name}");
            }
            assert_eq!(status("NoNewPrivs"), "1");
            assert!(held().unwrap().has(Capability::NetAdmin) && !held().unwrap().has(Capability::SysPtrace));
            // A program gets nothing of it, although it runs as root.
            let said =
                std::process::Command::new("grep").args(["CapEff", "/proc/self/status"]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), format!("CapEff:\t{}\n", "0".repeat(16)));
            // Asking for more later gains nothing.
            set(Set(u64::MAX >> 23)).unwrap_err();
            let more: Set = [Capability::NetAdmin, Capability::SysPtrace].into_iter().collect();
            keep_only(more).unwrap();
            assert!(!held().unwrap().has(Capability::SysPtrace));
        });
        assert!(held().unwrap().has(Capability::SysPtrace), "other threads keep theirs");
    }

    #[test]
    fn forbidden_things_are_refused_afterwards() {
        apart(|| {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("others");
            std::fs::write(&file, "x").unwrap();
            std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
            std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            assert!(std::fs::read(&file).is_ok());
            keep_only(Set::default()).unwrap();
            let refused = std::fs::read(&file).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
            crate::netns::NetNs::create_private().unwrap_err();
            crate::mount::tmpfs(dir.path(), None, 0o700).unwrap_err();
        });
    }
}
