//! What can go wrong in this room.

use std::io;
use std::path::PathBuf;

/// Why the node runtime cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not the superuser.
    #[error("the node runtime needs root to run containers: run it with sudo")]
    NotRoot,
    /// A program is missing.
    #[error("{program} was not found in {searched}: install it, on Debian with `apt-get install {package}`")]
    MissingProgram {
        /// The program.
        program: String,
        /// Where it was looked for.
        searched: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// Another node has what this one needs.
    #[error("another node uses {what}: stop it first, or choose another one")]
    Taken {
        /// What it has.
        what: String,
    },
    /// The state directory cannot be used.
    #[error("the state directory {} cannot be used: {problem}: choose another one", dir.display())]
    StateDir {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file could not be made, read or removed.
    #[error("cannot {attempt} {}", path.display())]
    File {
        /// What was attempted.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A mount operation failed.
    #[error(transparent)]
    Mount(#[from] ambit_linux::mount::MountError),
    /// A network link operation failed.
    #[error("cannot change the node's network")]
    Link(#[source] ambit_linux::Error),
    /// The container runtime does not start.
    #[error("containerd did not start within {seconds} s; the end of {}:\n{tail}", log.display())]
    RuntimeStart {
        /// How long it was waited for.
        seconds: u64,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A call of the container runtime failed.
    #[error("{call} failed: {}", source.message())]
    Cri {
        /// The call.
        call: &'static str,
        /// Its status.
        #[source]
        source: Box<tonic::Status>,
    },
    /// A call of the container runtime was not answered.
    #[error("{call} was not answered within {seconds} s")]
    CriDeadline {
        /// The call.
        call: &'static str,
        /// How long it was waited for.
        seconds: u64,
    },
    /// There is no running node.
    #[error("no node runs on {}: start one with `ambit up`, or name its state directory", dir.display())]
    NoNode {
        /// Its state directory.
        dir: PathBuf,
    },
    /// An image archive cannot be imported.
    #[error("cannot import the image {}: {problem}", path.display())]
    Image {
        /// The archive.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The server's certificate, key or authority cannot be used.
    #[error("cannot serve {listen}: {problem}")]
    Server {
        /// Where.
        listen: std::net::SocketAddr,
        /// What is wrong.
        problem: String,
    },
    /// The API server refused something the node cannot do without.
    #[error("cannot {attempt}")]
    Api {
        /// What was attempted.
        attempt: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("cannot {attempt}: the API server did not answer within {seconds} s")]
    ApiDeadline {
        /// What was attempted.
        attempt: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The informers did not start.
    #[error("cannot watch the API server")]
    Informers(#[from] ambit_kube::InformerError),
    /// Cluster DNS failed.
    #[error("cluster DNS failed")]
    Dns(#[from] crate::dns::Error),
    /// Service routing failed.
    #[error("service routing failed")]
    Services(#[from] crate::services::Error),
    /// A part of the node failed.
    #[error("the node runtime stopped: {0}")]
    Task(String),
}

impl Error {
    /// A failed file operation on `path`.
    pub(crate) fn file(attempt: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { attempt, path, source }
    }

    /// The error and its causes in one line, as events show it.
    pub(crate) fn full_text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(source) = cause {
            let next = source.to_string();
            if !text.contains(&next) && !matches!(self, Self::Cri { .. }) {
                text = format!("{text}: {next}");
            }
            cause = source.source();
        }
        text
    }
}
