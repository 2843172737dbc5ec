//! Random operations on a shard, beside a model of a file system; the shard is closed, reopened and taken
//! over meanwhile, and makes checkpoints.

mod memory;

use memory::Memory;
use weft_checker::FileModel;
use weft_meta::*;
use weft_rt::random_below;
use weft_rt::sim::Sim;
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{Answer, FileError, FileRequest, Operation};

const NAME: ShardName = ShardName { file_system: 9, shard: 0 };

/// One client with one operation at a time.
struct Client {
    shard: Shard<Memory>,
    medium: Memory,
    model: FileModel,
    number: u64,
}

impl Client {
    async fn start() -> Client {
        let medium = Memory::of(Default::default());
        format_shard(&medium, &ShardFormat::new(NAME, [7; 16], [1; 12])).await.unwrap();
        let shard = Shard::open(medium.attach()).await.unwrap();
        Client { shard, medium, model: FileModel::below(InodeNumber::ROOT), number: 0 }
    }

    async fn reopen(&mut self) {
        let attached = self.medium.attach();
        let (medium, before) = (attached.contents(), self.digest());
        drop(medium);
        self.shard = Shard::open(attached).await.unwrap();
        assert_eq!(self.digest(), before, "the tables are as they were");
    }

    fn digest(&self) -> Vec<(Key, Value)> {
        self.shard.with_tables(|tables| tables.items().map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    async fn step(&mut self, operation: Operation) {
        if operation.changes() {
            self.number += 1;
        }
        let number = if operation.changes() { self.number } else { 0 };
        let answered = self.number.saturating_sub(1 + random_below(3));
        let request = FileRequest { session: SessionId(3), number, answered, operation };
        let answer = self.shard.serve(&request).await.unwrap();
        if !self.is_refused_for_space(&request.operation, &answer) {
            self.model.judge(&request.operation, &answer).unwrap();
        }
        if number > 0 && random_below(4) == 0 {
            if random_below(8) == 0 {
                self.reopen().await;
            }
            assert_eq!(self.shard.serve(&request).await.unwrap(), answer, "once and for all: {request:?}");
        }
    }

    /// What makes the tables larger is refused where there is no space, and nothing else is.
    fn is_refused_for_space(&self, operation: &Operation, answer: &Answer) -> bool {
        let is_refused = *answer == Answer::Failed(FileError::NoSpace);
        assert_eq!(is_refused, operation.grows() && self.medium.is_full(), "{operation:?}: {answer:?}");
        is_refused
    }

    async fn purge_some(&mut self) {
        let orphans = self.model.orphans();
        let found: Vec<u64> =
            self.shard.orphans(usize::MAX).await.unwrap().iter().map(|inode| inode.0).collect();
        assert_eq!(found, orphans);
        for inode in orphans {
            assert!(self.shard.purge(InodeNumber(inode)).await.unwrap());
            self.model.purge(inode);
        }
    }
}

#[test]
fn a_shard_answers_like_a_file_system_in_memory() {
    let seeds = std::env::var("WEFT_META_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    for seed in 0..seeds {
        eprintln!("seed {seed}");
        Sim::new(seed).block_on(async {
            let mut client = Client::start().await;
            for _ in 0..700 {
                let operation = match random_below(12) {
                    0 | 1 => client.model.any_lock_operation(&mut random_below),
                    2 => client.model.any_hold_of_directory(&mut random_below),
                    _ => client.model.any_operation(&mut random_below),
                };
                client.step(operation).await;
                match random_below(60) {
                    0 => client.reopen().await,
                    1 => client.shard.checkpoint().await.unwrap(),
                    2 => client.purge_some().await,
                    3 => client.medium.fill(!client.medium.is_full()),
                    _ => {}
                }
            }
            assert_eq!(client.shard.with_tables(check_tables), []);
        });
    }
}
