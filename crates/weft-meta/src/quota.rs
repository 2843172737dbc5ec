//! Quotas over several shards: the first shard hands out parts of each limit, and takes back what is not used
//! (F16). docs/decisions/0046.
//!
//! Each shard owns its budget: up to which it adds without a question. The first shard owns what it has noted
//! for each other one, and uses what is left itself. No shard has more than is noted for it: a gift is noted
//! before it is answered, and what is taken back is logged where it is taken before that. Turns count what
//! was taken back, so that a gift which arrives late is refused.

use crate::change::Change;
use crate::error::MetaError;
use crate::key::{Key, KeyParts, Table};
use crate::medium::Medium;
use crate::peer::{PeerAnswer, PeerAsk, Peers};
use crate::record::Value;
use crate::shard::{Inner, Shard};
use crate::superblock::QUOTAS;
use crate::tables::Tables;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::join_all;
use weft_rt::{Instant, now, sleep};
use weft_rules::{Mutation, mutated};
use weft_types::InodeNumber;
use weft_types::limits::QUOTAS_LISTED_MAX;
use weft_wire::files::{Answer, QuotaAmount, QuotaList, QuotaOf, QuotaUse};
use weft_wire::{DecodeError, Decoder, Encoder};

/// The shard that hands out budgets.
const FIRST: u16 = 0;

/// This part of what is left is given beyond what is wanted, so that a shard seldom asks.
const SPARE_SHARE: u64 = 8;

/// Budgets of a quota are not taken back for a shard more often than this: a program that goes on writing
/// although its quota is used up does not keep all shards busy. It waits until then.
const TAKEN_BACK_EVERY: Duration = Duration::from_millis(100);

/// A quota in the tables of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// What may be used in all shards.
    pub(crate) limit: QuotaAmount,
    /// Up to what may be added in this one without a question; it may use more already. Nothing that counts
    /// in the first one.
    pub(crate) budget: QuotaAmount,
    /// How often the first shard has taken back.
    pub(crate) turn: u64,
    /// The directory that a project begins with; 0 if that is not known.
    pub(crate) directory: InodeNumber,
}

impl Quota {
    /// Nothing is limited.
    pub(crate) const NONE: Quota = Quota {
        limit: QuotaAmount::UNLIMITED,
        budget: QuotaAmount { bytes: 0, inodes: 0 },
        turn: 0,
        directory: InodeNumber(0),
    };

    /// It as bytes: limit (16), budget (16), turn (8), directory (8).
    pub(crate) fn encode(&self) -> Value {
        let mut e = Encoder::with_capacity(48);
        self.limit.encode(&mut e);
        self.budget.encode(&mut e);
        e.u64(self.turn).u64(self.directory.0);
        e.0.into()
    }

    /// The quota of these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Quota, DecodeError> {
        let mut d = Decoder::new(bytes);
        let (limit, budget) = (QuotaAmount::decode(&mut d)?, QuotaAmount::decode(&mut d)?);
        let quota = Quota { limit, budget, turn: d.u64()?, directory: InodeNumber(d.u64()?) };
        d.finish()?;
        Ok(quota)
    }
}

/// What the first shard has given to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) amount: QuotaAmount,
    /// How often it was taken back.
    pub(crate) turn: u64,
    /// Whether that shard may use no more than this. Not so until it was asked, since there is a limit.
    pub(crate) is_known: bool,
}

impl Given {
    /// It as bytes: amount (16), turn (8), whether it is known (1).
    pub(crate) fn encode(&self) -> Value {
        let mut e = Encoder::with_capacity(25);
        self.amount.encode(&mut e);
        e.u64(self.turn).u8(self.is_known.into());
        e.0.into()
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// If they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Given, DecodeError> {
        let mut d = Decoder::new(bytes);
        let (amount, turn) = (QuotaAmount::decode(&mut d)?, d.u64()?);
        let is_known = match d.u8()? {
            n @ (0 | 1) => n == 1,
            n => return Err(DecodeError::Invalid { field: "whether a budget is known", value: n.into() }),
        };
        d.finish()?;
        Ok(Given { amount, turn, is_known })
    }
}

/// What has come of it that a shard needed more of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// It may go on; up to `once` only this time, because there is no limit yet in the first shard.
    Had { once: QuotaAmount },
    /// No more is to be had.
    UsedUp,
}

/// What a server of a shard remembers of quotas.
#[derive(Default)]
pub(crate) struct Quotas {
    /// A release that does not know quotas does not open the shard.
    is_known: Cell<bool>,
    /// Since when budgets have been taken back last, for each shard that needed more.
    taken_back: RefCell<BTreeMap<(QuotaOf, u16), Instant>>,
}

/// `u64::MAX` for each part without a limit, and 0 for each part with one.
fn unlimited_in(limit: QuotaAmount) -> QuotaAmount {
    let one = |limit: u64| if limit == u64::MAX { u64::MAX } else { 0 };
    QuotaAmount { bytes: one(limit.bytes), inodes: one(limit.inodes) }
}

/// An amount, with `u64::MAX` for each part without a limit.
fn where_limited(limit: QuotaAmount, amount: QuotaAmount) -> QuotaAmount {
    amount.most(unlimited_in(limit))
}

impl Quotas {
    /// Those of a shard whose superblock says that there are some, or not.
    pub(crate) fn of(is_known: bool) -> Quotas {
        Quotas { is_known: Cell::new(is_known), ..Quotas::default() }
    }
}

impl Tables {
    /// A quota, if one was ever set or taken back here.
    pub(crate) fn quota(&self, of: QuotaOf) -> Option<Quota> {
        self.get(&Key::quota(of)).map(|bytes| Quota::decode(bytes).expect("values are checked"))
    }

    /// Whether there may be quotas.
    pub(crate) fn has_quotas(&self) -> bool {
        self.count_of(Table::Quota) > 0
    }

    /// What was given to another shard.
    pub(crate) fn given(&self, of: QuotaOf, shard: u16) -> Given {
        let bytes = self.get(&Key::budget(of, shard));
        bytes.map_or_else(Given::default, |bytes| Given::decode(bytes).expect("values are checked"))
    }

    /// What was given of a quota, by shard.
    pub(crate) fn all_given(&self, of: QuotaOf) -> impl Iterator<Item = (u16, Given)> + use<'_> {
        self.from(Key::budget(of, 0)).map_while(move |(key, value)| match key.parts() {
            Some(KeyParts::Budget(found, shard)) if found == of => {
                Some((shard, Given::decode(value).expect("values are checked")))
            }
            _ => None,
        })
    }

    /// What this shard may use of a quota. `shards`: of the file system, if directories lie in all of them.
    pub(crate) fn quota_room(&self, of: QuotaOf, quota: &Quota, shards: u16) -> QuotaAmount {
        let room = match self.is_first() {
            true if !self.is_all_known(of, shards) => self.usage().of(of).charged().least(quota.limit),
            true => self.all_given(of).fold(quota.limit, |left, (_, given)| left.minus(given.amount)),
            false => quota.budget,
        };
        where_limited(quota.limit, room)
    }

    /// Whether more may be had of a quota than this shard may use now.
    pub(crate) fn may_get_more(&self, of: QuotaOf, shards: u16) -> bool {
        !self.is_first()
            || !self.is_all_known(of, shards)
            || self.all_given(of).any(|(_, given)| given.amount != QuotaAmount::default())
    }

    fn is_first(&self) -> bool {
        self.shard().is_none_or(|record| record.number == FIRST)
    }

    /// Whether the first shard knows of all others what they may use.
    fn is_all_known(&self, of: QuotaOf, shards: u16) -> bool {
        let known = self.all_given(of).filter(|(shard, given)| given.is_known && *shard < shards).count();
        known + 1 >= usize::from(shards)
    }

    /// The changes by which a quota is limited so. What other shards use is not known where they were not
    /// limited before. `directory` as [`Quota::directory`]; 0 leaves it as it is.
    pub(crate) fn limited(&self, of: QuotaOf, limit: QuotaAmount, directory: InodeNumber) -> Vec<Change> {
        let mut quota = self.quota(of).unwrap_or(Quota::NONE);
        if directory != InodeNumber(0) {
            quota.directory = directory;
        }
        let unlimited = unlimited_in(quota.limit);
        let unknown = self.all_given(of).filter(|_| unlimited != QuotaAmount::default());
        let unknown = unknown.map(|(shard, given)| {
            Change::Put(Key::budget(of, shard), Given { is_known: false, ..given }.encode())
        });
        // What may be added by the new limit is asked for.
        let budget = QuotaAmount::default();
        let limited = Change::Put(Key::quota(of), Quota { limit, budget, ..quota }.encode());
        unknown.chain([limited]).collect()
    }
}

impl<M: Medium> Shard<M> {
    /// Has the superblock say that there are quotas, before any is there.
    pub(crate) async fn know_quotas(&self) -> Result<(), MetaError> {
        let inner = self.inner();
        if !inner.quotas.is_known.get() {
            inner.features.set(inner.features.get() | QUOTAS);
            self.checkpoint().await?;
            inner.quotas.is_known.set(true);
        }
        Ok(())
    }

    /// Answers what another shard asks of quotas.
    pub(crate) async fn answer_of_quotas(&self, ask: &PeerAsk) -> Result<PeerAnswer, MetaError> {
        let inner = self.inner();
        match *ask {
            PeerAsk::Budget { shard, of, held, turn, wanted } => {
                let is_other = shard != FIRST && shard < inner.transactions.shards();
                if !is_other || !inner.tables.borrow().is_first() {
                    return Ok(PeerAnswer::Refused);
                }
                self.know_quotas().await?;
                inner.give(shard, of, (held, turn), wanted).await
            }
            PeerAsk::Return { of, turn } => {
                self.know_quotas().await?;
                inner.give_back(of, turn).await
            }
            _ => Ok(PeerAnswer::Refused),
        }
    }
}

impl<M: Medium> Inner<M> {
    /// What is used and limited here, from a quota on.
    pub(crate) async fn quotas_from(&self, from: QuotaOf) -> Result<Answer, MetaError> {
        self.prove().await?;
        let tables = self.tables.borrow();
        let most = QUOTAS_LISTED_MAX as usize;
        let limited = tables.from(Key::quota(from)).map_while(|(key, _)| match key.parts() {
            Some(KeyParts::Quota(of)) => Some(of),
            _ => None,
        });
        let all: BTreeSet<QuotaOf> =
            tables.usage().from(from).take(most + 1).chain(limited.take(most + 1)).collect();
        let quotas = all.iter().take(most).map(|of| {
            let (counted, quota) = (tables.usage().of(*of), tables.quota(*of).unwrap_or(Quota::NONE));
            let used = counted.used();
            QuotaUse {
                of: *of,
                used,
                reserved: counted.charged().bytes - used.bytes,
                limit: quota.limit,
                budget: tables.quota_room(*of, &quota, self.transactions.shards()),
                directory: quota.directory,
            }
        });
        Ok(Answer::Quotas(QuotaList { quotas: quotas.collect(), is_end: all.len() <= most }))
    }

    /// Gets more of a quota from the other shards. `None` if they have not answered.
    pub(crate) async fn get_budget(
        self: &Rc<Inner<M>>,
        peers: &Rc<dyn Peers>,
        of: QuotaOf,
        wanted: QuotaAmount,
    ) -> Result<Option<Budget>, MetaError> {
        let shard = self.tables.borrow().shard().map_or(FIRST, |record| record.number);
        let is_used_up;
        let mut once = QuotaAmount::default();
        if shard == FIRST {
            is_used_up = self.take_back(peers, of, FIRST).await?;
        } else {
            let (held, turn) = {
                let tables = self.tables.borrow();
                let quota = tables.quota(of).unwrap_or(Quota::NONE);
                let used = match mutated(Mutation::UseUnsaid) {
                    true => QuotaAmount::default(),
                    false => tables.charged(of),
                };
                (quota.budget.most(used), quota.turn)
            };
            let answer = peers.ask(FIRST, PeerAsk::Budget { shard, of, held, turn, wanted }).await;
            let Some(PeerAnswer::Budget { amount, turn }) = answer else { return Ok(None) };
            self.wait_for_room().await?;
            let quota = self.tables.borrow().quota(of).unwrap_or(Quota::NONE);
            once = wanted.least(unlimited_in(amount));
            // If it was enough and does not count, it was taken back on its way.
            is_used_up = !wanted.fits(amount);
            let budget = quota.budget.most(amount.minus(unlimited_in(amount)));
            let is_of_turn = quota.turn == turn || mutated(Mutation::BudgetUnnumbered);
            if is_of_turn && budget != quota.budget {
                self.change(&[Change::Put(Key::quota(of), Quota { budget, ..quota }.encode())]);
            }
        }
        let tables = self.tables.borrow();
        let quota = tables.quota(of).unwrap_or(Quota::NONE);
        let room = tables.quota_room(of, &quota, self.transactions.shards());
        Ok(match wanted.fits(room.most(once)) {
            true => Some(Budget::Had { once }),
            false => is_used_up.then_some(Budget::UsedUp),
        })
    }

    /// Gives more of a quota to another shard, if there is more. Without a limit it goes on without one, this
    /// time.
    async fn give(
        self: &Rc<Inner<M>>,
        shard: u16,
        of: QuotaOf,
        (held, turn): (QuotaAmount, u64),
        wanted: QuotaAmount,
    ) -> Result<PeerAnswer, MetaError> {
        let mut has_taken_back = false;
        loop {
            self.wait_for_room().await?;
            let known = self.tables.borrow().given(of, shard);
            let given = match turn.cmp(&known.turn) {
                // It asked before something was taken back.
                Ordering::Less => return Ok(PeerAnswer::Refused),
                Ordering::Equal => known,
                // It has given something back, and the answer was lost.
                Ordering::Greater => Given { amount: held, turn, ..known },
            };
            let room = self.room_for(shard, of);
            let is_enough = wanted.fits(room);
            let peers = self.peers.borrow().clone();
            if let (false, false, Some(peers)) = (is_enough, has_taken_back, peers) {
                if !self.take_back(&peers, of, shard).await? {
                    return Ok(PeerAnswer::UnderWay);
                }
                has_taken_back = true;
                continue;
            }
            let amount = match (is_enough, has_taken_back) {
                (false, _) => QuotaAmount::default(),
                (true, false) => more(wanted, room),
                // Others wait for the rest.
                (true, true) => wanted.most(unlimited_in(room)),
            };
            // It may have more than this, which it has been given before.
            let noted = given.amount.most(amount.minus(unlimited_in(room)));
            let given = Given { amount: noted, ..given };
            if given != known && !mutated(Mutation::BudgetNotNoted) {
                self.change(&[Change::Put(Key::budget(of, shard), given.encode())]);
            }
            self.prove().await?;
            return Ok(PeerAnswer::Budget { amount, turn });
        }
    }

    /// What another shard may use of a quota in all: what the others leave.
    fn room_for(&self, shard: u16, of: QuotaOf) -> QuotaAmount {
        let tables = self.tables.borrow();
        let limit = tables.quota(of).unwrap_or(Quota::NONE).limit;
        if !tables.is_all_known(of, self.transactions.shards()) {
            return where_limited(limit, QuotaAmount::default());
        }
        let own = match mutated(Mutation::BudgetGivenTwice) {
            true => QuotaAmount::default(),
            false => tables.usage().of(of).charged(),
        };
        let others = tables.all_given(of).filter(|(other, _)| *other != shard);
        where_limited(limit, others.fold(limit.minus(own), |left, (_, given)| left.minus(given.amount)))
    }

    /// Takes back from the other shards what they do not use of a quota, for a shard that needs more. It is
    /// done for each question: what was taken back before may be given away again. Returns whether all
    /// shards have answered, and it is known what they may use.
    async fn take_back(
        self: &Rc<Inner<M>>,
        peers: &Rc<dyn Peers>,
        of: QuotaOf,
        needy: u16,
    ) -> Result<bool, MetaError> {
        let (shards, asked) = (self.transactions.shards(), now());
        let last = || self.quotas.taken_back.borrow().get(&(of, needy)).copied();
        let wait = last().and_then(|last| TAKEN_BACK_EVERY.checked_sub(last.elapsed()));
        if let Some(wait) = wait {
            sleep(wait).await;
        }
        if last().is_none_or(|last| last < asked) {
            let began = now();
            let mut given: BTreeMap<u16, Given> =
                (FIRST + 1..shards).map(|shard| (shard, Given::default())).collect();
            given.extend(self.tables.borrow().all_given(of));
            given.retain(|shard, given| {
                !given.is_known || (*shard != needy && given.amount != QuotaAmount::default())
            });
            let taken = given.into_iter().map(|(shard, given)| self.take_back_from(peers, of, shard, given));
            let taken = join_all(taken).await.into_iter().collect::<Result<Vec<bool>, MetaError>>()?;
            if taken.contains(&false) {
                // What that shard does not use may be enough.
                return Ok(false);
            }
            self.quotas.taken_back.borrow_mut().insert((of, needy), began);
        }
        Ok(self.tables.borrow().is_all_known(of, shards))
    }

    async fn take_back_from(
        self: &Rc<Inner<M>>,
        peers: &Rc<dyn Peers>,
        of: QuotaOf,
        shard: u16,
        given: Given,
    ) -> Result<bool, MetaError> {
        let answer = peers.ask(shard, PeerAsk::Return { of, turn: given.turn + 1 }).await;
        let Some(PeerAnswer::Budget { amount, turn }) = answer else { return Ok(false) };
        self.wait_for_room().await?;
        let known = self.tables.borrow().given(of, shard);
        if turn > known.turn {
            let given = Given { amount, turn, is_known: true };
            self.change(&[Change::Put(Key::budget(of, shard), given.encode())]);
        }
        Ok(true)
    }

    /// Gives back what this shard does not use of a quota, and says what it uses. It adds nothing any more
    /// without a question.
    async fn give_back(self: &Rc<Inner<M>>, of: QuotaOf, turn: u64) -> Result<PeerAnswer, MetaError> {
        self.wait_for_room().await?;
        let mut quota = self.tables.borrow().quota(of).unwrap_or(Quota::NONE);
        if quota.turn < turn {
            quota = Quota { budget: QuotaAmount::default(), turn, ..quota };
            if !mutated(Mutation::ReturnNotLogged) {
                self.change(&[Change::Put(Key::quota(of), quota.encode())]);
            }
        }
        // It may have got something since.
        let amount = quota.budget.most(self.tables.borrow().usage().of(of).charged());
        self.prove().await?;
        // A server of the first shard may have died before its note of a turn was durable: it hears of the
        // turn again.
        Ok(PeerAnswer::Budget { amount, turn: quota.turn })
    }
}

/// What is given to a shard that wants so much in all, of what there is for it. All where there is no limit.
fn more(wanted: QuotaAmount, room: QuotaAmount) -> QuotaAmount {
    let one = |wanted: u64, room: u64| match (wanted, room) {
        (_, u64::MAX) => u64::MAX,
        (0, _) => 0,
        _ => wanted + (room - wanted) / SPARE_SHARE,
    };
    QuotaAmount { bytes: one(wanted.bytes, room.bytes), inodes: one(wanted.inodes, room.inodes) }
}
