//! The figures of several repetitions: the largest, the smallest, their mean, and how far they are apart.

use crate::report::rounded;
use serde::Serialize;

/// What repetitions of one measurement came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The largest.
    pub max: f64,
    /// The smallest.
    pub min: f64,
    /// Their arithmetic mean.
    pub mean: f64,
    /// Their standard deviation, as of all that there are (divided by their number, not by one less).
    pub stddev: f64,
}

impl Spread {
    /// Of these; zeroes if there are none.
    pub fn of(values: &[f64]) -> Spread {
        if values.is_empty() {
            return Spread::default();
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        let round = |value: f64| rounded(value, 0.001);
        Spread {
            max: round(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            min: round(values.iter().copied().fold(f64::INFINITY, f64::min)),
            mean: round(mean),
            stddev: round(variance.sqrt()),
        }
    }

    /// In the order of the columns of tables.
    pub(crate) fn figures(&self) -> [f64; 4] {
        [self.max, self.min, self.mean, self.stddev]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_all_repetitions() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(spread, Spread { max: 9.0, min: 2.0, mean: 5.0, stddev: 2.0 });
        assert_eq!(Spread::of(&[3.5]).figures(), [3.5, 3.5, 3.5, 0.0]);
        assert_eq!(Spread::of(&[]), Spread::default());
    }
}
