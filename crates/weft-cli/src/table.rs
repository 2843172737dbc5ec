//! Tables of aligned columns, for people.

use crate::paint::{Paint, Tone};

/// A cell: its text, and what it means.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell with a meaning.
    pub fn new(text: impl Into<String>, tone: Tone) -> Cell {
        Cell { text: text.into(), tone }
    }
}

impl<T: std::fmt::Display> From<&T> for Cell {
    fn from(text: &T) -> Cell {
        Cell { text: text.to_string(), tone: Tone::Plain }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell { text: text.to_owned(), tone: Tone::Plain }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell { text, tone: Tone::Plain }
    }
}

/// A row of cells: of `Cell`s, strings, or references to what can be displayed.
macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$($crate::table::Cell::from($cell)),*] };
}
pub(crate) use row;

/// A table. Columns whose title begins with `>` are aligned to the right, as numbers want it.
pub struct Table {
    titles: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// Blanks between columns.
const GAP: &str = "  ";

impl Table {
    /// A table without rows.
    pub fn new(titles: &[&'static str]) -> Table {
        Table { titles: titles.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.titles.len(), "a row has a cell for every column");
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, each ending in a newline, without blanks at their ends.
    pub fn render(&self, paint: Paint) -> String {
        let titles: Vec<Cell> =
            self.titles.iter().map(|t| Cell::new(t.trim_start_matches('>'), Tone::Faint)).collect();
        let lines: Vec<&Vec<Cell>> = std::iter::once(&titles).chain(&self.rows).collect();
        let width_of = |column: usize| lines.iter().map(|l| l[column].text.chars().count()).max();
        let widths: Vec<usize> = (0..self.titles.len()).map(|c| width_of(c).unwrap_or(0)).collect();
        let mut out = String::new();
        for line in lines {
            let mut text = String::new();
            // Blanks are held back until a cell follows, so that no line ends in one.
            let mut blanks = String::new();
            for (column, cell) in line.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.text.chars().count());
                let is_right = self.titles[column].starts_with('>');
                if is_right {
                    blanks.push_str(&pad);
                }
                if !cell.text.is_empty() {
                    text.push_str(&std::mem::take(&mut blanks));
                    text.push_str(&paint.text(cell.tone, &cell.text));
                }
                if !is_right {
                    blanks.push_str(&pad);
                }
                blanks.push_str(GAP);
            }
            out.push_str(&text);
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let mut table = Table::new(&["NAME", ">SIZE", "STATE"]);
        table.row(row!["a", "8 GiB", "ready"]);
        table.row(row!["longer", "12.5 MiB", ""]);
        let expected = "\
NAME        SIZE  STATE
a          8 GiB  ready
longer  12.5 MiB
";
        assert_eq!(table.render(Paint::off()), expected);
    }
}
