//! A client of an export: what it asks is carried out and counted.

use crate::StatusExtent;
use crate::export::{ByteRange, Export, Fault};
use std::rc::Rc;
use weft_rt::Buf;

/// What a client asks. Ranges are those that [`crate::export::Geometry::check`] has accepted. Whatever writes
/// is durable on every in-sync copy when it completes, so no protocol needs a flag for that.
#[derive(Debug)]
pub enum Op {
    /// Bytes of the range. Outcome: [`Outcome::Data`].
    Read {
        /// Which.
        range: ByteRange,
    },
    /// Outcome: [`Outcome::Done`].
    Write {
        /// Where to.
        range: ByteRange,
        /// As many bytes as the range has.
        data: Vec<Buf>,
    },
    /// Has the range read as zeroes, and gives back the space of whole blocks. Outcome: [`Outcome::Done`].
    WriteZeroes {
        /// Which.
        range: ByteRange,
    },
    /// Gives back the space of whole blocks in the range; they read as zeroes. Outcome: [`Outcome::Done`].
    Discard {
        /// Which.
        range: ByteRange,
    },
    /// Says whether the attach still stands. Outcome: [`Outcome::Done`].
    Flush,
    /// Which parts of the range hold data. Outcome: [`Outcome::Status`].
    Status {
        /// Which.
        range: ByteRange,
    },
}

/// What comes of it.
#[derive(Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// Buffers that together are the range, in order.
    Data(Vec<Buf>),
    /// Runs that together are the range, in order.
    Status(Vec<StatusExtent>),
}

/// What a client has asked for so far: requests that have ended, whichever way, and bytes of those that
/// succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLoad {
    /// Who it is, for people.
    pub name: String,
    /// Reads, and questions what holds data.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes, zeroes and discards.
    pub writes: u64,
    /// Bytes written, made zero or discarded.
    pub written_bytes: u64,
    /// Requests that failed.
    pub faults: u64,
    /// Requests under way.
    pub in_flight: u64,
}

/// A client that uses an export, for as long as this lives.
pub struct Client {
    export: Rc<Export>,
    number: u64,
}

impl Client {
    pub(super) fn new(export: Rc<Export>, number: u64) -> Client {
        Client { export, number }
    }

    /// What it uses.
    pub fn export(&self) -> &Rc<Export> {
        &self.export
    }

    /// What it has asked for so far.
    pub fn load(&self) -> ClientLoad {
        self.export.clients.borrow().get(&self.number).cloned().unwrap_or_default()
    }

    /// Carries out a request. Poll the future to its end, or drop it; a write that is dropped goes on
    /// ([`crate::Volume::write`]).
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn carry_out(&self, op: Op) -> Result<Outcome, Fault> {
        let (is_write, bytes) = match &op {
            Op::Read { range } => (Some(false), range.length),
            Op::Write { range, .. } | Op::WriteZeroes { range } | Op::Discard { range } => {
                (Some(true), range.length)
            }
            Op::Status { .. } => (Some(false), 0),
            Op::Flush => (None, 0),
        };
        self.count(|load| load.in_flight += 1);
        let _under_way = UnderWay(self);
        let source = &self.export.source;
        let done = match op {
            Op::Read { range } => source.read(range.offset, range.length).await.map(Outcome::Data),
            Op::Write { range, data } => source.write(range.offset, data).await.map(|()| Outcome::Done),
            Op::WriteZeroes { range } => {
                source.write_zeroes(range.offset, range.length).await.map(|()| Outcome::Done)
            }
            Op::Discard { range } => source.discard(range.offset, range.length).await.map(|()| Outcome::Done),
            Op::Flush => source.flush().await.map(|()| Outcome::Done),
            Op::Status { range } => {
                source.block_status(range.offset, range.length).await.map(Outcome::Status)
            }
        };
        let moved = if done.is_ok() { bytes } else { 0 };
        self.count(|load| {
            match is_write {
                Some(true) => {
                    (load.writes, load.written_bytes) = (load.writes + 1, load.written_bytes + moved)
                }
                Some(false) => (load.reads, load.read_bytes) = (load.reads + 1, load.read_bytes + moved),
                None => {}
            }
            load.faults += u64::from(done.is_err());
        });
        Ok(done?)
    }

    fn count(&self, change: impl FnOnce(&mut ClientLoad)) {
        if let Some(load) = self.export.clients.borrow_mut().get_mut(&self.number) {
            change(load);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.export.clients.borrow_mut().remove(&self.number);
    }
}

/// A request under way, also if its future is dropped.
struct UnderWay<'a>(&'a Client);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.count(|load| load.in_flight -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AttachMode;
    use crate::export::{Exports, FaultKind, MemoryVolume};
    use weft_rt::sim::Sim;

    #[test]
    fn what_a_client_asks_is_carried_out_and_counted() {
        Sim::new(3).block_on(async {
            let mut exports = Exports::new();
            let volume = MemoryVolume::new(1 << 20, AttachMode::Exclusive);
            exports.add_memory("data", volume.clone()).unwrap();
            let export = exports.find("data").unwrap();
            let (a, b) = (export.client("a"), export.client("b"));
            let range = export.geometry().check(512, 1024).unwrap();
            let data = vec![Buf::from(vec![7; 1024])];
            assert!(matches!(a.carry_out(Op::Write { range, data }).await, Ok(Outcome::Done)));
            let Ok(Outcome::Data(found)) = b.carry_out(Op::Read { range }).await else { panic!("it reads") };
            assert!(found.iter().all(|buf| buf.iter().all(|byte| *byte == 7)));
            *volume.failing.borrow_mut() =
                Some(|| crate::ClientError::NoSpace { group: weft_types::GroupId(3) });
            let fault = a.carry_out(Op::WriteZeroes { range }).await.unwrap_err();
            assert!(fault.kind == FaultKind::NoSpace && fault.text.contains("hint"), "{fault}");
            let wanted = ClientLoad {
                name: "a".into(),
                writes: 2,
                written_bytes: 1024,
                faults: 1,
                ..Default::default()
            };
            assert_eq!(a.load(), wanted);
            let names = || export.clients().into_iter().map(|c| c.name).collect::<Vec<_>>();
            assert_eq!(names(), ["a", "b"]);
            drop(a);
            assert_eq!(names(), ["b"]);
        });
    }
}
