//! Lines of the runtime's log files. Source: the CRI log format, `<time> <stream> <F|P> <text>`.

use jiff::Timestamp;

/// Longest line that is kept while its end has not arrived, in bytes; the runtime writes at most 16 KiB a line.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Turns the bytes of a log file into what the container wrote.
#[derive(Debug, Default)]
pub(super) struct LineDecoder {
    pending: Vec<u8>,
    in_line: bool,
    timestamps: bool,
    since: Option<Timestamp>,
}

impl LineDecoder {
    /// A decoder that shows the time of each line or not, and only lines from `since` on.
    pub(super) fn new(timestamps: bool, since: Option<Timestamp>) -> Self {
        Self { timestamps, since, ..Self::default() }
    }

    /// Takes more bytes of the file and returns what they add to the output.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(bytes);
        let mut output = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line(&rest[..end], &mut output);
            rest = &rest[end + 1..];
        }
        if rest.len() > LINE_BYTES_MAX {
            self.line(rest, &mut output);
        } else {
            self.pending = rest.to_vec();
        }
        output
    }

    fn line(&mut self, line: &[u8], output: &mut Vec<u8>) {
        let Some(parsed) = Line::parse(line) else {
            // Not written by the runtime: shown as it is rather than hidden.
            output.extend_from_slice(line);
            output.push(b'\n');
            return;
        };
        if let Some(since) = self.since
            && parsed.time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return;
        }
        if self.timestamps && !self.in_line {
            output.extend_from_slice(parsed.time.as_bytes());
            output.push(b' ');
        }
        output.extend_from_slice(parsed.text);
        self.in_line = parsed.partial;
        if !parsed.partial {
            output.push(b'\n');
        }
    }
}

struct Line<'a> {
    time: &'a str,
    partial: bool,
    text: &'a [u8],
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(fields.next()?).ok()?;
        let stream = fields.next()?;
        let tag = fields.next()?;
        if !matches!(stream, b"stdout" | b"stderr") {
            return None;
        }
        // The tag may be followed by others, of which none is known.
        let partial = match tag.split(|byte| *byte == b':').next()? {
            b"P" => true,
            b"F" => false,
            _ => return None,
        };
        Some(Self { time, partial, text: fields.next().unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-01-01T00:00:01.5Z stdout F one\n2026-01-01T00:00:02Z stderr P two \n2026-01-01T00:00:03Z stderr F halves\n2026-01-01T00:00:04Z stdout F \n";

    #[track_caller]
    fn check(log: &str, timestamps: bool, since: Option<&str>, expected: &str) {
        // Bytes arrive in pieces of any size.
        for size in [1, 7, 1000] {
            let since = since.map(|s| s.parse().unwrap());
            let mut decoder = LineDecoder::new(timestamps, since);
            let output: Vec<u8> =
                log.as_bytes().chunks(size).flat_map(|piece| decoder.decode(piece)).collect();
            assert_eq!(String::from_utf8_lossy(&output), expected);
        }
    }

    #[test]
    fn lines_are_unwrapped_and_partial_ones_joined() {
        check(LOG, false, None, "one\ntwo halves\n\n");
        check(
            LOG,
            true,
            None,
            "2026-01-01T00:00:01.5Z one\n2026-01-01T00:00:02Z two halves\n2026-01-01T00:00:04Z \n",
        );
        check(LOG, false, Some("2026-01-01T00:00:02Z"), "two halves\n\n");
        check("garbage\n\u{0}\n", false, None, "garbage\n\u{0}\n");
        check("2026-01-01T00:00:01Z stdout X a\n", false, None, "2026-01-01T00:00:01Z stdout X a\n");
    }

    #[test]
    fn an_endless_line_is_not_kept() {
        let mut decoder = LineDecoder::default();
        let output = decoder.decode(&vec![b'x'; LINE_BYTES_MAX + 1]);
        assert_eq!((output.len(), decoder.pending.len()), (LINE_BYTES_MAX + 2, 0));
    }
}
