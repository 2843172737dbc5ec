//! How a target follows the map (C8): news of it from pushes and answers, and from which version they lead
//! on.
//!
//! It owns what may come into force next. Putting it into force is `adopt.rs`.

use crate::lease::Silent;
use crate::target::Target;
use std::rc::Rc;
use weft_rt::coverage::{Path, mark};
use weft_rt::{Answer, Buf, Frame, Link, Mutation, mutated};
use weft_types::{Delta, DeltaError, FabricId, FabricMap, MapVersion, Slice, with_causes};
use weft_wire::control::{self, DELTA_PROTOCOL, ManagerAnswer, ManagerRequest, TargetAnswer};
use weft_wire::pieces::decode_delta;
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
    fn of_answer(frame: &Frame) -> Result<Option<News>, DecodeError> {
        let body = &frame.body;
        if body.is_empty() {
            return Ok(None);
        }
        match control::decode::<ManagerAnswer>(&frame.head)? {
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
            What::Map(map, bytes) if is_newer => Ok(Some(NextMap { map: *map, bytes, nonce })),
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

    fn led_to(&self, delta: &Delta, nonce: u64) -> Result<NextMap, NotTaken> {
        let (from, held) = (delta.from, self.map_version());
        let elsewhere = NotTaken::Elsewhere { from, held };
        let Some(map) = self.map() else { return Err(elsewhere) };
        let is_there = held == from && nonce == self.map_nonce.get() && nonce != 0;
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
            Ok(map) => Ok(NextMap { bytes: control::encode_map(&map).into(), map, nonce }),
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
            Ok(()) => TargetAnswer::Done,
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

    /// Fetches what is newer in the background. The manager pushes every map too, and may hold this answer
    /// back: nothing waits for it.
    pub(crate) fn fetch_map(&self, link: &Link) {
        if self.lease.is_fetching.replace(true) {
            return;
        }
        let (target, link) = (self.shared(), link.clone());
        self.background(async move {
            if let Some(frame) = target.ask_for_news(&link).await
                && let Err(reason) = target.take_answer(&frame).await
            {
                tracing::warn!(reason, "cannot adopt the manager's map");
            }
            target.lease.is_fetching.set(false);
        });
    }

    /// Asks for what is newer than the map in force; none if that is not answered. A manager of an older
    /// release is asked for the whole map.
    async fn ask_for_news(&self, link: &Link) -> Option<Frame> {
        let (version, nonce) = (self.map_version(), self.map_nonce.get());
        if link.protocol() >= DELTA_PROTOCOL {
            let follow = ManagerRequest::Follow { version, nonce, slice: Slice::Whole };
            let frame = link.call(Kind::Manage, &control::encode(&follow), vec![]).await.ok()?;
            if Status::from_u16(frame.envelope.status) != Status::Invalid {
                return Some(frame);
            }
        }
        let watch = control::encode(&ManagerRequest::WatchMap { have: version });
        link.call(Kind::Manage, &watch, vec![]).await.ok()
    }

    async fn take_answer(&self, frame: &Frame) -> Result<(), String> {
        if Status::from_u16(frame.envelope.status) != Status::Ok {
            return Ok(());
        }
        let Some(news) = News::of_answer(frame).map_err(|e| e.to_string())? else { return Ok(()) };
        match self.put_into_force(news).await {
            // A push was faster.
            Ok(()) | Err(NotTaken::Elsewhere { .. }) => Ok(()),
            Err(error) => Err(with_causes(&error)),
        }
    }

    /// Puts the map into force that came with a join.
    pub(crate) async fn adopt_joined(&self, body: &Buf, nonce: u64) -> Result<(), Silent> {
        let news = News::map(body, nonce).map_err(|e| Silent::Refused(e.to_string()))?;
        self.put_into_force(news).await.map_err(|e| Silent::Refused(with_causes(&e)))
    }
}
