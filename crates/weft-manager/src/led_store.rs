//! A store that this process leads: the term that it has, and what only the one who leads writes.
//!
//! It owns the rules of the term (C2 to C4 in `docs/protocol.md`): every transaction compares it, a
//! transaction without an answer is looked up and sent again, and where others can take over, it is over
//! unless it was confirmed in time. It never decides what is written.

use crate::fold::Base;
use crate::records::{
    BEAT, HEAD, TERM, conflict, delta_key, delta_value, document, first_nonce, head_of, load, load_journal,
    part_key, parts_of, sealed, sealed_document, term_value,
};
use crate::store::{Entry, Hold, Journal, KeyStore, Pending, StoreError, Transaction};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{Instant, now, sleep, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::limits::{COMMITS_AT_ONCE_MAX, DELTA_WHOLE_BYTES_MAX};
use weft_types::{Delta, Durations, FabricMap, MapVersion};

/// How long a term lasts without being confirmed, in halves of a lease: 5 s with the usual lease of 2 s.
const TERM_HALF_LEASES: u32 = 5;

/// How often a term is confirmed, in parts of its length; and how often one who waits looks whether it is.
const BEATS_PER_TERM: u32 = 5;

/// How long an answer of a shared store is waited for, in parts of a term: then it is looked up.
const PATIENCE_PART: u32 = 4;

/// How long it may take to load what a shared store holds.
const LOADED_WITHIN: Duration = Duration::from_secs(60);

/// A commit that is decided.
pub(crate) struct Decided {
    /// What it changes.
    pub(crate) delta: Delta,
    /// The delta as `weft_wire::pieces::encode_delta` writes it.
    pub(crate) encoded: Vec<u8>,
    /// The map after it.
    pub(crate) map: Rc<FabricMap>,
}

/// The map and the journal in a store that one process leads.
pub(crate) struct LedStore {
    store: Box<dyn KeyStore>,
    /// What `term` must be.
    term: Vec<u8>,
    /// What `head` must be.
    head: RefCell<Vec<u8>>,
    /// Of the newest commit.
    nonce: Cell<u64>,
    base: RefCell<Base>,
    /// The number of the last beat.
    beat: Cell<u64>,
    /// Until when nobody else can lead; none where nobody else can as long as this value lives.
    led_until: Cell<Option<Instant>>,
    /// How long a term lasts without being confirmed.
    term_length: Duration,
}

/// What one sees of the term of another.
#[derive(Clone, PartialEq, Eq)]
struct Seen {
    term: Option<Vec<u8>>,
    beat: Option<Vec<u8>>,
}

impl LedStore {
    /// Makes the caller the one who leads, and loads what is there. From here on transactions of other
    /// managers are refused. Of a store that is shared it waits, for ever if need be, until the one who leads
    /// does so no more. `clock_us` is the time: with the term it makes the nonces of this process its own,
    /// also after the store was set back.
    ///
    /// # Errors
    /// If the store cannot be used, or is damaged. `None` if it holds no map.
    pub(crate) async fn take_over(
        store: Box<dyn KeyStore>,
        clock_us: u64,
    ) -> Result<Option<(LedStore, FabricMap, Journal)>, StoreError> {
        let is_shared = store.hold() == Hold::Shared;
        let (seen, durations) = match is_shared {
            false => (look(&*store).await?, Durations::default()),
            true => {
                let Some(found) = in_time(&*store, load(&*store), LOADED_WITHIN).await? else {
                    return Ok(None);
                };
                (wait_until_over(&*store, &found.map.durations).await?, found.map.durations)
            }
        };
        let began = is_shared.then(now);
        let term = match is_shared {
            false => begin_term_of(&*store, seen).await?,
            true => in_time(&*store, begin_term_of(&*store, seen), term_of(&durations)).await?,
        };
        // No other manager commits any more, so this is what the own commits follow.
        let loads = async { Ok((load(&*store).await?, load_journal(&*store).await?)) };
        let (stored, journal) = match is_shared {
            false => loads.await?,
            true => in_time(&*store, loads, LOADED_WITHIN).await?,
        };
        let Some(stored) = stored else { return Ok(None) };
        let term_length = term_of(&durations);
        let led = LedStore {
            store,
            term: term_value(term),
            head: RefCell::new(stored.head),
            nonce: Cell::new(first_nonce(clock_us, term)),
            base: RefCell::new(stored.base),
            beat: Cell::new(0),
            led_until: Cell::new(began.map(|began| began + term_length)),
            term_length,
        };
        Ok(Some((led, stored.map, journal)))
    }

    /// Whether nobody else can lead now.
    pub(crate) fn leads(&self) -> bool {
        self.led_until.get().is_none_or(|until| now() < until || mutated(Mutation::TermUnending))
    }

    /// How often the term is to be confirmed; none where that is not needed.
    pub(crate) fn beat_every(&self) -> Option<Duration> {
        self.led_until.get().map(|_| self.term_length / BEATS_PER_TERM)
    }

    /// Confirms the term: from when this was asked for, one more term.
    ///
    /// # Errors
    /// [`StoreError::Overtaken`] if somebody else leads. If the store does not answer in time, or fails; the
    /// term goes on until it ends.
    pub(crate) async fn confirm(&self) -> Result<(), StoreError> {
        let mut sent = now();
        self.beat.set(self.beat.get() + 1);
        let puts = vec![(BEAT.to_owned(), sealed_document(&self.beat.get()))];
        let beat = Transaction { puts, ..self.in_own_term(Vec::new()) };
        if !self.answered(self.store.write(beat)).await? {
            return Err(StoreError::Overtaken { place: self.store.place() });
        }
        if mutated(Mutation::LedFromAnswer) {
            sent = now();
        }
        self.led_until.set(self.led_until.get().max(Some(sent + self.term_length)));
        Ok(())
    }

    /// The map as the store has it.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub(crate) async fn load(&self) -> Result<Option<FabricMap>, StoreError> {
        Ok(load(&*self.store).await?.map(|stored| stored.map))
    }

    /// How many of the commits at the front are kept in one transaction: one alone that is long, otherwise as
    /// many as are short together.
    pub(crate) fn at_once<'a>(decided: impl Iterator<Item = &'a Decided>) -> usize {
        let mut bytes = 0;
        let fits = |commit: &&Decided| {
            bytes += commit.encoded.len();
            bytes <= DELTA_WHOLE_BYTES_MAX
        };
        decided.take(COMMITS_AT_ONCE_MAX).take_while(fits).count().max(1)
    }

    /// Keeps what these commits changed, one after the other, and what is written down with them: all or
    /// nothing. Durable when it completes.
    ///
    /// # Errors
    /// [`StoreError::Conflict`]: somebody else leads, nothing was written. After any other error it is not
    /// known whether it was.
    pub(crate) async fn commit(&self, decided: &[Decided], journal: &Journal) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (decided.first(), decided.last()) else { return Ok(()) };
        let head_before = (HEAD.to_owned(), Some(self.head.borrow().clone()));
        let mut transaction = self.in_own_term(vec![head_before]);
        let mut in_parts = Vec::new();
        for commit in decided {
            let nonce = self.next_nonce();
            let parts = parts_of(&commit.encoded);
            for (number, part) in parts.iter().enumerate() {
                self.put_part((part_key(nonce, number), sealed(part)), first.delta.from).await?;
            }
            let encoded = if parts.is_empty() { &commit.encoded[..] } else { &[] };
            transaction.puts.push((delta_key(commit.delta.to), delta_value(nonce, parts.len(), encoded)));
            in_parts.push((!parts.is_empty()).then_some(nonce));
        }
        let head = (HEAD.to_owned(), head_of(&last.map, self.nonce.get()));
        transaction.puts.push(head.clone());
        journal.put_into(&mut transaction);
        self.carry_out(transaction, &head, first.delta.from).await?;
        *self.head.borrow_mut() = head.1;
        for (commit, in_parts) in decided.iter().zip(in_parts) {
            self.base.borrow_mut().note(&commit.delta, commit.encoded.len(), in_parts);
        }
        Ok(())
    }

    async fn put_part(&self, part: Entry, expected: MapVersion) -> Result<(), StoreError> {
        let transaction = Transaction { puts: vec![part.clone()], ..self.in_own_term(Vec::new()) };
        self.carry_out(transaction, &part, expected).await
    }

    /// Writes something down without a commit. Durable when it completes.
    ///
    /// # Errors
    /// If it cannot be written, or somebody else leads.
    pub(crate) async fn write_down(&self, journal: &Journal) -> Result<(), StoreError> {
        let mut transaction = self.in_own_term(Vec::new());
        journal.put_into(&mut transaction);
        match self.answered(self.store.write(transaction)).await? {
            true => Ok(()),
            false => Err(conflict(&*self.store, MapVersion(0)).await),
        }
    }

    /// Carries out one transaction of folding, if there is one to be done. `map` is the newest durable one.
    /// Tells whether there was one.
    ///
    /// # Errors
    /// If the store fails, or somebody else leads. Nothing is lost: what was written stands for the same map.
    pub(crate) async fn fold(&self, map: &FabricMap) -> Result<bool, StoreError> {
        let next = self.base.borrow_mut().next_step(map);
        let Some(mut step) = next else { return Ok(false) };
        step.compares.extend(self.in_own_term(Vec::new()).compares);
        let proof = step.puts.first().expect("a step says which one it is").clone();
        self.carry_out(step, &proof, map.version).await?;
        self.base.borrow_mut().step_done();
        Ok(true)
    }

    /// Has a transaction carried out, whatever becomes of its answers (C3): one without an answer is looked
    /// up by its `proof`, a value that only it puts, and sent again. One that is refused is looked up too: an
    /// earlier copy of it may have come first.
    async fn carry_out(
        &self,
        transaction: Transaction,
        proof: &Entry,
        expected: MapVersion,
    ) -> Result<(), StoreError> {
        loop {
            match self.answered(self.store.write(transaction.clone())).await {
                Ok(true) => return Ok(()),
                Ok(false) => match self.is_there(proof).await? {
                    true => return Ok(()),
                    false => return Err(conflict(&*self.store, expected).await),
                },
                Err(error @ StoreError::Silent { .. }) if !self.leads() => return Err(error),
                Err(StoreError::Silent { .. }) => {
                    // Not there is not yet there.
                    if self.is_there(proof).await? {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the store has this value under this key; asked until it answers, or the term is over.
    async fn is_there(&self, (key, value): &Entry) -> Result<bool, StoreError> {
        loop {
            match self.answered(self.store.read(&[key])).await {
                Ok(found) => return Ok(found.iter().any(|(k, v)| k == key && v == value)),
                Err(StoreError::Silent { .. }) if self.leads() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for an answer, of a shared store not longer than a part of a term.
    async fn answered<T>(&self, answer: Pending<T>) -> Result<T, StoreError> {
        match self.store.hold() {
            Hold::Alone => answer.await,
            Hold::Shared => in_time(&*self.store, answer, self.term_length / PATIENCE_PART).await,
        }
    }

    /// A transaction that is refused when somebody else leads (C2), or when one of these values is another.
    fn in_own_term(&self, mut compares: Vec<(String, Option<Vec<u8>>)>) -> Transaction {
        if !mutated(Mutation::NoTermCompare) {
            compares.push((TERM.to_owned(), Some(self.term.clone())));
        }
        Transaction { compares, ..Transaction::default() }
    }

    fn next_nonce(&self) -> u64 {
        self.nonce.set(self.nonce.get().wrapping_add(1));
        self.nonce.get()
    }
}

/// How long a term lasts without being confirmed.
fn term_of(durations: &Durations) -> Duration {
    durations.lease() * TERM_HALF_LEASES / 2
}

/// Begins the next term: who has led before leads no more, from this instant on. Returns its number. Durable
/// when it completes.
///
/// # Errors
/// If the store cannot be used, or somebody else has taken over in the same moment.
pub async fn take_over(store: &(impl KeyStore + ?Sized)) -> Result<u64, StoreError> {
    let seen = look(store).await?;
    begin_term_of(store, seen).await
}

/// Begins the term that follows what was seen.
async fn begin_term_of(store: &(impl KeyStore + ?Sized), seen: Seen) -> Result<u64, StoreError> {
    let held: u64 = match &seen.term {
        Some(value) => document(&store.place(), TERM, value)?,
        None => 0,
    };
    let transaction = Transaction {
        compares: vec![(TERM.into(), seen.term), (BEAT.into(), seen.beat)],
        puts: vec![(TERM.into(), term_value(held + 1))],
        ..Transaction::default()
    };
    match store.write(transaction).await? {
        true => Ok(held + 1),
        false => Err(StoreError::Overtaken { place: store.place() }),
    }
}

/// What the store says of the term now.
async fn look(store: &(impl KeyStore + ?Sized)) -> Result<Seen, StoreError> {
    let found = store.read(&[TERM, BEAT]).await?;
    let value = |key| found.iter().find(|(k, _)| k == key).map(|(_, value)| value.clone());
    Ok(Seen { term: value(TERM), beat: value(BEAT) })
}

/// Waits until the term was not confirmed for as long as it lasts by a clock that is too slow; at once where
/// nobody has led.
async fn wait_until_over(store: &dyn KeyStore, durations: &Durations) -> Result<Seen, StoreError> {
    let wait = match mutated(Mutation::TakeoverEarly) {
        true => Duration::ZERO,
        false => durations.lease_wait() * TERM_HALF_LEASES / 2,
    };
    let mut seen = in_time(store, look(store), LOADED_WITHIN).await?;
    // What was there when it was seen was asked for before.
    let mut since = now();
    while seen.term.is_some() && since.elapsed() < wait {
        sleep(term_of(durations) / BEATS_PER_TERM).await;
        match in_time(store, look(store), term_of(durations) / PATIENCE_PART).await {
            Ok(found) if found == seen => {}
            Ok(found) => (seen, since) = (found, now()),
            // What was seen before may still be what is there; the transaction that begins the term compares
            // it.
            Err(StoreError::Silent { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(seen)
}

/// Waits so long for an answer.
async fn in_time<T>(
    store: &dyn KeyStore,
    answer: impl Future<Output = Result<T, StoreError>>,
    patience: Duration,
) -> Result<T, StoreError> {
    match timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::Silent { place: store.place(), after: patience }),
    }
}
