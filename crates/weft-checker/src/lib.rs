//! Pure: judges what clients of a volume or of a file system saw.
//!
//! It owns the history of a run with its check (`history.rs`), what blocks are filled with so that a torn or
//! misplaced one shows (`block.rs`), a file system in memory that answers are compared with (`files.rs`), the
//! trees that there may be while several mounts change one (`tree.rs`), and what a file may hold
//! (`contents.rs`). The simulation and the torture of real processes use the same. It runs nothing, and knows
//! no client.

mod block;
mod contents;
mod files;
mod history;
mod tree;

pub use block::{fill_block, read_value};
pub use contents::{Change, Contents};
pub use files::{Dice, FileModel};
pub use history::{Action, Call, History, Operation, Value, Violation, is_explained, is_linearizable};
pub use tree::{Deed, TreeHistory};
