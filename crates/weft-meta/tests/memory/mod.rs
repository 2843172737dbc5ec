//! A medium in memory: every block is a register, writes take a while, and what was written when is recorded.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use weft_meta::{Medium, MediumError};
use weft_rt::{Buf, random_below, sleep};
use weft_types::BLOCK_SIZE;

/// Blocks of a medium, the written ones.
pub type Blocks = BTreeMap<u64, Rc<[u8]>>;

/// What happened to a medium, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write has begun: its number, its first block, its blocks.
    Begun(usize, u64, Vec<Rc<[u8]>>),
    /// A write has completed.
    Completed(usize),
}

#[derive(Default)]
struct State {
    blocks: RefCell<Blocks>,
    events: RefCell<Vec<Event>>,
    generation: Cell<u64>,
    writes: Cell<usize>,
    /// Writes to these blocks do not complete, nor take effect.
    held: RefCell<Range<u64>>,
    is_full: Cell<bool>,
    room: Cell<Option<Room>>,
}

/// How many blocks a medium can have at a time, the reserve among them.
#[derive(Clone, Copy)]
pub struct Room {
    pub blocks: usize,
    pub reserve: usize,
}

/// A server's attach to a medium. Clones of the medium are made by [`Memory::attach`].
pub struct Memory {
    state: Rc<State>,
    generation: u64,
    blocks: u64,
}

impl Memory {
    /// A medium of many blocks, of which these were written.
    pub fn of(blocks: Blocks) -> Memory {
        let state = State { blocks: RefCell::new(blocks), ..State::default() };
        Memory { state: Rc::new(state), generation: 0, blocks: 1 << 28 }.attach()
    }

    /// The same medium for another server; earlier ones are fenced.
    pub fn attach(&self) -> Memory {
        self.state.generation.set(self.state.generation.get() + 1);
        Memory { state: self.state.clone(), generation: self.state.generation.get(), blocks: self.blocks }
    }

    /// The same attach once more.
    pub fn attached(&self) -> Memory {
        Memory { state: self.state.clone(), generation: self.generation, blocks: self.blocks }
    }

    /// The same medium, attached often before.
    pub fn attached_again(self, generation: u64) -> Memory {
        self.state.generation.set(generation);
        Memory { generation, ..self }
    }

    /// The same medium, with so many blocks.
    pub fn with_blocks(self, blocks: u64) -> Memory {
        Memory { blocks, ..self }
    }

    /// What is written now.
    pub fn contents(&self) -> Blocks {
        self.state.blocks.borrow().clone()
    }

    /// Changes a block behind the server's back.
    pub fn change(&self, block: u64, change: impl FnOnce(&mut [u8])) {
        let mut blocks = self.state.blocks.borrow_mut();
        let mut bytes = blocks.get(&block).map_or_else(|| vec![0; BLOCK_SIZE], |bytes| bytes.to_vec());
        change(&mut bytes);
        blocks.insert(block, bytes.into());
    }

    /// From now on, writes that begin in these blocks do not complete, nor take effect.
    pub fn hold(&self, blocks: Range<u64>) {
        self.state.held.replace(blocks);
    }

    /// From now on there is no space, or some again.
    pub fn fill(&self, is_full: bool) {
        self.state.is_full.set(is_full);
    }

    /// From now on the medium has this room. It is full while a write takes some of the reserve; a
    /// write for which that is too small waits.
    pub fn limit(&self, room: Room) {
        self.state.room.set(Some(room));
    }

    /// Waits until there is room for the blocks of a write.
    async fn take_room(&self, written: Range<u64>) {
        while let Some(room) = self.state.room.get() {
            let taken = {
                let blocks = self.state.blocks.borrow();
                blocks.len() + written.clone().filter(|block| !blocks.contains_key(block)).count()
            };
            self.fill(taken + room.reserve > room.blocks);
            if taken <= room.blocks {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// How many events there were.
    pub fn event_count(&self) -> usize {
        self.state.events.borrow().len()
    }

    /// All events.
    pub fn events(&self) -> Vec<Event> {
        self.state.events.borrow().clone()
    }

    fn check(&self) -> Result<(), MediumError> {
        if self.generation == self.state.generation.get() { Ok(()) } else { Err(MediumError::Fenced) }
    }

    /// Writes blocks, which may need room.
    async fn put(&self, block: u64, bufs: Vec<Buf>, takes_room: bool) -> Result<(), MediumError> {
        self.check()?;
        let number = self.state.writes.get();
        self.state.writes.set(number + 1);
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        assert!(bytes.len().is_multiple_of(BLOCK_SIZE), "whole blocks are written");
        let blocks: Vec<Rc<[u8]>> = bytes.chunks(BLOCK_SIZE).map(Rc::from).collect();
        self.state.events.borrow_mut().push(Event::Begun(number, block, blocks.clone()));
        // Some writes take so long that others overtake them.
        let most = if random_below(5) == 0 { 4000 } else { 200 };
        sleep(Duration::from_micros(random_below(most))).await;
        if self.state.held.borrow().contains(&block) {
            std::future::pending::<()>().await;
        }
        if takes_room {
            self.take_room(block..block + blocks.len() as u64).await;
        }
        self.check()?;
        self.state.blocks.borrow_mut().extend((block..).zip(blocks));
        self.state.events.borrow_mut().push(Event::Completed(number));
        Ok(())
    }
}

impl Medium for Memory {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    async fn read(&self, block: u64, count: u64) -> Result<Vec<Buf>, MediumError> {
        sleep(Duration::from_micros(random_below(100))).await;
        self.check()?;
        let blocks = self.state.blocks.borrow();
        let read = |n: u64| blocks.get(&n).map_or_else(|| vec![0; BLOCK_SIZE], |bytes| bytes.to_vec());
        Ok((block..block + count).map(|n| Buf::from(read(n))).collect())
    }

    async fn write(&self, block: u64, bufs: Vec<Buf>) -> Result<(), MediumError> {
        self.put(block, bufs, true).await
    }

    async fn discard(&self, block: u64, count: u64) -> Result<(), MediumError> {
        let zeroes = (0..count).map(|_| Buf::from(vec![0; BLOCK_SIZE])).collect();
        self.put(block, zeroes, false).await?;
        self.state.blocks.borrow_mut().retain(|at, _| !(block..block + count).contains(at));
        Ok(())
    }

    fn reserve_blocks(&self) -> u64 {
        self.state.room.get().map_or(u64::MAX, |room| room.reserve as u64)
    }

    fn is_full(&self) -> bool {
        self.state.is_full.get()
    }
}
