//! Just enough of Rust's lexical grammar to tell code from comments and literals.

/// The text with every comment and literal blanked, line breaks kept, so that offsets and lines stay.
pub(super) fn without_comments_and_literals(text: &str) -> String {
    let mut blanker = Blanker { source: text.as_bytes(), at: 0, out: Vec::with_capacity(text.len()) };
    while blanker.at < blanker.source.len() {
        blanker.step();
    }
    // Only whole ASCII-delimited stretches are blanked, byte by byte, so the rest stays valid UTF-8.
    String::from_utf8_lossy(&blanker.out).into_owned()
}

/// The part of the (blanked) text that is not a test: up to the first `#[cfg(test)]` that opens a module's body.
pub(super) fn without_tests(code: &str) -> &str {
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(test)]") {
        let at = from + found;
        let item = code[at + "#[cfg(test)]".len()..].trim_start();
        let module = item.split('{').next().is_some_and(|head| head.contains("mod ") && !head.contains(';'));
        if module {
            return &code[..at];
        }
        from = at + 1;
    }
    code
}

struct Blanker<'a> {
    source: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

impl Blanker<'_> {
    fn step(&mut self) {
        let rest = &self.source[self.at..];
        if rest.starts_with(b"//") {
            let end = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            self.blank(end);
        } else if rest.starts_with(b"/*") {
            self.blank(block_comment(rest));
        } else if let Some(length) = raw_string(rest).filter(|_| !self.inside_word()) {
            self.blank(length);
        } else if rest[0] == b'"' {
            self.blank(quoted(rest, b'"'));
        } else if rest[0] == b'\'' && is_character(rest) {
            self.blank(quoted(rest, b'\''));
        } else {
            self.out.push(rest[0]);
            self.at += 1;
        }
    }

    /// Whether the byte before is part of a name, so that an `r` here starts no raw string.
    fn inside_word(&self) -> bool {
        self.at > 0 && {
            let before = self.source[self.at - 1];
            before.is_ascii_alphanumeric() || before == b'_'
        }
    }

    fn blank(&mut self, length: usize) {
        let end = (self.at + length).min(self.source.len());
        self.out.extend(self.source[self.at..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
        self.at = end;
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Length of a raw string (`r"…"`, `r#"…"#`, with a `b` or `c` in front), if one starts here.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let prefix = usize::from(matches!(rest[0], b'b' | b'c'));
    if rest.get(prefix) != Some(&b'r') {
        return None;
    }
    let hashes = rest[prefix + 1..].iter().take_while(|b| **b == b'#').count();
    let open = prefix + 1 + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let close = [&b"\""[..], &vec![b'#'; hashes]].concat();
    let body = &rest[open + 1..];
    let end = body.windows(close.len()).position(|w| w == close);
    Some(end.map_or(rest.len(), |e| open + 1 + e + close.len()))
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Whether a `'` starts a character and not a lifetime.
fn is_character(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(byte) if byte.is_ascii() => rest.get(2) == Some(&b'\''),
        Some(_) => rest.iter().skip(2).take(4).any(|b| *b == b'\''),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(without_comments_and_literals(text), expected);
    }

    #[test]
    fn comments_and_literals_are_blanked_and_lines_kept() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ d\n */ e", "a               \n    e");
        check("f(\"x\\\"y\")", "f(      )");
        check("f(r#\"x\"y\"#, br\"z\")", "f(        ,      )");
        check("for r in x {}", "for r in x {}");
        check("var\"s\"", "var   ");
        check("'a' + '\\'' + 'é'", "    +      +     ");
        check("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
        check("\"never closed", "             ");
    }

    #[test]
    fn tests_begin_at_the_module_that_is_only_built_for_them() {
        let text = "fn a() {}\n#[cfg(test)]\nuse x;\nfn b() {}\n#[cfg(test)]\nmod tests {\n}";
        assert_eq!(without_tests(text), "fn a() {}\n#[cfg(test)]\nuse x;\nfn b() {}\n");
        assert_eq!(
            without_tests("fn a() {}\n#[cfg(test)]\nmod tests;"),
            "fn a() {}\n#[cfg(test)]\nmod tests;"
        );
    }
}
