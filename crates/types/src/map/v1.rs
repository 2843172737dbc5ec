//! The first version of the map's documents, where it differs from what the program works with.

use super::{ObjectSpan, Striping, VolumeState};
use crate::{BlockCount, Generation, PoolId, Protection, VolumeId};
use serde::{Deserialize, Serialize};

/// A volume: all volumes were mirrors.
#[derive(Serialize, Deserialize)]
pub(super) struct Volume {
    id: VolumeId,
    name: String,
    pool: PoolId,
    size: BlockCount,
    copies: u8,
    striping: Striping,
    spans: Vec<ObjectSpan>,
    generation: Generation,
    state: VolumeState,
    thin: bool,
    created_ms: u64,
}

impl From<Volume> for super::Volume {
    fn from(v: Volume) -> Self {
        super::Volume {
            id: v.id,
            name: v.name,
            pool: v.pool,
            size: v.size,
            protection: Protection::mirror(v.copies),
            striping: v.striping,
            spans: v.spans,
            generation: v.generation,
            state: v.state,
            thin: v.thin,
            created_ms: v.created_ms,
        }
    }
}

impl From<super::Volume> for Volume {
    fn from(v: super::Volume) -> Self {
        let Protection::Mirror { copies } = v.protection;
        Volume {
            id: v.id,
            name: v.name,
            pool: v.pool,
            size: v.size,
            copies,
            striping: v.striping,
            spans: v.spans,
            generation: v.generation,
            state: v.state,
            thin: v.thin,
            created_ms: v.created_ms,
        }
    }
}
