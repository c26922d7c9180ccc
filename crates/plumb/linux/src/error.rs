//! What can go wrong between this program and the kernel.

use std::io;
use std::path::PathBuf;

/// A failed request to the kernel: what was attempted on what.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {attempt}")]
    System {
        /// What was attempted, on what: completes "cannot …".
        attempt: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file that should be a network namespace is something else.
    #[error("{} is not a network namespace", path.display())]
    NotANetworkNamespace {
        /// The file.
        path: PathBuf,
    },
    /// The kernel refused one command of an nf_tables batch; nothing of the batch took effect.
    #[error("the kernel refused to {object}")]
    Refused {
        /// The command.
        object: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The kernel has no nf_tables.
    #[error(
        "this kernel has no nf_tables: load the module nf_tables (modprobe nf_tables) or use a kernel with CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET and CONFIG_NFT_NAT"
    )]
    NoNfTables {
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A batch that cannot be rendered.
    #[error("cannot render packet rules")]
    Rules(#[from] ambit_rules::Error),
    /// What was applied is not what the kernel reports.
    #[error("{object}: expected {expected}, the kernel has {found}")]
    NotInPlace {
        /// The object.
        object: String,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A packet or its descriptors did not fit.
    #[error("a packet of the peer is larger than {bytes_max} bytes or carries too many descriptors")]
    Truncated {
        /// The limit.
        bytes_max: usize,
    },
    /// Someone else listens on a socket path.
    #[error("{} is in use by a running process: stop it first, or choose another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A file or directory that another user made or can change.
    #[error("{} is not safe for a socket, {problem}: remove it or correct its owner and mode, or choose another path", path.display())]
    NotOurs {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of the kernel does not look as documented.
    #[error("cannot read {}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl Error {
    /// A failed system call. `attempt` completes "cannot …".
    pub fn system(attempt: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::System { attempt: attempt.into(), source: source.into() }
    }
}
