//! Pieces of the map and what a commit changed, as documents: bodies of frames, values of the manager's store.

use crate::DecodeError;
use crate::control::check_volume;
use serde::de::DeserializeOwned;
use weft_types::{Delta, Piece};

/// What a commit changed, as a document.
///
/// # Panics
/// Never: the document's shape always serialises.
pub fn encode_delta(delta: &Delta) -> Vec<u8> {
    serde_json::to_vec(delta).expect("a delta serialises")
}

/// Reads what a commit changed.
///
/// # Errors
/// If the bytes are no delta, or it puts in a volume with a number that no object can name.
pub fn decode_delta(bytes: &[u8]) -> Result<Delta, DecodeError> {
    let delta: Delta = read(bytes)?;
    for piece in &delta.put {
        if let Piece::Volume(volume) = piece {
            check_volume(volume.id)?;
        }
    }
    Ok(delta)
}

/// Pieces of the map, as a document.
///
/// # Panics
/// Never: the document's shape always serialises.
pub fn encode_pieces(pieces: &[Piece]) -> Vec<u8> {
    serde_json::to_vec(pieces).expect("pieces serialise")
}

/// Reads pieces of the map.
///
/// # Errors
/// If the bytes are no pieces.
pub fn decode_pieces(bytes: &[u8]) -> Result<Vec<Piece>, DecodeError> {
    read(bytes)
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(bytes).map_err(|e| DecodeError::Document(e.to_string()))
}
