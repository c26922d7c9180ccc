//! Finds where values stand in a JSON text, so that an edit leaves every other byte as it was.
//!
//! The text must be valid JSON: callers have parsed it before.

use std::ops::Range;

/// Walks over a valid JSON text.
struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Skips a byte that must come next, with the space before it.
    fn expect(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip_string(&mut self) -> Option<Range<usize>> {
        self.skip_space();
        let start = self.at;
        self.expect(b'"')?;
        loop {
            match self.peek()? {
                b'"' => break self.at += 1,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        Some(start..self.at)
    }

    /// Skips one value of any kind. Not recursive: nesting is only counted.
    fn skip_value(&mut self) -> Option<Range<usize>> {
        self.skip_space();
        let start = self.at;
        let mut depth = 0usize;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.skip_string()?;
                }
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                Some(b'}' | b']') if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                Some(b',' | b':') if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                Some(byte) if depth > 0 && byte.is_ascii_whitespace() => {
                    self.at += 1;
                    continue;
                }
                // A number, true, false or null.
                Some(byte) if byte.is_ascii_alphanumeric() || b"+-.".contains(&byte) => {
                    while self.peek().is_some_and(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) {
                        self.at += 1;
                    }
                }
                _ => return None,
            }
            if depth == 0 {
                return Some(start..self.at);
            }
        }
    }
}

/// Where an array stands: just after its `[`, the bounds of its elements, and where its `]` is.
pub(crate) struct Array {
    pub(crate) opened: usize,
    pub(crate) elements: Vec<Range<usize>>,
    pub(crate) closed: usize,
}

/// The last array under `key` in the text's top-level object (the one that a parser keeps).
pub(crate) fn array_in_object(text: &str, key: &str) -> Option<Array> {
    let mut scanner = Scanner { bytes: text.as_bytes(), at: 0 };
    let mut found = None;
    scanner.expect(b'{')?;
    loop {
        let name = scanner.skip_string()?;
        scanner.expect(b':')?;
        scanner.skip_space();
        let is_key = serde_json::from_str::<String>(&text[name]).is_ok_and(|name| name == key);
        if is_key && scanner.peek() == Some(b'[') {
            found = Some(array(&mut scanner)?);
        } else {
            scanner.skip_value()?;
        }
        scanner.skip_space();
        match scanner.peek()? {
            b',' => scanner.at += 1,
            _ => return found,
        }
    }
}

fn array(scanner: &mut Scanner<'_>) -> Option<Array> {
    scanner.expect(b'[')?;
    let mut array = Array { opened: scanner.at, elements: Vec::new(), closed: 0 };
    scanner.skip_space();
    while scanner.peek()? != b']' {
        array.elements.push(scanner.skip_value()?);
        scanner.skip_space();
        if scanner.peek()? == b',' {
            scanner.at += 1;
            scanner.skip_space();
        }
    }
    array.closed = scanner.at;
    scanner.at += 1;
    Some(array)
}
