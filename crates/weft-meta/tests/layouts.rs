//! Layouts: new inodes have that of their directory, and a file keeps its own once it has data or is open.

mod memory;

use memory::Memory;
use weft_layout::FileLayout;
use weft_meta::*;
use weft_rt::sim::Sim;
use weft_types::{Attributes, FileKind, InodeNumber, SessionId};
use weft_wire::files::{
    Answer, AttributeChanges, FileError, FileRequest, HoldMode, NameIn, NewInode, Operation,
};

const NAME: ShardName = ShardName { file_system: 9, shard: 0 };
const FIRST: FileLayout = FileLayout { set: 0, copies: 2, unit_blocks: 64, width: 4 };
const WIDE: FileLayout = FileLayout { set: 0, copies: 2, unit_blocks: 256, width: 8 };

/// One session of a shard.
struct Session<'s> {
    shard: &'s Shard<Memory>,
    id: SessionId,
    number: u64,
}

impl Session<'_> {
    async fn answer(&mut self, operation: Operation) -> Answer {
        self.number += 1;
        let number = if operation.changes() { self.number } else { 0 };
        let request = FileRequest { session: self.id, number, answered: 0, operation };
        self.shard.serve(&request).await.expect("it is served")
    }

    async fn attributes(&mut self, operation: Operation) -> Attributes {
        match self.answer(operation).await {
            Answer::Attributes(found) | Answer::Lasting(found, _) => found,
            other => panic!("{other:?}"),
        }
    }

    async fn make(&mut self, directory: InodeNumber, name: &[u8], kind: FileKind) -> Attributes {
        let at = NameIn { directory, name: name.to_vec() };
        let new = NewInode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
        self.attributes(Operation::Create(at, new)).await
    }
}

fn layout_of(attributes: &Attributes) -> FileLayout {
    FileLayout::decode(&attributes.layout).expect("it is one")
}

fn with_shard(run: impl AsyncFnOnce(&Shard<Memory>) + 'static) {
    Sim::new(1).block_on(async {
        let medium = Memory::of(Default::default());
        format_shard(&medium, &ShardFormat::new(NAME, [7; 16], FIRST.encode())).await.expect("formatted");
        let shard = Shard::open(medium.attach()).await.expect("opened");
        run(&shard).await;
        assert_eq!(shard.with_tables(check_tables), []);
    });
}

#[test]
fn what_is_made_has_the_layout_of_its_directory() {
    with_shard(async |shard| {
        let mut session = Session { shard, id: SessionId(3), number: 0 };
        let home = session.make(InodeNumber::ROOT, b"home", FileKind::Directory).await.inode;
        let old = session.make(home, b"old", FileKind::Regular).await;
        assert_eq!(layout_of(&old), FIRST);
        let set = session.attributes(Operation::SetLayout(home, WIDE.encode())).await;
        assert_eq!(layout_of(&set), WIDE);
        assert_eq!(layout_of(&session.make(home, b"new", FileKind::Regular).await), WIDE);
        let below = session.make(home, b"below", FileKind::Directory).await.inode;
        shard.use_set(5);
        let file = session.make(below, b"file", FileKind::Regular).await;
        assert_eq!(layout_of(&file), FileLayout { set: 5, ..WIDE }, "in the newest set");
        let old = session.attributes(Operation::Attributes(old.inode)).await;
        assert_eq!(layout_of(&old), FIRST, "what is there keeps its own");
        // The set is the shard's to choose.
        let set = session.attributes(Operation::SetLayout(file.inode, FIRST.encode())).await;
        assert_eq!(layout_of(&set), FileLayout { set: 5, ..FIRST });
    });
}

#[test]
fn a_file_that_has_data_or_is_open_keeps_its_layout() {
    with_shard(async |shard| {
        let mut session = Session { shard, id: SessionId(3), number: 0 };
        let mut other = Session { shard, id: SessionId(4), number: 0 };
        let file = session.make(InodeNumber::ROOT, b"file", FileKind::Regular).await.inode;
        let (stays, set) =
            (Answer::Failed(FileError::NotPermitted), Operation::SetLayout(file, WIDE.encode()));
        let release = Operation::Release(file, AttributeChanges::default());
        // Whoever has it open knows by its layout where its data go.
        for mode in [HoldMode::Open, HoldMode::Write] {
            session.attributes(Operation::Hold(file, mode)).await;
            assert_eq!(session.answer(set.clone()).await, stays, "{mode:?}, by itself");
            let answer = other.answer(set.clone()).await;
            let expected =
                if mode == HoldMode::Write { Answer::Failed(FileError::Busy) } else { stays.clone() };
            assert_eq!(answer, expected, "{mode:?}, by another session");
            session.answer(release.clone()).await;
        }
        session.answer(Operation::Reserve(file, 4096)).await;
        assert_eq!(session.answer(set.clone()).await, stays, "bytes may have been written");
        session.answer(Operation::Unreserve(file, 0)).await;
        assert_eq!(layout_of(&session.attributes(set).await), WIDE);
    });
}

#[test]
fn a_layout_that_no_file_can_have_is_refused() {
    with_shard(async |shard| {
        let mut session = Session { shard, id: SessionId(3), number: 0 };
        let pipe = session.make(InodeNumber::ROOT, b"pipe", FileKind::Pipe).await.inode;
        let invalid = Answer::Failed(FileError::Invalid);
        assert_eq!(session.answer(Operation::SetLayout(pipe, WIDE.encode())).await, invalid);
        let bad = [
            FileLayout { copies: 3, ..WIDE },
            FileLayout { width: 0, ..WIDE },
            FileLayout { width: 65, ..WIDE },
            FileLayout { unit_blocks: 0, ..WIDE },
            FileLayout { unit_blocks: 3, ..WIDE },
            FileLayout { unit_blocks: 1 << 30, ..WIDE },
        ];
        let later = [9; 12];
        for layout in bad.map(|layout| layout.encode()).into_iter().chain([later]) {
            assert_eq!(session.answer(Operation::SetLayout(InodeNumber::ROOT, layout)).await, invalid);
        }
        let gone = Operation::SetLayout(InodeNumber(77), WIDE.encode());
        assert_eq!(session.answer(gone).await, Answer::Failed(FileError::Stale));
    });
}
