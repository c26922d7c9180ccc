//! The command line.

use std::time::Duration;

/// Printed after every mistake.
pub(crate) const USAGE: &str = "usage: demo-app serve [--port 8080] [--tcp-echo PORT]
       demo-app get http://HOST[:PORT][/PATH] [--count N] [--interval MS] [--timeout MS]
       demo-app hold HOST:PORT
       demo-app idle
       demo-app exit CODE";

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Answer HTTP on `port`, and echo TCP on another port.
    Serve { port: u16, tcp_echo: Option<u16> },
    /// Fetch a URL some times.
    Get(Get),
    /// Keep one TCP connection open.
    Hold { address: String },
    /// Wait for ever.
    Idle,
    /// End at once.
    Exit { code: u8 },
}

/// A URL to fetch and how often.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Get {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
    pub(crate) count: u32,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

/// Reads the verb and its options; the error says what is wrong.
pub(crate) fn parse_verb(args: impl Iterator<Item = String>) -> Result<Verb, String> {
    let mut args: Vec<String> = args.collect();
    if args.is_empty() {
        return Err("a verb is missing".to_owned());
    }
    let verb = args.remove(0);
    match verb.as_str() {
        "serve" => {
            let port = take_number(&mut args, "--port")?.unwrap_or(8080);
            let tcp_echo = take_number(&mut args, "--tcp-echo")?;
            no_more(&args).map(|()| Verb::Serve { port, tcp_echo })
        }
        "get" => parse_get(args).map(Verb::Get),
        "hold" => Ok(Verb::Hold { address: only(args, "HOST:PORT")? }),
        "idle" => no_more(&args).map(|()| Verb::Idle),
        "exit" => {
            let code = only(args, "CODE")?;
            code.parse().map(|code| Verb::Exit { code }).map_err(|_| format!("{code:?} is no exit code"))
        }
        other => Err(format!("unknown verb {other:?}")),
    }
}

fn parse_get(mut args: Vec<String>) -> Result<Get, String> {
    let count = take_number(&mut args, "--count")?.unwrap_or(1);
    let interval_ms = take_number(&mut args, "--interval")?.unwrap_or(1000);
    let timeout_ms: u64 = take_number(&mut args, "--timeout")?.unwrap_or(2000);
    let url = only(args, "URL")?;
    let rest = url.strip_prefix("http://").ok_or_else(|| format!("{url:?} does not start with http://"))?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
        }
        _ => (authority, 80),
    };
    if host.is_empty() || timeout_ms == 0 {
        return Err("the host and the timeout must not be empty or zero".to_owned());
    }
    Ok(Get {
        host: host.trim_matches(['[', ']']).to_owned(),
        port,
        path: path.to_owned(),
        count,
        interval: Duration::from_millis(interval_ms),
        timeout: Duration::from_millis(timeout_ms),
    })
}

/// Takes `--name VALUE` out of the arguments.
fn take_number<T: std::str::FromStr>(args: &mut Vec<String>, name: &str) -> Result<Option<T>, String> {
    let Some(at) = args.iter().position(|a| a == name) else { return Ok(None) };
    if at + 1 == args.len() {
        return Err(format!("{name} needs a value"));
    }
    let value = args.remove(at + 1);
    args.remove(at);
    value.parse().map(Some).map_err(|_| format!("{name}: {value:?} is not a number in range"))
}

fn only(args: Vec<String>, name: &str) -> Result<String, String> {
    match <[String; 1]>::try_from(args) {
        Ok([value]) => Ok(value),
        Err(args) => Err(format!("expected one {name}, got {}", args.len())),
    }
}

fn no_more(args: &[String]) -> Result<(), String> {
    args.first().map_or(Ok(()), |extra| Err(format!("unexpected argument {extra:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Result<Verb, &str>) {
        let parsed = parse_verb(line.split_whitespace().map(str::to_owned));
        assert_eq!(parsed, expected.map_err(str::to_owned));
    }

    fn get(host: &str, port: u16, path: &str) -> Get {
        Get {
            host: host.into(),
            port,
            path: path.into(),
            count: 1,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
        }
    }

    #[test]
    fn verbs_and_their_options() {
        check("serve", Ok(Verb::Serve { port: 8080, tcp_echo: None }));
        check("serve --tcp-echo 9000 --port 81", Ok(Verb::Serve { port: 81, tcp_echo: Some(9000) }));
        check("get http://web.demo/a/b", Ok(Verb::Get(get("web.demo", 80, "/a/b"))));
        check("get http://web:8080", Ok(Verb::Get(get("web", 8080, "/"))));
        check("get http://[fd00::1]:8080/", Ok(Verb::Get(get("fd00::1", 8080, "/"))));
        check("get http://[fd00::1]", Ok(Verb::Get(get("fd00::1", 80, "/"))));
        let slow = Get { count: 3, interval: Duration::from_millis(5), ..get("web", 80, "/") };
        check("get --count 3 http://web --interval 5", Ok(Verb::Get(slow)));
        check("hold web:9000", Ok(Verb::Hold { address: "web:9000".into() }));
        check("idle", Ok(Verb::Idle));
        check("exit 3", Ok(Verb::Exit { code: 3 }));
    }

    #[test]
    fn mistakes_say_what_is_wrong() {
        check("", Err("a verb is missing"));
        check("dance", Err("unknown verb \"dance\""));
        check("serve --port", Err("--port needs a value"));
        check("serve --port 65536", Err("--port: \"65536\" is not a number in range"));
        check("serve now", Err("unexpected argument \"now\""));
        check("get", Err("expected one URL, got 0"));
        check("get https://web", Err("\"https://web\" does not start with http://"));
        check("get http://web:x", Err("\"x\" is no port"));
        check("get http://", Err("the host and the timeout must not be empty or zero"));
        check("exit 256", Err("\"256\" is no exit code"));
    }
}
