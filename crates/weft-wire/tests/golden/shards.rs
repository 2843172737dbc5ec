//! What clients and the servers of shards say to each other.

use crate::form::{Case, Form, case, cases_of, check};
use crate::variants;
use weft_types::{Attributes, FileKind, FileTime, InodeNumber, SessionId, VolumeId};
use weft_wire::files::{
    Answer, AttributeChanges, CheckFinding, DataBounds, FileError, FileLock, FileRequest, HoldMode,
    InodeNames, Listed, ListedEntry, LockFamily, LockMode, LockOwner, NameAcross, NameIn, NamesAcross,
    NewInode, Operation, QuotaAmount, QuotaKind, QuotaList, QuotaOf, QuotaUse, Recall, RenameMode, SetTime,
    ShardRequest, ShardState, ShardUser, ShardWait, TableCheck, UseOfShard, XattrMode,
};
use weft_wire::{DecodeError, Decoder, Encoder};

variants!(Operation {
    Find,
    Attributes,
    Create,
    CreateUnnamed,
    Link,
    Unlink,
    RemoveDirectory,
    Rename,
    Change,
    List,
    Target,
    Xattr,
    XattrNames,
    SetXattr,
    RemoveXattr,
    Hold,
    Release,
    Reserve,
    Unreserve,
    CreateOpen,
    Recalls,
    Told,
    Await,
    Lock,
    Unlock,
    FindLock,
    Check,
    Use,
    State,
    HoldDirectory,
    DataOf,
    Grow,
    SetLayout,
    Across,
    NamesOf,
    SetQuota,
    SetProject,
    Project,
    Quotas,
});
variants!(Answer {
    Attributes,
    Done,
    Listed,
    Bytes,
    Names,
    Failed,
    Reserved,
    Recalled,
    Lock,
    Check,
    Use,
    State,
    Lasting,
    DataOf,
    Elsewhere,
    Across,
    NamesOf,
    Quotas,
    Project,
});

fn at(name: &[u8]) -> NameIn {
    NameIn { directory: InodeNumber::new(3, 5), name: name.to_vec() }
}

fn a_lock() -> FileLock {
    let owner = LockOwner { family: LockFamily::Range, id: 0x0c0c };
    FileLock { owner, start: 0x1000, last: 0x1fff, mode: LockMode::Exclusive, process: 0x0d0d }
}

fn operations() -> Vec<Operation> {
    let made = |kind, target: &[u8]| NewInode {
        kind,
        mode: 0o4755,
        umask: 0o027,
        uid: 0x0a01,
        gid: 0x0a02,
        device: 0x0b0b,
        target: target.to_vec(),
    };
    let inode = InodeNumber::new(3, 7);
    let (mode, uid, gid, size) = (Some(0o600), Some(3), Some(4), Some(0x0123_4567_89ab));
    let accessed = Some(SetTime::At(FileTime { seconds: -1, nanoseconds: 5 }));
    let changes = AttributeChanges { mode, uid, gid, size, accessed, modified: Some(SetTime::Now) };
    let name = b"user.colour".to_vec();
    vec![
        Operation::Find(at(b"name")),
        Operation::Attributes(inode),
        Operation::Create(at(b"link"), made(FileKind::Symlink, b"../target")),
        Operation::CreateUnnamed(inode, made(FileKind::Regular, b"")),
        Operation::Link(inode, at(b"again")),
        Operation::Unlink(at(b"again")),
        Operation::RemoveDirectory(at(b"folder")),
        Operation::Rename(at(b"old"), at(b"new"), RenameMode::Exchange),
        Operation::Change(inode, changes),
        Operation::Change(inode, AttributeChanges::default()),
        Operation::List { directory: inode, after: 0x7777, limit: 100 },
        Operation::Target(inode),
        Operation::Xattr(inode, name.clone()),
        Operation::XattrNames(inode),
        Operation::SetXattr(inode, name.clone(), b"blue".to_vec(), XattrMode::Create),
        Operation::RemoveXattr(inode, name),
        Operation::Hold(inode, HoldMode::Write),
        Operation::Release(inode, changes),
        Operation::Reserve(inode, 0x0010_0000),
        Operation::Unreserve(inode, 0x1000),
        Operation::CreateOpen(at(b"file"), made(FileKind::Regular, b""), 0x0004_0000),
        Operation::Recalls,
        Operation::Told(0x0303),
        Operation::Await(Box::new(Operation::Attributes(inode))),
        Operation::Lock(inode, a_lock()),
        Operation::Unlock(inode, a_lock().owner, (0x1000, u64::MAX)),
        Operation::FindLock(inode, a_lock()),
        Operation::Check(0x0404),
        Operation::Use,
        Operation::State,
        Operation::HoldDirectory(inode),
        Operation::DataOf(vec![inode, InodeNumber::new(3, 8)]),
        Operation::Hold(inode, HoldMode::Shared),
        Operation::Grow(inode, 0x0002_0000, FileTime { seconds: 7, nanoseconds: 9 }),
        Operation::SetLayout(inode, [1, 0, 2, 0, 0, 1, 0, 0, 8, 0, 0, 0]),
        Operation::Across(0x0404, inode),
        Operation::NamesOf(vec![inode, InodeNumber::new(3, 8)]),
        Operation::SetQuota(inode, a_quota(), an_amount(0x51), InodeNumber::new(3, 8)),
        Operation::Quotas(a_quota()),
        Operation::SetProject(inode, 0x56),
        Operation::Project(inode),
    ]
}

fn a_quota() -> QuotaOf {
    QuotaOf { kind: QuotaKind::Group, id: 0x0102_0304 }
}

fn an_amount(n: u64) -> QuotaAmount {
    QuotaAmount { bytes: n << 32, inodes: n }
}

fn quotas() -> QuotaList {
    let (used, limit, budget) = (an_amount(0x52), an_amount(0x53), an_amount(0x54));
    let directory = InodeNumber::new(3, 8);
    let quota = QuotaUse { of: a_quota(), used, reserved: 0x55, limit, budget, directory };
    QuotaList { quotas: vec![quota], is_end: true }
}

fn a_name_across() -> NameAcross {
    let (inode, directory) = (InodeNumber::new(4, 9), InodeNumber::new(3, 5));
    NameAcross { inode, names: 0x31, directory, kind: FileKind::Directory }
}

fn names_of_inode() -> InodeNames {
    let (directory, kind) = (InodeNumber::new(3, 5), FileKind::Regular);
    InodeNames { names: 0x31, directory, kind, revision: 0x32, is_locked: true }
}

fn a_check() -> TableCheck {
    let finding = CheckFinding { inode: InodeNumber::new(3, 7), text: "inode 7 is odd".into() };
    TableCheck {
        number: 0x0404,
        is_over: true,
        passes: 2,
        read: 0x11,
        items: 0x12,
        inodes: 0x13,
        names: 0x14,
        orphans: 0x15,
        unsettled: 0x16,
        found: 1,
        findings: vec![finding],
    }
}

fn a_use() -> UseOfShard {
    let session = SessionId(30);
    let user = ShardUser {
        session,
        open: 0x21,
        read: 0x22,
        write: 0x23,
        locks: 0x24,
        has_all_names: true,
        asked: 0x25,
    };
    let wait = |keeps| ShardWait {
        session,
        holder: SessionId(31),
        inode: InodeNumber::new(3, 7),
        keeps,
        waited_ms: 0x26,
    };
    UseOfShard { users: vec![user], waits: vec![wait(Some(HoldMode::Read)), wait(None)] }
}

fn a_state() -> ShardState {
    ShardState {
        format: 1,
        checkpoint: 0x31,
        generation: 0x32,
        log_blocks: 0x33,
        log_from: 0x34,
        log_next: 0x35,
        pages: 0x36,
        levels: 2,
        tables: vec![(4, 0x37), (6, 0x38)],
        served_ms: 0x39,
        operations: 0x3a,
        batches: 0x3b,
        appended_blocks: 0x3c,
        change_bytes: 0x3d,
        probes: 0x3e,
        checkpoints: 0x3f,
    }
}

fn answers() -> Vec<Answer> {
    let time = |seconds| FileTime { seconds, nanoseconds: 0x0102_0304 };
    let attributes = Attributes {
        inode: InodeNumber::new(3, 7),
        kind: FileKind::Regular,
        mode: 0o640,
        links: 2,
        uid: 0x0a01,
        gid: 0x0a02,
        size: 0x0123_4567_89ab,
        device: 0,
        accessed: time(1),
        modified: time(2),
        changed: time(3),
        born: time(4),
        layout: [1, 0, 2, 0, 64, 0, 0, 0, 4, 0, 0, 0],
        revision: 9,
    };
    let entry = ListedEntry { cookie: 0x5555, name: b"name".to_vec(), attributes, lasts: false };
    let lasting = ListedEntry { cookie: 0x6666, name: b"other".to_vec(), attributes, lasts: true };
    vec![
        Answer::Attributes(attributes),
        Answer::Done,
        Answer::Listed(Listed { parent: 5, entries: vec![entry.clone()], is_end: true }),
        Answer::Bytes(b"../target".to_vec()),
        Answer::Names(vec![b"user.a".to_vec(), b"user.b".to_vec()]),
        Answer::Failed(FileError::NotEmpty),
        Answer::Reserved(0x0010_0000),
        Answer::Recalled(vec![Recall {
            number: 0x0303,
            inode: InodeNumber::new(3, 7),
            keeps: HoldMode::Read,
        }]),
        Answer::Lock(None),
        Answer::Lock(Some(a_lock())),
        Answer::Check(a_check()),
        Answer::DataOf(vec![
            Some(DataBounds { layout: *b"\x01\0\x02\0\0\x01\0\0\x04\0\0\0", end: 0x0004_0000 }),
            None,
        ]),
        Answer::Elsewhere(InodeNumber::new(4, 9), FileKind::Directory),
        Answer::Across(NamesAcross { names: vec![a_name_across()], is_end: true }),
        Answer::NamesOf(vec![Some(names_of_inode()), None]),
        Answer::Quotas(quotas()),
        Answer::Project(0x57),
        Answer::Use(a_use()),
        Answer::State(a_state()),
        Answer::Lasting(attributes, InodeNumber::new(3, 5)),
        Answer::Listed(Listed { parent: 5, entries: vec![entry, lasting], is_end: true }),
    ]
}

#[test]
fn requests_to_shards() {
    let request = |name: String, operation: Operation| -> Case {
        let number = if operation.changes() { 0x0201 } else { 0 };
        let request = FileRequest { session: SessionId(30), number, answered: 0x0101, operation };
        let asked = ShardRequest { file_system: VolumeId(40), shard: 3, request };
        case(name, asked, ShardRequest::encode, ShardRequest::decode)
    };
    check("shard-request.txt", Form::Hex, &cases_of(operations(), request));
}

#[test]
fn answers_of_shards() {
    let encode = |answer: &Answer| {
        let mut e = Encoder::default();
        answer.encode(&mut e);
        e.0
    };
    let decode = |bytes: &[u8]| -> Result<Answer, DecodeError> {
        let mut d = Decoder::new(bytes);
        let answer = Answer::decode(&mut d)?;
        d.finish()?;
        Ok(answer)
    };
    check(
        "shard-answer.txt",
        Form::Hex,
        &cases_of(answers(), |name, answer| case(name, answer, encode, decode)),
    );
}
