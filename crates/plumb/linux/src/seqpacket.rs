//! Sequenced-packet Unix sockets that carry descriptors beside the bytes.

use crate::{Error, ownership};
use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, socket, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Connections waiting to be accepted.
const BACKLOG: i32 = 16;
/// Descriptors a packet may carry before it counts as truncated.
const DESCRIPTORS_MAX: usize = 8;
/// Mode of a listening socket's file: its owner connects, nobody else.
const SOCKET_MODE: u32 = 0o600;

/// One packet as received.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it; closed on drop.
    pub descriptors: Vec<OwnedFd>,
}

/// A listening socket; removes its path when dropped.
#[derive(Debug)]
pub struct Listener {
    fd: AsyncFd<OwnedFd>,
    path: PathBuf,
}

/// A connected socket.
#[derive(Debug)]
pub struct Connection {
    fd: AsyncFd<OwnedFd>,
}

fn new_socket() -> Result<OwnedFd, Error> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(|e| Error::system("make a sequenced-packet socket", e))
}

fn watch(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, Error> {
    // SAFETY: an OwnedFd keeps its descriptor open and the same until it is dropped, and AsyncFd deregisters first.
    unsafe { AsyncFd::register(fd) }.map_err(|e| Error::system("watch a socket", e))
}

impl Listener {
    /// Listens at `path`, which only the calling user can use. A socket file that no process listens on any more is
    /// replaced.
    ///
    /// # Errors
    /// A running process listens there, the path cannot be made, or another user made or can change it.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        let failed = |e: nix::Error| Error::system(format!("listen on {}", path.display()), e);
        ownership::check_place(path)?;
        let address = UnixAddr::new(path).map_err(failed)?;
        if path.exists() {
            match connect(new_socket()?.as_raw_fd(), &address) {
                Ok(()) | Err(nix::Error::EAGAIN) => return Err(Error::InUse { path: path.to_owned() }),
                Err(nix::Error::ECONNREFUSED) => std::fs::remove_file(path)
                    .map_err(|e| Error::system(format!("remove the stale socket {}", path.display()), e))?,
                Err(e) => return Err(failed(e)),
            }
        }
        let fd = new_socket()?;
        bind(fd.as_raw_fd(), &address).map_err(failed)?;
        // Before it listens, so that nobody connects in between.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))
            .map_err(|e| Error::system(format!("restrict the socket {}", path.display()), e))?;
        listen(&fd, Backlog::new(BACKLOG).map_err(failed)?).map_err(failed)?;
        let fd = watch(fd)?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// The next connection. Cancel safe.
    ///
    /// # Errors
    /// The process has too many open files, or the socket is broken.
    pub async fn accept(&self) -> Result<Connection, Error> {
        let accepted = self
            .fd
            .async_io(tokio::io::Interest::READABLE, |fd| {
                let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                let raw = accept4(fd.as_raw_fd(), flags)?;
                // SAFETY: accept4 has just returned this descriptor, and nothing else knows it.
                Ok(unsafe { OwnedFd::from_raw_fd(raw) })
            })
            .await
            .map_err(|e| Error::system(format!("accept on {}", self.path.display()), e))?;
        Connection::new(accepted)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may be gone already, with its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Connection {
    fn new(fd: OwnedFd) -> Result<Self, Error> {
        Ok(Self { fd: watch(fd)? })
    }

    /// Connects to a listener. Does not wait: a full backlog is an error.
    ///
    /// # Errors
    /// Nobody listens at `path`.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let failed = |e: nix::Error| Error::system(format!("connect to {}", path.display()), e);
        let fd = new_socket()?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path).map_err(failed)?).map_err(failed)?;
        Self::new(fd)
    }

    /// The user the peer was when it connected, as this process's user namespace sees it: root inside a pod with a user
    /// namespace of its own is not root here.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn peer_uid(&self) -> Result<u32, Error> {
        getsockopt(self.fd.get_ref(), sockopt::PeerCredentials)
            .map(|credentials| credentials.uid())
            .map_err(|e| Error::system("ask who the peer is", e))
    }

    /// Sends one packet, with at most one descriptor. Cancel safe: it is sent as a whole or not at all.
    ///
    /// # Errors
    /// The peer is gone, or the packet is larger than the socket's buffer.
    pub async fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        self.fd
            .async_io(tokio::io::Interest::WRITABLE, |fd| {
                let raw: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
                let rights = [ControlMessage::ScmRights(&raw)];
                let control = if raw.is_empty() { &[] } else { &rights[..] };
                let parts = [IoSlice::new(bytes)];
                let flags = MsgFlags::MSG_NOSIGNAL;
                Ok(sendmsg::<UnixAddr>(fd.as_raw_fd(), &parts, control, flags, None).map(|_| ())?)
            })
            .await
            .map_err(|e| Error::system("send a packet to the peer", e))
    }

    /// The next packet of at most `bytes_max` bytes; nothing when the peer has closed. Cancel safe.
    ///
    /// # Errors
    /// A larger packet, too many descriptors, or a broken connection. Descriptors that came along are closed.
    pub async fn recv(&self, bytes_max: usize) -> Result<Option<Packet>, Error> {
        let (packet, complete) = self
            .fd
            .async_io(tokio::io::Interest::READABLE, |fd| receive(fd.as_raw_fd(), bytes_max))
            .await
            .map_err(|e| Error::system("read a packet of the peer", e))?;
        if !complete {
            return Err(Error::Truncated { bytes_max });
        }
        Ok(Some(packet).filter(|packet| !packet.bytes.is_empty()))
    }
}

/// Reads one packet; false when something was cut off.
fn receive(fd: RawFd, bytes_max: usize) -> io::Result<(Packet, bool)> {
    let mut bytes = vec![0; bytes_max];
    let mut control = cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut descriptors = Vec::new();
    let (length, flags) = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = recvmsg::<UnixAddr>(fd, &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
        // An unreadable control buffer is reported as truncation below, by its flag.
        for item in message.cmsgs().into_iter().flatten() {
            if let ControlMessageOwned::ScmRights(received) = item {
                // SAFETY: the kernel has just installed these descriptors for this process; each is wrapped once.
                descriptors.extend(received.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
            }
        }
        (message.bytes, message.flags)
    };
    bytes.truncate(length);
    let complete = !flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
    Ok((Packet { bytes, descriptors }, complete))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;
    use std::os::fd::AsFd;

    async fn pair(dir: &tempfile::TempDir) -> (Listener, Connection, Connection) {
        let listener = Listener::bind(&dir.path().join("socket")).unwrap();
        let client = Connection::connect(&dir.path().join("socket")).unwrap();
        let server = listener.accept().await.unwrap();
        (listener, client, server)
    }

    #[tokio::test]
    async fn packets_keep_their_bounds_and_carry_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let (_listener, client, server) = pair(&dir).await;
        let ns = NetNs::current().unwrap();
        server.send(b"one", Some(ns.as_fd())).await.unwrap();
        server.send(b"two", None).await.unwrap();
        let mut one = client.recv(16).await.unwrap().unwrap();
        let two = client.recv(16).await.unwrap().unwrap();
        assert_eq!((one.bytes.as_slice(), two.bytes.as_slice()), (&b"one"[..], &b"two"[..]));
        assert!(two.descriptors.is_empty());
        let received = NetNs::from_fd(one.descriptors.pop().unwrap()).unwrap();
        assert_eq!(received.id(), ns.id());
        drop(server);
        assert!(client.recv(16).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn too_large_a_packet_is_an_error_and_leaks_no_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let (_listener, client, server) = pair(&dir).await;
        let (reader, writer) = io::pipe().unwrap();
        server.send(&[0; 17], Some(reader.as_fd())).await.unwrap();
        drop(reader);
        let error = client.recv(16).await.unwrap_err();
        assert!(matches!(error, Error::Truncated { bytes_max: 16 }), "{error}");
        // The pipe's last reading end came along and was closed.
        let broken = io::Write::write(&mut &writer, b"x").unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(Error::InUse { .. })));
        drop(listener);
        assert!(!path.exists());
        // What a killed process leaves: a file that refuses connections.
        let stale = new_socket().unwrap();
        bind(stale.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        drop(stale);
        assert!(path.exists());
        let _listener = Listener::bind(&path).unwrap();
        Connection::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn only_the_owner_may_use_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, _client, _server) = pair(&dir).await;
        let mode = std::fs::metadata(&listener.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn the_peer_is_known_by_the_user_who_connected() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, _client, server) = pair(&dir).await;
        assert_eq!(server.peer_uid().unwrap(), 0);
        // As if the modes were wrong: then the peer's credentials are what is left.
        for (path, mode) in [(dir.path(), 0o755), (listener.path.as_path(), 0o666)] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let path = listener.path.clone();
        let connected = std::thread::spawn(move || {
            // SAFETY: the plain system call changes the user of this thread alone, and the thread ends here.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(changed, 0, "{}", io::Error::last_os_error());
            let fd = new_socket().unwrap();
            connect(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
            fd
        });
        let _nobody = connected.join().unwrap();
        assert_eq!(listener.accept().await.unwrap().peer_uid().unwrap(), 65534);
    }

    #[tokio::test]
    async fn sending_to_a_closed_peer_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (_listener, client, server) = pair(&dir).await;
        drop(client);
        assert!(server.send(b"x", None).await.is_err());
    }
}
