//! The score of IO500: geometric means, without any I/O.

use super::phase::Measure;
use crate::report::rounded;
use serde::Serialize;

/// How the three figures are rounded, as IO500 prints them.
const STEP: f64 = 1e-6;

/// The score of one run by the formula of IO500.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Io500Score {
    /// GiB (2^30 bytes) per second: the geometric mean of the four phases of IOR.
    pub bandwidth_gib_per_s: f64,
    /// Thousands of operations per second: the geometric mean of the eight other phases.
    pub kiops: f64,
    /// The geometric mean of the two.
    pub total: f64,
}

impl Io500Score {
    /// Of the rates of phases, each in its unit.
    pub(super) fn of(rates: &[(Measure, f64)]) -> Io500Score {
        let mean = |wanted: Measure| {
            let values: Vec<f64> =
                rates.iter().filter(|(measure, _)| *measure == wanted).map(|(_, rate)| *rate).collect();
            geometric_mean(&values)
        };
        let (bandwidth, kiops) = (mean(Measure::Bandwidth), mean(Measure::Operations));
        Io500Score {
            bandwidth_gib_per_s: rounded(bandwidth, STEP),
            kiops: rounded(kiops, STEP),
            total: rounded((bandwidth * kiops).sqrt(), STEP),
        }
    }

    /// In a line.
    pub(super) fn text(&self) -> String {
        format!(
            "bandwidth {:.6} GiB/s, {:.6} kIOPS, total {:.6}",
            self.bandwidth_gib_per_s, self.kiops, self.total
        )
    }
}

/// The root of the product of as many numbers as it says; 0 if one of them is, or if there are none.
fn geometric_mean(values: &[f64]) -> f64 {
    if values.is_empty() || values.iter().any(|value| *value <= 0.0) {
        return 0.0;
    }
    // By logarithms, so that the product of many large numbers has no end.
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates that the documentation of IO500 shows for a small run, with six digits after the point.
    const PUBLISHED: [(Measure, f64); 12] = [
        (Measure::Bandwidth, 0.186620),
        (Measure::Operations, 103.300821),
        (Measure::Bandwidth, 0.001313),
        (Measure::Operations, 58.939081),
        (Measure::Operations, 1486.435084),
        (Measure::Bandwidth, 1.575557),
        (Measure::Operations, 839.392805),
        (Measure::Bandwidth, 2.272671),
        (Measure::Operations, 1212.558124),
        (Measure::Operations, 160.765642),
        (Measure::Operations, 275.011939),
        (Measure::Operations, 132.015851),
    ];

    #[test]
    fn a_published_run_has_its_published_score() {
        let score = Io500Score::of(&PUBLISHED);
        // One of the four bandwidths has four digits only.
        assert!((score.bandwidth_gib_per_s - 0.172092).abs() < 2e-4, "{score:?}");
        assert!((score.kiops - 292.625029).abs() < 1e-3, "{score:?}");
        assert!((score.total - 7.096374).abs() < 4e-3, "{score:?}");
    }

    #[test]
    fn a_score_is_a_mean_of_means() {
        let rates = [1.0, 2.0, 4.0, 8.0].map(|rate| (Measure::Bandwidth, rate));
        let names = [10.0; 8].map(|rate| (Measure::Operations, rate));
        let score = Io500Score::of(&[&rates[..], &names].concat());
        assert_eq!((score.bandwidth_gib_per_s, score.kiops), (2.828427, 10.0));
        assert_eq!(score.total, 5.318296, "the root of 28.28427");
        assert!(score.text().contains("2.828427 GiB/s, 10.000000 kIOPS, total 5.318296"));
    }

    #[test]
    fn a_phase_that_did_nothing_makes_the_score_nothing() {
        let rates = [(Measure::Bandwidth, 0.0), (Measure::Bandwidth, 5.0), (Measure::Operations, 1.0)];
        assert_eq!(Io500Score::of(&rates), Io500Score { kiops: 1.0, ..Io500Score::default() });
        assert_eq!(Io500Score::of(&[]), Io500Score::default());
    }
}
