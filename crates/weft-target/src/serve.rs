//! The life of a request on the data path: parse, admit (`admit.rs`), verify if this replica is syncing
//! (`resync.rs`), store, answer. It reads from top to bottom: writes, reads, then the small notes.
//!
//! It never decides who is a member, and never looks at a byte of data but to check it against its checksum.

use crate::admit::{Admitted, Claim, Need, SYSTEM_SESSION};
use crate::target::Target;
use weft_rpc::{Answer, Body, Peer, Request, slow_request};
use weft_rt::{Buf, now};
use weft_rules::{Mutation, Path, ServedRead, mark, mutated, serves_read};
use weft_store::{DataRuns, Extent, ExtentData, Payload, Verdict, Write, WriteKind};
use weft_types::limits::{FRAME_HEAD_MAX, LISTED_RUNS_MAX, RANGE_BLOCKS_MAX, REQUEST_BLOCKS_MAX};
use weft_types::{BlockRange, ChunkIndex, ObjectId, Role, Version};
use weft_wire::data::{
    self, Content, DataRequest, PeerRequest, Purpose, ReadAnswer, Scope, WriteAnswer, is_intact,
};
use weft_wire::listing::{ListAnswer, ListRequest};
use weft_wire::{Kind, Status};

impl Target {
    /// A write of data or zeroes (R3, R4): answered when the blocks' versions are durable here.
    pub(crate) async fn write(&self, peer: &Peer, request: &Request) -> Answer {
        let (head, payload) = match parse_write(peer, request) {
            Ok(parsed) => parsed,
            Err(answer) => return answer,
        };
        let claim = match Claim::of(&head, Need::WriteSet, peer) {
            Ok(claim) => claim.writing(head.version),
            Err(answer) => return answer,
        };
        // A syncing replica fetches the chunks that it has not verified first; the wait happens outside of
        // admission, because a newer epoch's acknowledgement must not wait for a peer.
        let start = now();
        let mut timed = Some(self.throttle.request(start));
        let mut metered = None;
        let admitted = loop {
            let admitted = match self.admit(&claim).await {
                Ok(admitted) => admitted,
                Err(answer) => return answer,
            };
            let begin = || self.meters.begin(&admitted, &head, request.kind, start, self.map().as_deref());
            metered.get_or_insert_with(begin);
            let Some(chunk) = unverified_chunk(&admitted, head.object, head.range) else { break admitted };
            let member = admitted.member.clone();
            drop(admitted);
            timed = None;
            if let Err(answer) = Box::pin(self.verify_now(&member, head.object, chunk)).await {
                return answer;
            }
        };
        if head.purpose == Purpose::Reserve && !self.is_of_shard(&head) {
            return Answer::error(Status::Invalid, "space is kept for the volumes of shards only");
        }
        advance(&admitted, &head);
        let write = Write {
            group: head.group,
            object: head.object,
            range: head.range,
            version: head.version,
            kind: match head.purpose {
                Purpose::Client => WriteKind::Client,
                Purpose::Reserve => WriteKind::Reserve,
                Purpose::Repair => WriteKind::Repair,
            },
            payload,
        };
        let written = admitted.drive().store.write(write).await;
        let took = start.elapsed();
        timed.into_iter().for_each(|timed| self.throttle.answered(timed, took));
        if took >= slow_request() {
            self.tell_slow(peer, request, &head, took);
        }
        match written {
            Ok(verdicts) => {
                metered.into_iter().for_each(|metered| metered.done(took));
                write_answer(self.clock(), verdicts)
            }
            Err(error) => {
                let refused = admitted.drive().refusal(&error);
                // "Not serving" says that nothing was done, and a part of this may have been.
                match refused.status {
                    Status::NotServing => Answer { status: Status::NotReady, ..refused },
                    _ => refused,
                }
            }
        }
    }

    /// Whether a request is to the volume of a shard of metadata.
    fn is_of_shard(&self, head: &DataRequest) -> bool {
        let volume = head.object.owner().volume();
        self.map().is_some_and(|map| map.volumes.get(&volume).is_some_and(|v| v.system_of().is_some()))
    }

    /// A read of data, or of versions only (R8).
    pub(crate) async fn read(&self, peer: &Peer, request: &Request) -> Answer {
        let head = match parse_plain(peer, request, REQUEST_BLOCKS_MAX) {
            Ok(head) => head,
            Err(answer) => return answer,
        };
        let claim = match Claim::of(&head, Need::ReadSet, peer) {
            Ok(claim) => claim,
            Err(answer) => return answer,
        };
        let start = now();
        let admitted = match self.admit(&claim).await {
            Ok(admitted) => admitted,
            Err(answer) => return answer,
        };
        advance(&admitted, &head);
        let timed = self.throttle.request(start);
        let metered = self.meters.begin(&admitted, &head, request.kind, start, self.map().as_deref());
        let drive = admitted.drive().clone();
        // A read changes nothing, so a newer epoch need not wait for it; but what it finds then may be of another
        // stint, or of a group that was dropped, so it is admitted again before it is answered.
        drop(admitted);
        let extents = match request.kind {
            Kind::Read => drive.store.read_to(head.group, head.object, head.range, &request.landing).await,
            _ => drive.store.versions(head.group, head.object, head.range).await,
        };
        let took = start.elapsed();
        self.throttle.answered(timed, took);
        if took >= slow_request() {
            self.tell_slow(peer, request, &head, took);
        }
        if extents.is_ok() {
            metered.done(took);
        }
        match extents {
            Ok(extents) => match self.stands(&claim).await {
                Ok(()) => {
                    let (group, epoch) = (claim.group, claim.epoch);
                    serves_read(|| ServedRead { group, drive: claim.drive, epoch });
                    let (head, blocks) = read_answer(self.clock(), extents);
                    Answer::ok(head, Body::blocks(blocks))
                }
                Err(answer) => answer,
            },
            Err(error) => drive.refusal(&error),
        }
    }

    /// Where this replica holds data, from a block on: of what a client looks for in what is mostly empty,
    /// or is to give back. A syncing replica may name what is not there any more, so it is for who reads to
    /// ask another one.
    pub(crate) async fn list(&self, peer: &Peer, request: &Request) -> Answer {
        let parsed = ListRequest::decode(peer.protocol, &request.head);
        let asked = match parsed.map_err(|e| Answer::error(Status::Invalid, e.to_string())) {
            Ok(asked) if request.body.is_empty() => asked,
            Ok(_) => return Answer::error(Status::Invalid, "the request carries data where none belongs"),
            Err(answer) => return answer,
        };
        let head = asked.from;
        let claim = check_scope(head.scope).and_then(|()| check_slots(&head));
        let claim = match claim.and_then(|()| Claim::of(&head, Need::WriteSet, peer)) {
            Ok(claim) => claim,
            Err(answer) => return answer,
        };
        let drive = match self.admit(&claim).await {
            Ok(admitted) => {
                advance(&admitted, &head);
                admitted.drive().clone()
            }
            Err(answer) => return answer,
        };
        let from = (head.object, ChunkIndex::of(head.range.first));
        let limit = (head.range.count as usize).min(LISTED_RUNS_MAX);
        match drive.store.data_runs(head.group, from, asked.last, limit).await {
            Ok(DataRuns { runs, next }) => match self.stands(&claim).await {
                Ok(()) => {
                    let next = next.map(|(object, chunk)| (object, chunk.range().first));
                    Answer::ok(ListAnswer { runs, next }.encode(), vec![])
                }
                Err(answer) => answer,
            },
            Err(error) => drive.refusal(&error),
        }
    }

    /// A version is on the whole write set: spares the next reader the slow path.
    pub(crate) async fn settle(&self, peer: &Peer, request: &Request) -> Answer {
        let head = match parse_plain(peer, request, RANGE_BLOCKS_MAX) {
            Ok(head) => head,
            Err(answer) => return answer,
        };
        let admitted = match Claim::of(&head, Need::WriteSet, peer) {
            Ok(claim) => self.admit(&claim).await,
            Err(answer) => return answer,
        };
        match admitted {
            Ok(admitted) => {
                advance(&admitted, &head);
                mark(Path::SettledRead);
                admitted.drive().store.settle(head.group, head.object, head.range, head.version);
                Answer::ok(vec![], vec![])
            }
            Err(answer) => answer,
        }
    }
}

/// The head of a request, and the checksums behind it, as the peer's protocol has them.
fn parse_head(peer: &Peer, request: &Request) -> Result<(DataRequest, Vec<u32>), Answer> {
    let parsed = DataRequest::decode(peer.protocol, &request.head);
    let (head, crcs) = parsed.map_err(|e| Answer::error(Status::Invalid, e.to_string()))?;
    check_scope(head.scope)?;
    check_slots(&head)?;
    Ok((head, crcs))
}

/// The head of a peer's request about a group.
pub(crate) fn parse_peer(peer: &Peer, request: &Request) -> Result<PeerRequest, Answer> {
    let parsed = PeerRequest::decode(peer.protocol, &request.head);
    let asked = parsed.map_err(|e| Answer::error(Status::Invalid, e.to_string()))?;
    check_scope(asked.scope)?;
    Ok(asked)
}

/// Refuses what this release cannot serve: it would answer with the newest version of the whole group, which
/// is something else than what was asked.
fn check_scope(scope: Scope) -> Result<(), Answer> {
    if scope.is_default() {
        return Ok(());
    }
    let text = format!(
        "column {}, cut {}, bound {}: this target serves no snapshots and no erasure codes; upgrade it",
        scope.column, scope.cut, scope.bound
    );
    Err(Answer::error(Status::Unsupported, text))
}

/// Parses a write fully: head, bounds, checksums against the body.
fn parse_write(peer: &Peer, request: &Request) -> Result<(DataRequest, Payload), Answer> {
    let invalid = |text: String| Answer::error(Status::Invalid, text);
    let (head, crcs) = parse_head(peer, request)?;
    if head.version == Version::ZERO {
        return Err(invalid("a write needs a version".into()));
    }
    if head.purpose != Purpose::Repair && head.version.slot() != head.slot {
        return Err(invalid("the version is of another slot than the request".into()));
    }
    if request.kind == Kind::WriteZeroes {
        if !crcs.is_empty() || !request.body.is_empty() {
            return Err(invalid("a write of zeroes carries no data".into()));
        }
        return Ok((head, Payload::Zero));
    }
    let blocks = head.range.count;
    if blocks > REQUEST_BLOCKS_MAX {
        return Err(invalid(format!("{blocks} blocks in one request, at most {REQUEST_BLOCKS_MAX}")));
    }
    if request.body.len() != head.range.bytes() || crcs.len() != blocks as usize {
        let (bytes, sums) = (request.body.len(), crcs.len());
        return Err(invalid(format!("{blocks} blocks with {bytes} bytes and {sums} checksums")));
    }
    if !is_intact(&request.body, &crcs) {
        return Err(Answer::error(Status::DamagedOnTheWay, "a block does not match its checksum"));
    }
    Ok((head, Payload::Data { data: request.body.clone(), crcs }))
}

/// Parses a request that carries no data.
fn parse_plain(peer: &Peer, request: &Request, blocks_max: u32) -> Result<DataRequest, Answer> {
    let invalid = |text: String| Answer::error(Status::Invalid, text);
    let (head, crcs) = parse_head(peer, request)?;
    if head.range.count > blocks_max {
        return Err(invalid(format!("{} blocks in one request, at most {blocks_max}", head.range.count)));
    }
    if !crcs.is_empty() || !request.body.is_empty() {
        return Err(invalid("the request carries data where none belongs".into()));
    }
    Ok(head)
}

/// A lane of a session may speak for its own slot only: a watermark of another would forget what is not
/// complete (P6).
fn check_slots(head: &DataRequest) -> Result<(), Answer> {
    let own_watermark = head.watermark == Version::ZERO || head.watermark.slot() == head.slot;
    if !own_watermark && !mutated(Mutation::LaneSpeaksForSibling) {
        return Err(Answer::error(Status::Invalid, "the watermark is of another slot than the request"));
    }
    Ok(())
}

/// The first chunk of the range that a syncing replica has not verified yet.
fn unverified_chunk(admitted: &Admitted, object: ObjectId, range: BlockRange) -> Option<ChunkIndex> {
    if admitted.role != Role::Syncing || mutated(Mutation::WriteBeforeVerify) {
        return None;
    }
    let (store, group) = (&admitted.drive().store, admitted.member.group);
    range.by_chunk().map(|(chunk, _)| chunk).find(|chunk| !store.chunk_is_verified(group, object, *chunk))
}

/// Raises the watermark of the session that made the request. An admitted session is not over.
fn advance(admitted: &Admitted, head: &DataRequest) {
    if head.session != SYSTEM_SESSION && head.watermark != Version::ZERO {
        admitted.drive().store.advance(head.group, head.watermark.slot(), head.watermark);
    }
}

/// Verdicts as an answer; very many runs travel in the body, behind an empty head.
fn write_answer(clock: u64, verdicts: Vec<(BlockRange, Verdict)>) -> Answer {
    let verdicts = verdicts
        .into_iter()
        .map(|(range, verdict)| match verdict {
            Verdict::Applied => (range, data::Verdict::Applied),
            Verdict::Superseded { newest } => (range, data::Verdict::Superseded(newest)),
        })
        .collect();
    let bytes = WriteAnswer { clock, verdicts }.encode();
    if bytes.len() > FRAME_HEAD_MAX {
        return Answer::ok(vec![], vec![Buf::from(bytes)]);
    }
    Answer::ok(bytes, vec![])
}

/// Extents as the head of an answer, and their data, uncopied, as its body.
pub(crate) fn read_answer(clock: u64, extents: Vec<Extent>) -> (Vec<u8>, Vec<Buf>) {
    let (extents, body) = as_sent(extents);
    (ReadAnswer { clock, extents }.encode(), body)
}

/// Extents as they are sent, and their data.
pub(crate) fn as_sent(extents: Vec<Extent>) -> (Vec<data::Extent>, Vec<Buf>) {
    let mut body = Vec::new();
    let extents = extents
        .into_iter()
        .map(|x| {
            let (content, crcs) = match x.data {
                ExtentData::Zero => (Content::Zero, vec![]),
                ExtentData::Damaged => (Content::Damaged, vec![]),
                ExtentData::Data { buf, crcs } => {
                    if !buf.is_empty() {
                        body.push(buf);
                    }
                    (Content::Data, crcs)
                }
            };
            data::Extent { range: x.range, version: x.version, open: x.open, content, crcs }
        })
        .collect();
    (extents, body)
}
