//! What a shard does with a medium that is not as it was left: damaged, foreign, of a later release, taken
//! over.

mod memory;

use memory::{Blocks, Event, Memory};
use weft_meta::*;
use weft_rt::sim::Sim;
use weft_rt::spawn;
use weft_types::{FileKind, FileTime, InodeNumber, SessionId};
use weft_wire::files::*;

const NAME: ShardName = ShardName { file_system: 9, shard: 0 };
const LOG: u64 = 16;

async fn formatted() -> Memory {
    let medium = Memory::of(Blocks::new());
    let format = ShardFormat { log_blocks: 1024, ..ShardFormat::new(NAME, [7; 16], [1; 12]) };
    format_shard(&medium, &format).await.unwrap();
    medium
}

fn create(number: u64) -> FileRequest {
    let at = NameIn { directory: InodeNumber::ROOT, name: format!("file {number}").into_bytes() };
    let kind = FileKind::Regular;
    let made = NewInode { kind, mode: 0o644, umask: 0, uid: 1, gid: 2, device: 0, target: Vec::new() };
    FileRequest {
        session: SessionId(3),
        number,
        answered: number - 1,
        operation: Operation::Create(at, made),
    }
}

/// An operation that takes three blocks of the log.
fn long(number: u64) -> FileRequest {
    let set = Operation::SetXattr(
        InodeNumber::ROOT,
        b"user.a".to_vec(),
        vec![number as u8; 9000],
        XattrMode::Either,
    );
    FileRequest { session: SessionId(3), number, answered: number - 1, operation: set }
}

async fn entries(shard: &Shard<Memory>) -> u64 {
    shard.with_tables(|tables| tables.part(InodeNumber::ROOT).unwrap().entries)
}

/// The error of opening the medium after a change.
async fn refusal(medium: &Memory, block: u64, change: impl FnOnce(&mut [u8])) -> String {
    medium.change(block, change);
    match Shard::open(medium.attach()).await {
        Ok(_) => panic!("a shard with a changed block {block} is opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_no_shard_is_refused_with_what_was_found() {
    Sim::new(1).block_on(async {
        let empty = Memory::of(Blocks::new());
        let error = Shard::open(empty.attach()).await.err().unwrap().to_string();
        assert!(error.starts_with("no shard is here: block 0 begins with"), "{error}");
        let medium = formatted().await;
        let twice = format_shard(&medium, &ShardFormat::new(NAME, [7; 16], [1; 12])).await.unwrap_err();
        assert!(twice.to_string().contains("something is there already"), "{twice}");
        let error = refusal(&medium, 1, |block| block[..8].copy_from_slice(b"WEFTDRIV")).await;
        assert!(error.contains("WEFTDRIV"), "{error}");
    });
}

#[test]
fn later_formats_and_features_are_refused_before_anything_else() {
    Sim::new(2).block_on(async {
        let seal = |block: &mut [u8]| {
            let crc = weft_wire::crc32c(&block[..4092]);
            block[4092..].copy_from_slice(&crc.to_le_bytes());
        };
        let medium = formatted().await;
        let error = refusal(&medium, 1, |block| {
            block[8] = 2;
            seal(block);
        });
        assert_eq!(error.await, "the shard has format 2, this release reads up to 1: upgrade the node");
        let medium = formatted().await;
        let error = refusal(&medium, 1, |block| {
            block[24] |= 16;
            seal(block);
        });
        assert!(error.await.contains("features 0x10"));
    });
}

#[test]
fn every_flipped_bit_of_a_page_or_a_superblock_is_noticed() {
    Sim::new(3).block_on(async {
        let medium = formatted().await;
        let shard = Shard::open(medium.attach()).await.unwrap();
        for number in 1..200 {
            shard.serve(&create(number)).await.unwrap();
        }
        shard.checkpoint().await.unwrap();
        let contents = medium.contents();
        let pages = contents.keys().filter(|block| **block >= LOG + 1024);
        for block in pages.copied().chain([0, 1]) {
            for byte in (0..4096).step_by(131) {
                let medium = Memory::of(contents.clone()).attached_again(medium.attach().generation());
                medium.change(block, |bytes| bytes[byte] ^= 1 << (byte % 8));
                match Shard::open(medium.attach()).await {
                    // A page that the checkpoint before has left.
                    Ok(shard) => assert_eq!((entries(&shard).await, block), (199, LOG + 1024), "byte {byte}"),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
    });
}

#[test]
fn a_damaged_block_inside_the_log_is_an_error_and_no_silent_step_back() {
    Sim::new(4).block_on(async {
        let medium = formatted().await;
        let shard = Shard::open(medium.attach()).await.unwrap();
        for number in 1..=20 {
            shard.serve(&create(number)).await.unwrap();
        }
        assert_eq!(shard.counters().log_blocks, 20);
        let contents = medium.contents();
        for damaged in LOG..LOG + 19 {
            let medium = Memory::of(contents.clone()).attached_again(medium.attach().generation());
            let error = refusal(&medium, damaged, |block| block[100] ^= 1).await;
            assert!(error.contains("is missing or damaged"), "{error}");
        }
    });
}

/// What an earlier server has left of a batch is not taken for a part of the batch that the next one has
/// begun.
#[test]
fn blocks_of_two_servers_make_no_batch() {
    Sim::new(5).block_on(async {
        let medium = formatted().await;
        let before = medium.contents();
        let batch_of = async |medium: Memory, request: FileRequest| {
            let shard = Shard::open(medium.attach()).await.unwrap();
            shard.serve(&request).await.unwrap();
            let batch = medium.events().into_iter().find_map(|event| match event {
                Event::Begun(_, LOG, blocks) => Some(blocks),
                _ => None,
            });
            batch.unwrap()
        };
        let first = batch_of(Memory::of(before.clone()).attached_again(4), long(1)).await;
        let second = batch_of(Memory::of(before.clone()).attached_again(8), long(2)).await;
        assert_eq!((first.len(), second.len()), (3, 3));
        let mut image = before;
        image.extend([(LOG, second[0].clone()), (LOG + 1, first[1].clone()), (LOG + 2, first[2].clone())]);
        let medium = Memory::of(image).attached_again(12);
        let shard = Shard::open(medium.attach()).await.unwrap();
        assert_eq!(shard.with_tables(|tables| tables.session(SessionId(3))), None, "neither has happened");
        shard.serve(&create(3)).await.unwrap();
        let shard = Shard::open(medium.attach()).await.unwrap();
        assert_eq!(entries(&shard).await, 1);
    });
}

#[test]
fn a_server_that_was_taken_over_answers_nothing_any_more() {
    Sim::new(6).block_on(async {
        let medium = formatted().await;
        let shard = Shard::open(medium.attach()).await.unwrap();
        shard.serve(&create(1)).await.unwrap();
        let under_way = {
            let shard = shard.clone();
            spawn(async move { shard.serve(&create(2)).await })
        };
        weft_rt::yield_now().await;
        let next = Shard::open(medium.attach()).await.unwrap();
        let old = under_way.await.unwrap();
        assert!(matches!(old, Err(MetaError::Medium(MediumError::Fenced))), "{old:?}");
        // Its client asks the next one, and the operation happens once.
        next.serve(&create(2)).await.unwrap();
        assert_eq!(entries(&next).await, 2);
    });
}

/// Only while it is attached does a server know the newest (F2).
#[test]
fn an_answer_that_only_reads_is_proved_first() {
    Sim::new(9).block_on(async {
        let medium = formatted().await;
        let shard = Shard::open(medium.attach()).await.unwrap();
        let read = Operation::Attributes(InodeNumber::ROOT);
        let read = FileRequest { session: SessionId(3), number: 0, answered: 0, operation: read };
        shard.serve(&read).await.unwrap();
        let next = Shard::open(medium.attach()).await.unwrap();
        next.serve(&create(1)).await.unwrap();
        let old = shard.serve(&read).await;
        assert!(matches!(old, Err(MetaError::Medium(MediumError::Fenced))), "{old:?}");
    });
}

/// A checkpoint takes the tables while they change, and may hold a half of an operation that is not in the
/// log yet: it does not count before the log has it.
#[test]
fn a_checkpoint_waits_for_the_log() {
    for seed in 0..20 {
        Sim::new(seed).block_on(async move {
            let medium = formatted().await;
            let shard = Shard::open(medium.attach()).await.unwrap();
            for some in (1..=1000).collect::<Vec<u64>>().chunks(100) {
                let all = some.iter().map(|number| async { shard.serve(&create(*number)).await.map(drop) });
                weft_rt::sync::join_all(all.collect::<Vec<_>>()).await.into_iter().for_each(Result::unwrap);
            }
            medium.hold(LOG..LOG + 1024);
            let checkpoint = shard.clone();
            spawn(async move { checkpoint.checkpoint().await });
            for number in 1001..1200 {
                let shard = shard.clone();
                spawn(async move { shard.serve(&create(number)).await.map(drop) });
                weft_rt::yield_now().await;
            }
            weft_rt::sleep(std::time::Duration::from_millis(50)).await;
            let image = Memory::of(medium.contents()).attached_again(medium.attach().generation());
            let next = Shard::open(image.attach()).await.unwrap();
            assert_eq!(next.with_tables(check_tables), [], "seed {seed}");
            assert_eq!(entries(&next).await, 1000);
        });
    }
}

/// An inode with more than one batch can remove is purged in rounds.
#[test]
fn whatever_an_inode_has_is_purged() {
    Sim::new(10).block_on(async {
        let medium = formatted().await;
        let shard = Shard::open(medium.attach()).await.unwrap();
        let ask = async |number, operation| {
            let request = FileRequest { session: SessionId(3), number, answered: number - 1, operation };
            shard.serve(&request).await.unwrap()
        };
        let Answer::Attributes(file) = shard.serve(&create(1)).await.unwrap() else { panic!("it is made") };
        let set = |n: u64, length| {
            let name = format!("user.attribute-{n}").into_bytes();
            Operation::SetXattr(file.inode, name, vec![7; length], XattrMode::Create)
        };
        for n in 2..1_000 {
            assert!(matches!(ask(n, set(n, 1000)).await, Answer::Attributes(_)), "{n}");
        }
        assert_eq!(ask(1_000, set(0, 65_536)).await, Answer::Failed(FileError::NoSpace));
        assert!(shard.orphans(9).await.unwrap().is_empty());
        let Operation::Create(at, _) = create(1).operation else { unreachable!() };
        ask(1_001, Operation::Unlink(at)).await;
        assert_eq!(shard.orphans(9).await.unwrap(), [file.inode]);
        assert!(shard.purge(file.inode).await.unwrap());
        assert!(!shard.purge(file.inode).await.unwrap());
        let next = Shard::open(medium.attach()).await.unwrap();
        assert_eq!(next.with_tables(check_tables), []);
        assert_eq!(next.with_tables(|tables| tables.inode(file.inode)), None);
        // Root, its part, the shard, the session and its last answer.
        assert_eq!(next.with_tables(|tables| tables.len()), 5);
    });
}

/// A file without a name may get one, so nobody removes its data.
#[test]
fn what_never_had_a_name_is_no_orphan() {
    Sim::new(12).block_on(async {
        let shard = Shard::open(formatted().await.attach()).await.unwrap();
        let Operation::Create(at, made) = create(1).operation else { unreachable!() };
        let unnamed = FileRequest { operation: Operation::CreateUnnamed(at.directory, made), ..create(1) };
        let Answer::Attributes(file) = shard.serve(&unnamed).await.unwrap() else { panic!("it is made") };
        assert!(shard.orphans(9).await.unwrap().is_empty() && !shard.purge(file.inode).await.unwrap());
        let link = FileRequest { operation: Operation::Link(file.inode, at), ..create(2) };
        assert!(matches!(shard.serve(&link).await.unwrap(), Answer::Attributes(file) if file.links == 1));
    });
}

#[test]
fn the_time_of_a_directory_is_that_of_its_last_change_or_what_was_set_since() {
    Sim::new(13).block_on(async {
        let shard = Shard::open(formatted().await.attach()).await.unwrap();
        let root = async || {
            let read = Operation::Attributes(InodeNumber::ROOT);
            let read = FileRequest { session: SessionId(3), number: 0, answered: 0, operation: read };
            match shard.serve(&read).await.unwrap() {
                Answer::Attributes(root) => root,
                other => panic!("{other:?}"),
            }
        };
        for (number, seconds) in [(1, 4_102_444_800), (3, -5)] {
            let time = FileTime { seconds, nanoseconds: 7 };
            let changes =
                AttributeChanges { modified: Some(SetTime::At(time)), ..AttributeChanges::default() };
            let set = Operation::Change(InodeNumber::ROOT, changes);
            shard.serve(&FileRequest { operation: set, ..create(number) }).await.unwrap();
            assert_eq!(root().await.modified, time);
            shard.serve(&create(number + 1)).await.unwrap();
            let after = root().await.modified;
            assert!((1_000_000_000..4_000_000_000).contains(&after.seconds), "{after:?}");
        }
    });
}

/// A number stands for one operation.
#[test]
fn another_operation_under_a_number_that_was_answered_is_refused() {
    Sim::new(14).block_on(async {
        let shard = Shard::open(formatted().await.attach()).await.unwrap();
        shard.serve(&create(1)).await.unwrap();
        let other = FileRequest { operation: create(2).operation, ..create(1) };
        assert_eq!(shard.serve(&other).await.unwrap(), Answer::Failed(FileError::OutOfOrder));
        assert_eq!(entries(&shard).await, 1);
    });
}

#[test]
fn a_volume_that_is_too_small_ends_the_shard_and_loses_nothing() {
    Sim::new(7).block_on(async {
        let medium = formatted().await;
        let small = medium.attach().with_blocks(LOG + 1024 + 2);
        let shard = Shard::open(small).await.unwrap();
        for number in 1..=100 {
            shard.serve(&create(number)).await.unwrap();
        }
        let error = shard.checkpoint().await.unwrap_err();
        assert!(error.to_string().starts_with("no space: a checkpoint needs block"), "{error}");
        assert!(shard.serve(&create(101)).await.is_err());
        let shard = Shard::open(medium.attach()).await.unwrap();
        assert_eq!(entries(&shard).await, 100);
    });
}

#[test]
fn answers_are_kept_as_long_as_a_session_may_ask_again() {
    Sim::new(8).block_on(async {
        let medium = formatted().await;
        let shard = Shard::open(medium.attach()).await.unwrap();
        let first = shard.serve(&create(1)).await.unwrap();
        let mut last = create(256);
        last.answered = 0;
        shard.serve(&last).await.unwrap();
        let mut beyond = create(257);
        beyond.answered = 0;
        assert_eq!(shard.serve(&beyond).await.unwrap(), Answer::Failed(FileError::OutOfOrder));
        let shard = Shard::open(medium.attach()).await.unwrap();
        assert_eq!(shard.serve(&create(1)).await.unwrap(), first);
        let mut next = create(258);
        next.answered = 6;
        shard.serve(&next).await.unwrap();
        assert_eq!(shard.serve(&create(1)).await.unwrap(), Answer::Failed(FileError::OutOfOrder));
        // A failure is as final as a success.
        let mut again = create(259);
        again.answered = 6;
        let Operation::Create(at, _) = create(1).operation else { unreachable!() };
        let Operation::Create(_, made) = again.operation else { unreachable!() };
        again.operation = Operation::Create(at.clone(), made);
        assert_eq!(shard.serve(&again).await.unwrap(), Answer::Failed(FileError::Exists));
        let unlink = FileRequest { number: 260, operation: Operation::Unlink(at), ..again.clone() };
        shard.serve(&unlink).await.unwrap();
        assert_eq!(shard.serve(&again).await.unwrap(), Answer::Failed(FileError::Exists));
    });
}
