//! Axes: from where to where they go, where their ticks are, and how values are written at them.
//!
//! It never draws.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Ticks that a linear axis has about, and that a logarithmic one has at most: what a chart of this size can label
/// without crowding.
const TICKS: usize = 8;

/// Values beyond it, and smaller than its inverse, are no measurements; arithmetic on those within stays exact enough
/// for ticks.
const VALUE_MAX: f64 = 1e30;

/// What a value is, which decides how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds since the beginning.
    Seconds,
    /// Minutes since the beginning.
    Minutes,
    /// Hours since the beginning.
    Hours,
    /// A number of things, which the name of the axis tells.
    Count,
    /// Microseconds; at ticks as `50 µs`, `2 ms` or `1.5 s`.
    Microseconds,
    /// Requests per second.
    PerSecond,
    /// Operations per second, where they are no requests.
    OperationsPerSecond,
    /// Megabytes (10^6 bytes) per second.
    MegabytesPerSecond,
    /// Mebibytes (2^20 bytes) per second.
    MebibytesPerSecond,
    /// Megabytes (10^6 bytes).
    Megabytes,
    /// Parts of a hundred.
    Percent,
    /// Numbers of things.
    Number,
}

impl Unit {
    /// How it is written behind the name of an axis; none where each tick carries it.
    fn symbol(self) -> Option<&'static str> {
        match self {
            Unit::Seconds => Some("s"),
            Unit::Minutes => Some("min"),
            Unit::Hours => Some("h"),
            Unit::Microseconds | Unit::Count => None,
            Unit::PerSecond => Some("requests/s"),
            Unit::OperationsPerSecond => Some("operations/s"),
            Unit::MegabytesPerSecond => Some("MB/s"),
            Unit::MebibytesPerSecond => Some("MiB/s"),
            Unit::Megabytes => Some("MB"),
            Unit::Percent => Some("%"),
            Unit::Number => None,
        }
    }

    /// A value as it stands at a tick.
    pub(crate) fn tick(self, value: f64) -> String {
        match self {
            Unit::Microseconds if value >= 1e6 => format!("{} s", plain(value / 1e6)),
            Unit::Microseconds if value >= 1e3 => format!("{} ms", plain(value / 1e3)),
            Unit::Microseconds if value == 0.0 => "0".to_owned(),
            Unit::Microseconds => format!("{} µs", plain(value)),
            _ if value.abs() >= 1e6 => format!("{}M", plain(value / 1e6)),
            _ if value.abs() >= 1e4 => format!("{}k", plain(value / 1e3)),
            _ => plain(value),
        }
    }
}

/// A number with as few digits as it needs; ticks are round, so three after the point suffice.
fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// How values are spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero on.
    Linear,
    /// By their logarithm; only values above zero can be shown.
    Log,
}

/// One side of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// What is shown, such as `time`.
    pub label: String,
    /// What its values are.
    pub unit: Unit,
    /// How they are spread.
    pub scale: Scale,
}

impl Axis {
    /// An axis.
    pub fn new(label: &str, unit: Unit, scale: Scale) -> Axis {
        Axis { label: label.to_owned(), unit, scale }
    }

    /// Name and unit, as they stand at the axis.
    pub(crate) fn title(&self) -> String {
        match self.unit.symbol() {
            Some(symbol) if symbol != self.label => format!("{} ({symbol})", self.label),
            _ => self.label.clone(),
        }
    }

    /// Whether a value has a place on it.
    pub(crate) fn can_show(&self, value: f64) -> bool {
        value.abs() <= VALUE_MAX && (self.scale == Scale::Linear || value >= VALUE_MAX.recip())
    }

    /// The smallest step from tick to tick: things that are counted have no parts.
    fn step_min(&self) -> f64 {
        if self.unit == Unit::Count { 1.0 } else { 0.0 }
    }

    /// From where to where it goes to show all of these, and its ticks. `is_tight`: it ends where the values end,
    /// not at a tick.
    pub(crate) fn fit(&self, values: impl Iterator<Item = f64>, is_tight: bool) -> Fitted {
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        for value in values.filter(|v| self.can_show(*v)) {
            low = low.min(value);
            high = high.max(value);
        }
        let (range, ticks) = match self.scale {
            Scale::Linear => linear(low.min(0.0), high, is_tight, self.step_min()),
            Scale::Log if low <= high => log(low, high),
            Scale::Log => log(1.0, 1.0),
        };
        Fitted { range, ticks, scale: self.scale, unit: self.unit }
    }
}

/// An axis that goes from somewhere to somewhere, with its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fitted {
    pub(crate) range: Range<f64>,
    pub(crate) ticks: Vec<f64>,
    scale: Scale,
    unit: Unit,
}

impl Fitted {
    /// Where a value stands: 0 at the beginning, 1 at the end.
    pub(crate) fn part(&self, value: f64) -> f64 {
        let place = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log => value.ln(),
        };
        (place(value) - place(self.range.start)) / (place(self.range.end) - place(self.range.start))
    }
}

impl Ranged for Fitted {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.part(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Fitted {
    fn format_ext(&self, value: &f64) -> String {
        self.unit.tick(*value)
    }
}

/// Steps of 1, 2 or 5 times a power of ten, and none below `step_min`.
fn linear(low: f64, high: f64, is_tight: bool, step_min: f64) -> (Range<f64>, Vec<f64>) {
    let low = if low.is_finite() { low } else { 0.0 };
    let high = if high - low >= VALUE_MAX.recip() { high } else { low + low.abs().max(1.0) };
    let rough = (high - low) / TICKS as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power).max(step_min);
    let first = (low / step).floor() * step;
    let count = ((high - first) / step - 1e-9).ceil() as usize;
    let end = if is_tight { high } else { first + count as f64 * step };
    let ticks = (0..=count).map(|i| first + i as f64 * step).filter(|t| *t <= end * (1.0 + 1e-9)).collect();
    (first..end, ticks)
}

/// What ticks of a logarithmic axis may be, times powers of ten: the first that are few enough are taken.
const LOG_STEPS: [&[f64]; 3] = [&[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];

/// From a tick at or below the lowest value to one at or above the highest. Where even the powers of ten are too many,
/// every second one is labelled, and so on.
fn log(low: f64, high: f64) -> (Range<f64>, Vec<f64>) {
    let powers = low.log10().floor() as i32 - 1..=high.log10().ceil() as i32 + 1;
    let mut ticks = Vec::new();
    for steps in LOG_STEPS {
        let all: Vec<f64> =
            powers.clone().flat_map(|e| steps.iter().map(move |m| m * 10f64.powi(e))).collect();
        // There is one on either side: the powers reach beyond both values.
        let first = all.iter().rposition(|t| *t <= low * 1.000_001).unwrap_or(0);
        let last = all.iter().position(|t| *t >= high * 0.999_999).unwrap_or(all.len() - 1);
        // One value only: a tick further to each side, so that the axis has a length.
        let (first, last) = if first < last { (first, last) } else { (first - 1, last + 1) };
        ticks = all[first..=last].to_vec();
        if ticks.len() <= TICKS {
            break;
        }
    }
    let range = ticks[0]..ticks[ticks.len() - 1];
    let stride = ticks.len().div_ceil(TICKS);
    (range, ticks.into_iter().step_by(stride).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(scale: Scale, values: &[f64], is_tight: bool) -> (Range<f64>, Vec<f64>) {
        let fitted = Axis::new("x", Unit::Seconds, scale).fit(values.iter().copied(), is_tight);
        (fitted.range, fitted.ticks)
    }

    #[test]
    fn there_are_no_parts_of_things_that_are_counted() {
        let ticks = |most: f64| {
            let axis = Axis::new("clients", Unit::Count, Scale::Linear);
            axis.fit([1.0, most].into_iter(), true).ticks
        };
        assert_eq!(ticks(1.0), [0.0, 1.0]);
        assert_eq!(ticks(2.0), [0.0, 1.0, 2.0]);
        assert_eq!(ticks(24.0), [0.0, 5.0, 10.0, 15.0, 20.0]);
    }

    #[test]
    fn linear_axes_begin_at_zero_and_end_at_a_tick() {
        assert_eq!(fit(Scale::Linear, &[3.0, 7.5], false).0, 0.0..8.0);
        assert_eq!(fit(Scale::Linear, &[30.0], false).1, [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(fit(Scale::Linear, &[30.5], true).0, 0.0..30.5);
        assert_eq!(fit(Scale::Linear, &[], false).0, 0.0..1.0);
        assert_eq!(fit(Scale::Linear, &[0.0], false).0, 0.0..1.0);
        assert_eq!(fit(Scale::Linear, &[5e-324, f64::MAX, f64::MIN, f64::INFINITY], true).0, 0.0..1.0);
        for high in [0.003, 1.0, 9.99, 123_456.0, 1e9] {
            let (range, ticks) = fit(Scale::Linear, &[high], false);
            assert!(range.end >= high && range.end <= high * 1.3, "{high}: {range:?}");
            assert!((4..=10).contains(&ticks.len()), "{high}: {ticks:?}");
        }
    }

    #[test]
    fn logarithmic_axes_hold_every_value_and_have_few_ticks() {
        for (low, high) in
            [(0.4, 0.41), (50.0, 50.0), (12.0, 900.0), (10.0, 1000.0), (1.0, 6e7), (1e-3, 1e12)]
        {
            let (range, ticks) = fit(Scale::Log, &[low, high], false);
            assert!(
                range.start <= low && range.end >= high && range.start < range.end,
                "{low} {high} {range:?}"
            );
            assert!((2..=TICKS).contains(&ticks.len()), "{low} {high}: {ticks:?}");
            assert!(ticks.iter().all(|t| (range.start..=range.end).contains(t)), "{range:?} {ticks:?}");
        }
        assert!(fit(Scale::Log, &[0.0, f64::NAN], false).0.start > 0.0);
    }

    #[test]
    fn values_have_their_place() {
        let linear = Axis::new("x", Unit::Seconds, Scale::Linear).fit([8.0].into_iter(), false);
        assert_eq!((linear.map(&0.0, (10, 90)), linear.map(&4.0, (10, 90))), (10, 50));
        let log = Axis::new("x", Unit::Seconds, Scale::Log).fit([1.0, 100.0].into_iter(), false);
        assert_eq!((log.map(&10.0, (0, 100)), log.map(&10.0, (100, 0))), (50, 50));
    }

    #[test]
    fn ticks_read_well() {
        let texts = [0.0, 50.0, 999.0, 1500.0, 2e6].map(|v| Unit::Microseconds.tick(v));
        assert_eq!(texts, ["0", "50 µs", "999 µs", "1.5 ms", "2 s"]);
        let texts = [0.0, 0.25, 5000.0, 20_000.0, 1.5e6].map(|v| Unit::PerSecond.tick(v));
        assert_eq!(texts, ["0", "0.25", "5000", "20k", "1.5M"]);
        assert_eq!(Axis::new("time", Unit::Seconds, Scale::Linear).title(), "time (s)");
        assert_eq!(Axis::new("latency", Unit::Microseconds, Scale::Log).title(), "latency");
    }
}
