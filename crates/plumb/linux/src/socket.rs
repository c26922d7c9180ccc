//! Sockets of a transparent proxy: made inside a pod's namespace, marked, and able to carry foreign addresses.

use crate::netns::NetNs;
use nix::sched::{CloneFlags, setns};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

/// Connections waiting to be accepted. Source: the field's node proxy.
const BACKLOG: i32 = 128;
/// Requests waiting for the thread that enters namespaces; more block their senders.
const REQUESTS_MAX: usize = 1024;

/// When an idle connection is probed, and when it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub time: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without answer before the connection is closed.
    pub retries: u32,
}

/// Whether a listener's connections may be answered from addresses that are not the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transparency {
    /// If the kernel lets us.
    BestEffort,
    /// It must work.
    Required,
    /// No.
    Off,
}

/// A listening socket and whether it got its transparency.
#[derive(Debug)]
pub struct Listening {
    /// The socket, non-blocking.
    pub listener: std::net::TcpListener,
    /// Whether foreign addresses can be used.
    pub transparent: bool,
}

/// Makes a marked listening socket in the namespace of the calling thread. The port can be shared with another process
/// of the same user, so that a new process can take over from an old one.
///
/// # Errors
/// The port is taken, or an option is refused.
pub fn listen(address: SocketAddr, mark: u32, transparency: Transparency) -> io::Result<Listening> {
    let socket = tcp_socket(address.ip())?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_mark(mark)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    let transparent = match transparency {
        Transparency::Off => false,
        Transparency::BestEffort => set_transparent(&socket, address.ip()).is_ok(),
        Transparency::Required => set_transparent(&socket, address.ip()).map(|()| true)?,
    };
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(Listening { listener: socket.into(), transparent })
}

/// Makes a marked, unconnected socket in the namespace of the calling thread, ready to connect to `to`.
///
/// # Errors
/// An option is refused.
pub fn outgoing(to: SocketAddr, mark: u32, keepalive: Option<Keepalive>) -> io::Result<std::net::TcpStream> {
    let socket = tcp_socket(to.ip())?;
    socket.set_mark(mark)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(keepalive) = keepalive {
        socket.set_tcp_keepalive(&keepalive.into())?;
    }
    Ok(socket.into())
}

/// Gives an unconnected socket a source address, which need not be the machine's.
///
/// # Errors
/// The kernel does not permit it.
pub fn spoof_source(socket: &impl AsFd, source: IpAddr) -> io::Result<()> {
    let socket = SockRef::from(socket);
    set_transparent(&socket, source)?;
    match source {
        IpAddr::V4(_) => socket.set_freebind_v4(true)?,
        IpAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.bind(&SocketAddr::new(source, 0).into())
}

/// Prepares an accepted connection: no delay, and keepalive if wanted.
///
/// # Errors
/// An option is refused.
pub fn prepare_accepted(socket: &impl AsFd, keepalive: Option<Keepalive>) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    keepalive.map_or(Ok(()), |keepalive| socket.set_tcp_keepalive(&keepalive.into()))
}

/// The destination that the peer of a redirected connection dialled; none if it was not redirected.
pub fn original_destination(socket: &impl AsFd) -> Option<SocketAddr> {
    let socket = SockRef::from(socket);
    let found = socket.original_dst_v4().or_else(|_| socket.original_dst_v6()).ok()?;
    found.as_socket().map(canonical)
}

/// Makes the socket answer its peer with a reset when it is closed.
///
/// # Errors
/// The option is refused.
pub fn reset_on_close(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// The same address, with IPv4 mapped into IPv6 made IPv4.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether a socket could not be made because the kernel lacks the address family.
pub fn family_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// The wildcard address for a port: both families if IPv6 is wanted.
pub fn wildcard(port: u16, ipv6: bool) -> SocketAddr {
    let any = if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, port)
}

fn tcp_socket(ip: IpAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(SocketAddr::new(ip, 0)), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn set_transparent(socket: &Socket, ip: IpAddr) -> io::Result<()> {
    match ip {
        IpAddr::V4(_) => socket.set_ip_transparent_v4(true),
        IpAddr::V6(_) => socket.set_ip_transparent_v6(true),
    }
}

impl From<Keepalive> for TcpKeepalive {
    fn from(from: Keepalive) -> Self {
        Self::new().with_time(from.time).with_interval(from.interval).with_retries(from.retries)
    }
}

type Job = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A thread that makes sockets in whichever namespace is asked for. One serves many pods: entering a namespace takes
/// a microsecond, starting a thread for each socket much more. It ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct SocketThread {
    requests: mpsc::SyncSender<(Arc<NetNs>, Job)>,
}

impl SocketThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The process cannot have another thread.
    pub fn start() -> io::Result<Self> {
        let (requests, inbox) = mpsc::sync_channel(REQUESTS_MAX);
        let home = NetNs::current().map_err(io::Error::other)?;
        std::thread::Builder::new().name("netns-sockets".into()).spawn(move || serve(&home, &inbox))?;
        Ok(Self { requests })
    }

    /// Runs `make` inside the namespace. Cancel safe: a result nobody waits for is dropped.
    ///
    /// # Errors
    /// The namespace cannot be entered, or `make` fails.
    pub async fn run<T: Send + 'static>(
        &self,
        namespace: &Arc<NetNs>,
        make: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |entered| {
            // The asker may have gone; then the result is dropped.
            let _ = answer.send(entered.and_then(|()| make()));
        });
        let gone = |_| io::Error::other("the thread that makes sockets has ended");
        match self.requests.try_send((namespace.clone(), job)) {
            Ok(()) => answered.await.map_err(gone)?,
            Err(mpsc::TrySendError::Full(_)) => {
                Err(io::Error::new(io::ErrorKind::WouldBlock, "too many sockets are being made at once"))
            }
            Err(mpsc::TrySendError::Disconnected(_)) => Err(io::Error::other("no thread makes sockets")),
        }
    }
}

/// Works until every sender is gone. After each job the thread goes home, so that it does not keep the namespace of a
/// pod alive that has ended.
fn serve(home: &NetNs, inbox: &mpsc::Receiver<(Arc<NetNs>, Job)>) {
    let enter =
        |namespace: &NetNs| setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
    while let Ok((namespace, job)) = inbox.recv() {
        job(enter(&namespace));
        if let Err(error) = enter(home) {
            tracing::warn!(%error, "cannot leave a pod's network namespace, entering the next one from there");
        }
    }
}

#[cfg(test)]
mod tests;
