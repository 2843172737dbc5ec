//! Spans of time as people read them: how long ago, how long still.

use std::time::Duration;

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
