//! A chart: lines over a common axis, with events marked, as SVG.
//!
//! It owns what a chart shows and how. The drawing itself is plotters' (decision 7).

use crate::axis::{Axis, Fitted, Scale, Unit};
use crate::page::escape;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Write;

/// Size of the drawing, in units of its own; the page scales it to its width.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 320;

/// Room for the labels of each axis, for the marks above the drawing area, and around it all.
const X_LABELS: u32 = 44;
const Y_LABELS: u32 = 90;
const MARKS: u32 = 18;
const MARGIN: u32 = 14;

/// Room to the right: half of the label of the last tick stands beyond the end of its axis, such as
/// that of `500 ms`.
const RIGHT: u32 = 36;

/// Height of the lines of labels, and of the names of axes; the letters are a fifth smaller.
const FONT_LABEL: u32 = 17;
const FONT_TITLE: u32 = 18;

/// Nearer than this, in units of the drawing, the lines of two events can hardly be told apart: they share a label.
const MARK_DISTANCE: f64 = 9.0;

/// Width of a digit of a label, and what is to be free between two labels.
const DIGIT: f64 = 9.0;
const MARK_GAP: f64 = 7.0;

/// Rows of labels of events above the drawing; where they do not suffice, neighbours share a label.
const MARK_ROWS: usize = 3;

/// A colour by day and by night, as the drawing has it: `#RRGGBB`.
pub(crate) struct Colour {
    pub(crate) day: &'static str,
    pub(crate) night: &'static str,
}

/// Nearly black, and greys for what only guides the eye: paper, text, axes, grid, marks.
pub(crate) const GREYS: &[Colour] = &[
    Colour { day: "#FFFFFF", night: "#15171B" },
    Colour { day: "#222222", night: "#E6E6E6" },
    Colour { day: "#666666", night: "#9A9A9A" },
    Colour { day: "#DDDDDD", night: "#34373D" },
    Colour { day: "#555555", night: "#B0B0B0" },
];
const TEXT: RGBColor = RGBColor(0x22, 0x22, 0x22);
const AXIS: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const MARK: RGBColor = RGBColor(0x55, 0x55, 0x55);

/// Colours that stay apart also for those who see fewer (Okabe and Ito, "Color Universal Design", 2008), without those
/// too pale for a thin line on white, or too dark for one on black.
pub(crate) const COLOURS: &[Colour] = &[
    Colour { day: "#0072B2", night: "#56B4E9" },
    Colour { day: "#D55E00", night: "#F0863A" },
    Colour { day: "#009E73", night: "#2FC89B" },
    Colour { day: "#AA3377", night: "#E08CBB" },
    Colour { day: "#1A1A1A", night: "#DCDCDC" },
];

/// A series' colour by day.
fn colour(number: usize) -> RGBColor {
    let digits = COLOURS[number % COLOURS.len()].day.trim_start_matches('#');
    let code = u32::from_str_radix(digits, 16).expect("colours are six hexadecimal digits");
    RGBColor((code >> 16) as u8, (code >> 8) as u8, code as u8)
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// What its values are; all series of a chart share it.
    pub unit: Unit,
    /// Places on the horizontal axis, ascending, and values. A value that the axis cannot show (not finite, or not
    /// above zero on a logarithmic axis) interrupts the line.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A series.
    pub fn new(name: &str, unit: Unit, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.to_owned(), unit, points }
    }
}

/// Something that happened, shown as a vertical line with a number; the text stands under the chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Marker {
    /// Where on the horizontal axis.
    pub at: f64,
    /// What happened, in a few words.
    pub text: String,
}

/// Lines over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis; its unit is that of every series.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// What happened meanwhile.
    pub markers: Vec<Marker>,
    /// Whether the texts of the events stand under the chart; otherwise the page tells them by their numbers.
    pub lists_markers: bool,
}

impl Chart {
    /// A chart over the seconds since something began.
    ///
    /// # Panics
    /// If a series has another unit than the axis: then its values would be shown wrongly.
    pub fn over_time(title: &str, y: Axis, series: Vec<Series>) -> Chart {
        Chart::new(title, Axis::new("time", Unit::Seconds, Scale::Linear), y, series)
    }

    /// A chart.
    ///
    /// # Panics
    /// If a series has another unit than the vertical axis.
    pub fn new(title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Chart {
        assert!(series.iter().all(|s| s.unit == y.unit), "all series have the unit of the axis");
        Chart { title: title.to_owned(), x, y, series, markers: Vec::new(), lists_markers: true }
    }

    /// With events marked.
    pub fn marked(mut self, markers: Vec<Marker>) -> Chart {
        self.markers = markers;
        self.markers.sort_by(|a, b| a.at.total_cmp(&b.at));
        self
    }

    /// With events marked by their numbers alone: what they are, stands elsewhere on the page, in the same order.
    pub fn numbered(self, markers: Vec<Marker>) -> Chart {
        Chart { lists_markers: false, ..self.marked(markers) }
    }

    /// The chart with its title, its legend and what its marks mean, as HTML.
    pub(crate) fn html(&self) -> String {
        let mut out = format!("<figure>\n<figcaption>{}</figcaption>\n", escape(&self.title));
        if !self.series.iter().flat_map(|s| &s.points).any(|p| self.has_place(p)) {
            return out + "<p>There is nothing to show: nothing was measured.</p>\n</figure>\n";
        }
        out.push_str("<p class=\"legend\">");
        for (series, colour) in self.series.iter().zip((0..COLOURS.len()).cycle()) {
            // Writing to a String cannot fail.
            let _ = write!(out, "<span><i class=\"c{colour}\"></i>{}</span> ", escape(&series.name));
        }
        out.push_str("</p>\n");
        out.push_str(&self.svg());
        if self.lists_markers && !self.markers.is_empty() {
            out.push_str("<ol class=\"marks\">\n");
            for marker in &self.markers {
                let at = self.x.unit.tick((marker.at * 10.0).round() / 10.0);
                let _ = writeln!(out, "<li>at {at} s: {}</li>", escape(&marker.text));
            }
            out.push_str("</ol>\n");
        }
        out + "</figure>\n"
    }

    /// The drawing alone.
    pub(crate) fn svg(&self) -> String {
        let places = self.series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
        let places = places.chain(self.markers.iter().map(|m| m.at));
        let x = self.x.fit(places, self.x.scale == Scale::Linear);
        let y = self.y.fit(self.series.iter().flat_map(|s| s.points.iter().map(|p| p.1)), false);
        let mut svg = String::new();
        self.draw(&mut svg, x, y).expect("a text takes any drawing");
        svg
    }

    /// Draws axes, grid, events and lines.
    fn draw(&self, svg: &mut String, x: Fitted, y: Fitted) -> Result<(), Box<dyn std::error::Error>> {
        let labels = mark_labels(&self.marks(&x));
        let head = MARKS * labels.iter().map(|l| l.row as u32 + 1).max().unwrap_or(0);
        let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT + head)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(MARGIN)
            .margin_top(MARGIN + head)
            .margin_right(RIGHT)
            .x_label_area_size(X_LABELS)
            .y_label_area_size(Y_LABELS)
            .build_cartesian_2d(x.clone(), y.clone())?;
        let label = ("sans-serif", FONT_LABEL).into_font().color(&TEXT);
        chart
            .configure_mesh()
            .x_labels(x.ticks.len())
            .y_labels(y.ticks.len())
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_style(AXIS)
            .x_desc(self.x.title())
            .y_desc(self.y.title())
            .axis_desc_style(("sans-serif", FONT_TITLE).into_font().color(&TEXT))
            .label_style(label.clone())
            .draw()?;
        for marker in &self.markers {
            let line = [(marker.at, y.range.start), (marker.at, y.range.end)];
            chart.draw_series(LineSeries::new(line, MARK.stroke_width(1)))?;
        }
        let (left, top) = chart.backend_coord(&(x.range.start, y.range.end));
        for mark in labels {
            let style = label.clone().pos(Pos::new(HPos::Center, VPos::Bottom));
            let place = (left + mark.middle.round() as i32, top - 3 - (mark.row as u32 * MARKS) as i32);
            root.draw_text(&mark.text(), &style, place)?;
        }
        for (number, series) in self.series.iter().enumerate() {
            let colour = colour(number);
            for run in series.points.split(|p| !self.has_place(p)).filter(|run| !run.is_empty()) {
                match run {
                    [point] => chart.draw_series([Circle::new(*point, 2, colour.filled())])?,
                    _ => chart.draw_series(LineSeries::new(run.iter().copied(), colour.stroke_width(2)))?,
                };
            }
        }
        root.present()?;
        Ok(())
    }

    fn has_place(&self, point: &(f64, f64)) -> bool {
        self.x.can_show(point.0) && self.y.can_show(point.1)
    }

    /// Where the events stand across the drawing, roughly, in its units.
    fn marks(&self, x: &Fitted) -> Vec<f64> {
        let width = f64::from(WIDTH - Y_LABELS - MARGIN - RIGHT);
        self.markers.iter().map(|m| x.part(m.at) * width).collect()
    }
}

/// The label of one event, or of several that are near each other.
#[derive(Clone, Debug, PartialEq)]
struct MarkLabel {
    first: usize,
    last: usize,
    /// Where its events stand across the drawing, the first and the last.
    from: f64,
    to: f64,
    middle: f64,
    row: usize,
}

impl MarkLabel {
    fn text(&self) -> String {
        match self.last - self.first {
            0 => self.first.to_string(),
            1 => format!("{},{}", self.first, self.last),
            _ => format!("{}\u{2013}{}", self.first, self.last),
        }
    }

    fn left(&self) -> f64 {
        self.middle - self.text().chars().count() as f64 * DIGIT / 2.0
    }

    fn right(&self) -> f64 {
        self.middle + self.text().chars().count() as f64 * DIGIT / 2.0
    }

    /// Takes the label behind it in.
    fn join(&mut self, next: &MarkLabel) {
        (self.last, self.to) = (next.last, next.to);
        self.middle = (self.from + self.to) / 2.0;
    }
}

/// The labels of events at these places, ascending, each in a row where it touches no other.
fn mark_labels(places: &[f64]) -> Vec<MarkLabel> {
    let mut labels: Vec<MarkLabel> = Vec::new();
    for (number, &at) in (1..).zip(places) {
        let one = MarkLabel { first: number, last: number, from: at, to: at, middle: at, row: 0 };
        match labels.last_mut().filter(|label| at - label.from < MARK_DISTANCE) {
            Some(label) => label.join(&one),
            None => labels.push(one),
        }
    }
    // Each join makes one label less, so this ends.
    while let Err(crowded) = lay_out(&mut labels) {
        let next = labels.remove(crowded);
        labels[crowded - 1].join(&next);
    }
    labels
}

/// Gives each label the lowest row in which it is free, or says which one has none.
fn lay_out(labels: &mut [MarkLabel]) -> Result<(), usize> {
    let mut ends = [f64::NEG_INFINITY; MARK_ROWS];
    for (at, label) in labels.iter_mut().enumerate() {
        let left = label.left() - MARK_GAP;
        label.row = ends.iter().position(|end| *end <= left).ok_or(at)?;
        ends[label.row] = label.right();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> Chart {
        let y = Axis::new("latency", Unit::Microseconds, scale);
        Chart::over_time("Latency", y, vec![Series::new("p99 <of all>", Unit::Microseconds, points)])
    }

    #[test]
    fn lines_axes_and_events_are_drawn() {
        let points = (0..30).map(|i| (f64::from(i), 100.0 + f64::from(i))).collect();
        let marker = |at, text: &str| Marker { at, text: text.into() };
        let marks = vec![marker(12.5, "node-2 is back"), marker(12.0, "node-2 killed & gone")];
        let html = chart(Scale::Log, points).marked(marks).html();
        for part in ["time (s)", "latency", "100 µs", "<polyline", "p99 &lt;of all&gt;", "\n25\n"] {
            assert!(html.contains(part), "'{part}' is not in {html}");
        }
        let (killed, back) = (html.find("killed &amp; gone"), html.find("is back"));
        assert!(killed.is_some() && killed < back, "events are in their order");
    }

    /// The label of the last tick is centred under the end of the axis: half of it stands beyond.
    #[test]
    fn the_last_label_of_an_axis_is_inside_the_drawing() {
        let x = Axis::new("latency", Unit::Microseconds, Scale::Log);
        let y = Axis::new("share", Unit::Percent, Scale::Linear);
        let series = Series::new("reads", Unit::Percent, vec![(100.0, 50.0), (30_000.0, 50.0)]);
        let svg = Chart::new("Latencies", x, y, vec![series]).svg();
        let mut lines = svg.lines();
        let place = lines.by_ref().take_while(|line| *line != "30 ms").last().expect("the label has a place");
        let x = place.split("x=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("it has an x");
        let half = "30 ms".len() as f64 * DIGIT / 2.0;
        let x: f64 = x.parse().expect("a number");
        assert!(x > f64::from(WIDTH) / 2.0 && x + half <= f64::from(WIDTH), "{place}");
    }

    #[test]
    fn a_value_without_a_place_interrupts_the_line() {
        let lines = |values: &[f64]| {
            let points = (0..).map(f64::from).zip(values.iter().copied()).collect();
            let svg = chart(Scale::Log, points).svg();
            let is_drawn =
                |shape: &str| svg.lines().filter(|l| l.starts_with(shape) && l.contains("#0072B2")).count();
            (is_drawn("<polyline"), is_drawn("<circle"))
        };
        assert_eq!(lines(&[5.0, 5.0, 5.0, 5.0, 5.0]), (1, 0));
        assert_eq!(lines(&[5.0, 5.0, 0.0, 5.0, 5.0]), (2, 0));
        assert_eq!(lines(&[5.0, 5.0, f64::NAN, 5.0]), (1, 1));
    }

    #[test]
    fn nothing_measured_is_said() {
        for points in [vec![], vec![(0.0, f64::NAN)], vec![(1.0, 0.0)]] {
            assert!(chart(Scale::Log, points).html().contains("nothing was measured"));
        }
        assert!(chart(Scale::Linear, vec![(0.0, 0.0)]).html().contains("<svg"));
    }

    #[test]
    fn labels_of_near_events_stand_above_each_other_and_those_of_nearer_ones_are_one() {
        let told = |places: &[f64]| {
            mark_labels(places).iter().map(|l| (l.text(), l.row)).collect::<Vec<(String, usize)>>()
        };
        let expected = |all: &[(&str, usize)]| {
            all.iter().map(|(text, row)| ((*text).to_owned(), *row)).collect::<Vec<_>>()
        };
        assert_eq!(told(&[0.0, 100.0, 112.0, 300.0]), expected(&[("1", 0), ("2", 0), ("3", 1), ("4", 0)]));
        assert_eq!(told(&[5.0, 6.0, 90.0, 91.0, 92.0]), expected(&[("1,2", 0), ("3\u{2013}5", 0)]));
        assert_eq!(told(&[]), []);
        // However many there are, no two touch.
        let many: Vec<f64> = (0..200).map(|i| f64::from(i) * 4.0).collect();
        let labels = mark_labels(&many);
        assert_eq!((labels[0].first, labels[labels.len() - 1].last), (1, 200));
        for (n, a) in labels.iter().enumerate() {
            for b in labels[n + 1..].iter().filter(|b| b.row == a.row) {
                assert!(a.right() < b.left(), "{a:?} touches {b:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "unit of the axis")]
    fn units_do_not_mix() {
        let y = Axis::new("throughput", Unit::PerSecond, Scale::Linear);
        let _ = Chart::over_time("Mixed", y, vec![Series::new("p99", Unit::Microseconds, vec![])]);
    }
}
