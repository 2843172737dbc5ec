//! Questions of shards to each other, and their answers, as bytes (F3).
//!
//! It owns the format alone. What a question means is in `peer.rs`.

use crate::change::Change;
use crate::key::Key;
use crate::peer::{PeerAnswer, PeerAsk, Prepare, Transaction};
use crate::record::{Value, check_value};
use weft_types::{InodeNumber, SessionId, VolumeId};
use weft_wire::files::{QuotaAmount, QuotaOf};
use weft_wire::{DecodeError, Decoder, Encoder};

/// A question, and the shard that is asked: a server may have several, of several file systems.
///
/// ```text
///  offset  size  field
///       0     8  file system
///       8     2  shard that is asked
///      10     1  what: 1 prepare, 2 commit, 3 abort, 4 outcome, 5 parents, 6 budget, 7 return
///      11     2  coordinator of the transaction; of 6, the shard that asks; of 7, 0
///      13     8  number of the transaction; of 6 and 7, the turn
///      21     -  prepare: part (1), over (8), session (8), makes (1), inodes (count 2, 8 each),
///                         keys (count 2)
///                commit: over (8), changes (count 4)
///                outcome: participant (2)
///                parents: inode (8)
///                budget: quota (5), held (16), wanted (16)
///                return: quota (5)
/// ```
///
/// A key is its length (2) and its bytes. A change is 1, a key, and a value with its length (2) before it; or
/// 2 and a key, of an item that is gone. All numbers are little-endian. The question is the head of a frame,
/// or its body if it is longer than a head may be. So is the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    /// The file system's number.
    pub file_system: VolumeId,
    /// The shard that is asked.
    pub shard: u16,
    /// What it is asked.
    pub ask: PeerAsk,
}

impl PeerRequest {
    /// The request as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.u64(self.file_system.0).u16(self.shard);
        let begin = |e: &mut Encoder, what: u8, transaction: &Transaction| {
            e.u8(what).u16(transaction.coordinator).u64(transaction.number);
        };
        match &self.ask {
            PeerAsk::Prepare(prepare) => {
                begin(&mut e, 1, &prepare.transaction);
                e.u8(prepare.part).u64(prepare.over).u64(prepare.session.0).u8(prepare.makes.into());
                e.u16(prepare.locks.len() as u16);
                for inode in &prepare.locks {
                    e.u64(inode.0);
                }
                e.u16(prepare.keys.len() as u16);
                prepare.keys.iter().for_each(|key| put_key(&mut e, key));
            }
            PeerAsk::Commit { transaction, over, changes } => {
                begin(&mut e, 2, transaction);
                e.u64(*over);
                put_changes(&mut e, changes);
            }
            PeerAsk::Abort(transaction) => begin(&mut e, 3, transaction),
            PeerAsk::Outcome(transaction, participant) => {
                begin(&mut e, 4, transaction);
                e.u16(*participant);
            }
            PeerAsk::Parents(transaction, inode) => {
                begin(&mut e, 5, transaction);
                e.u64(inode.0);
            }
            PeerAsk::Budget { shard, of, held, turn, wanted } => {
                of.encode(e.u8(6).u16(*shard).u64(*turn));
                held.encode(&mut e);
                wanted.encode(&mut e);
            }
            PeerAsk::Return { of, turn } => of.encode(e.u8(7).u16(0).u64(*turn)),
        }
        e.0
    }

    /// Reads a request, and checks its keys and values.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<PeerRequest, DecodeError> {
        let mut d = Decoder::new(bytes);
        let (file_system, shard) = (VolumeId(d.u64()?), d.u16()?);
        let what = d.u8()?;
        let transaction = Transaction { coordinator: d.u16()?, number: d.u64()? };
        let ask = match what {
            1 => {
                let (part, over, session) = (d.u8()?, d.u64()?, SessionId(d.u64()?));
                let makes = flag(&mut d, "makes")?;
                let locks = several(&mut d, |d| Ok(InodeNumber(d.u64()?)))?;
                let keys = several(&mut d, key)?;
                PeerAsk::Prepare(Prepare { transaction, part, over, session, locks, keys, makes })
            }
            2 => PeerAsk::Commit { transaction, over: d.u64()?, changes: changes(&mut d)? },
            3 => PeerAsk::Abort(transaction),
            4 => PeerAsk::Outcome(transaction, d.u16()?),
            5 => PeerAsk::Parents(transaction, InodeNumber(d.u64()?)),
            6 => {
                let Transaction { coordinator: shard, number: turn } = transaction;
                let (of, held) = (QuotaOf::decode(&mut d)?, QuotaAmount::decode(&mut d)?);
                PeerAsk::Budget { shard, of, held, turn, wanted: QuotaAmount::decode(&mut d)? }
            }
            7 => PeerAsk::Return { of: QuotaOf::decode(&mut d)?, turn: transaction.number },
            n => return Err(DecodeError::Invalid { field: "question of a shard", value: n.into() }),
        };
        d.finish()?;
        Ok(PeerRequest { file_system, shard, ask })
    }
}

/// An answer begins with what it is (1): 1 prepared: whether there is a new inode (1), its number (8), items
/// (count 2): a key, whether it has a value (1), and that with its length (2); 2 refused; 3 done;
/// 4 committed: changes (count 4); 5 aborted; 6 under way; 7 parents (count 2): a directory (8) and
/// its parent (8); 8 budget: amount (16), turn (8).
impl PeerAnswer {
    /// The answer as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        match self {
            PeerAnswer::Prepared { items, made } => {
                e.u8(1).u8(made.is_some().into()).u64(made.map_or(0, |inode| inode.0));
                e.u16(items.len() as u16);
                for (key, value) in items {
                    put_key(&mut e, key);
                    e.u8(value.is_some().into());
                    if let Some(value) = value {
                        e.u16(value.len() as u16).bytes(value);
                    }
                }
            }
            PeerAnswer::Refused => drop(e.u8(2)),
            PeerAnswer::Done => drop(e.u8(3)),
            PeerAnswer::Committed(changes) => {
                e.u8(4);
                put_changes(&mut e, changes);
            }
            PeerAnswer::Aborted => drop(e.u8(5)),
            PeerAnswer::UnderWay => drop(e.u8(6)),
            PeerAnswer::Budget { amount, turn } => {
                amount.encode(e.u8(8));
                e.u64(*turn);
            }
            PeerAnswer::Parents(parents) => {
                e.u8(7).u16(parents.len() as u16);
                for (inode, parent) in parents {
                    e.u64(inode.0).u64(parent.0);
                }
            }
        }
        e.0
    }

    /// Reads an answer, and checks its keys and values.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<PeerAnswer, DecodeError> {
        let mut d = Decoder::new(bytes);
        let answer = match d.u8()? {
            1 => {
                let (is_made, made) = (flag(&mut d, "new inode")?, InodeNumber(d.u64()?));
                let items = several(&mut d, item)?;
                PeerAnswer::Prepared { items, made: is_made.then_some(made) }
            }
            2 => PeerAnswer::Refused,
            3 => PeerAnswer::Done,
            4 => PeerAnswer::Committed(changes(&mut d)?),
            5 => PeerAnswer::Aborted,
            6 => PeerAnswer::UnderWay,
            7 => {
                let pair = |d: &mut Decoder<'_>| Ok((InodeNumber(d.u64()?), InodeNumber(d.u64()?)));
                PeerAnswer::Parents(several(&mut d, pair)?)
            }
            8 => PeerAnswer::Budget { amount: QuotaAmount::decode(&mut d)?, turn: d.u64()? },
            n => return Err(DecodeError::Invalid { field: "answer of a shard", value: n.into() }),
        };
        d.finish()?;
        Ok(answer)
    }
}

fn put_key(e: &mut Encoder, key: &Key) {
    e.u16(key.bytes().len() as u16).bytes(key.bytes());
}

fn put_changes(e: &mut Encoder, changes: &[Change]) {
    e.u32(changes.len() as u32);
    changes.iter().for_each(|change| change.encode(e));
}

fn flag(d: &mut Decoder<'_>, field: &'static str) -> Result<bool, DecodeError> {
    match d.u8()? {
        n @ (0 | 1) => Ok(n == 1),
        n => Err(DecodeError::Invalid { field, value: n.into() }),
    }
}

fn key(d: &mut Decoder<'_>) -> Result<Key, DecodeError> {
    let length = d.u16()?;
    let invalid = DecodeError::Invalid { field: "key", value: length.into() };
    Key::from_bytes(d.bytes(length.into())?).ok_or(invalid)
}

fn item(d: &mut Decoder<'_>) -> Result<(Key, Option<Value>), DecodeError> {
    let key = key(d)?;
    if !flag(d, "value")? {
        return Ok((key, None));
    }
    let length = d.u16()?;
    let value = d.bytes(length.into())?;
    check_value(&key, value)?;
    Ok((key, Some(value.into())))
}

/// What stands behind a count of two bytes. Room is made as it is read: a count may be a lie.
fn several<T>(
    d: &mut Decoder<'_>,
    one: impl Fn(&mut Decoder<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = d.u16()?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(one(d)?);
    }
    Ok(all)
}

fn changes(d: &mut Decoder<'_>) -> Result<Vec<Change>, DecodeError> {
    let count = d.u32()?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Change::decode(d)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Table;
    use crate::record::encode_number;
    use weft_wire::files::QuotaKind;

    fn transaction() -> Transaction {
        Transaction { coordinator: 3, number: 1 << 40 }
    }

    const QUOTA: QuotaOf = QuotaOf { kind: QuotaKind::Group, id: 1000 };

    fn amount(n: u64) -> QuotaAmount {
        QuotaAmount { bytes: n << 40, inodes: n }
    }

    fn some_changes() -> Vec<Change> {
        vec![
            Change::Put(Key::transactions(), encode_number(77)),
            Change::Delete(Key::inode(InodeNumber::new(2, 9))),
        ]
    }

    fn questions() -> Vec<PeerAsk> {
        let prepare = Prepare {
            transaction: transaction(),
            part: 2,
            over: 5,
            session: SessionId(9),
            locks: vec![InodeNumber::ROOT, InodeNumber::new(2, 9)],
            keys: vec![Key::part(InodeNumber::ROOT, 0), Key::transactions()],
            makes: true,
        };
        vec![
            PeerAsk::Prepare(prepare),
            PeerAsk::Commit { transaction: transaction(), over: 4, changes: some_changes() },
            PeerAsk::Abort(transaction()),
            PeerAsk::Outcome(transaction(), 17),
            PeerAsk::Parents(transaction(), InodeNumber::new(1, 2)),
            PeerAsk::Budget { shard: 3, of: QUOTA, held: amount(1), turn: 4, wanted: amount(9) },
            PeerAsk::Return { of: QUOTA, turn: 5 },
        ]
    }

    fn answers() -> Vec<PeerAnswer> {
        let items =
            vec![(Key::transactions(), Some(encode_number(3))), (Key::inode(InodeNumber::new(2, 9)), None)];
        vec![
            PeerAnswer::Prepared { items: items.clone(), made: None },
            PeerAnswer::Prepared { items, made: Some(InodeNumber::new(2, 10)) },
            PeerAnswer::Refused,
            PeerAnswer::Done,
            PeerAnswer::Committed(some_changes()),
            PeerAnswer::Aborted,
            PeerAnswer::UnderWay,
            PeerAnswer::Parents(vec![(InodeNumber::new(1, 2), InodeNumber::ROOT)]),
            PeerAnswer::Budget { amount: amount(7), turn: 5 },
        ]
    }

    #[test]
    fn what_is_encoded_is_read_and_nothing_shorter_or_longer() {
        let requests =
            questions().into_iter().map(|ask| PeerRequest { file_system: VolumeId(5), shard: 7, ask });
        for request in requests {
            let bytes = request.encode();
            assert_eq!(PeerRequest::decode(&bytes), Ok(request));
            (0..bytes.len()).for_each(|n| assert!(PeerRequest::decode(&bytes[..n]).is_err()));
            assert!(PeerRequest::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        for answer in answers() {
            let bytes = answer.encode();
            assert_eq!(PeerAnswer::decode(&bytes), Ok(answer));
            (0..bytes.len()).for_each(|n| assert!(PeerAnswer::decode(&bytes[..n]).is_err()));
            assert!(PeerAnswer::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn bytes_stay_what_they_are() {
        let request =
            PeerRequest { file_system: VolumeId(5), shard: 7, ask: PeerAsk::Outcome(transaction(), 17) };
        let expected = [5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 4, 3, 0, 0, 0, 0, 0, 0, 1, 0, 0, 17, 0];
        assert_eq!(request.encode(), expected);
        assert_eq!(PeerAnswer::Parents(vec![(InodeNumber(1), InodeNumber(2))]).encode()[..4], [7, 1, 0, 1]);
    }

    #[test]
    fn what_no_table_has_is_refused() {
        // What is asked, and whether an inode is to be made.
        for (at, bad) in [(10, 10), (38, 2)] {
            let ask = questions().remove(0);
            let mut bytes = PeerRequest { file_system: VolumeId(5), shard: 7, ask }.encode();
            bytes[at] = bad;
            let refused = PeerRequest::decode(&bytes);
            assert_eq!(refused.map_err(|error| error.to_string().contains("invalid value")), Err(true));
        }
        // A number has eight bytes, not two.
        let bad_value = [&[1, 0][..], &[0; 8], &[1, 0, 1, 0, Table::Transactions as u8, 1, 2, 0, 7, 7]];
        assert!(matches!(PeerAnswer::decode(&bad_value.concat()), Err(DecodeError::Short { .. })));
    }
}
