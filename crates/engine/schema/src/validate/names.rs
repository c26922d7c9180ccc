//! The syntax of names, labels and ports. Source: apimachinery `pkg/util/validation/validation.go`; the texts are
//! theirs, since clients show and match them.

/// Characters of a DNS label at most. Source: RFC 1123.
pub(super) const LABEL_LENGTH_MAX: usize = 63;
/// Characters of a DNS name at most. Source: RFC 1123.
pub(super) const SUBDOMAIN_LENGTH_MAX: usize = 253;
/// Characters of a service name at most. Source: RFC 6335.
const PORT_NAME_LENGTH_MAX: usize = 15;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// A syntax: `Err` says what a text must be.
pub(super) type Syntax = fn(&str) -> Result<(), String>;

fn length(text: &str, max: usize) -> Result<(), String> {
    if text.len() > max { Err(format!("must be no more than {max} characters")) } else { Ok(()) }
}

fn matches(holds: bool, text: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text.to_owned()) }
}

fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    framed(text, inner, |c| inner(c) || c == b'-')
}

/// Whether the ends satisfy one condition and everything between them another.
fn framed(text: &str, ends: impl Fn(u8) -> bool, between: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => ends(*first) && ends(*last) && bytes.iter().all(|c| between(*c)),
        _ => false,
    }
}

fn is_qualified_part(text: &str) -> bool {
    framed(
        text,
        |c| c.is_ascii_alphanumeric(),
        |c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'),
    )
}

/// A DNS label, RFC 1123.
pub(super) fn dns_label(text: &str) -> Result<(), String> {
    length(text, LABEL_LENGTH_MAX)?;
    matches(is_label(text), LABEL)
}

/// A DNS label that begins with a letter, RFC 1035.
pub(super) fn dns_1035_label(text: &str) -> Result<(), String> {
    length(text, LABEL_LENGTH_MAX)?;
    matches(is_label(text) && text.as_bytes()[0].is_ascii_lowercase(), LABEL_1035)
}

/// A DNS name, RFC 1123.
pub(super) fn dns_subdomain(text: &str) -> Result<(), String> {
    length(text, SUBDOMAIN_LENGTH_MAX)?;
    matches(text.split('.').all(is_label), SUBDOMAIN)
}

/// A name that can stand in a path.
pub(super) fn path_segment(text: &str) -> Result<(), String> {
    if matches!(text, "." | "..") {
        return Err(format!("may not be '{text}'"));
    }
    match text.chars().find(|c| matches!(c, '/' | '%')) {
        Some(character) => Err(format!("may not contain '{character}'")),
        None => Ok(()),
    }
}

/// The key of a label or annotation: an optional DNS name, a slash, and a name.
pub(super) fn qualified_name(text: &str) -> Result<(), String> {
    let name = match text.split_once('/') {
        Some(("", _)) => return Err("prefix part must be non-empty".to_owned()),
        Some((prefix, name)) => {
            dns_subdomain(prefix).map_err(|error| format!("prefix part {error}"))?;
            name
        }
        None => text,
    };
    if name.is_empty() {
        return Err("name part must be non-empty".to_owned());
    }
    length(name, LABEL_LENGTH_MAX).map_err(|error| format!("name part {error}"))?;
    matches(is_qualified_part(name), &format!("name part {QUALIFIED}"))
}

/// The value of a label.
pub(super) fn label_value(text: &str) -> Result<(), String> {
    length(text, LABEL_LENGTH_MAX)?;
    matches(text.is_empty() || is_qualified_part(text), LABEL_VALUE)
}

/// The key of a ConfigMap or Secret.
pub(super) fn config_key(text: &str) -> Result<(), String> {
    length(text, SUBDOMAIN_LENGTH_MAX)?;
    if matches!(text, "." | "..") || text.starts_with("..") {
        return Err(format!("must not be or start with '..' or be '.': \"{text}\""));
    }
    let known = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    matches(!text.is_empty() && text.bytes().all(known), CONFIG_KEY)
}

/// The name of a port, RFC 6335.
pub(super) fn port_name(text: &str) -> Result<(), String> {
    length(text, PORT_NAME_LENGTH_MAX)?;
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !text.bytes().all(|c| inner(c) || c == b'-') {
        return Err("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|c| c.is_ascii_lowercase()) {
        return Err("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        return Err("must not contain consecutive hyphens".to_owned());
    }
    matches(framed(text, inner, |_| true), "must not begin or end with a hyphen")
}

/// The name of an environment variable: since Kubernetes 1.34 all printable ASCII but `=`.
pub(super) fn env_name(text: &str) -> Result<(), String> {
    let known = |c: u8| (0x20..0x7f).contains(&c) && c != b'=';
    matches(
        text.bytes().all(known),
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
    )
}

/// The number of a port.
pub(super) fn port_number(number: i64) -> Result<(), String> {
    matches((1..=65535).contains(&number), "must be between 1 and 65535, inclusive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(syntax: Syntax, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(syntax(text), Ok(()), "{text}");
        }
        for text in bad {
            assert!(syntax(text).is_err(), "{text}");
        }
    }

    #[test]
    fn syntaxes() {
        let long = "a".repeat(64);
        check(dns_label, &["a", "a-1", "0"], &["", "-a", "a-", "A", "a.b", "ä", &long]);
        check(dns_1035_label, &["a", "a-1"], &["", "1a", "a.b"]);
        check(dns_subdomain, &["a.b-c.1", "a"], &["", ".", "a..b", "a_b", "a.", "A.b"]);
        check(
            qualified_name,
            &["a", "A_b.c", "k8s.io/x"],
            &["", "/", "/a", "a/", "a/b/c", "-a", "A/b", &long],
        );
        check(label_value, &["", "A_b.c", "1"], &["-", "a b", "a-", &long]);
        check(config_key, &["tls.crt", ".dockerconfigjson", "A_b"], &["", ".", "..", "..a", "a b", "a/b"]);
        check(port_name, &["http", "a-1"], &["", "80", "-a", "a-", "a--b", "Http", "sixteen-letters-x"]);
        check(path_segment, &["a:b", "A_b"], &[".", "..", "a/b", "a%b"]);
        check(env_name, &["A", "a.b-c", "1 x"], &["a=b", "ä", "a\n"]);
    }
}
