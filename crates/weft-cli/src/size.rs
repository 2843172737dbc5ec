//! Sizes as people write and read them: `64KiB`, `10GiB`. Never for machines: those get integer bytes.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSizeError {
    /// It is no number with a unit.
    #[error("expected a number with a unit such as 64KiB, 10GiB or 1.5TiB")]
    Form,
    /// The unit is a power of 1000, which is too easily confused.
    #[error("'{unit}' is ambiguous: write {instead}")]
    DecimalUnit {
        /// The unit found.
        unit: String,
        /// The binary unit next to it.
        instead: String,
    },
    /// It passes 64 bits, or is a part of a byte.
    #[error("it is not a whole number of bytes below 16EiB")]
    Range,
}

const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Size, ParseSizeError> {
        let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..number_end], text[number_end..].trim_start());
        let power = match unit {
            "" | "B" => 0,
            _ => 1 + unit_power(unit)?,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || (number.contains('.') && (fraction.is_empty() || power == 0)) {
            return Err(ParseSizeError::Form);
        }
        let digits = format!("{whole}{fraction}");
        let is_plain =
            digits.bytes().all(|b| b.is_ascii_digit()) && fraction.len() <= 9 && digits.len() <= 28;
        if !is_plain {
            return Err(ParseSizeError::Form);
        }
        // At most 28 digits times 2^30 at a time: the product is checked, so nothing wraps.
        let value: u128 = digits.parse().map_err(|_| ParseSizeError::Form)?;
        let scaled = value.checked_mul(1 << (10 * power)).ok_or(ParseSizeError::Range)?;
        let divisor = 10u128.pow(fraction.len() as u32);
        if !scaled.is_multiple_of(divisor) {
            return Err(ParseSizeError::Range);
        }
        u64::try_from(scaled / divisor).map(Size).map_err(|_| ParseSizeError::Range)
    }
}

/// The place of a unit in [`UNITS`]; `K` and `KiB` are the same, `KB` is refused.
fn unit_power(unit: &str) -> Result<usize, ParseSizeError> {
    let letter = unit.chars().next().ok_or(ParseSizeError::Form)?.to_ascii_uppercase();
    let power = UNITS.iter().position(|u| u.starts_with(letter)).ok_or(ParseSizeError::Form)?;
    match &unit[1..] {
        "" | "iB" | "ib" | "i" => Ok(power),
        "B" | "b" => {
            Err(ParseSizeError::DecimalUnit { unit: unit.to_owned(), instead: UNITS[power].to_owned() })
        }
        _ => Err(ParseSizeError::Form),
    }
}

impl fmt::Display for Size {
    /// In the largest unit that leaves at least 1, with one digit after the point, rounded down.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let power = (self.0.ilog2() / 10) as usize;
        let tenths = (u128::from(self.0) * 10) >> (10 * power);
        match tenths % 10 {
            0 => write!(f, "{} {}", tenths / 10, UNITS[power - 1]),
            digit => write!(f, "{}.{digit} {}", tenths / 10, UNITS[power - 1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("64KiB", 64 << 10),
            ("64K", 64 << 10),
            ("10GiB", 10 << 30),
            ("10 GiB", 10 << 30),
            ("1.5TiB", 3 << 39),
            ("0.25m", 256 << 10),
            ("15EiB", 15 << 60),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "x", "-1", "+5", "1.2.3", ".5G", "5.G", "1.5", "10GiBB", "10 G B", "1e9", "9 9", "ß"]
        {
            assert_eq!(text.parse::<Size>(), Err(ParseSizeError::Form), "{text}");
        }
        for text in ["16EiB", "99999999999999999999EiB", "0.1KiB", "0.000000001GiB"] {
            assert_eq!(text.parse::<Size>(), Err(ParseSizeError::Range), "{text}");
        }
        let decimal = "10GB".parse::<Size>().expect_err("ambiguous");
        assert_eq!(decimal.to_string(), "'GB' is ambiguous: write GiB");
    }

    #[test]
    fn sizes_read_well() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1_600_000, "1.5 MiB"),
            (8 << 30, "8 GiB"),
            ((1 << 40) - 1, "1023.9 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
