//! A real etcd of a test's own.
#![allow(dead_code, reason = "each test binary uses some of this")]

use ambit_runtime::Clock;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Ports of etcd, for clients and for members.
const PORTS: (u16, u16) = (2379, 2380);
/// Long enough for etcd to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One member on loopback, with its data in a folder of its own; ends with the value.
pub(crate) struct EtcdMember {
    dir: tempfile::TempDir,
    ip: Ipv4Addr,
    tls: Option<[PathBuf; 3]>,
    process: Option<Child>,
}

impl EtcdMember {
    /// A member that answers.
    pub(crate) fn start() -> Self {
        Self::start_with(Self::own_ip(), None)
    }

    /// An address of the loopback network that no other member has, and no connection is made from: its ports stay free
    /// while a member is away.
    pub(crate) fn own_ip() -> Ipv4Addr {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        Ipv4Addr::new(127, high | 0x80, low, COUNT.fetch_add(1, Ordering::Relaxed))
    }

    /// A member that speaks TLS and wants clients to; `tls`: authorities, its certificate and its key, as PEM files.
    pub(crate) fn start_with(ip: Ipv4Addr, tls: Option<[PathBuf; 3]>) -> Self {
        let mut member = Self { dir: tempfile::tempdir().unwrap(), ip, tls, process: None };
        member.resume();
        member
    }

    /// `HOST:PORT` for clients.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.ip, PORTS.0)
    }

    /// Ends the process as a crash does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Starts the process again, with the data it had.
    pub(crate) fn resume(&mut self) {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://{}", self.address());
        let peer = format!("http://{}:{}", self.ip, PORTS.1);
        let mut command = Command::new("etcd");
        command
            .args(["--name", "test", "--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}"), "--data-dir"])
            .arg(self.dir.path())
            .args(["--logger", "zap", "--log-level", "error"]);
        if let Some([authorities, certificate, key]) = &self.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(authorities);
            command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("etcd is installed (scripts/install-packages)"));
        let end = Clock.now() + PATIENCE;
        while TcpStream::connect((self.ip, PORTS.0)).is_err() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "etcd ended by itself: {ended:?}");
            assert!(Clock.now() < end, "etcd has not started");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for EtcdMember {
    fn drop(&mut self) {
        self.kill();
    }
}
