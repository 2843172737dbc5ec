//! What a block of a checked volume holds: its number and a value, again and again.

use crate::Value;
use weft_types::BLOCK_SIZE;

/// A block filled with its value, so that a torn or misplaced block shows.
pub fn fill_block(block: u64, value: Value) -> Vec<u8> {
    unit(block, value).repeat(BLOCK_SIZE / UNIT)
}

/// What a block is filled with, again and again.
const UNIT: usize = 16;

fn unit(block: u64, value: Value) -> [u8; UNIT] {
    (u128::from(block) << 64 | u128::from(value)).to_le_bytes()
}

/// The value of a block's bytes.
///
/// # Panics
/// If the block is torn or holds another block's data: the fabric broke its first promise.
pub fn read_value(block: u64, bytes: &[u8]) -> Value {
    let value = Value::from_le_bytes(bytes[..8].try_into().expect("a block has 8 bytes"));
    if value == 0 {
        assert!(bytes.iter().all(|b| *b == 0), "block {block} is neither zero nor data");
    } else {
        assert!(
            bytes.chunks(UNIT).all(|part| part == unit(block, value)),
            "block {block} with value {value} is torn or misplaced"
        );
    }
    value
}
