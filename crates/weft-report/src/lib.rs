//! Pure: measurements as one HTML page, with charts, tables and nothing to load from anywhere.
//!
//! It owns how a page looks: [`page`] makes the text of a file from [`Section`]s, which hold [`Chart`]s of
//! [`Series`] with [`Marker`]s, [`Table`]s and text. Charts are drawn as SVG in the page; there is no script in it.
//! It measures nothing, knows nothing of fabrics, and never touches a file.

mod axis;
mod chart;
mod page;

pub use axis::{Axis, Scale, Unit};
pub use chart::{Chart, Marker, Series};
pub use page::{Part, Section, Table, page};
