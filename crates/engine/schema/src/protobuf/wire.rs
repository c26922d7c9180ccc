//! The protobuf wire format: numbered values out of bytes. Source: protobuf.dev/programming-guides/encoding.

/// Bytes of a varint at most.
const VARINT_BYTES_MAX: usize = 10;

/// One value as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Raw<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Reads the values of one message in order.
#[derive(Clone)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// The next number and value; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Raw<'a>)>, &'static str> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number != 0);
        let number = number.ok_or("a field has a number that does not exist")?;
        let raw = match key & 7 {
            0 => Raw::Varint(self.varint()?),
            1 => Raw::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => Raw::Bytes(self.delimited()?),
            5 => Raw::Fixed32(u32::from_le_bytes(self.array()?)),
            3 | 4 => return Err("groups are not supported"),
            _ => return Err("a field has a wire type that does not exist"),
        };
        Ok(Some((number, raw)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0_u64;
        for index in 0..VARINT_BYTES_MAX {
            let (byte, rest) = self.0.split_first().ok_or("a number is cut off")?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if index == VARINT_BYTES_MAX - 1 && bits > 1 {
                break;
            }
            value |= bits << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number is longer than 64 bits")
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (array, rest) = self.0.split_first_chunk().ok_or("a number is cut off")?;
        self.0 = rest;
        Ok(*array)
    }

    fn delimited(&mut self) -> Result<&'a [u8], &'static str> {
        let length = usize::try_from(self.varint()?).ok();
        let split = length.and_then(|length| self.0.split_at_checked(length));
        let (bytes, rest) = split.ok_or("a value is longer than the message around it")?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<&[(u32, Raw<'_>)], &str>) {
        let mut reader = Reader::new(bytes);
        let mut values = Vec::new();
        let outcome = loop {
            match reader.next() {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break Ok(values.as_slice()),
                Err(what) => break Err(what),
            }
        };
        assert_eq!(outcome, expected);
    }

    #[test]
    fn values_of_every_wire_type() {
        check(b"", Ok(&[]));
        check(b"\x08\x96\x01", Ok(&[(1, Raw::Varint(150))]));
        check(b"\x12\x02hi\x18\x00", Ok(&[(2, Raw::Bytes(b"hi")), (3, Raw::Varint(0))]));
        check(b"\x09\0\0\0\0\0\0\xf0\x3f", Ok(&[(1, Raw::Fixed64(1.0_f64.to_bits()))]));
        check(b"\x0d\x01\0\0\0", Ok(&[(1, Raw::Fixed32(1))]));
        check(b"\xc2\x02\x00", Ok(&[(40, Raw::Bytes(b""))]));
        check(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Ok(&[(1, Raw::Varint(u64::MAX))]));
    }

    #[test]
    fn broken_bytes() {
        check(b"\x08", Err("a number is cut off"));
        check(b"\x80", Err("a number is cut off"));
        check(b"\x0d\x01\0", Err("a number is cut off"));
        check(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", Err("a number is longer than 64 bits"));
        check(b"\x12\x03hi", Err("a value is longer than the message around it"));
        check(
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            Err("a value is longer than the message around it"),
        );
        check(b"\x00\x01", Err("a field has a number that does not exist"));
        check(b"\x0b\x0c", Err("groups are not supported"));
        check(b"\x0e", Err("a field has a wire type that does not exist"));
    }
}
