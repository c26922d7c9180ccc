//! Answers HTTP.

use crate::echo;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Longest request head in bytes.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
/// How long a connection may stay silent.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Connections served at once by one listener.
const CONNECTIONS_MAX: usize = 512;

/// Serves until the process ends.
pub(crate) fn serve(port: u16, tcp_echo: Option<u16>) -> ExitCode {
    if let Some(port) = tcp_echo {
        std::thread::spawn(move || report(port, listen(port, echo::answer)));
    }
    let name = std::env::var("POD_NAME").unwrap_or_else(|_| "demo-app".to_owned());
    report(port, listen(port, move |stream, peer| answer(stream, peer, &name)));
    ExitCode::FAILURE
}

fn report(port: u16, outcome: io::Result<()>) {
    if let Err(e) = outcome {
        eprintln!("cannot serve on port {port}: {e}");
        std::process::exit(1);
    }
}

/// Accepts connections on all addresses; each is served by a thread, up to [`CONNECTIONS_MAX`] of them.
fn listen(port: u16, serve: impl Fn(TcpStream, IpAddr) + Send + Sync + 'static) -> io::Result<()> {
    // A kernel without IPv6 still has the IPv4 wildcard.
    let listener = TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
        .or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    println!("listening on {}", listener.local_addr()?);
    let (serve, open) = (Arc::new(serve), Arc::new(AtomicUsize::new(0)));
    loop {
        // An aborted connection is its peer's problem, not the listener's.
        let Ok((stream, peer)) = listener.accept() else { continue };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (serve, open) = (Arc::clone(&serve), Arc::clone(&open));
        std::thread::spawn(move || {
            serve(stream, peer.ip().to_canonical());
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn answer(stream: TcpStream, peer: IpAddr, name: &str) {
    if let Err(e) = answer_all(&stream, peer, name) {
        eprintln!("connection from {peer}: {e}");
    }
}

/// Answers the requests of one connection until its peer closes it or asks for the end.
fn answer_all(stream: &TcpStream, peer: IpAddr, name: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.take(0));
    loop {
        reader.get_mut().set_limit(HEAD_BYTES_MAX);
        let Some(request) = read_head(&mut reader)? else { return Ok(()) };
        println!("{} {} from {peer}", request.method, request.path);
        let (status, body) = match (request.method.as_str(), request.path.as_str()) {
            ("GET" | "HEAD", "/healthz") => ("200 OK", "ok\n".to_owned()),
            ("GET" | "HEAD", _) => ("200 OK", format!("hello from {name} peer={peer}\n")),
            _ => ("405 Method Not Allowed", "only GET is served\n".to_owned()),
        };
        let keep = request.keep_alive && status.starts_with("200");
        let connection = if keep { "keep-alive" } else { "close" };
        let shown = if request.method == "HEAD" { "" } else { &body };
        let length = body.len();
        let response = format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: {connection}\r\n\r\n{shown}"
        );
        (&*stream).write_all(response.as_bytes())?;
        if !keep {
            return Ok(());
        }
    }
}

struct Request {
    method: String,
    path: String,
    keep_alive: bool,
}

/// Reads one request head; `None` when the peer closed the connection before it.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "no HTTP/1 request");
    let mut words = line.split_whitespace();
    let (Some(method), Some(path), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(bad());
    };
    if !version.starts_with("HTTP/1.") {
        return Err(bad());
    }
    let mut request =
        Request { method: method.to_owned(), path: path.to_owned(), keep_alive: version != "HTTP/1.0" };
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            return Ok(Some(request));
        }
        if header.starts_with("connection:") && header.contains("close") {
            request.keep_alive = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sent: &str, expected: Option<&str>) {
        let seen = match read_head(&mut sent.as_bytes()) {
            Ok(Some(r)) => Some(format!("{} {} {}", r.method, r.path, r.keep_alive)),
            Ok(None) => Some("closed".to_owned()),
            Err(_) => None,
        };
        assert_eq!(seen.as_deref(), expected);
    }

    #[test]
    fn request_heads() {
        check("GET / HTTP/1.1\r\nhost: a\r\n\r\n", Some("GET / true"));
        check("GET /a HTTP/1.1\r\nConnection: Close\r\n\r\n", Some("GET /a false"));
        check("GET /a HTTP/1.0\r\n\r\n", Some("GET /a false"));
        check("", Some("closed"));
        check("GET /\r\n\r\n", None);
        check("PRI * HTTP/2.0\r\n\r\n", None);
        check("GET / HTTP/1.1\r\nhost: a\r\n", None);
    }

    #[test]
    fn a_connection_is_answered_until_it_asks_for_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        let server = std::thread::spawn(move || answer(stream, peer.ip(), "web-1"));
        let mut reader = BufReader::new(client.try_clone().unwrap());
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut lines = String::new();
        while !lines.ends_with("peer=127.0.0.1\n") {
            assert_ne!(reader.read_line(&mut lines).unwrap(), 0);
        }
        assert!(lines.starts_with("HTTP/1.1 200 OK\r\n") && lines.contains("hello from web-1"), "{lines}");
        client.write_all(b"POST / HTTP/1.1\r\n\r\n").unwrap();
        lines.clear();
        reader.read_to_string(&mut lines).unwrap();
        assert!(lines.starts_with("HTTP/1.1 405"), "{lines}");
        server.join().unwrap();
    }
}
