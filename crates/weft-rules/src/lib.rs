//! Words: the rules that can be broken on purpose, and the paths of the protocol, by name.
//!
//! It owns what the simulation wants to switch and to see in the engines: the switches (`switch.rs`), and the
//! paths, served reads and slices that engines report (`path.rs`). Both are compiled in with a feature each,
//! which the simulation turns on; without it every call is a constant or nothing. It never decides anything,
//! and never acts outside of a simulation.

/// Whether this program was built with the switches that break rules, or with marks of paths: for simulations
/// only.
pub const IS_OF_SIMULATION: bool = cfg!(any(feature = "mutations", feature = "coverage"));

mod path;
mod switch;

pub use path::*;
pub use switch::*;
