//! The in-sync side of a resync: digests, marks and entries for a replica that verifies itself (R12, R14).
//!
//! Marks are always taken after the digests or data that they go with: a version that is in the data and may be
//! incomplete then has its mark in the answer. It never changes anything.

use crate::admit::{Claim, Need};
use crate::drive::ServedDrive;
use crate::serve::{parse_peer, read_answer};
use crate::target::Target;
use crate::throttle::{PEER_WAIT, Work};
use std::rc::Rc;
use weft_rpc::{Answer, Peer, Request};
use weft_rt::Buf;
use weft_rules::{Mutation, mutated};
use weft_store::StoreError;
use weft_types::limits::{DIGESTS_MAX, FRAME_BODY_MAX, OBJECT_CHUNKS_MAX};
use weft_types::{ChunkIndex, ObjectId, Version, VolumeId};
use weft_wire::control::{self, Marks, OpenMark};
use weft_wire::data::{DigestsAnswer, PeerRequest};
use weft_wire::{Kind, Status};

/// A chunk's place in key order.
pub(crate) type ChunkKey = (ObjectId, ChunkIndex);

/// The first place in key order.
pub(crate) const FIRST: ChunkKey = (ObjectId::of_volume(VolumeId(0), 0), ChunkIndex(0));

/// The place right behind a chunk; `None` behind the last that there can be.
pub(crate) fn after((object, chunk): ChunkKey) -> Option<ChunkKey> {
    if u32::from(chunk.0) + 1 < OBJECT_CHUNKS_MAX {
        return Some((object, ChunkIndex(chunk.0 + 1)));
    }
    let next = u128::from_be_bytes(object.to_bytes()).checked_add(1)?;
    Some((ObjectId::from_bytes(next.to_be_bytes()), ChunkIndex(0)))
}

impl Target {
    /// Answers a replica that verifies itself. Only an in-sync member does, at the same epoch.
    pub(crate) async fn answer_resync(&self, peer: &Peer, request: &Request) -> Answer {
        let asked = match parse_peer(peer, request) {
            Ok(asked) => asked,
            Err(answer) => return answer,
        };
        let claim = Claim {
            drive: asked.drive,
            group: asked.group,
            epoch: asked.epoch,
            need: Need::ReadSet,
            attached: None,
            of_inode: None,
            version: Version::ZERO,
            is_repair: false,
        };
        let work = match request.kind {
            Kind::Entries if asked.limit == 0 => Work::Confirm,
            Kind::Entries => Work::Copy,
            _ => Work::Compare,
        };
        if !asked.is_urgent {
            self.throttle.turn(work, PEER_WAIT).await;
        }
        let drive = match self.admit(&claim).await {
            Ok(admitted) => admitted.drive().clone(),
            Err(answer) => return answer,
        };
        let _piece = self.throttle.begin(work);
        let from = (asked.object, asked.chunk);
        let answer = match request.kind {
            Kind::Digests => digests(&drive, &asked, from).await,
            Kind::Entries => self.entries(&drive, &asked, from).await,
            _ => Ok(Answer::ok(vec![], vec![marks(&drive, &asked, from, None)])),
        };
        let answer = answer.unwrap_or_else(|error| drive.refusal(&error));
        if let Err(refusal) = self.stands(&claim).await {
            return refusal;
        }
        let bytes = answer.body.len();
        if bytes > FRAME_BODY_MAX {
            return Answer::error(Status::Refused, format!("{bytes} bytes of marks: ask for fewer chunks"));
        }
        answer
    }

    async fn entries(
        &self,
        drive: &Rc<ServedDrive>,
        asked: &PeerRequest,
        from: ChunkKey,
    ) -> Result<Answer, StoreError> {
        let (group, object, range) = (asked.group, asked.object, asked.blocks);
        let early = mutated(Mutation::MarksBeforeData).then(|| marks(drive, asked, from, after(from)));
        let extents = match asked.limit {
            0 => drive.store.read_open(group, object, range).await?,
            _ => drive.store.read(group, object, range).await?,
        };
        let (head, mut body) = read_answer(self.clock(), extents);
        body.push(early.unwrap_or_else(|| marks(drive, asked, from, after(from))));
        Ok(Answer::ok(head, body))
    }
}

async fn digests(drive: &Rc<ServedDrive>, asked: &PeerRequest, from: ChunkKey) -> Result<Answer, StoreError> {
    let limit = usize::from(asked.limit).clamp(1, DIGESTS_MAX);
    let early = mutated(Mutation::MarksBeforeData).then(|| marks(drive, asked, from, None));
    let digests = drive.store.digests(asked.group, Some(from), limit).await?;
    // Fewer than asked for means that the answer covers everything behind `from`.
    let is_last = digests.len() < limit;
    let to = digests.last().filter(|_| !is_last).and_then(|(object, chunk, _)| after((*object, *chunk)));
    let marks = early.unwrap_or_else(|| marks(drive, asked, from, to));
    Ok(Answer::ok(DigestsAnswer { digests }.encode(), vec![marks]))
}

/// The marks of a range as a document.
fn marks(drive: &ServedDrive, asked: &PeerRequest, from: ChunkKey, to: Option<ChunkKey>) -> Buf {
    let held = drive.store.marks(asked.group, from, to);
    let open = held.open.into_iter().map(|x| OpenMark {
        version: x.version,
        object: x.object,
        range: x.range,
        settled: x.settled,
    });
    Buf::from(control::encode(&Marks { open: open.collect(), watermarks: held.watermarks }))
}
