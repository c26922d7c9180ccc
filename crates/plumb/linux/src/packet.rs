//! Capture of all frames that cross a link (AF_PACKET), for tests and diagnosis.

use crate::Error;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Frames that wait to be read: enough for what a link carries while the reader is not scheduled.
const QUEUE_BYTES: libc::c_int = 64 * 1024 * 1024;

/// `AF_PACKET`, `ETH_P_ALL` and `PACKET_MR_PROMISC` in the width that the kernel's structures have.
const FAMILY: u16 = 17;
const ALL_PROTOCOLS: u16 = 3;
const PROMISCUOUS: u16 = 1;
const _: () = assert!(
    FAMILY as i32 == libc::AF_PACKET
        && ALL_PROTOCOLS as i32 == libc::ETH_P_ALL
        && PROMISCUOUS as i32 == libc::PACKET_MR_PROMISC
);

/// A socket that receives a copy of every frame of one link, in both directions.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    /// Starts to receive the frames of `link`, in the network namespace of the calling thread. The link is promiscuous
    /// as long as the socket is open; on a bridge that shows the frames between its ports.
    ///
    /// # Errors
    /// There is no such link, or the caller may not capture (CAP_NET_RAW).
    pub fn open(link: &str) -> Result<Self, Error> {
        let failed = |e: io::Error| Error::system(format!("capture on the link {link}"), e);
        let index = nix::net::if_::if_nametoindex(link).map_err(|e| failed(e.into()))?;
        let index = libc::c_int::try_from(index).map_err(|e| failed(io::Error::other(e)))?;
        // Protocol 0: nothing is received until the socket is bound to the link, so that no other link's frames are.
        // SAFETY: the call takes no pointers.
        let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        let socket = Self { socket: unsafe { OwnedFd::from_raw_fd(raw) } };
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE_BYTES).map_err(failed)?;
        // SAFETY: all-zero bytes are a valid value of this plain structure.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = FAMILY;
        address.sll_protocol = ALL_PROTOCOLS.to_be();
        address.sll_ifindex = index;
        // SAFETY: the pointer and length name one address structure that lives through the call.
        let bound = unsafe { libc::bind(raw, (&raw const address).cast(), length_of::<libc::sockaddr_ll>()) };
        if bound < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        let member =
            libc::packet_mreq { mr_ifindex: index, mr_type: PROMISCUOUS, mr_alen: 0, mr_address: [0; 8] };
        socket.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member).map_err(failed)?;
        Ok(socket)
    }

    /// Reads the next frame into `buffer`, cut at its length; none if there is none within `wait`.
    ///
    /// # Errors
    /// The link has gone, or the wait was interrupted.
    pub fn receive(&self, buffer: &mut [u8], wait: Duration) -> io::Result<Option<usize>> {
        let milliseconds = libc::c_int::try_from(wait.as_millis()).unwrap_or(libc::c_int::MAX);
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer names one structure that lives through the call.
        match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
            0 => return Ok(None),
            1 => {}
            _ => return Err(io::Error::last_os_error()),
        }
        // SAFETY: the pointer and length name the buffer, which is borrowed for the call.
        let length =
            unsafe { libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(length).map(Some).map_err(|_| io::Error::last_os_error())
    }

    /// Frames that did not fit the queue since the last call.
    ///
    /// # Errors
    /// The kernel does not count them.
    pub fn dropped(&self) -> io::Result<u32> {
        let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = length_of::<libc::tpacket_stats>();
        // SAFETY: both pointers name values that live through the call, and the length is that of the first.
        let outcome = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counts).cast(),
                &raw mut length,
            )
        };
        if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(counts.tp_drops) }
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: the pointer and length name one value that lives through the call.
        let outcome = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                (&raw const *value).cast(),
                length_of::<T>(),
            )
        };
        if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn length_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("socket structures are small")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;

    #[test]
    fn frames_of_the_link_are_received_and_no_others() {
        NetNs::create_private()
            .unwrap()
            .run(|| {
                let socket = PacketSocket::open("lo").unwrap();
                let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                sender.send_to(b"a marked datagram", sender.local_addr().unwrap()).unwrap();
                let mut buffer = [0; 2048];
                // Loopback shows each frame as it leaves and as it arrives.
                for _ in 0..2 {
                    let length = socket.receive(&mut buffer, Duration::from_secs(5)).unwrap().unwrap();
                    assert!(buffer[..length].ends_with(b"a marked datagram"));
                }
                assert_eq!(socket.receive(&mut buffer, Duration::ZERO).unwrap(), None);
                assert_eq!(socket.dropped().unwrap(), 0);
            })
            .unwrap();
    }

    #[test]
    fn a_missing_link_is_named() {
        let error = PacketSocket::open("nowhere0").unwrap_err();
        assert_eq!(error.to_string(), "cannot capture on the link nowhere0");
    }
}
