//! Spans of time as people write and read them: `30s` as an option; how long ago, how long still.

use std::str::FromStr;
use std::time::Duration;

/// A span of time, written as `500ms`, `30s`, `5m`, `2h` or `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A text that is no span.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSpanError {
    /// It is no whole number with a unit.
    #[error("expected a whole number with a unit such as 500ms, 30s, 5m, 2h or 7d")]
    Form,
    /// It is too long to be meant.
    #[error("it is more than a year")]
    Range,
}

/// Longer spans are a slip of the finger.
const SPAN_MAX: Duration = Duration::from_secs(366 * 86_400);

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Span, ParseSpanError> {
        let end = text.find(|c: char| !c.is_ascii_digit()).ok_or(ParseSpanError::Form)?;
        let (number, unit) = (&text[..end], text[end..].trim_start());
        let unit_ms = match unit {
            "ms" => 1,
            "s" | "sec" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(ParseSpanError::Form),
        };
        if number.is_empty() {
            return Err(ParseSpanError::Form);
        }
        // All digits, so only a number that is too large is left to fail.
        let number: u64 = number.parse().map_err(|_| ParseSpanError::Range)?;
        let ms = number.checked_mul(unit_ms).ok_or(ParseSpanError::Range)?;
        Some(Span(Duration::from_millis(ms))).filter(|span| span.0 <= SPAN_MAX).ok_or(ParseSpanError::Range)
    }
}

/// A span in one unit, or two where the first is small: `850 ms`, `12 s`, `3 min`, `2 h 5 min`, `4 d`.
pub fn span(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..86_400 if s % 3600 >= 60 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        3600..86_400 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

/// A span given in milliseconds.
pub fn span_ms(ms: u64) -> String {
    span(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read() {
        for (text, ms) in [
            ("0s", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("30 s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("2d", 172_800_000),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
        }
        for text in ["", "s", "30", "-1s", "+1s", "1.5s", "30x", "3 0s", "1h30m", "30S"] {
            assert_eq!(text.parse::<Span>(), Err(ParseSpanError::Form), "{text}");
        }
        for text in ["9000h", "99999999999999999999999s", "18446744073709551615h"] {
            assert_eq!(text.parse::<Span>(), Err(ParseSpanError::Range), "{text}");
        }
    }

    #[test]
    fn spans_read_well() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (12_900, "12 s"),
            (60_000, "1 min"),
            (7_500_000, "2 h 5 min"),
            (3_600_000, "1 h"),
            (400_000_000, "4 d"),
        ] {
            assert_eq!(span_ms(ms), text);
        }
    }
}
