//! Frames to what was seen. Nothing in a frame is trusted: every length is checked against the bytes that are there.

use super::Seen;
use anyhow::{Result, bail};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Bytes of TCP streams kept at most: far more than the checks send. Beyond that the capture is not complete.
const KEPT_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Flag bits of a TCP header.
const SYN: u8 = 0x02;

/// One direction of a connection.
type Flow = (IpAddr, u16, IpAddr, u16);

/// What has been seen so far.
#[derive(Debug)]
pub(super) struct Analysis {
    marker: Vec<u8>,
    tls_port: u16,
    seen: Seen,
    streams: HashMap<Flow, Stream>,
    kept_bytes: usize,
}

/// Segments by their distance from the first sequence number that was seen, so that order and repetition do not matter.
#[derive(Debug)]
struct Stream {
    first: u32,
    segments: BTreeMap<i64, Vec<u8>>,
}

impl Analysis {
    pub(super) fn new(marker: &[u8], tls_port: u16) -> Self {
        let (seen, streams) = (Seen::default(), HashMap::new());
        Self { marker: marker.to_vec(), tls_port, seen, streams, kept_bytes: 0 }
    }

    /// Takes one frame into account.
    pub(super) fn frame(&mut self, frame: &[u8]) {
        self.seen.packets += 1;
        self.seen.bytes += frame.len();
        if self.tcp(frame).is_none() {
            // Fragments, datagrams, and whatever else could carry the marker.
            self.seen.marker_in_plain += count(frame, &self.marker);
        }
    }

    /// Puts a whole TCP segment where it belongs; none if the frame is something else.
    fn tcp(&mut self, frame: &[u8]) -> Option<()> {
        let (kind, packet) = network_layer(frame)?;
        let (from, to, segment) = match kind {
            0x0800 => ipv4(packet)?,
            0x86dd => ipv6(packet)?,
            _ => return None,
        };
        let from_port = u16_at(segment, 0)?;
        let to_port = u16_at(segment, 2)?;
        let sequence = u32::from_be_bytes(segment.get(4..8)?.try_into().ok()?);
        let header_bytes = usize::from(segment.get(12)? >> 4) * 4;
        let flags = *segment.get(13)?;
        let payload = segment.get(header_bytes.max(20)..)?;
        if [from_port, to_port].contains(&self.tls_port) && begins_like_tls(payload) {
            self.seen.tls_records += 1;
        }
        let flow = (from, from_port, to, to_port);
        if flags & SYN != 0 {
            self.close(flow);
        } else if !payload.is_empty() {
            self.kept_bytes += payload.len();
            let kept = if self.kept_bytes > KEPT_BYTES_MAX { &[] } else { payload };
            let stream =
                self.streams.entry(flow).or_insert(Stream { first: sequence, segments: BTreeMap::new() });
            stream.add(sequence, kept);
        }
        Some(())
    }

    /// A new connection with the same addresses and ports is another stream.
    fn close(&mut self, flow: Flow) {
        if let Some(stream) = self.streams.remove(&flow) {
            self.seen.marker_in_plain += stream.count(&self.marker);
        }
    }

    /// The sum of it all.
    pub(super) fn seen(mut self) -> Result<Seen> {
        if self.kept_bytes > KEPT_BYTES_MAX {
            bail!("over {KEPT_BYTES_MAX} bytes crossed in TCP streams: capture for a shorter time");
        }
        let streams = std::mem::take(&mut self.streams);
        self.seen.marker_in_plain += streams.values().map(|stream| stream.count(&self.marker)).sum::<usize>();
        Ok(self.seen)
    }
}

impl Stream {
    fn add(&mut self, sequence: u32, payload: &[u8]) {
        // The distance as a signed number: a segment may be older than the first one that was seen.
        let distance = i64::from(sequence.wrapping_sub(self.first).cast_signed());
        let known = self.segments.entry(distance).or_default();
        if known.len() < payload.len() {
            *known = payload.to_vec();
        }
    }

    /// Markers in all stretches without a gap.
    fn count(&self, marker: &[u8]) -> usize {
        let (mut found, mut stretch, mut end) = (0, Vec::new(), i64::MIN);
        for (start, bytes) in &self.segments {
            if *start > end {
                found += count(&stretch, marker);
                stretch.clear();
                end = *start;
            }
            // What overlaps with the bytes before is a repetition.
            let repeated = usize::try_from(end - start).unwrap_or(usize::MAX);
            if let Some(new) = bytes.get(repeated..) {
                stretch.extend_from_slice(new);
                end += i64::try_from(new.len()).unwrap_or(i64::MAX);
            }
        }
        found + count(&stretch, marker)
    }
}

fn count(bytes: &[u8], marker: &[u8]) -> usize {
    bytes.windows(marker.len()).filter(|window| *window == marker).count()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Type and packet of an Ethernet frame, VLAN tags skipped.
fn network_layer(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = 12;
    loop {
        match u16_at(frame, at)? {
            0x8100 | 0x88a8 => at += 4,
            kind => return Some((kind, frame.get(at + 2..)?)),
        }
    }
}

/// Addresses and segment of an IPv4 packet with TCP that is no fragment.
fn ipv4(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
    let total = usize::from(u16_at(packet, 2)?);
    let is_fragment = u16_at(packet, 6)? & 0x3fff != 0;
    if packet.first()? >> 4 != 4 || is_fragment || *packet.get(9)? != 6 {
        return None;
    }
    let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
    // A length of zero is that of a segment the kernel has not cut yet, over 64 KiB.
    let end = if total == 0 { packet.len() } else { total };
    Some((address(12)?, address(16)?, packet.get(header_bytes.max(20)..end)?))
}

/// Addresses and segment of an IPv6 packet with TCP right after its header.
fn ipv6(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    if packet.first()? >> 4 != 6 || *packet.get(6)? != 6 {
        return None;
    }
    let length = usize::from(u16_at(packet, 4)?);
    let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
    let end = if length == 0 { packet.len() } else { 40 + length };
    Some((address(8)?, address(24)?, packet.get(40..end)?))
}

/// A record's type, version 3.x, and a length that a record may have (RFC 8446, section 5.1).
fn begins_like_tls(payload: &[u8]) -> bool {
    match *payload {
        [20..=23, 3, 0..=4, high, low, ..] => u16::from_be_bytes([high, low]) <= (1 << 14) + 256,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
