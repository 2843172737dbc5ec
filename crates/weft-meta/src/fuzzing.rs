//! Doors to the decoders of this crate, for fuzzing: each takes any bytes, checks what must hold for them,
//! and panics if it does not. Checksums are made right first, so that what lies behind them is reached.
//! Nothing of this is in a build for use.

use crate::change::Change;
use crate::error::MetaError;
use crate::key::Key;
use crate::page::{PAGE_ROOM, PageHead, PageRef, encode_page};
use crate::superblock::{ShardName, Superblock, newest};
use crate::tables::Tables;
use crate::tree::Loaded;
use crate::{check_tables, log};
use std::collections::BTreeMap;
use weft_types::BLOCK_SIZE;
use weft_wire::{Encoder, crc32c};

const NAME: ShardName = ShardName { file_system: 1, shard: 0 };

/// A batch of changes.
///
/// # Panics
/// If changes that decode do not read back, or tables with them cannot be read or checked.
pub fn changes(bytes: &[u8]) {
    let Ok(changes) = log::decode(bytes) else { return };
    let mut e = Encoder::default();
    let mut tables = Tables::default();
    for change in &changes {
        change.encode(&mut e);
        tables.apply(change);
    }
    assert_eq!(log::decode(&e.0).as_ref(), Ok(&changes));
    tables.begin();
    check_tables(&tables);
}

/// A block of the log behind its magic number.
///
/// # Panics
/// If a block that is taken for good cannot be one.
pub fn log_block(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(BLOCK_SIZE, 0);
    log::check_any(&mut block, NAME);
}

/// A superblock.
///
/// # Panics
/// If one that decodes does not read back.
pub fn superblock(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(BLOCK_SIZE - 4, 0);
    let crc = crc32c(&block);
    block.extend_from_slice(&crc.to_le_bytes());
    if let Ok(found) = Superblock::decode(&block, 0) {
        assert_eq!(Superblock::decode(&found.encode(), 0).ok(), Some(found));
        let _: Result<Superblock, MetaError> = newest([&block, &block]);
    }
}

/// The body of a page behind a byte for its level and two for how much it holds.
///
/// # Panics
/// If what is read of it is out of order.
pub fn page(bytes: &[u8]) {
    let [level, low, high, body @ ..] = bytes else { return };
    let body = &body[..body.len().min(PAGE_ROOM)];
    let level = level % 3;
    let head = PageHead { level, count: u16::from_le_bytes([*low, *high]), checkpoint: 1 };
    let (page, crc) = encode_page(NAME, head, body);
    let bound = Key::lowest();
    let page = Loaded { bytes: page, name: NAME, page: PageRef { block: 9, crc }, bound: &bound, level };
    let (mut tables, mut below) = (Tables::default(), BTreeMap::new());
    let read = if level == 0 { page.items(&mut tables) } else { page.children(&mut below) };
    if read.is_ok() {
        assert_eq!(tables.len() + below.len(), usize::from(head.count));
        check_tables(&tables);
    }
}

/// A batch of changes of every kind, as [`changes`] takes it.
pub fn changes_seed(items: &Tables) -> Vec<u8> {
    let mut e = Encoder::default();
    for (key, value) in items.items() {
        Change::Put(key.clone(), value.clone()).encode(&mut e);
    }
    items.items().take(3).for_each(|(key, _)| Change::Delete(key.clone()).encode(&mut e));
    e.0
}
