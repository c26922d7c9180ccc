//! Bytes between the two ends of a connection, each end a TCP socket or a stream of a tunnel.
//!
//! Back-pressure: nothing is read from one end before the other has room for it, and a tunnel's window is given back
//! only after the bytes have been written on. What is under way is therefore bounded by the windows and one chunk,
//! and an idle connection holds no buffer at all.

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::io;
use std::net::Shutdown as Direction;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;

/// Most bytes moved at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// A connection of which one direction has ended is closed when the other moves nothing for so long.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(3600);

/// Why bytes stopped before both directions ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    /// A socket.
    #[error("{end} connection broke: {source}")]
    Socket {
        end: &'static str,
        #[source]
        source: io::Error,
    },
    /// A tunnel stream.
    #[error("tunnel stream ended: {0}")]
    Stream(#[from] h2::Error),
    /// The tunnel stream can take nothing any more.
    #[error("tunnel stream closed by the peer")]
    Closed,
    /// Half closed, and silent.
    #[error("half-closed and idle for {} s", HALF_CLOSED_IDLE.as_secs())]
    HalfClosed,
}

/// Bytes moved so far, readable while the connection goes on.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// From the client to the server.
    pub(crate) up: AtomicU64,
    /// From the server to the client.
    pub(crate) down: AtomicU64,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    source: Source,
    sink: Sink,
}

#[derive(Debug)]
enum Source {
    Tcp(&'static str, Arc<TcpStream>),
    Stream(RecvStream),
}

#[derive(Debug)]
enum Sink {
    Tcp(&'static str, Arc<TcpStream>),
    Stream(SendStream<Bytes>),
}

enum Read {
    Data(Bytes),
    /// Nothing after all.
    Again,
    End,
}

impl End {
    /// A socket; `name` is its role in errors.
    pub(crate) fn tcp(name: &'static str, socket: TcpStream) -> Self {
        let socket = Arc::new(socket);
        Self { source: Source::Tcp(name, socket.clone()), sink: Sink::Tcp(name, socket) }
    }

    /// A stream of a tunnel.
    pub(crate) fn stream(receive: RecvStream, send: SendStream<Bytes>) -> Self {
        Self { source: Source::Stream(receive), sink: Sink::Stream(send) }
    }

    /// Ends it so that the peer sees that it did not end well.
    pub(crate) fn abort(&mut self) {
        match &mut self.sink {
            // On failure the peer sees an ordinary end.
            Sink::Tcp(_, socket) => drop(ambit_linux::socket::reset_on_close(socket)),
            // RFC 9113, section 8.5: a TCP reset is CONNECT_ERROR on a tunnel.
            Sink::Stream(send) => send.send_reset(Reason::CONNECT_ERROR),
        }
    }
}

/// Moves bytes both ways until both directions have ended. Each direction's end is passed on by itself.
///
/// # Errors
/// One end broke; the caller decides how both are closed.
pub(crate) async fn relay(client: &mut End, server: &mut End, moved: &Moved) -> Result<(), RelayError> {
    let mut up = pin!(pump(&mut client.source, &mut server.sink, &moved.up));
    let mut down = pin!(pump(&mut server.source, &mut client.sink, &moved.down));
    // Both arms only poll pinned futures that live on: nothing is lost when the other one ends first.
    tokio::select! {
        ended = &mut up => { ended?; last(down, &moved.down).await }
        ended = &mut down => { ended?; last(up, &moved.up).await }
    }
}

/// Waits for the second direction, as long as it moves.
async fn last(
    mut pump: std::pin::Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    moved: &AtomicU64,
) -> Result<(), RelayError> {
    loop {
        let before = moved.load(Ordering::Relaxed);
        if let Ok(ended) = tokio::time::timeout(HALF_CLOSED_IDLE, &mut pump).await {
            return ended;
        }
        if moved.load(Ordering::Relaxed) == before {
            return Err(RelayError::HalfClosed);
        }
    }
}

async fn pump(source: &mut Source, sink: &mut Sink, moved: &AtomicU64) -> Result<(), RelayError> {
    loop {
        // Room is asked for only once there is something to read: an idle stream must not hold a share of the
        // connection's window that others need.
        tokio::select! {
            ready = source.ready() => ready?,
            broken = sink.broken() => return Err(broken),
        }
        let room = sink.room().await?;
        match source.read(room.min(CHUNK_BYTES)).await? {
            Read::Data(bytes) => {
                let length = bytes.len();
                sink.write(bytes).await?;
                source.written_on(length)?;
                moved.fetch_add(length as u64, Ordering::Relaxed);
            }
            Read::Again => sink.no_room_needed(),
            Read::End => return sink.finish(),
        }
    }
}

thread_local! {
    /// Read into here, then copy what came: a small read must not hold a large buffer while it waits to be sent.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK_BYTES].into_boxed_slice());
}

fn try_read(socket: &TcpStream, bytes_max: usize) -> io::Result<Bytes> {
    SCRATCH.with_borrow_mut(|scratch| {
        let room = bytes_max.min(scratch.len());
        let length = socket.try_read(&mut scratch[..room])?;
        Ok(Bytes::copy_from_slice(&scratch[..length]))
    })
}

fn broke(end: &'static str) -> impl Fn(io::Error) -> RelayError {
    move |source| RelayError::Socket { end, source }
}

impl Source {
    /// Waits until there is something to read. Cancel safe.
    async fn ready(&self) -> Result<(), RelayError> {
        match self {
            Self::Tcp(end, socket) => socket.readable().await.map_err(broke(end)),
            Self::Stream(_) => Ok(()),
        }
    }

    async fn read(&mut self, bytes_max: usize) -> Result<Read, RelayError> {
        match self {
            Self::Tcp(end, socket) => match try_read(socket, bytes_max) {
                Ok(bytes) if bytes.is_empty() => Ok(Read::End),
                Ok(bytes) => Ok(Read::Data(bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Read::Again),
                Err(error) => Err(broke(end)(error)),
            },
            Self::Stream(receive) => match receive.data().await {
                Some(Ok(bytes)) => Ok(Read::Data(bytes)),
                // An empty last frame, or an early "no error" reset after the whole answer, is an end.
                None => Ok(Read::End),
                Some(Err(error)) if error.is_reset() && error.reason() == Some(Reason::NO_ERROR) => {
                    Ok(Read::End)
                }
                Some(Err(error)) => Err(error.into()),
            },
        }
    }

    /// Gives the window back for bytes that have been written on.
    fn written_on(&mut self, length: usize) -> Result<(), RelayError> {
        match self {
            Self::Tcp(..) => Ok(()),
            Self::Stream(receive) => Ok(receive.flow_control().release_capacity(length)?),
        }
    }
}

impl Sink {
    /// Ends when the peer refuses further bytes; never for sockets, which tell it on writing. Cancel safe.
    async fn broken(&mut self) -> RelayError {
        match self {
            Self::Tcp(..) => pending().await,
            Self::Stream(send) => match poll_fn(|cx| send.poll_reset(cx)).await {
                Ok(_) => RelayError::Closed,
                Err(error) => error.into(),
            },
        }
    }

    /// Waits until at least one byte can be taken, and says how many. Sockets take a chunk at a time.
    async fn room(&mut self) -> Result<usize, RelayError> {
        let Self::Stream(send) = self else { return Ok(CHUNK_BYTES) };
        send.reserve_capacity(CHUNK_BYTES);
        loop {
            match send.capacity() {
                0 => poll_fn(|cx| send.poll_capacity(cx)).await.ok_or(RelayError::Closed)??,
                room => return Ok(room),
            };
        }
    }

    fn no_room_needed(&mut self) {
        if let Self::Stream(send) = self {
            send.reserve_capacity(0);
        }
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), RelayError> {
        match self {
            Self::Stream(send) => {
                send.send_data(bytes, false)?;
                send.reserve_capacity(0);
                Ok(())
            }
            Self::Tcp(end, socket) => write_all(socket, &bytes).await.map_err(broke(end)),
        }
    }

    fn finish(&mut self) -> Result<(), RelayError> {
        match self {
            Self::Stream(send) => Ok(send.send_data(Bytes::new(), true)?),
            // The peer may have reset it already: then there is nobody to tell.
            Self::Tcp(_, socket) => {
                let _ = socket2::SockRef::from(&**socket).shutdown(Direction::Write);
                Ok(())
            }
        }
    }
}

async fn write_all(socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
