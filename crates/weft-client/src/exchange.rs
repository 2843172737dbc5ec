//! One request to one replica of a mirror group, and what its answer means for the epoch and the session.

use crate::attached::Ended;
use crate::error::ClientError;
use crate::group_io::Place;
use crate::payload::Payload;
use crate::session::Session;
use crate::versions::Operation;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{Body, CallError, Reply};
use weft_rt::sync::{Either, race};
use weft_rt::{Buf, Instant, now, sleep};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{DriveId, Group, ObjectId, Version, with_causes};
use weft_wire::data::{DataRequest, Purpose, Scope, Verdict, WriteAnswer};
use weft_wire::listing::ListRequest;
use weft_wire::{Kind, Status, control};

/// First and longest pause before a replica that could not serve is asked again.
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(2);
pub(crate) const RETRY_LONGEST: Duration = Duration::from_millis(100);

/// How something ended: a request to a replica, a version on the write set of an epoch, or a version.
pub(crate) enum Outcome<T> {
    /// It is done.
    Done(T),
    /// The group has a newer epoch: begin again with it.
    Changed,
    /// For want of space. Of a version: it is nowhere.
    NoSpace,
    /// The version is too far above this clock of a target. Of a version: it is nowhere.
    Ahead(u64),
    /// Nobody waits for it, and it is nowhere.
    Dropped,
}

/// Why a request to a replica has no outcome.
pub(crate) enum Setback {
    /// The replica did not serve; it may later, or the map will change.
    Later(String),
    /// To ask again is of no use.
    Fatal(ClientError),
}

impl From<ClientError> for Setback {
    fn from(error: ClientError) -> Setback {
        Setback::Fatal(error)
    }
}

/// What a replica has answered.
pub(crate) struct Answer {
    pub(crate) drive: DriveId,
    pub(crate) reply: Reply,
}

/// One request as every replica of the group gets it.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) kind: Kind,
    pub(crate) at: Place,
    /// What a write writes; zero for reads.
    version: Version,
    pub(crate) purpose: Purpose,
    crcs: &'a [u32],
    bufs: &'a [Buf],
    /// Of a client's own write.
    trail: Option<&'a Trail<'a>>,
    /// Of a list: the last object.
    last: Option<ObjectId>,
    /// Where to note when the request was sent, if somebody wants to know.
    sent: Option<&'a Cell<Option<Instant>>>,
}

impl<'a> Ask<'a> {
    /// Data, or versions only.
    pub(crate) fn read(kind: Kind, at: Place, purpose: Purpose) -> Ask<'static> {
        let (crcs, bufs): (&[u32], &[Buf]) = Default::default();
        Ask { kind, at, version: Version::ZERO, purpose, crcs, bufs, trail: None, last: None, sent: None }
    }

    pub(crate) fn write(
        at: Place,
        version: Version,
        payload: &'a Payload,
        purpose: Purpose,
        trail: Option<&'a Trail<'a>>,
    ) -> Ask<'a> {
        let (kind, crcs, bufs): (_, &[u32], &[Buf]) = match payload {
            Payload::Data { bufs, crcs } => (Kind::Write, crcs, bufs),
            Payload::Zero => (Kind::WriteZeroes, &[], &[]),
        };
        Ask { kind, at, version, purpose, crcs, bufs, trail, last: None, sent: None }
    }

    /// What holds data, up to the last object.
    pub(crate) fn list(at: Place, last: ObjectId) -> Ask<'static> {
        Ask { last: Some(last), ..Ask::read(Kind::List, at, Purpose::Client) }
    }

    /// The same for this version: a note that replicas hold it everywhere.
    pub(crate) fn of_version(self, version: Version) -> Ask<'a> {
        Ask { version, ..self }
    }

    /// The same, with a note of when it was sent.
    pub(crate) fn noting_when(self, sent: &'a Cell<Option<Instant>>) -> Ask<'a> {
        Ask { sent: Some(sent), ..self }
    }

    /// Whether the version that it writes may be on some replica, or may still get there.
    pub(crate) fn may_be_somewhere(&self) -> bool {
        self.trail.is_none_or(Trail::may_be_somewhere)
    }

    /// Whether nobody waits for the write any more, and it is nowhere.
    pub(crate) fn may_be_dropped(&self) -> bool {
        self.trail.is_some_and(|t| t.operation.is_given_up() && !t.may_be_somewhere())
    }
}

/// Where a client's version may have got to.
pub(crate) struct Trail<'a> {
    operation: &'a Operation,
    /// Requests that were sent and of which it is not certain that they did nothing: under way, lost, or
    /// answered with a failure that may have come after the fact.
    open: Cell<u32>,
    /// A replica has taken it, or answered that it holds something newer.
    judged: Cell<bool>,
}

impl Trail<'_> {
    /// Of a version that was sent nowhere yet.
    pub(crate) fn new(operation: &Operation) -> Trail<'_> {
        Trail { operation, open: Cell::new(0), judged: Cell::new(false) }
    }

    fn may_be_somewhere(&self) -> bool {
        self.open.get() > 0 || self.judged.get()
    }

    fn sent(&self) {
        self.open.set(self.open.get() + 1);
    }

    /// Notes how a request that was sent has been answered.
    fn answered(&self, status: Status) {
        if status == Status::Ok {
            self.judged.set(true);
        }
        // The others may have begun: a store that failed or was closed does not say how far it got.
        let is_certain = matches!(
            status,
            Status::Ok
                | Status::NotServing
                | Status::StaleEpoch
                | Status::UnknownEpoch
                | Status::NoSpace
                | Status::Invalid
                | Status::VersionAhead
                | Status::DamagedOnTheWay
        );
        if is_certain {
            self.open.set(self.open.get() - 1);
        }
    }
}

/// A request to replicas of a group in one epoch.
#[derive(Clone, Copy)]
pub(crate) struct Exchange<'a> {
    pub(crate) session: &'a Session,
    pub(crate) entry: &'a Rc<Group>,
    pub(crate) ask: &'a Ask<'a>,
}

impl Exchange<'_> {
    /// Sends the request to one replica, again and again, until it answers or the epoch changes.
    pub(crate) async fn deliver(&self, drive: DriveId) -> Result<Outcome<Answer>, ClientError> {
        let Exchange { session, entry, ask } = *self;
        let (mut pause, begun) = (RETRY_FIRST, now());
        let outcome = loop {
            match self.request(drive).await {
                Ok(Outcome::Ahead(_)) if ask.may_be_somewhere() => {
                    // Another replica may have it: this one has to take it when its clock has come so far.
                    session.note_trouble(ask.at.group, &format!("the clock of drive {drive} is far behind"));
                }
                Ok(outcome) => break outcome,
                Err(Setback::Later(_)) if silence_is_an_answer(ask) => {
                    return Ok(answer_of_silence(drive, ask));
                }
                Err(Setback::Later(text)) => session.note_trouble(ask.at.group, &text),
                Err(Setback::Fatal(error)) => return Err(error),
            }
            if ask.may_be_dropped() {
                break Outcome::Changed;
            }
            if let Either::Right(()) = race(sleep(pause), session.fabric.epoch_changed(entry)).await {
                break Outcome::Changed;
            }
            pause = (pause * 2).min(RETRY_LONGEST);
        };
        session.note_wait(ask.at, drive, begun);
        Ok(outcome)
    }

    /// Sends a write to a full replica as what may take from its reserve, until there is room for it. `None`:
    /// begin again.
    pub(crate) async fn deliver_from_reserve(
        &self,
        drive: DriveId,
        purpose: Purpose,
    ) -> Result<Option<Answer>, ClientError> {
        let ask = Ask { purpose, ..*self.ask };
        let exchange = Exchange { ask: &ask, ..*self };
        loop {
            match exchange.deliver(drive).await? {
                Outcome::Done(answer) => return Ok(Some(answer)),
                Outcome::Changed | Outcome::Ahead(_) | Outcome::Dropped => return Ok(None),
                Outcome::NoSpace => {
                    self.session.note_trouble(ask.at.group, &format!("drive {drive} is full"));
                    race(sleep(RETRY_LONGEST), self.session.fabric.epoch_changed(self.entry)).await;
                }
            }
        }
    }

    /// Sends the request to one replica once. It is given up when the group's epoch changes.
    pub(crate) async fn request(&self, drive: DriveId) -> Result<Outcome<Answer>, Setback> {
        let Exchange { session, entry, ask } = *self;
        session.check()?;
        let exchange = async {
            let link = session.fabric.link(drive).await?;
            if ask.may_be_dropped() {
                return Err("given up".to_owned());
            }
            let head = match (self.head(drive), ask.last) {
                (from, Some(last)) => ListRequest { from, last }.encode(link.protocol()),
                (head, None) => head.encode(link.protocol(), ask.crcs),
            };
            let lost = |e: CallError| format!("drive {drive}: {}", with_causes(&e));
            let body = Body::blocks(ask.bufs.to_vec());
            let answer = link.send(ask.kind, ask.at.request, &head, body).await.map_err(lost)?;
            ask.trail.inspect(|trail| trail.sent());
            ask.sent.inspect(|sent| sent.set(Some(now())));
            let answered = match answer.await {
                Ok(reply) => Ok(reply),
                Err(CallError::Refused { status, head }) => Err((status, head)),
                Err(error) => return Err(lost(error)),
            };
            let status = answered.as_ref().err().map_or(Status::Ok, |(status, _)| *status);
            ask.trail.inspect(|trail| trail.answered(status));
            Ok(answered)
        };
        match race(exchange, session.fabric.epoch_changed(entry)).await {
            Either::Left(Ok(Ok(reply))) => Ok(Outcome::Done(Answer { drive, reply })),
            Either::Left(Ok(Err((status, head)))) => self.refused(drive, status, &head).await,
            Either::Left(Err(text)) => Err(Setback::Later(text)),
            Either::Right(()) => Ok(Outcome::Changed),
        }
    }

    /// What follows from a refusal: epochs are learnt and taught (R1), and a session that is over ends.
    async fn refused(&self, drive: DriveId, status: Status, head: &[u8]) -> Result<Outcome<Answer>, Setback> {
        let Exchange { session, entry, ask } = *self;
        let later = |text: String| Err(Setback::Later(format!("drive {drive}: {text}")));
        let text = || String::from_utf8_lossy(head);
        match status {
            Status::NoSpace | Status::VersionAhead
                if matches!(ask.kind, Kind::Read | Kind::Versions | Kind::List) =>
            {
                Err(session.protocol(drive, &format!("unexpected answer to a read: '{status}'")).into())
            }
            // A target of an earlier release does not know it.
            Status::Invalid if ask.kind == Kind::List => {
                Err(ClientError::Refused { message: format!("drive {drive}: {}", text()) }.into())
            }
            Status::NoSpace => Ok(Outcome::NoSpace),
            Status::VersionAhead => match WriteAnswer::decode(head) {
                Ok(answer) => Ok(Outcome::Ahead(answer.clock)),
                Err(_) => later(status.to_string()),
            },
            Status::StaleEpoch => match control::decode::<Group>(head) {
                Ok(newer) if newer.id == entry.id && newer.epoch > entry.epoch => {
                    mark(Path::EpochFromReplica);
                    session.fabric.adopt_entry(newer);
                    Ok(Outcome::Changed)
                }
                _ => later("stale epoch, without a newer entry".into()),
            },
            Status::UnknownEpoch => {
                Box::pin(self.teach(drive)).await;
                later("learns of the epoch".into())
            }
            Status::StaleGeneration => {
                mark(Path::SessionFenced);
                session.end(Ended::Fenced);
                Ok(session.check().map(|()| Outcome::Changed)?)
            }
            Status::SessionOver => {
                mark(Path::SessionOver);
                session.end(Ended::Over);
                Ok(session.check().map(|()| Outcome::Changed)?)
            }
            _ if status.is_retryable() || status == Status::NotFound || status == Status::Failed => {
                later(format!("{status} {}", text()))
            }
            _ => Err(session.protocol(drive, &format!("{status}: {}", text())).into()),
        }
    }

    /// Gives a target the group's entry, which it does not know yet (R1).
    async fn teach(&self, drive: DriveId) {
        if let Ok(link) = self.session.fabric.link(drive).await {
            mark(Path::EpochTaught);
            let _ = link.call(Kind::AdoptEntry, &control::encode(&**self.entry), Body::none()).await;
        }
    }

    /// The head of the request to this replica. The replica counts as told of the watermark from now on.
    pub(crate) fn head(&self, drive: DriveId) -> DataRequest {
        let Exchange { session, entry, ask } = *self;
        DataRequest {
            drive,
            group: ask.at.group,
            epoch: entry.epoch,
            generation: session.generation,
            session: session.id,
            watermark: session.versions.carry_watermark(ask.at.group, drive),
            object: ask.at.object,
            range: ask.at.range,
            version: ask.version,
            purpose: ask.purpose,
            slot: session.slot,
            scope: Scope::default(),
        }
    }
}

/// Switch: whether a replica that does not serve counts as one that has answered a write.
fn silence_is_an_answer(ask: &Ask<'_>) -> bool {
    ask.trail.is_some() && ask.purpose == Purpose::Client && mutated(Mutation::SilenceIsAnAnswer)
}

/// What it would have said: that it holds something newer, which is nothing.
fn answer_of_silence(drive: DriveId, ask: &Ask<'_>) -> Outcome<Answer> {
    let verdicts = vec![(ask.at.range, Verdict::Superseded(Version::ZERO))];
    let head = Buf::from(WriteAnswer { clock: 0, verdicts }.encode());
    Outcome::Done(Answer { drive, reply: Reply { head, body: Buf::empty() } })
}
