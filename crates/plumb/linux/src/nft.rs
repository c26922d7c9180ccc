//! nf_tables over netlink: applies a batch of rules in one transaction, and reads back what is in place.
//!
//! All functions act on the network namespace of the calling thread and block for the length of the transaction.

mod verify;

use crate::Error;
use ambit_rules::{Batch, Encoded};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{OnceLock, PoisonError};

pub use verify::verify;

/// Sequence number of every batch's first message: each has a socket of its own.
const FIRST_SEQUENCE: u32 = 1;
/// Room for one reply datagram; the kernel's dumps use at most 32 KiB.
const REPLY_BYTES: usize = 64 * 1024;
/// Sockets waiting for their slow close; beyond that the caller closes its own.
const CLOSING_MAX: usize = 256;
/// Netlink message types (`linux/netlink.h`).
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NFNL_SUBSYS_NFTABLES << 8`.
const NFTABLES: u16 = 10 << 8;
const GET_TABLE: u16 = NFTABLES | 1;
const NEW_RULE: u16 = NFTABLES | 6;
const NEW_TABLE: u16 = NFTABLES;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x1 | 0x300;

/// Applies all commands of the batch, or none.
///
/// A socket that deleted objects takes 10 to 20 ms to close, since the kernel waits for its readers; such sockets are
/// handed to a thread that does nothing else.
///
/// # Errors
/// The first command that the kernel refused, named; or the kernel has no nf_tables, or the caller may not use it.
pub fn apply(batch: &Batch) -> Result<(), Error> {
    if batch.commands.is_empty() {
        return Ok(());
    }
    let encoded = batch.encode(FIRST_SEQUENCE)?;
    let socket = open()?;
    let outcome = transact(&socket, &encoded);
    if batch.deletes() {
        close_elsewhere(socket);
    }
    outcome
}

/// Names of the tables in all families, as `family name`.
///
/// # Errors
/// The kernel has no nf_tables, or the caller may not use it.
pub fn tables() -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    dump(GET_TABLE, 0, &[], |kind, body| {
        if let (NEW_TABLE, Some(name)) = (kind, string_attribute(body.get(4..).unwrap_or_default(), 1)) {
            found.push(format!("{} {name}", family_name(body.first().copied().unwrap_or_default())));
        }
    })?;
    Ok(found)
}

/// The word for an address family (`linux/netfilter.h`).
fn family_name(number: u8) -> &'static str {
    match number {
        1 => "inet",
        2 => "ip",
        10 => "ip6",
        7 => "bridge",
        _ => "other",
    }
}

fn open() -> Result<Socket, Error> {
    let failed = |e| Error::system("open a netfilter netlink socket", e);
    let mut socket = Socket::new(NETLINK_NETFILTER).map_err(|source| match source.raw_os_error() {
        Some(libc::EPROTONOSUPPORT) => Error::NoNfTables { source },
        _ => failed(source),
    })?;
    socket.bind_auto().map_err(failed)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;
    // The kernel answers within the send, so that nothing is waited for afterwards.
    socket.set_non_blocking(true).map_err(failed)?;
    Ok(socket)
}

fn transact(socket: &Socket, encoded: &Encoded) -> Result<(), Error> {
    grow_send_buffer(socket, encoded.bytes.len());
    socket.send(&encoded.bytes, 0).map_err(|e| Error::system("send packet rules to the kernel", e))?;
    let mut first_error = None;
    // Errors and the one acknowledgement arrive as separate datagrams, in order.
    while let Some(datagram) = receive(socket)? {
        for (kind, sequence, body) in Messages(&datagram) {
            if kind != NLMSG_ERROR {
                continue;
            }
            let code =
                body.get(..4).and_then(|b| b.try_into().ok()).map_or(-libc::EPROTO, i32::from_ne_bytes);
            if code != 0 && first_error.is_none() {
                let source = io::Error::from_raw_os_error(-code);
                first_error = Some(refusal(encoded, sequence, source));
            }
            if sequence == encoded.last_sequence() && code == 0 {
                return first_error.map_or(Ok(()), Err);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| {
        Error::system("apply packet rules: the kernel did not acknowledge them", io::ErrorKind::UnexpectedEof)
    }))
}

fn refusal(encoded: &Encoded, sequence: u32, source: io::Error) -> Error {
    match (encoded.object(sequence), source.raw_os_error()) {
        // The begin message is refused when the subsystem is missing (EOPNOTSUPP, EINVAL before 3.18).
        (None, Some(libc::EOPNOTSUPP | libc::EINVAL)) => Error::NoNfTables { source },
        (Some(object), _) => Error::Refused { object: object.to_owned(), source },
        (None, _) => Error::system("change packet rules (root or CAP_NET_ADMIN is needed)", source),
    }
}

/// A batch has to fit the send buffer as a whole.
fn grow_send_buffer(socket: &Socket, bytes: usize) {
    let wanted = libc::c_int::try_from(bytes.saturating_mul(2)).unwrap_or(libc::c_int::MAX);
    let size = libc::socklen_t::try_from(size_of_val(&wanted)).expect("an integer is small");
    // SAFETY: the descriptor is open, and the pointer and size name one integer that lives through the call. A refusal
    // leaves the default size, and the send then reports what is wrong.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            (&raw const wanted).cast(),
            size,
        );
    }
}

/// The next datagram; nothing when no more is queued.
fn receive(socket: &Socket) -> Result<Option<Vec<u8>>, Error> {
    let mut buffer = Vec::with_capacity(REPLY_BYTES);
    match socket.recv(&mut buffer, 0) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(buffer)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(Error::system("read the kernel's answer on packet rules", e)),
    }
}

/// Asks for all objects of a kind and hands each to `each`, with its type.
fn dump(kind: u16, family: u8, filter: &[u8], mut each: impl FnMut(u16, &[u8])) -> Result<(), Error> {
    let socket = open()?;
    let length = u32::try_from(20 + filter.len()).unwrap_or(u32::MAX);
    let mut request = Vec::with_capacity(20 + filter.len());
    request.extend_from_slice(&length.to_ne_bytes());
    request.extend_from_slice(&kind.to_ne_bytes());
    request.extend_from_slice(&DUMP.to_ne_bytes());
    request.extend_from_slice(&FIRST_SEQUENCE.to_ne_bytes());
    request.extend_from_slice(&[0, 0, 0, 0, family, 0, 0, 0]);
    request.extend_from_slice(filter);
    socket.send(&request, 0).map_err(|e| Error::system("ask the kernel for its packet rules", e))?;
    while let Some(datagram) = receive(&socket)? {
        for (kind, _, body) in Messages(&datagram) {
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = body.get(..4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
                    let source = io::Error::from_raw_os_error(-code);
                    return match source.raw_os_error() {
                        Some(0 | libc::ENOENT) => Ok(()),
                        _ => Err(Error::system("list packet rules", source)),
                    };
                }
                kind => each(kind, body),
            }
        }
    }
    Err(Error::system("list packet rules: the kernel's list has no end", io::ErrorKind::UnexpectedEof))
}

/// Messages of a datagram: type, sequence number, body after the netlink header.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (u16, u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::try_from(u32::from_ne_bytes(self.0.get(..4)?.try_into().ok()?)).ok()?;
        let kind = u16::from_ne_bytes(self.0.get(4..6)?.try_into().ok()?);
        let sequence = u32::from_ne_bytes(self.0.get(8..12)?.try_into().ok()?);
        let body = self.0.get(16..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, sequence, body))
    }
}

/// The text of the first attribute of a type.
fn string_attribute(mut attributes: &[u8], wanted: u16) -> Option<String> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(4..length)?;
        if kind == wanted {
            let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
            return String::from_utf8(value[..end].to_vec()).ok();
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Hands the socket to the closing thread, which lives as long as the process.
fn close_elsewhere(socket: Socket) {
    static CLOSER: OnceLock<std::sync::Mutex<Option<SyncSender<std::os::fd::OwnedFd>>>> = OnceLock::new();
    let Ok(fd) = socket.as_fd().try_clone_to_owned() else { return };
    // The clone now keeps the kernel's socket open, so that dropping ours costs nothing.
    drop(socket);
    let closer = CLOSER.get_or_init(|| {
        let (sender, sockets) = sync_channel(CLOSING_MAX);
        let thread = std::thread::Builder::new()
            .name("netlink-close".into())
            .spawn(move || sockets.iter().for_each(drop));
        std::sync::Mutex::new(thread.ok().map(|_| sender))
    });
    let sender = closer.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(Err(TrySendError::Full(fd) | TrySendError::Disconnected(fd))) = sender.map(|s| s.try_send(fd))
    {
        drop(fd);
    }
}

#[cfg(test)]
mod tests;
