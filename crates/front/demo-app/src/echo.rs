//! One long-lived TCP connection: its server echoes, its client sends a marker and watches for the end.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the client sends, one per [`INTERVAL`]; packet captures look for it.
const MARKER: &[u8] = b"ambit-demo-marker\n";
/// Time between two markers.
const INTERVAL: Duration = Duration::from_millis(100);
/// An echo that takes longer counts as the end of the connection.
const ECHO_WAIT: Duration = Duration::from_secs(10);

/// Sends back whatever arrives.
pub(crate) fn answer(mut stream: TcpStream, peer: IpAddr) {
    println!("echo opened by {peer}");
    let ended = stream.try_clone().and_then(|mut back| io::copy(&mut stream, &mut back));
    match ended {
        Ok(bytes) => println!("echo closed by {peer} after {bytes} bytes"),
        Err(e) => println!("echo of {peer} ended: {e}"),
    }
}

/// Keeps a connection to `address` busy until it ends; prints when it opened and when it ended.
pub(crate) fn hold(address: &str) -> ExitCode {
    let mut stream = match TcpStream::connect(address) {
        Ok(stream) => stream,
        Err(e) => {
            println!("error {e}");
            return ExitCode::FAILURE;
        }
    };
    println!("open {}", unix_ms());
    let error = match hold_open(&mut stream) {
        Ok(never) => match never {},
        Err(e) => e,
    };
    println!("closed {} {error}", unix_ms());
    ExitCode::FAILURE
}

fn hold_open(stream: &mut TcpStream) -> io::Result<std::convert::Infallible> {
    stream.set_read_timeout(Some(ECHO_WAIT))?;
    stream.set_nodelay(true)?;
    let mut first = true;
    let mut echoed = [0; MARKER.len()];
    loop {
        stream.write_all(MARKER)?;
        stream.read_exact(&mut echoed)?;
        if echoed != MARKER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "something else came back"));
        }
        if std::mem::take(&mut first) {
            println!("echoing {}", unix_ms());
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Milliseconds since the epoch.
#[expect(clippy::disallowed_methods, reason = "this binary has no clock to be given")]
fn unix_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_held_connection_is_echoed_until_it_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let server = std::thread::spawn(move || {
            let mut sent = [0; MARKER.len()];
            for _ in 0..2 {
                stream.read_exact(&mut sent).unwrap();
                stream.write_all(&sent).unwrap();
            }
        });
        let error = hold_open(&mut client).unwrap_err();
        server.join().unwrap();
        assert!(
            matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ),
            "{error}"
        );
    }
}
