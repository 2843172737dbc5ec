//! What the conductor of a suite and its ranks say to each other: a line of JSON for each message.
//!
//! It owns the messages and how they go over a socket. It opens none.

use super::io500::FindOrder;
use super::ior::IorOrder;
use super::mdtest::MdtestOrder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};

/// The longest line: orders hold a path and some numbers.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// What the conductor says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// To carry out a phase of IOR.
    Ior(IorOrder),
    /// To carry out a phase of mdtest.
    Mdtest(MdtestOrder),
    /// To search for files.
    Find(FindOrder),
    /// All ranks of the phase have reached the barrier: the largest of the values that they brought.
    Go(u64),
    /// That there is nothing more to do.
    End,
}

/// What a rank says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The first word: who it is.
    Hello(Hello),
    /// It has reached a barrier, and brings this value.
    Barrier(u64),
    /// How much of its phase it has done: so much of so much.
    Progress(u64, u64),
    /// It has carried out its phase.
    Done(PhaseReport),
    /// It could not: why, and what to do.
    Failed(String, Option<String>),
}

/// Who a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    /// What the meeting place says; empty on a socket that has no name.
    pub(crate) key: String,
    /// The program's version.
    pub(crate) version: String,
    /// Where it runs: ranks with the same have one clock.
    pub(crate) machine: String,
    pub(crate) host: String,
}

/// What one rank did in one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PhaseReport {
    /// By its machine's clock, in nanoseconds: when it began behind the first barrier, and when it ended.
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
    /// Seconds of the parts of an access, where there are such.
    pub(crate) open_s: f64,
    pub(crate) access_s: f64,
    pub(crate) close_s: f64,
    /// Transfers, files or folders.
    pub(crate) operations: u64,
    /// Files that a search has found.
    pub(crate) found: u64,
    pub(crate) bytes: u64,
    /// The sum of the times of all transfers.
    pub(crate) latencies_s: f64,
    /// Transfers or files whose content was not what it should be.
    pub(crate) wrong: u64,
    /// The first of them.
    pub(crate) first_wrong: Option<String>,
}

/// Sends a message.
///
/// # Errors
/// Those of the socket.
pub(crate) fn send(to: &mut dyn Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).expect("messages serialise");
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The next message; none if the other side has gone.
///
/// # Errors
/// Those of the socket, and [`io::ErrorKind::InvalidData`] for what is no message.
pub(crate) fn receive<M: DeserializeOwned>(from: &mut dyn BufRead) -> io::Result<Option<M>> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a message without an end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_sent_and_others_are_refused() {
        let mut bytes = Vec::new();
        let words = [
            Word::Barrier(7),
            Word::Done(PhaseReport { operations: 3, ..PhaseReport::default() }),
            Word::Failed("no\nspace".into(), None),
        ];
        words.iter().for_each(|word| send(&mut bytes, word).expect("memory takes all"));
        let mut from = bytes.as_slice();
        for word in &words {
            assert_eq!(receive::<Word>(&mut from).expect("a message").as_ref(), Some(word));
        }
        assert_eq!(receive::<Word>(&mut from).expect("the end"), None);
        assert!(receive::<Word>(&mut b"{\"Barrier\":7}".as_slice()).is_err(), "it may be cut off");
        assert!(receive::<Word>(&mut b"hello\n".as_slice()).is_err());
    }
}
