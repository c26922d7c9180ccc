//! The named formats of strings that custom schemas may ask for. Source: apiextensions
//! `pkg/apiserver/validation/formats.go`; formats it does not know are not checked.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::names;

/// Whether the text has the format; true for formats nobody knows.
pub(super) fn has_format(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "duration" => is_duration(text),
        "hostname" => names::dns_subdomain(&text.to_lowercase()).is_ok(),
        "email" => text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()),
        "uri" => is_uri(text),
        "byte" => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.decode(text.as_bytes()).is_ok()
        }
        _ => true,
    }
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<_> = text.split([':', '-']).collect();
    matches!(parts.len(), 6 | 8 | 20) && parts.iter().all(|part| part.len() == 2 && is_hex(part))
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_hexdigit())
}

fn is_uuid(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    plain.len() == 32 && is_hex(&plain)
}

/// A duration as Go prints it: `1h30m`, `1.5s`, `-2ms`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut any = false;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let Some(unit) = ["ns", "us", "µs", "ms", "s", "m", "h"]
            .iter()
            .filter(|unit| tail.starts_with(**unit))
            .max_by_key(|unit| unit.len())
        else {
            return false;
        };
        if number.parse::<f64>().is_err() {
            return false;
        }
        rest = &tail[unit.len()..];
        any = true;
    }
    any
}

/// An absolute URI or path, as Go's `url.ParseRequestURI` accepts it.
fn is_uri(text: &str) -> bool {
    let printable = text.bytes().all(|c| c > b' ' && c != 0x7f);
    let scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        let known = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'-' | b'.');
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(known) && !rest.is_empty()
    });
    printable && (scheme || text.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::has_format;

    #[track_caller]
    fn check(format: &str, good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(has_format(format, text), "{format} {text}");
        }
        for text in bad {
            assert!(!has_format(format, text), "{format} {text}");
        }
    }

    #[test]
    fn formats() {
        check("duration", &["1h30m", "1.5s", "0", "-2ms", "10µs"], &["", "1", "1x", "h", "1h 2m", "1..5s"]);
        check("date-time", &["2024-01-02T03:04:05Z"], &["2024-01-02", "x"]);
        check("date", &["2024-01-02"], &["2024-13-02", ""]);
        check("mac", &["00:11:22:aa:bb:cc"], &["00:11", "zz:11:22:aa:bb:cc"]);
        check("uuid", &["123e4567-e89b-12d3-a456-426614174000"], &["123"]);
        check("uri", &["http://a/b", "/x", "urn:a"], &["", "a b", "nothing"]);
        check("cidr", &["10.0.0.0/8", "::/0"], &["10.0.0.0", "10.0.0.0/33"]);
        check("unheard-of", &["anything"], &[]);
    }
}
