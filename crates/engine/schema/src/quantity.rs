//! Quantities such as `500m`, `1Gi` and `1e3`, for checks and comparison by value.

use serde_json::Value;

/// A quantity as a whole number of nano-units: exact for everything Kubernetes allows up to about 10²⁹.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

/// Nano-units in a unit.
const NANO: i128 = 1_000_000_000;

impl Quantity {
    /// Reads a quantity; `None` when malformed. Amounts beyond the range are capped, digits below nano rounded up,
    /// as upstream does. Source: apimachinery `resource.ParseQuantity`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Quantity> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, suffix) = rest.split_at(end);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let nano = scale(whole, fraction, Suffix::parse(suffix)?);
        Some(Quantity(if negative { -nano } else { nano }))
    }

    /// Reads a quantity as objects have it: a text or a number.
    #[must_use]
    pub fn of(value: &Value) -> Option<Quantity> {
        match value {
            Value::String(text) => Quantity::parse(text),
            Value::Number(number) => Quantity::parse(&number.to_string()),
            _ => None,
        }
    }

    /// Whether the amount is below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether the amount has no fraction.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.0 % NANO == 0
    }

    /// The amount in units, rounded.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "rounded")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / NANO as f64
    }
}

/// The sum, capped at the ends of the range.
impl std::ops::Add for Quantity {
    type Output = Quantity;

    fn add(self, other: Quantity) -> Quantity {
        Quantity(self.0.saturating_add(other.0))
    }
}

/// With the largest suffix that leaves a whole number: binary from `Ki` on, decimal below a unit.
impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        let binary = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"].into_iter().zip((1..=6).rev());
        let small = [("", NANO), ("m", NANO / 1000), ("u", NANO / 1_000_000), ("n", 1)];
        let units = binary.map(|(suffix, power)| (suffix, NANO * 1024_i128.pow(power))).chain(small);
        let (suffix, unit) = units.into_iter().find(|(_, unit)| self.0 % unit == 0).unwrap_or(("n", 1));
        write!(f, "{}{suffix}", self.0 / unit)
    }
}

enum Suffix {
    /// A power of ten.
    Decimal(i32),
    /// A power of 1024.
    Binary(u32),
}

impl Suffix {
    fn parse(suffix: &str) -> Option<Suffix> {
        let decimal = |power| Some(Suffix::Decimal(power));
        match suffix {
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "" => decimal(0),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            _ => match suffix.strip_suffix('i') {
                Some(unit) => {
                    let power = ["K", "M", "G", "T", "P", "E"].iter().position(|known| *known == unit)?;
                    Some(Suffix::Binary(u32::try_from(power).ok()? + 1))
                }
                None => {
                    let exponent = suffix.strip_prefix(['e', 'E'])?;
                    decimal(exponent.parse().ok()?)
                }
            },
        }
    }
}

fn scale(whole: &str, fraction: &str, suffix: Suffix) -> i128 {
    let digits = format!("{whole}{fraction}");
    let mantissa = digits.trim_start_matches('0');
    let mantissa: i128 = if mantissa.is_empty() { 0 } else { mantissa.parse().unwrap_or(i128::MAX) };
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    match suffix {
        Suffix::Decimal(power) => shift(mantissa, power.saturating_sub(places).saturating_add(9)),
        Suffix::Binary(power) => {
            let unit = 1024_i128.pow(power);
            shift(mantissa.saturating_mul(unit), 9_i32.saturating_sub(places))
        }
    }
}

/// Multiplies by a power of ten; caps above and rounds up below.
fn shift(value: i128, power: i32) -> i128 {
    let factor = 10_i128.checked_pow(power.unsigned_abs());
    match factor {
        _ if value == 0 => 0,
        Some(factor) if power >= 0 => value.saturating_mul(factor),
        Some(factor) => value / factor + i128::from(value % factor != 0),
        None if power >= 0 => i128::MAX,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<i128>) {
        assert_eq!(Quantity::parse(text).map(|quantity| quantity.0), expected, "{text}");
    }

    #[test]
    fn well_formed() {
        check("1", Some(NANO));
        check("500m", Some(NANO / 2));
        check("1.5Gi", Some(3 * 512 * 1024 * 1024 * NANO));
        check("1e3", Some(1000 * NANO));
        check("-1k", Some(-1000 * NANO));
        check("0.1n", Some(1));
        check("1E", Some(NANO * 1_000_000_000_000_000_000));
        check(".5", Some(NANO / 2));
        check("99999999999999999999999999999999999999999999", Some(i128::MAX));
        check("1e-400", Some(1));
    }

    #[test]
    fn shown() {
        for text in ["0", "1", "1500m", "1Gi", "1536Mi", "250u", "-3n", "1000"] {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn malformed() {
        for text in ["", "-", "a", "1x", "1..2", "1.2.3", "1 Gi", "1iG", "Gi", "1e", "1ee3", "+"] {
            check(text, None);
        }
    }
}
