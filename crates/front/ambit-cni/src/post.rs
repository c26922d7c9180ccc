//! One HTTP/1.1 request over the agent's Unix socket, with a deadline and a bounded answer.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Head and body of an answer together. The agent's answers have a few hundred bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum PostError {
    /// Nobody listens, or the connection broke.
    Io(PathBuf, io::Error),
    /// The agent took too long.
    Deadline(PathBuf, Duration),
    /// The answer is not HTTP/1.1 with a complete body.
    Protocol(&'static str),
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostError::Io(socket, e) => write!(f, "{}: {e}", socket.display()),
            PostError::Deadline(socket, deadline) => {
                write!(f, "{}: no answer within {} s", socket.display(), deadline.as_secs())
            }
            PostError::Protocol(problem) => write!(f, "the agent's answer is not HTTP/1.1: {problem}"),
        }
    }
}

/// Posts JSON and returns the status and the body.
pub(crate) fn post(
    socket: &Path,
    path: &str,
    body: &str,
    deadline: Duration,
) -> Result<(u16, String), PostError> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: unix\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let (sender, receiver) = mpsc::sync_channel(1);
    let to = socket.to_owned();
    // A thread, since connecting to a Unix socket has no time limit of its own. A stuck one ends with the process.
    std::thread::spawn(move || sender.send(exchange(&to, request.as_bytes())));
    let answer = match receiver.recv_timeout(deadline) {
        Ok(answer) => answer.map_err(|e| PostError::Io(socket.to_owned(), e))?,
        Err(_) => return Err(PostError::Deadline(socket.to_owned(), deadline)),
    };
    parse(&answer).map_err(PostError::Protocol)
}

fn exchange(socket: &Path, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Splits an answer into its status and its body.
fn parse(answer: &[u8]) -> Result<(u16, String), &'static str> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("its head has no end")?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| "its head is not text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let code = status.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)).unwrap_or_default();
    let code = code.parse().map_err(|_| "it has no status")?;
    let mut body = &answer[end + 4..];
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            let length: usize = value.trim().parse().map_err(|_| "its length is not a number")?;
            body = body.get(..length).ok_or("it was cut off")?;
        }
    }
    Ok((code, String::from_utf8_lossy(body).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(answer: &str, expected: Result<(u16, &str), &str>) {
        let parsed = parse(answer.as_bytes());
        assert_eq!(parsed.as_ref().map(|(code, body)| (*code, body.as_str())).map_err(|e| *e), expected);
    }

    #[test]
    fn answers_are_split() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Ok((200, "{}")));
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}extra", Ok((200, "{}")));
        check("HTTP/1.0 500 Bad\r\n\r\nwhy\n", Ok((500, "why")));
        check("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", Err("it was cut off"));
        check("HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}", Err("its length is not a number"));
        check("HTTP/1.1 200 OK\r\n", Err("its head has no end"));
        check("nonsense\r\n\r\n", Err("it has no status"));
        check("HTTP/1.1\r\n\r\n", Err("it has no status"));
    }
}
