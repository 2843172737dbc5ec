//! Pure: judges what clients of a volume saw.
//!
//! It owns the history of a run with its check (`history.rs`), and what blocks are filled with so that a torn
//! or misplaced one shows (`block.rs`). The simulation and the torture of real processes use the same. It
//! runs nothing, and knows no client.

mod block;
mod history;

pub use block::{fill_block, read_value};
pub use history::{Action, Call, History, Operation, Value, Violation, is_explained, is_linearizable};
