//! Points in time as people and programs read them: RFC 3339 in UTC with milliseconds.
//!
//! It owns the text form. It never reads a clock.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

const DAY_MS: u64 = 86_400_000;

/// The last millisecond of the year 9999: RFC 3339 has four digits for the year.
const LAST_MS: u64 = 253_402_300_799_999;

/// Milliseconds since 1970-01-01T00:00:00Z, at most the end of the year 9999; as text RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

/// A text that is no such time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no time: expected a form like 2026-01-31T23:59:59.000Z")]
pub struct ParseTimeError(String);

impl Timestamp {
    /// The time this many milliseconds after 1970-01-01T00:00:00Z, or the end of the year 9999 if that is before.
    pub fn from_millis(ms: u64) -> Self {
        Timestamp(ms.min(LAST_MS))
    }

    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub fn as_millis(self) -> u64 {
        self.0
    }
}

/// Year, month and day of a day counted from 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`): years begin in March, so that the leap day is the last.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The inverse of [`civil_from_days`], for years from 1970.
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_from_days(self.0 / DAY_MS);
        let ms = self.0 % DAY_MS;
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimeError;

    /// Reads the form that is written, and only that.
    fn from_str(text: &str) -> Result<Self, ParseTimeError> {
        let error = || ParseTimeError(text.to_owned());
        let field = |from: usize, to: usize| -> Result<u64, ParseTimeError> {
            let digits = text.get(from..to).filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
            digits.and_then(|d| d.parse().ok()).ok_or_else(error)
        };
        if text.len() != 24 {
            return Err(error());
        }
        let (year, month, day) = (field(0, 4)?, field(5, 7)?, field(8, 10)?);
        let (hour, minute, second, ms) = (field(11, 13)?, field(14, 16)?, field(17, 19)?, field(20, 23)?);
        let in_range = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
        if !in_range || hour > 23 || minute > 59 || second > 59 {
            return Err(error());
        }
        let seconds = hour * 3600 + minute * 60 + second;
        let time = Timestamp(days_from_civil(year, month, day) * DAY_MS + seconds * 1000 + ms);
        // Whatever else differs, such as a separator or the 31st of April, does not print the same.
        if time.to_string() == text { Ok(time) } else { Err(error()) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_767_225_600_123, "2026-01-01T00:00:00.123Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (LAST_MS, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_millis(ms).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp::from_millis(ms)));
        }
    }

    #[test]
    fn every_day_for_four_centuries_reads_back() {
        for day in 0..146_097 {
            let time = Timestamp::from_millis(day * DAY_MS + 1);
            assert_eq!(time.to_string().parse(), Ok(time));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2026-02-30T00:00:00.000Z",
            "2026-01-01 00:00:00.000Z",
            "2026-01-01T00:00:00.000+",
            "2026-01-01T24:00:00.000Z",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }

    #[test]
    fn no_number_of_milliseconds_passes_the_form() {
        assert_eq!(Timestamp::from_millis(u64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }
}
