//! The page: sections of text, tables and charts as one HTML file that needs nothing else.

use crate::chart::{COLOURS, Chart, Colour, GREYS};
use std::fmt::Write;

/// How the page looks, light or dark as the reader's system prefers. Charts are drawn in the colours of the light
/// page; the rules of [`colours`] put others in their place.
const STYLE: &str = "\
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --faint: #555; --rule: #ddd; --bad: #a00; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
figure { margin: 1rem 0 1.5rem; } figcaption { font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
.legend { margin: .2rem 0; font-size: .9rem; } .legend span { margin-right: 1.2rem; white-space: nowrap; }
.legend i { display: inline-block; width: 1.2rem; height: .25rem; margin-right: .4rem; vertical-align: middle; }
.marks { margin: .2rem 0 0; font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.facts td { text-align: left; white-space: normal; } .facts th { font-weight: 400; color: var(--faint); vertical-align: top; }
.bad { color: var(--bad); font-weight: 600; }
.wide td:last-child, .wide th:last-child { text-align: left; white-space: normal; }
summary { cursor: pointer; }
";

/// The page at night, but on paper as by day.
const DARK: &str = "--paper: #15171b; --ink: #e6e6e6; --faint: #aaa; --rule: #3a3d43; --bad: #ff8a80;";

/// The rules for the colours of the charts' lines, by day and by night.
fn colours() -> String {
    let legend = |which: fn(&Colour) -> &str| {
        let rule = |(n, colour): (usize, &Colour)| format!(".c{n} {{ background: {}; }}\n", which(colour));
        COLOURS.iter().enumerate().map(rule).collect::<String>()
    };
    let swap = |colour: &Colour| {
        let Colour { day, night } = colour;
        format!("svg [fill=\"{day}\"] {{ fill: {night}; }}\nsvg [stroke=\"{day}\"] {{ stroke: {night}; }}\n")
    };
    let swaps: String = COLOURS.iter().chain(GREYS).map(swap).collect();
    format!(
        "{}@media screen and (prefers-color-scheme: dark) {{\n:root {{ {DARK} }}\n{}{swaps}}}\n",
        legend(|c| c.day),
        legend(|c| c.night)
    )
}

/// A part of a page under a heading.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// What stands under it, in order.
    pub parts: Vec<Part>,
}

/// What a section is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// A paragraph.
    Text(String),
    /// A paragraph that says that something is wrong.
    Warning(String),
    /// Names and what they are.
    Facts(Vec<(String, String)>),
    /// A table.
    Table(Table),
    /// A long table that is only shown when asked for, by this line.
    Folded(String, Table),
    /// A chart.
    Chart(Chart),
}

/// Rows of cells: the first to the left, figures to the right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The titles of the columns.
    pub head: Vec<String>,
    /// The rows, each with as many cells.
    pub rows: Vec<Vec<String>>,
    /// Whether the last column is text, which stands to the left and may be broken.
    pub ends_in_text: bool,
}

impl Section {
    /// A section.
    pub fn new(title: &str, parts: Vec<Part>) -> Section {
        Section { title: title.to_owned(), parts }
    }
}

/// A whole page, as the text of a file: well formed as XML too.
pub fn page(title: &str, sections: &[Section]) -> String {
    let title = escape(title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n\
         <style>\n{STYLE}{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n",
        colours()
    );
    for section in sections {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape(&section.title));
        section.parts.iter().for_each(|part| out.push_str(&html(part)));
        out.push_str("</section>\n");
    }
    out + "</main>\n</body>\n</html>\n"
}

fn html(part: &Part) -> String {
    match part {
        Part::Text(text) => format!("<p>{}</p>\n", escape(text)),
        Part::Warning(text) => format!("<p class=\"bad\">{}</p>\n", escape(text)),
        Part::Facts(facts) => {
            let row = |(name, value): &(String, String)| {
                format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(value))
            };
            format!("<table class=\"facts\">\n{}</table>\n", facts.iter().map(row).collect::<String>())
        }
        Part::Table(table) => table.html(),
        Part::Folded(line, table) => {
            format!("<details>\n<summary>{}</summary>\n{}</details>\n", escape(line), table.html())
        }
        Part::Chart(chart) => chart.html(),
    }
}

impl Table {
    fn html(&self) -> String {
        let row = |cells: &Vec<String>, tag: &str| {
            let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows: String = self.rows.iter().map(|cells| row(cells, "td")).collect();
        let class = if self.ends_in_text { " class=\"wide\"" } else { "" };
        format!("<div class=\"scroll\"><table{class}>\n{}{rows}</table></div>\n", row(&self.head, "th"))
    }
}

/// Text as it may stand between tags and in attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that neither HTML nor XML can hold, not even escaped.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::{Axis, Scale, Unit};
    use crate::chart::{Marker, Series};

    fn sections() -> Vec<Section> {
        let y = Axis::new("throughput", Unit::PerSecond, Scale::Linear);
        let points = vec![(0.0, 10.0), (1.0, 25_000.0), (2.0, 20_000.0)];
        let chart = Chart::over_time("Throughput", y, vec![Series::new("reads", Unit::PerSecond, points)])
            .marked(vec![Marker { at: 1.5, text: "a \"node\" died".into() }]);
        let table = Table {
            head: vec!["a".into(), "b".into()],
            rows: vec![vec!["<1>".into(), "2".into()]],
            ..Table::default()
        };
        vec![Section::new(
            "All & everything",
            vec![
                Part::Text("a < b".into()),
                Part::Warning("bad\u{1}".into()),
                Part::Facts(vec![("volume".into(), "data".into())]),
                Part::Table(table.clone()),
                Part::Folded("more".into(), table),
                Part::Chart(chart),
            ],
        )]
    }

    /// The tags of a text that are open at its end; panics at one that is closed without being open.
    fn open_tags(text: &str) -> Vec<String> {
        let mut open = Vec::new();
        for piece in text.split('<').skip(1) {
            let (tag, _) = piece.split_once('>').unwrap_or_else(|| panic!("no end: {piece}"));
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "closed out of order");
            } else if !tag.ends_with('/') && !tag.starts_with('!') {
                open.push(tag.split_whitespace().next().unwrap_or_default().to_owned());
            }
        }
        open
    }

    #[test]
    fn the_page_is_well_formed_and_loads_nothing() {
        let text = page("A <title>", &sections());
        assert_eq!(open_tags(&text), Vec::<String>::new());
        assert!(!text.contains("<script") && !text.contains("src=") && !text.contains("href="));
        assert!(!text.replace("http://www.w3.org/2000/svg", "").contains("http"), "{text}");
        for part in ["A &lt;title&gt;", "All &amp; everything", "&lt;1&gt;", "a &quot;node&quot; died"] {
            assert!(text.contains(part), "'{part}' is missing");
        }
        assert!(!text.contains('\u{1}'));
    }

    #[test]
    fn tags_that_do_not_match_are_noticed() {
        assert_eq!(open_tags("<a><b/>"), ["a"]);
        assert!(std::panic::catch_unwind(|| open_tags("<a></b>")).is_err());
    }
}
