//! Tests of decoding: every operation whole, cut off everywhere, and as arbitrary bytes.

use super::*;
use std::collections::BTreeSet;

const EXT: Terms = Terms { flags: init::SETXATTR_EXT };
const PLAIN: Terms = Terms { flags: 0 };

fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
    let len = (InHeader::BYTES + body.len()) as u32;
    let header =
        InHeader { len, opcode, unique: 8, nodeid: 3, uid: 1, gid: 2, pid: 4, ..InHeader::default() };
    let mut message = bytes_of(&header);
    message.extend_from_slice(body);
    message
}

fn bytes_of(field: &impl Field) -> Vec<u8> {
    let mut bytes = Vec::new();
    field.put(&mut bytes);
    bytes
}

/// A struct with what follows it.
fn body(field: &impl Field, rest: &[u8]) -> Vec<u8> {
    [&bytes_of(field), rest].concat()
}

fn decoded(opcode: u32, body: &[u8]) -> Result<FuseOperation, i32> {
    let request = FuseRequest::decode(&message(opcode, body), PLAIN);
    request.map(|request| request.operation).map_err(|refusal| refusal.errno.0)
}

/// One message of each operation that is served, none of them longer than it has to be.
fn messages() -> Vec<(u32, Vec<u8>)> {
    let none: &[u8] = b"";
    let read = ReadIn { size: 4096, ..ReadIn::default() };
    let set = SetxattrIn { size: 3, flags: 0 };
    let forgets = [ForgetOne { nodeid: 5, nlookup: 1 }, ForgetOne { nodeid: 6, nlookup: 2 }];
    let range = FallocateIn { length: 1, ..FallocateIn::default() };
    let seek = LseekIn { whence: libc::SEEK_DATA as u32, ..LseekIn::default() };
    vec![
        (op::LOOKUP, b"name\0".to_vec()),
        (op::FORGET, bytes_of(&ForgetIn { nlookup: 1 })),
        (op::BATCH_FORGET, body(&BatchForgetIn { count: 2, dummy: 0 }, &bytes_of(&forgets))),
        (op::GETATTR, bytes_of(&GetattrIn::default())),
        (op::STATX, bytes_of(&StatxIn::default())),
        (op::SETATTR, bytes_of(&SetattrIn::default())),
        (op::READLINK, none.to_vec()),
        (op::SYMLINK, b"name\0target\0".to_vec()),
        (op::MKNOD, body(&MknodIn { mode: libc::S_IFIFO, ..MknodIn::default() }, b"name\0")),
        (op::MKDIR, body(&MkdirIn::default(), b"name\0")),
        (op::UNLINK, b"name\0".to_vec()),
        (op::RMDIR, b"name\0".to_vec()),
        (op::RENAME, body(&RenameIn { newdir: 1 }, b"old\0new\0")),
        (op::RENAME2, body(&Rename2In { newdir: 1, flags: 2, padding: 0 }, b"old\0new\0")),
        (op::LINK, body(&LinkIn { oldnodeid: 9 }, b"name\0")),
        (op::OPEN, bytes_of(&OpenIn::default())),
        (op::CREATE, body(&CreateIn::default(), b"name\0")),
        (op::TMPFILE, body(&CreateIn::default(), b"\0")),
        (op::READ, bytes_of(&read)),
        (op::WRITE, body(&WriteIn { size: 4, ..WriteIn::default() }, b"data")),
        (op::FLUSH, bytes_of(&FlushIn::default())),
        (op::FSYNC, bytes_of(&FsyncIn::default())),
        (op::FSYNCDIR, bytes_of(&FsyncIn::default())),
        (op::RELEASE, bytes_of(&ReleaseIn::default())),
        (op::OPENDIR, bytes_of(&OpenIn::default())),
        (op::RELEASEDIR, bytes_of(&ReleaseIn::default())),
        (op::READDIR, bytes_of(&read)),
        (op::READDIRPLUS, bytes_of(&read)),
        (op::STATFS, none.to_vec()),
        (op::SETXATTR, body(&set, b"user.a\0abc")),
        (op::GETXATTR, body(&GetxattrIn::default(), b"user.a\0")),
        (op::LISTXATTR, bytes_of(&GetxattrIn::default())),
        (op::REMOVEXATTR, b"user.a\0".to_vec()),
        (op::FALLOCATE, bytes_of(&range)),
        (op::LSEEK, bytes_of(&seek)),
        (op::COPY_FILE_RANGE, bytes_of(&CopyFileRangeIn::default())),
        (op::SYNCFS, bytes_of(&SyncfsIn::default())),
        (op::INTERRUPT, bytes_of(&InterruptIn { unique: 6 })),
        (op::DESTROY, none.to_vec()),
    ]
}

/// The message cut off, with a header that says so if there is one.
fn cut(message: &[u8], end: usize) -> Vec<u8> {
    let mut cut = message[..end].to_vec();
    if let Some(length) = cut.get_mut(..4) {
        length.copy_from_slice(&(end as u32).to_ne_bytes());
    }
    cut
}

#[test]
fn a_message_is_understood_whole_and_refused_wherever_it_is_cut_off() {
    let mut kinds = BTreeSet::new();
    for (opcode, body) in messages() {
        let whole = message(opcode, &body);
        let request = FuseRequest::decode(&whole, PLAIN).expect("a whole message");
        assert_eq!((request.unique, request.node.0, request.thread), (8, 3, 4));
        assert_eq!((request.uid, request.gid), (1, 2));
        kinds.insert(opcode);
        for end in 0..whole.len() {
            let refusal =
                FuseRequest::decode(&cut(&whole, end), PLAIN).expect_err("a message that is cut off");
            let has_answer = ![op::FORGET, op::BATCH_FORGET, op::INTERRUPT].contains(&opcode);
            let answered = (has_answer && end >= InHeader::BYTES).then_some(8);
            assert_eq!(refusal.unique, answered, "operation {opcode}, {end} bytes");
            assert!(matches!(refusal.errno.0, libc::EIO | libc::EINVAL | libc::ENOENT), "{refusal:?}");
            // The header says more than came.
            assert!(FuseRequest::decode(&whole[..end], PLAIN).is_err());
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(FuseRequest::decode(&longer, PLAIN).is_err(), "more came than the header says");
        let longer = message(opcode, &[&body[..], &[0; 24]].concat());
        assert!(FuseRequest::decode(&longer, PLAIN).is_ok(), "a newer kernel's, operation {opcode}");
    }
    assert_eq!(kinds.len(), 39);
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let messages = messages();
    for round in 0..200_000 {
        let (opcode, body) = &messages[round % messages.len()];
        let mut bytes = message(*opcode, body);
        for _ in 0..random() % 4 + 1 {
            let at = (random() % bytes.len() as u64) as usize;
            bytes[at] = [0, 1, 0x7f, 0xff, b'/', b'.', random() as u8][(random() % 7) as usize];
        }
        bytes.truncate((random() % 64) as usize * bytes.len() / 32);
        if random() % 8 != 0 {
            bytes = cut(&bytes, bytes.len());
        }
        for terms in [PLAIN, EXT] {
            if let Err(refusal) = FuseRequest::decode(&bytes, terms) {
                assert!((1..512).contains(&refusal.errno.0));
            }
        }
    }
}

#[test]
fn names_are_checked() {
    let lookup = |name: &[u8]| decoded(op::LOOKUP, name);
    assert_eq!(lookup(b".\0"), Ok(FuseOperation::Lookup(LookupName::Own)));
    assert_eq!(lookup(b"..\0"), Ok(FuseOperation::Lookup(LookupName::Parent)));
    assert_eq!(lookup(b"...\0"), Ok(FuseOperation::Lookup(LookupName::Entry(b"...".to_vec()))));
    let long = [&[b'x'; 256][..], b"\0"].concat();
    for (name, errno) in [(&b"\0"[..], libc::EINVAL), (b"a/b\0", libc::EINVAL), (&long, libc::ENAMETOOLONG)] {
        assert_eq!(lookup(name), Err(errno));
        assert_eq!(decoded(op::UNLINK, name), Err(errno));
    }
    assert!(lookup(&long[1..]).is_ok());
    assert_eq!(decoded(op::RMDIR, b".\0"), Err(libc::EINVAL));
    assert_eq!(decoded(op::REMOVEXATTR, &long), Err(libc::ERANGE));
    let target = [b"name\0", &[b'x'; 4096][..], b"\0"].concat();
    assert_eq!(decoded(op::SYMLINK, &target), Err(libc::ENAMETOOLONG));
    assert_eq!(decoded(op::SYMLINK, b"name\0\0"), Err(libc::ENOENT));
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let rename = |flags| decoded(op::RENAME2, &body(&Rename2In { newdir: 1, flags, padding: 0 }, b"a\0b\0"));
    assert!(rename(0).is_ok() && rename(1).is_ok() && rename(2).is_ok());
    assert_eq!((rename(3), rename(4)), (Err(libc::EINVAL), Err(libc::EINVAL)), "whiteouts among them");
    let long = ReadIn { size: (1 << 20) + 1, ..ReadIn::default() };
    assert_eq!(decoded(op::READ, &bytes_of(&long)), Err(libc::EINVAL));
    assert_eq!(decoded(op::READDIR, &bytes_of(&long)), Err(libc::EINVAL));
    let allocate = |mode, offset, length| {
        decoded(op::FALLOCATE, &bytes_of(&FallocateIn { offset, length, mode, ..FallocateIn::default() }))
    };
    assert!([0, 1, 3, 16, 17].into_iter().all(|mode| allocate(mode, 0, 1).is_ok()));
    assert_eq!(allocate(8, 0, 1), Err(libc::EOPNOTSUPP));
    assert_eq!(allocate(0, u64::MAX, 1), Err(libc::EINVAL));
    assert_eq!(allocate(0, 0, 0), Err(libc::EINVAL));
    let seek = LseekIn { whence: 0, ..LseekIn::default() };
    assert_eq!(decoded(op::LSEEK, &bytes_of(&seek)), Err(libc::EINVAL));
    let node = |mode| decoded(op::MKNOD, &body(&MknodIn { mode, ..MknodIn::default() }, b"a\0"));
    assert_eq!(node(libc::S_IFDIR), Err(libc::EINVAL));
    let many = BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert_eq!(decoded(op::BATCH_FORGET, &bytes_of(&many)), Err(libc::EIO));
    assert_eq!(decoded(op::INIT, &[0; 64]), Err(libc::EIO), "a second one");
    let copy = |flags, len| {
        let range = CopyFileRangeIn { off_in: 1, flags, len, ..CopyFileRangeIn::default() };
        decoded(op::COPY_FILE_RANGE, &bytes_of(&range)).map(drop)
    };
    assert_eq!(
        (copy(0, 5), copy(1, 5), copy(0, u64::MAX)),
        (Ok(()), Err(libc::EINVAL), Err(libc::EOVERFLOW))
    );
    let write = |flags| {
        let write = WriteIn { size: 4, flags, ..WriteIn::default() };
        match decoded(op::WRITE, &body(&write, b"data")) {
            Ok(FuseOperation::Write { when, .. }) => when,
            other => panic!("{other:?}"),
        }
    };
    let flags = [libc::O_APPEND, libc::O_DIRECT, libc::O_DSYNC, libc::O_SYNC | libc::O_DIRECT];
    let expected = [Durable::Later, Durable::Data, Durable::WithSize, Durable::WithSize];
    assert_eq!(flags.map(|flags| write(flags as u32)), expected);
    for opcode in [34, 37, 39, 40, 48, 0, 19, 999] {
        assert_eq!(decoded(opcode, &[0; 64]), Err(libc::ENOSYS));
    }
}

#[test]
fn changes_are_what_the_flags_say() {
    let change = |set: SetattrIn| match decoded(op::SETATTR, &bytes_of(&set))? {
        FuseOperation::Change { changes, kills_set_id, .. } => Ok((changes, kills_set_id)),
        other => panic!("{other:?}"),
    };
    assert_eq!(change(SetattrIn::default()), Ok((AttributeChanges::default(), false)));
    let valid = fattr::MODE | fattr::SIZE | fattr::ATIME | fattr::MTIME | fattr::MTIME_NOW;
    let set = SetattrIn { valid, mode: 0o104_755, size: 5, atime: -1, atimensec: 7, ..SetattrIn::default() };
    let time = FileTime { seconds: -1, nanoseconds: 7 };
    let expected = AttributeChanges {
        mode: Some(0o4755),
        size: Some(5),
        accessed: Some(SetTime::At(time)),
        modified: Some(SetTime::Now),
        ..AttributeChanges::default()
    };
    assert_eq!(change(set), Ok((expected, false)));
    let bad = SetattrIn { valid: fattr::ATIME, atimensec: 1_000_000_000, ..SetattrIn::default() };
    assert_eq!(change(bad), Err(libc::EINVAL));
    let owner = fattr::UID | fattr::GID | fattr::KILL_SUIDGID;
    let (changes, kills) =
        change(SetattrIn { valid: owner, uid: 7, gid: 8, ..SetattrIn::default() }).unwrap();
    assert_eq!((changes.uid, changes.gid, kills), (Some(7), Some(8), true));
}

#[test]
fn an_extended_attribute_comes_with_and_without_the_longer_struct() {
    let set = |terms, ext: &[u8], size, value: &[u8]| {
        let body = [&bytes_of(&SetxattrIn { size, flags: 1 }), ext, b"user.a\0", value].concat();
        let request = FuseRequest::decode(&message(op::SETXATTR, &body), terms);
        request.map(|request| request.operation).map_err(|refusal| refusal.errno.0)
    };
    let name = b"user.a".to_vec();
    let expected = |kills_set_gid| {
        let (name, value, mode) = (name.clone(), b"abc".to_vec(), XattrMode::Create);
        Ok(FuseOperation::SetXattr { name, value, mode, kills_set_gid })
    };
    assert_eq!(set(PLAIN, b"", 3, b"abc"), expected(false));
    assert_eq!(set(EXT, &[0; 8], 3, b"abc"), expected(false));
    assert_eq!(set(EXT, &[1, 0, 0, 0, 0, 0, 0, 0], 3, b"abc"), expected(true));
    assert_eq!(set(PLAIN, b"", 4, b"abc"), Err(libc::EIO));
    assert_eq!(set(PLAIN, b"", 65_537, &[0; 65_537]), Err(libc::E2BIG));
}

#[test]
fn flags_of_open_are_read() {
    let open = |flags: i32| match decoded(op::OPEN, &bytes_of(&OpenIn { flags: flags as u32, open_flags: 1 }))
    {
        Ok(FuseOperation::Open(opening)) => opening,
        other => panic!("{other:?}"),
    };
    let opening = open(libc::O_RDWR | libc::O_APPEND | libc::O_TRUNC | libc::O_DIRECT | libc::O_EXCL);
    assert_eq!(
        opening.how,
        HowToOpen { reads: true, writes: true, appends: true, truncates: true, is_direct: true }
    );
    assert!(opening.is_exclusive && opening.kills_set_id);
    assert_eq!(open(libc::O_RDONLY).how, HowToOpen { reads: true, ..HowToOpen::default() });
    assert_eq!(open(libc::O_WRONLY).how, HowToOpen { writes: true, ..HowToOpen::default() });
}
