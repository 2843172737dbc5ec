//! How a target follows the map (C8): news of it from pushes and answers, and from which version they lead
//! on.
//!
//! It owns what may come into force next. Putting it into force is `adopt.rs`.

use crate::drive::ServedDrive;
use crate::lease::Silent;
use crate::target::Target;
use std::rc::Rc;
use weft_rpc::{Answer, Body, CallError, Link, Reply};
use weft_rt::Buf;
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::PIECES_BYTES_MAX;
use weft_types::{
    Delta, DeltaError, DriveId, FabricId, FabricMap, GroupId, MapVersion, Piece, Slice, with_causes,
};
use weft_wire::control::{self, DELTA_PROTOCOL, ManagerAnswer, ManagerRequest, TargetAnswer};
use weft_wire::pieces::{decode_delta, encode_whole};
use weft_wire::{DecodeError, Kind, Status};

/// A map, or what has changed in it, as a manager has sent it.
pub(crate) struct News {
    what: What,
    /// Belongs to the version that it leads to, and to the one that it leads from; 0 from a manager of an
    /// older release: no delta can follow then.
    nonce: u64,
}

enum What {
    /// With its bytes as they came.
    Map(Box<FabricMap>, Rc<[u8]>),
    Delta(Delta),
}

/// A slice of which not all bytes have come.
pub(crate) struct Partly {
    /// Its version and nonce.
    key: (MapVersion, u64),
    /// How many parts have come.
    parts: u32,
    bytes: Vec<u8>,
}

/// A map that is to come into force.
pub(crate) struct NextMap {
    pub(crate) map: FabricMap,
    /// As it is kept on drives.
    pub(crate) bytes: Rc<[u8]>,
    /// To be kept with the version.
    pub(crate) nonce: u64,
}

/// Why news are not taken. What is in force stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error("this target belongs to fabric {own}, the map to {found}")]
    Foreign { own: FabricId, found: FabricId },
    #[error("the change leads from map {from}, this target has {held} or has it from another manager")]
    Elsewhere { from: MapVersion, held: MapVersion },
    #[error("the change does not fit the map")]
    Unfit(#[source] DeltaError),
}

impl News {
    /// # Errors
    /// If the bytes are no map.
    pub(crate) fn map(bytes: &[u8], nonce: u64) -> Result<News, DecodeError> {
        Ok(News { what: What::Map(Box::new(control::decode_map(bytes)?), bytes.into()), nonce })
    }

    /// # Errors
    /// If the bytes are no delta, or one that only a later release understands.
    pub(crate) fn delta(bytes: &[u8], nonce: u64) -> Result<News, DecodeError> {
        Ok(News { what: What::Delta(decode_delta(bytes)?), nonce })
    }

    /// What came with an answer of a manager; none if nothing did.
    fn of_answer(reply: &Reply) -> Result<Option<News>, DecodeError> {
        let body = &reply.body;
        if body.is_empty() {
            return Ok(None);
        }
        match control::decode::<ManagerAnswer>(&reply.head)? {
            ManagerAnswer::Followed { from: MapVersion(0), nonce, .. } => News::map(body, nonce).map(Some),
            ManagerAnswer::Followed { nonce, .. } => News::delta(body, nonce).map(Some),
            ManagerAnswer::Map { .. } => News::map(body, 0).map(Some),
            other => Err(DecodeError::Document(other.unexpected("follow", "followed"))),
        }
    }

    fn fabric(&self) -> FabricId {
        match &self.what {
            What::Map(map, _) => map.fabric,
            What::Delta(delta) => delta.fabric,
        }
    }

    /// The version that it leads to.
    pub(crate) fn version(&self) -> MapVersion {
        match &self.what {
            What::Map(map, _) => map.version,
            What::Delta(delta) => delta.to,
        }
    }
}

/// A map as drives keep it: a slice as pieces, the whole as the release before reads it.
pub(crate) fn kept_as(map: &FabricMap) -> Rc<[u8]> {
    match map.is_of_target() {
        true => encode_whole(map).into(),
        false => control::encode_map(map).into(),
    }
}

impl Target {
    /// What comes into force with these news; none if they are no newer than what is. A delta counts from
    /// exactly the version and nonce that this target has.
    pub(crate) fn next_map(&self, news: News) -> Result<Option<NextMap>, NotTaken> {
        let (own, found, nonce) = (self.options.fabric, news.fabric(), news.nonce);
        if found != own {
            return Err(NotTaken::Foreign { own, found });
        }
        let is_newer = news.version() > self.map_version();
        match news.what {
            What::Map(map, bytes) if is_newer || self.is_other_slice(&map) => {
                Ok(Some(NextMap { map: *map, bytes, nonce }))
            }
            What::Map(map, _) => {
                // The same from another process of the manager: what that one says next leads on from here.
                if self.map().is_some_and(|held| *held == *map) {
                    self.map_nonce.set(nonce);
                }
                Ok(None)
            }
            What::Delta(delta) if is_newer => self.led_to(&delta, nonce).map(Some),
            What::Delta(_) => Ok(None),
        }
    }

    /// Whether a map of the version that is in force lists other entries: slices of one version differ by
    /// what the target has said that it holds.
    fn is_other_slice(&self, map: &FabricMap) -> bool {
        map.is_of_target() && self.map().is_some_and(|held| held.version == map.version && *held != *map)
    }

    fn led_to(&self, delta: &Delta, nonce: u64) -> Result<NextMap, NotTaken> {
        let (from, held) = (delta.from, self.map_version());
        let elsewhere = NotTaken::Elsewhere { from, held };
        let Some(map) = self.map() else { return Err(elsewhere) };
        let is_of_slice = |piece: &Piece| matches!(piece, Piece::OfTarget(_));
        let fits = map.is_of_target() == delta.put.iter().any(is_of_slice);
        let is_there = held == from && nonce == self.map_nonce.get() && nonce != 0 && fits;
        let map = match (is_there, mutated(Mutation::DeltaOverGap)) {
            (true, _) => {
                mark(Path::DeltaAdopted);
                map.apply_delta(delta)
            }
            (false, true) => FabricMap { version: from, ..FabricMap::clone(&map) }.apply_delta(delta),
            (false, false) => {
                mark(Path::DeltaElsewhere);
                return Err(elsewhere);
            }
        };
        match map {
            Ok(map) => Ok(NextMap { bytes: kept_as(&map), map, nonce }),
            Err(error) => {
                // The maps have gone different ways: only a whole one helps.
                self.map_nonce.set(0);
                Err(NotTaken::Unfit(error))
            }
        }
    }

    /// Answers a manager that has sent news: what they lead to is adopted durably by then.
    pub(crate) async fn answer_news(&self, news: Result<News, DecodeError>) -> Answer {
        let news = match news {
            Ok(news) => news,
            Err(error) => return Answer::error(Status::Invalid, error.to_string()),
        };
        let answer = match self.adopt_news(news).await {
            Ok(()) => self.adopted_answer(),
            Err(error @ NotTaken::Foreign { .. }) => {
                return Answer::error(Status::Refused, error.to_string());
            }
            Err(error) => {
                tracing::debug!(error = with_causes(&error), "a change of the map is not taken");
                TargetAnswer::Holds { version: self.map_version(), nonce: self.map_nonce.get() }
            }
        };
        Answer::ok(control::encode(&answer), vec![])
    }

    /// Answers a manager that has sent some bytes of a slice: once all are there, it is adopted like one
    /// that came at once. What began before and is not whole yet is dropped.
    pub(crate) async fn answer_part(
        &self,
        key: (MapVersion, u64),
        (part, parts): (u32, u32),
        bytes: &[u8],
    ) -> Answer {
        let whole = {
            let mut partly = self.partly.borrow_mut();
            if part == 0 {
                *partly = Some(Partly { key, parts: 0, bytes: Vec::new() });
            }
            let begun = partly.as_mut().filter(|begun| begun.key == key && begun.parts == part);
            let Some(begun) = begun.filter(|begun| begun.bytes.len() + bytes.len() <= PIECES_BYTES_MAX)
            else {
                let (version, nonce) = (self.map_version(), self.map_nonce.get());
                return Answer::ok(control::encode(&TargetAnswer::Holds { version, nonce }), vec![]);
            };
            begun.bytes.extend_from_slice(bytes);
            begun.parts += 1;
            if begun.parts < parts {
                return Answer::ok(control::encode(&TargetAnswer::Done), vec![]);
            }
            partly.take().map(|begun| begun.bytes).unwrap_or_default()
        };
        self.answer_news(News::map(&whole, key.1)).await
    }

    /// That the map in force is adopted; of a slice also which of its groups this target holds no more (C14).
    fn adopted_answer(&self) -> TargetAnswer {
        let Some(map) = self.map().filter(|map| map.is_of_target()) else { return TargetAnswer::Done };
        let removed = map.of_target.iter().flat_map(|says| &says.removed_groups);
        let is_left = |group: &GroupId| {
            let is_own = |drive: &DriveId| self.drives.contains_key(drive);
            let is_member = map.groups.get(group).is_some_and(|g| g.slots.iter().any(|s| is_own(&s.drive)));
            !is_member && !self.drives.values().any(|drive| self.holds(drive, *group))
        };
        TargetAnswer::Adopted { left: map.groups.keys().chain(removed).copied().filter(is_left).collect() }
    }

    /// Whether a drive is a member of the group by the newest entry, or has anything of it.
    fn holds(&self, drive: &ServedDrive, group: GroupId) -> bool {
        self.member(drive.id, group).is_some_and(|m| m.slot().is_some()) || drive.store.group(group).is_some()
    }

    /// Fetches what is newer in the background. The manager pushes every map too, and may hold this answer
    /// back: nothing waits for it.
    pub(crate) fn fetch_map(&self, link: &Link) {
        if self.lease.is_fetching.replace(true) {
            return;
        }
        let (target, link) = (self.shared(), link.clone());
        self.background(async move {
            if let Ok(reply) = target.ask_for_news(&link).await
                && let Err(reason) = target.take_answer(&reply).await
            {
                tracing::warn!(reason, "cannot adopt the manager's map");
            }
            target.lease.is_fetching.set(false);
        });
    }

    /// Asks for what is newer than the map in force; none if that is not answered. A manager of an older
    /// release is asked for the whole map.
    async fn ask_for_news(&self, link: &Link) -> Result<Reply, CallError> {
        let (version, nonce) = (self.map_version(), self.map_nonce.get());
        if link.protocol() >= DELTA_PROTOCOL {
            let slice = self.id().map_or(Slice::Whole, Slice::Target);
            let follow = ManagerRequest::Follow { version, nonce, slice };
            match link.call(Kind::Manage, &control::encode(&follow), Body::none()).await {
                Err(error) if error.status() == Some(Status::Invalid) => {}
                called => return called,
            }
        }
        let watch = control::encode(&ManagerRequest::WatchMap { have: version });
        link.call(Kind::Manage, &watch, Body::none()).await
    }

    async fn take_answer(&self, reply: &Reply) -> Result<(), String> {
        let Some(news) = News::of_answer(reply).map_err(|e| e.to_string())? else { return Ok(()) };
        match self.put_into_force(news).await {
            // A push was faster.
            Ok(()) | Err(NotTaken::Elsewhere { .. }) => Ok(()),
            Err(error) => Err(with_causes(&error)),
        }
    }

    /// Puts the map into force that came with a join.
    pub(crate) async fn adopt_joined(&self, body: &Buf, nonce: u64) -> Result<(), Silent> {
        if body.is_empty() {
            // It is too long for the answer, and is sent in parts.
            return Ok(());
        }
        let news = News::map(body, nonce).map_err(|e| Silent::Refused(e.to_string()))?;
        self.put_into_force(news).await.map_err(|e| Silent::Refused(with_causes(&e)))
    }
}
