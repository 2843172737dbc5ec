//! Pools: sets of drives that volumes draw from. A pool is created empty; drives name it when they are added.

use crate::change::take_id;
use crate::refusal::Kind;
use crate::{Reason, Refusal, validate_name};
use serde::{Deserialize, Serialize};
use weft_types::{FabricMap, Pool, PoolId};

/// A pool is created, without drives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreatePool {
    /// Its name, unique in the fabric.
    pub name: String,
}

pub(crate) fn create(map: &mut FabricMap, change: &CreatePool) -> Result<Reason, Refusal> {
    let name = &change.name;
    validate_name(name).map_err(|fault| Refusal::Name { kind: Kind::Pool, name: name.clone(), fault })?;
    if map.pool_named(name).is_some() {
        return Err(Refusal::NameTaken { kind: Kind::Pool, name: name.clone() });
    }
    let id = u32::try_from(take_id(map)).map_err(|_| Refusal::NumbersUsedUp { kind: Kind::Pool })?;
    let pool = PoolId(id);
    map.pools.insert(pool, Pool { id: pool, name: name.clone() });
    Ok(Reason::PoolCreated { pool, name: name.clone() })
}
