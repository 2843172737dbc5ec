//! `weft pool`: the sets of drives that volumes draw from.

use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{Output, table_or_note};
use crate::paint::Tone;
use crate::size::Size;
use crate::table::{Cell, Table, row};
use weft_api::{ApiAnswer, ApiRequest, DriveFill, PoolInfo};
use weft_types::CapacityLevel;

/// The sets of drives that volumes draw from
#[derive(Clone, Debug, clap::Subcommand)]
pub enum PoolCommand {
    /// List the pools with what is used and what is free
    ///
    /// RAW, USED and PROVISIONED count all copies. FULLEST is the part of its fullest drive that is used, which
    /// decides the LEVEL: a write fails where its drive is full, whatever is free beside it. FREE is the largest
    /// volume that can still be created without --thin, by the number of its copies.
    #[command(after_long_help = "Examples:\n  weft pool list\n  weft pool list --json")]
    List,
}

pub(crate) async fn list(connection: &Connection, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::PoolList {}).await?;
    let ApiAnswer::Pools { pools } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let empty = "there are no pools yet: the first drive that joins makes one";
    output.show(&answer, |_, paint| table_or_note(&table(pools), paint, empty))
}

/// Pools as a table.
pub(crate) fn table(pools: &[PoolInfo]) -> Table {
    let mut table = Table::new(&[
        "POOL",
        ">DRIVES",
        ">RAW",
        ">USED",
        ">PROVISIONED",
        ">FULLEST",
        "LEVEL",
        "FREE BY COPIES",
    ]);
    for pool in pools {
        let free: Vec<String> =
            pool.free.iter().map(|f| format!("{}: {}", f.copies, Size(f.free_bytes))).collect();
        table.row(row![
            pool.name.as_str(),
            &pool.drives,
            &Size(pool.raw_bytes),
            format!("{}{}", Size(pool.used_bytes), percent(pool.used_bytes, pool.raw_bytes)),
            format!("{}{}", Size(pool.provisioned_bytes), percent(pool.provisioned_bytes, pool.raw_bytes)),
            pool.fullest.as_ref().map_or_else(|| "-".to_owned(), fullest),
            level(pool.level),
            free.join(", ")
        ]);
    }
    table
}

fn fullest(fill: &DriveFill) -> String {
    let part = u128::from(fill.used_bytes) * 100 / u128::from(fill.capacity_bytes.max(1));
    format!("{part}% {}", fill.node)
}

fn level(level: CapacityLevel) -> Cell {
    let tone = match level {
        CapacityLevel::Normal => Tone::Good,
        CapacityLevel::Warning => Tone::Warning,
        CapacityLevel::Critical | CapacityLevel::Full => Tone::Bad,
    };
    Cell::new(level.to_string(), tone)
}

/// A part of a whole, as ` (12%)`; nothing of nothing.
fn percent(part: u64, whole: u64) -> String {
    match u128::from(whole) {
        0 => String::new(),
        whole => format!(" ({}%)", u128::from(part) * 100 / whole),
    }
}
