//! Every block was one atomic register: some order of all operations explains what each of them saw.

use weft_checker::History;

/// Checks what clients of one volume saw.
///
/// # Errors
/// The first block that no order explains, with everything that was done to it.
pub fn check(volume: &str, history: &History) -> Result<(), String> {
    history.check().map_err(|violation| format!("volume {volume}: {violation}"))
}
