//! Targets of file systems: requests and answers, and what is on a shard's volume.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_meta::{Medium, MediumError, Shard, ShardFormat, ShardName, format_shard, fuzzing};
use weft_rt::Buf;
use weft_rt::sim::Sim;
use weft_types::{BLOCK_SIZE, FileKind, FileTime, InodeNumber, SessionId, VolumeId};
use weft_wire::files::*;
use weft_wire::{Decoder, Encoder};

/// A request to a shard.
pub(crate) fn request(bytes: &[u8]) {
    if let Ok(asked) = ShardRequest::decode(bytes) {
        assert_eq!(ShardRequest::decode(&asked.encode()).as_ref(), Ok(&asked));
    }
    let mut d = Decoder::new(bytes);
    let Ok(request) = FileRequest::decode(&mut d) else { return };
    assert_eq!(FileRequest::decode(&mut Decoder::new(&encoded(&request))).as_ref(), Ok(&request));
}

fn encoded(request: &FileRequest) -> Vec<u8> {
    let mut e = Encoder::default();
    request.encode(&mut e);
    e.0
}

/// Operations of every kind.
fn operations() -> Vec<Operation> {
    let at = |name: &[u8]| NameIn { directory: InodeNumber::ROOT, name: name.to_vec() };
    let made = |kind, target: &[u8]| NewInode {
        kind,
        mode: 0o644,
        umask: 0o022,
        uid: 1,
        gid: 2,
        device: 0,
        target: target.to_vec(),
    };
    let inode = InodeNumber(2);
    let time = Some(SetTime::At(FileTime { seconds: -1, nanoseconds: 5 }));
    let (mode, uid, gid, size) = (Some(0o600), Some(3), Some(4), Some(5));
    let changes = AttributeChanges { mode, uid, gid, size, accessed: time, modified: Some(SetTime::Now) };
    let [owner, other] = [1, 2].map(|id| LockOwner { family: LockFamily::Range, id });
    let lock = FileLock { owner, start: 0, last: 9, mode: LockMode::Exclusive, process: 4 };
    vec![
        Operation::Create(at(b"file"), made(FileKind::Regular, b"")),
        Operation::Create(at(b"link"), made(FileKind::Symlink, b"../target")),
        Operation::Create(at(b"folder"), made(FileKind::Directory, b"")),
        Operation::CreateUnnamed(InodeNumber::ROOT, made(FileKind::Regular, b"")),
        Operation::Link(inode, at(b"again")),
        Operation::Change(inode, changes),
        Operation::SetLayout(InodeNumber::ROOT, [1, 0, 2, 0, 0, 1, 0, 0, 8, 0, 0, 0]),
        Operation::SetXattr(inode, b"user.a".to_vec(), vec![1; 1100], XattrMode::Create),
        Operation::Rename(at(b"file"), at(b"moved"), RenameMode::Replace),
        Operation::Unlink(at(b"again")),
        Operation::RemoveDirectory(at(b"missing")),
        Operation::RemoveXattr(inode, b"user.b".to_vec()),
        Operation::CreateOpen(at(b"open"), made(FileKind::Regular, b""), 1 << 18),
        Operation::Hold(inode, HoldMode::Read),
        Operation::Lock(inode, lock),
        Operation::Unlock(inode, lock.owner, (3, 5)),
        Operation::FindLock(inode, FileLock { owner: other, ..lock }),
        Operation::Recalls,
        Operation::Told(7),
        Operation::Await(Box::new(Operation::Unlink(at(b"open")))),
        Operation::Reserve(inode, 1 << 20),
        Operation::Release(inode, changes),
        Operation::Find(at(b"moved")),
        Operation::Attributes(inode),
        Operation::List { directory: InodeNumber::ROOT, after: 0, limit: 10 },
        Operation::Target(InodeNumber(3)),
        Operation::Xattr(inode, b"user.a".to_vec()),
        Operation::XattrNames(inode),
        Operation::Check(9),
        Operation::Use,
        Operation::State,
        Operation::HoldDirectory(InodeNumber::ROOT),
        Operation::Hold(inode, HoldMode::Write),
        Operation::Hold(inode, HoldMode::Shared),
        Operation::Grow(inode, 1 << 20, FileTime { seconds: 5, nanoseconds: 7 }),
        Operation::DataOf(vec![InodeNumber(2), InodeNumber(999)]),
        Operation::NamesOf(vec![InodeNumber(2), InodeNumber(999)]),
        Operation::Across(9, InodeNumber(0)),
        Operation::SetProject(InodeNumber::ROOT, 5),
        Operation::Project(InodeNumber::ROOT),
        Operation::SetQuota(
            InodeNumber::ROOT,
            QuotaOf::FIRST,
            QuotaAmount { bytes: 1 << 20, inodes: 3 },
            InodeNumber(5),
        ),
        Operation::Quotas(QuotaOf::FIRST),
        Operation::Find(at(b"moved")),
        Operation::List { directory: InodeNumber::ROOT, after: 0, limit: 10 },
    ]
}

fn requests() -> Vec<FileRequest> {
    let of =
        |(n, operation)| FileRequest { session: SessionId(4), number: n as u64 + 1, answered: 0, operation };
    operations().into_iter().enumerate().map(of).collect()
}

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    let asked = |request| ShardRequest { file_system: VolumeId(7), shard: 2, request }.encode();
    requests().iter().map(encoded).chain(requests().into_iter().map(asked)).collect()
}

/// An answer of a shard.
pub(crate) fn answer(bytes: &[u8]) {
    let mut d = Decoder::new(bytes);
    let Ok(answer) = Answer::decode(&mut d) else { return };
    let mut e = Encoder::default();
    answer.encode(&mut e);
    assert_eq!(Answer::decode(&mut Decoder::new(&e.0)).as_ref(), Ok(&answer));
}

pub(crate) fn answer_seeds() -> Vec<Vec<u8>> {
    let encode = |answer: &Answer| {
        let mut e = Encoder::default();
        answer.encode(&mut e);
        e.0
    };
    used().answers.iter().map(encode).collect()
}

/// Changes as the log of a shard holds them.
pub(crate) fn changes(bytes: &[u8]) {
    fuzzing::changes(bytes);
}

pub(crate) fn changes_seeds() -> Vec<Vec<u8>> {
    vec![used().changes]
}

/// A block of the log of a shard.
pub(crate) fn log_block(bytes: &[u8]) {
    fuzzing::log_block(bytes);
}

pub(crate) fn log_block_seeds() -> Vec<Vec<u8>> {
    blocks_with(b"WMLG").into_iter().map(|block| block[..512].to_vec()).collect()
}

/// A superblock of a shard.
pub(crate) fn superblock(bytes: &[u8]) {
    fuzzing::superblock(bytes);
}

pub(crate) fn superblock_seeds() -> Vec<Vec<u8>> {
    blocks_with(b"WEFTMETA").into_iter().map(|block| block[..128].to_vec()).collect()
}

/// What a page of a shard's tables holds, behind its level and count.
pub(crate) fn page(bytes: &[u8]) {
    fuzzing::page(bytes);
}

pub(crate) fn page_seeds() -> Vec<Vec<u8>> {
    // Level and count are at 14 and 16 of a page, its length at 18, what it holds from 40 on.
    let of = |page: Vec<u8>| {
        let length = usize::from(u16::from_le_bytes([page[18], page[19]]));
        [&page[14..15], &page[16..18], &page[40..40 + length]].concat()
    };
    blocks_with(b"WMPG").into_iter().map(of).collect()
}

fn blocks_with(magic: &[u8]) -> Vec<Vec<u8>> {
    used().blocks.into_values().filter(|block| block.starts_with(magic)).collect()
}

/// A shard that was used.
struct Used {
    blocks: BTreeMap<u64, Vec<u8>>,
    answers: Vec<Answer>,
    changes: Vec<u8>,
}

/// Blocks in memory.
#[derive(Clone, Default)]
struct Memory {
    blocks: Rc<RefCell<BTreeMap<u64, Vec<u8>>>>,
}

impl Medium for Memory {
    fn generation(&self) -> u64 {
        1
    }

    fn blocks(&self) -> u64 {
        1 << 20
    }

    async fn read(&self, block: u64, count: u64) -> Result<Vec<Buf>, MediumError> {
        let blocks = self.blocks.borrow();
        let read = |n| Buf::from(blocks.get(&n).cloned().unwrap_or_else(|| vec![0; BLOCK_SIZE]));
        Ok((block..block + count).map(read).collect())
    }

    async fn write(&self, block: u64, bufs: Vec<Buf>) -> Result<(), MediumError> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.blocks.borrow_mut().extend((block..).zip(bytes.chunks(BLOCK_SIZE).map(<[u8]>::to_vec)));
        Ok(())
    }

    async fn discard(&self, block: u64, count: u64) -> Result<(), MediumError> {
        self.blocks.borrow_mut().retain(|at, _| !(block..block + count).contains(at));
        Ok(())
    }

    fn reserve_blocks(&self) -> u64 {
        u64::MAX
    }

    fn is_full(&self) -> bool {
        false
    }
}

fn used() -> Used {
    Sim::new(1).block_on(async {
        let medium = Memory::default();
        let format = ShardFormat::new(ShardName { file_system: 1, shard: 0 }, [7; 16], [1; 12]);
        format_shard(&medium, &format).await.expect("memory does not fail");
        let shard = Shard::open(medium.clone()).await.expect("it was formatted");
        let mut answers = Vec::new();
        for request in requests() {
            answers.push(shard.serve(&request).await.expect("memory does not fail"));
        }
        // A checkpoint gives back the log.
        let mut blocks = medium.blocks.borrow().clone();
        shard.checkpoint().await.expect("memory does not fail");
        blocks.extend(medium.blocks.borrow().clone());
        let changes = shard.with_tables(fuzzing::changes_seed);
        Used { blocks, answers, changes }
    })
}
