//! Fetches a URL and prints one line per try.

use crate::options::Get;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;

/// Tries as often as asked; the exit code is that of the last try.
pub(crate) fn get(get: &Get) -> ExitCode {
    let mut last = ExitCode::FAILURE;
    for n in 0..get.count {
        if n > 0 {
            std::thread::sleep(get.interval);
        }
        last = match fetch(get) {
            Ok((status, body)) => {
                println!("{status} {}", body.trim_end());
                if (200..400).contains(&status) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(e) => {
                println!("error {e}");
                ExitCode::FAILURE
            }
        };
    }
    last
}

fn fetch(get: &Get) -> io::Result<(u16, String)> {
    let mut stream = connect(get)?;
    stream.set_read_timeout(Some(get.timeout))?;
    stream.set_write_timeout(Some(get.timeout))?;
    let request =
        format!("GET {} HTTP/1.1\r\nhost: {}:{}\r\nconnection: close\r\n\r\n", get.path, get.host, get.port);
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    parse_answer(&String::from_utf8_lossy(&answer))
}

fn connect(get: &Get) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", get.host));
    for address in (get.host.as_str(), get.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, get.timeout) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Status and body of an answer that ended with its connection.
fn parse_answer(answer: &str) -> io::Result<(u16, String)> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    if answer.is_empty() {
        return Err(bad("the connection was closed without an answer"));
    }
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| bad("the answer ends in its head"))?;
    let status = head.split_whitespace().nth(1).and_then(|s| s.parse().ok());
    let status = status.filter(|_| head.starts_with("HTTP/1.")).ok_or_else(|| bad("no HTTP/1 answer"))?;
    let length = head.lines().filter_map(|line| line.split_once(':'));
    let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let expected = length.next().and_then(|(_, value)| value.trim().parse::<usize>().ok());
    if expected.is_some_and(|expected| body.len() < expected) {
        return Err(bad("the answer was cut short"));
    }
    Ok((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(answer: &str, expected: Result<(u16, &str), &str>) {
        let seen = parse_answer(answer).map_err(|e| e.to_string());
        assert_eq!(seen, expected.map(|(s, b)| (s, b.to_owned())).map_err(str::to_owned));
    }

    #[test]
    fn answers() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", Ok((200, "hi")));
        check("HTTP/1.1 503 Down\r\n\r\nno", Ok((503, "no")));
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", Err("the answer was cut short"));
        check("", Err("the connection was closed without an answer"));
        check("HTTP/1.1 200 OK\r\n", Err("the answer ends in its head"));
        check("SSH-2.0 200\r\n\r\n", Err("no HTTP/1 answer"));
    }
}
