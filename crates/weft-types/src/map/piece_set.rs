//! Pieces of several versions of a map, on the way to the newest one.
//!
//! Pure. A store's base is written piece by piece while the map goes on, so what it holds is of no one
//! version: a volume may be there whose table is gone already. Only once every later change was replayed is
//! it a map.

use super::{Delta, DeltaError, FabricMap, MapVersion, Piece, PieceKey};
use crate::FabricId;
use std::collections::BTreeMap;

/// Pieces of a map, each as in some version from the set's own on.
#[derive(Clone, Debug)]
pub struct PieceSet {
    fabric: FabricId,
    version: MapVersion,
    next_id: u64,
    pieces: BTreeMap<PieceKey, Piece>,
}

impl PieceSet {
    /// A set without pieces, to be led on from this version.
    pub fn at(fabric: FabricId, version: MapVersion, next_id: u64) -> PieceSet {
        PieceSet { fabric, version, next_id, pieces: BTreeMap::new() }
    }

    /// Puts a piece in, in the place of the one with its key.
    pub fn put(&mut self, piece: Piece) {
        self.pieces.insert(piece.key(), piece);
    }

    /// Makes of pieces of this version or later ones, up to that of `delta`'s successors, a set that is one
    /// version nearer to the last of them: what is gone already stays gone.
    ///
    /// # Errors
    /// If the delta is of another fabric, or does not begin at this version.
    pub fn replay(&mut self, delta: Delta) -> Result<(), DeltaError> {
        if delta.fabric != self.fabric {
            return Err(DeltaError::Fabric { expected: self.fabric, found: delta.fabric });
        }
        if delta.from != self.version {
            return Err(DeltaError::Gap { expected: self.version, found: delta.from });
        }
        (self.version, self.next_id) = (delta.to, delta.next_id);
        for key in &delta.removed {
            self.pieces.remove(key);
        }
        delta.put.into_iter().for_each(|piece| self.put(piece));
        Ok(())
    }

    /// The map that the pieces are: of the version to which the last change led, if all up to the newest of
    /// the pieces were replayed.
    ///
    /// # Errors
    /// If a volume names a table that is not there.
    pub fn into_map(self) -> Result<FabricMap, DeltaError> {
        let empty = FabricMap::empty(self.fabric);
        let mut map = FabricMap { version: self.version, next_id: self.next_id, ..empty };
        // In key order, in which tables come before volumes.
        self.pieces.into_values().try_for_each(|piece| map.put_piece(piece))?;
        Ok(map)
    }
}
