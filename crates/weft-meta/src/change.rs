//! Changes of tables: what a shard's log holds.

use crate::key::Key;
use crate::record::{Value, check_value};
use weft_wire::{DecodeError, Decoder, Encoder};

/// A change of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value from now on.
    Put(Key, Value),
    /// The key is gone.
    Delete(Key),
}

impl Change {
    /// The key that changes.
    pub fn key(&self) -> &Key {
        match self {
            Change::Put(key, _) | Change::Delete(key) => key,
        }
    }

    /// Appends the change.
    pub(crate) fn encode(&self, e: &mut Encoder) {
        let key = self.key().bytes();
        match self {
            Change::Put(_, value) => {
                e.u8(1).u16(key.len() as u16).bytes(key).u16(value.len() as u16).bytes(value);
            }
            Change::Delete(_) => {
                e.u8(2).u16(key.len() as u16).bytes(key);
            }
        }
    }

    /// Takes a change, and checks key and value.
    ///
    /// # Errors
    /// If the bytes are none, or the key cannot have the value.
    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Change, DecodeError> {
        let tag = d.u8()?;
        let length = d.u16()?;
        let invalid = DecodeError::Invalid { field: "key", value: length.into() };
        let key = Key::from_bytes(d.bytes(length.into())?).ok_or(invalid)?;
        match tag {
            1 => {
                let length = d.u16()?;
                let value = d.bytes(length.into())?;
                check_value(&key, value)?;
                Ok(Change::Put(key, value.into()))
            }
            2 => Ok(Change::Delete(key)),
            n => Err(DecodeError::Invalid { field: "change", value: n.into() }),
        }
    }
}
