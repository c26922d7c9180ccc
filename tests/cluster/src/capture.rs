//! What crosses a link, captured by ourselves: packets, a marker in plain text, TLS records on a port.

mod analysis;

use ambit_linux::packet::PacketSocket;
use analysis::Analysis;
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest frame there is: segments that the kernel has not cut yet are up to 64 KiB, and a header before them.
const FRAME_BYTES_MAX: usize = 128 * 1024;
/// How long the reader waits for a frame before it looks whether it is to stop.
const WAIT: Duration = Duration::from_millis(20);

/// What crossed the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Frames, in both directions.
    pub packets: usize,
    /// Bytes of those frames.
    pub bytes: usize,
    /// How often the marker was seen, in TCP streams put together again and in all other packets.
    pub marker_in_plain: usize,
    /// TCP segments from or to the port that begin like a TLS record.
    pub tls_records: usize,
}

/// A running capture. Dropping it ends it.
#[derive(Debug)]
pub struct Capture {
    link: String,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<Result<Analysis>>>,
}

impl Capture {
    /// Captures on `link` of the calling thread's network namespace, from now on; looks for `marker`, and for TLS on
    /// the TCP port `tls_port`.
    ///
    /// # Errors
    /// There is no such link, the caller may not capture, or the marker is empty.
    pub fn start(link: &str, marker: &[u8], tls_port: u16) -> Result<Self> {
        if marker.is_empty() {
            bail!("an empty marker is in every packet: name some bytes to look for");
        }
        let socket = PacketSocket::open(link)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, analysis) = (Arc::clone(&stop), Analysis::new(marker, tls_port));
        let reader = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || read(&socket, analysis, &stopping))
            .context("cannot start the capture's thread")?;
        Ok(Self { link: link.to_owned(), stop, reader: Some(reader) })
    }

    /// Ends the capture after all that has crossed the link so far, and tells what was seen.
    ///
    /// # Errors
    /// The link has gone, or something was missed: frames were dropped, or there were more than can be kept.
    pub fn stop(mut self) -> Result<Seen> {
        let reader = self.end().context("the capture has ended already")?;
        let outcome = reader.join().map_err(|_| anyhow::anyhow!("the capture's thread panicked"))?;
        outcome
            .and_then(Analysis::seen)
            .with_context(|| format!("the capture on {} is not complete", self.link))
    }

    fn end(&mut self) -> Option<JoinHandle<Result<Analysis>>> {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.take()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(reader) = self.end() {
            // Nobody asked what was seen.
            let _ = reader.join();
        }
    }
}

fn read(socket: &PacketSocket, mut analysis: Analysis, stop: &AtomicBool) -> Result<Analysis> {
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    loop {
        // Read before the wait: what was queued when the stop came is still read.
        let stopping = stop.load(Ordering::Relaxed);
        match socket.receive(&mut buffer, WAIT)? {
            Some(length) => analysis.frame(&buffer[..length]),
            None if stopping => break,
            None => {}
        }
    }
    let dropped = socket.dropped()?;
    if dropped > 0 {
        bail!("{dropped} frames were dropped");
    }
    Ok(analysis)
}

#[cfg(test)]
mod tests;
