//! `--rate-limit`: how fast a load may go at most.

use std::str::FromStr;
use weft_cli::{ParseSizeError, Size};

/// A rate that is not to be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateLimit {
    /// Requests per second.
    Requests(u64),
    /// Bytes per second.
    Bytes(u64),
}

/// A text that is no rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseRateError {
    /// It is neither.
    #[error("expected requests per second such as 5000, or bytes per second such as 100MiB")]
    Form,
    /// Nothing would happen.
    #[error("a rate of nothing would do nothing")]
    Nothing,
    /// It has a unit, and is no size.
    #[error(transparent)]
    Size(ParseSizeError),
}

impl FromStr for RateLimit {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<RateLimit, ParseRateError> {
        let number = text.strip_suffix("/s").unwrap_or(text);
        let rate = match number.parse() {
            Ok(requests) if number.bytes().all(|b| b.is_ascii_digit()) => RateLimit::Requests(requests),
            _ => {
                RateLimit::Bytes(number.parse::<Size>().map(|size| size.0).map_err(|error| match error {
                    ParseSizeError::Form => ParseRateError::Form,
                    other => ParseRateError::Size(other),
                })?)
            }
        };
        match rate {
            RateLimit::Requests(0) | RateLimit::Bytes(0) => Err(ParseRateError::Nothing),
            rate => Ok(rate),
        }
    }
}

impl RateLimit {
    /// Requests of so many bytes per second.
    pub(crate) fn per_second(self, block_size: u64) -> f64 {
        match self {
            RateLimit::Requests(requests) => requests as f64,
            RateLimit::Bytes(bytes) => bytes as f64 / block_size.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_requests_or_bytes() {
        for (text, rate) in [
            ("5000", RateLimit::Requests(5000)),
            ("5000/s", RateLimit::Requests(5000)),
            ("100MiB", RateLimit::Bytes(100 << 20)),
            ("1GiB/s", RateLimit::Bytes(1 << 30)),
            ("64k", RateLimit::Bytes(64 << 10)),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for text in ["", "fast", "-5", "+5", "5/m", "/s"] {
            assert_eq!(text.parse::<RateLimit>(), Err(ParseRateError::Form), "{text}");
        }
        assert_eq!("0".parse::<RateLimit>(), Err(ParseRateError::Nothing));
        assert_eq!("0KiB".parse::<RateLimit>(), Err(ParseRateError::Nothing));
        assert!(matches!("100MB".parse::<RateLimit>(), Err(ParseRateError::Size(_))));
        assert_eq!(RateLimit::Bytes(1 << 20).per_second(4096), 256.0);
    }
}
