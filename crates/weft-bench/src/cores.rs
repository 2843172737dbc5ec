//! The cores that a benchmark may use.

use crate::BenchError;
use weft_rt::affinity;

/// The cores that this thread may run on, in order.
///
/// # Errors
/// Those of the operating system: a run cannot go on without them.
pub(crate) fn own_cores() -> Result<Vec<usize>, BenchError> {
    affinity::allowed()
        .map_err(|source| BenchError::System { action: "find out which cores are allowed", source })
}
