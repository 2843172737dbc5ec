//! Lanes: one attach on several executors of a process.
//!
//! Each lane has connections, versions, a watermark and a session slot of its own (P6), and is a [`Volume`]
//! to whoever uses it. The first lane follows the map and keeps the session alive; it posts to the others
//! what they have to know, and they post to it what the manager has to know. Beside posts they share one
//! [`Floor`] (P8). What is posted is in [`News`] and [`Word`]. A lane ends when the session does, and when
//! nobody can post to it any more.

use crate::attached::Ended;
use crate::error::ClientError;
use crate::file_system::FileSystem;
use crate::followed::Followed;
use crate::session::Session;
use crate::shared::Shared;
use crate::version_clock::VersionClock;
use crate::versions::Bounds;
use crate::volume::{AttachOptions, Volume};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rt::{Floor, Instant, Mailbox, Poster, mailbox, now, sleep, spawn};
use weft_types::limits::{LANE_POSTS_MAX, WATERMARK_LAG_MAX};
use weft_types::{FabricMap, Slice, TargetId};
use weft_wire::control::TargetAge;

/// First and longest pause before a lane whose mailbox was full is told of the newest map again.
const POST_RETRY_FIRST: Duration = Duration::from_millis(10);
const POST_RETRY_LONGEST: Duration = Duration::from_secs(1);

/// What the first lane tells another one.
pub(crate) enum News {
    /// The part of the map that is held from now on, and which that is.
    Map(Followed, Box<FabricMap>),
    /// The session is of no further use.
    Ended(Ended),
    /// Why, in the manager's words.
    Why(String),
}

/// What another lane tells the first one.
pub(crate) enum Word {
    /// A target has said that the session is of no further use.
    Ended(Ended),
    /// Which targets have not answered this lane, and which have.
    Reach(usize, Reached),
    /// This lane is done.
    Left(usize),
}

/// Targets that do not answer, and targets that do.
pub(crate) struct Reached {
    pub(crate) silent: Vec<TargetAge>,
    pub(crate) heard: Vec<TargetAge>,
}

/// How a lane reaches the first one, which asks the manager for it.
#[derive(Clone)]
pub(crate) struct WayToFirst {
    number: usize,
    words: Poster<Word>,
}

impl WayToFirst {
    /// Says which targets answer this lane. That the first lane is gone is noticed where its news are read.
    pub(crate) fn tell_reach(&self, reached: Reached) {
        let _ = self.words.post(Word::Reach(self.number, reached));
    }
}

/// A lane of an attach that runs nowhere yet. It may be sent to the executor that is to run it.
pub struct Lane {
    number: usize,
    news: Mailbox<News>,
    words: Poster<Word>,
    floor: Floor,
    name: String,
    volume: String,
    session: weft_types::Session,
    slice: Slice,
    map: FabricMap,
    clock: (Instant, u64),
    options: AttachOptions,
}

impl Lane {
    /// Which lane of its attach it is, from 1: the first one, 0, is the volume that [`crate::Fabric::attach`]
    /// returned.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Runs the lane of a volume's attach on this executor, for as long as a clone of the volume is there.
    /// Connections are made when they are needed. A lane that is dropped, opened or not, leaves the others as
    /// they are.
    ///
    /// # Errors
    /// [`ClientError::SessionOver`] if the first lane is gone.
    pub fn open(self) -> Result<Volume, ClientError> {
        let (session, options) = self.open_session()?;
        Ok(Volume::of_first_lane(session, options, Vec::new()))
    }

    /// The same, where the attach is of a file system.
    ///
    /// # Errors
    /// [`ClientError::SessionOver`] if the first lane is gone.
    pub fn open_file_system(self) -> Result<FileSystem, ClientError> {
        let (session, options) = self.open_session()?;
        Ok(FileSystem::of_first_lane(session, options, Vec::new()))
    }

    fn open_session(self) -> Result<(Rc<Session>, AttachOptions), ClientError> {
        let Lane { number, news, words, floor, name, volume, session, slice, map, clock, options } = self;
        let (clock, bounds) = (VersionClock::read_at(clock.0, clock.1), bounds_of(&session, number, floor));
        let way = WayToFirst { number, words };
        let shared = Shared::of_lane(&name, map, slice, way.clone());
        let seat = Seat { number, bounds, post: Post::Other(way) };
        let session = Session::new(shared, &session, &volume, clock, seat);
        session.fabric.attach_session(&session);
        spawn(hear_news(Rc::downgrade(&session), news));
        // It may have ended while nobody ran it.
        session.fabric.end_what_is_over(&session.fabric.map());
        session.check()?;
        Ok((session, options))
    }
}

/// What a lane of a session has to do with its siblings' versions.
fn bounds_of(session: &weft_types::Session, number: usize, floor: Floor) -> Bounds {
    let slots: Vec<_> = session.slots().collect();
    let sibling = slots[(number + 1) % slots.len()];
    Bounds { floor, lag_max: WATERMARK_LAG_MAX / slots.len() as u64, sibling }
}

/// Which lane of its attach a session's handle is.
pub(crate) struct Seat {
    pub(crate) number: usize,
    pub(crate) bounds: Bounds,
    post: Post,
}

enum Post {
    First {
        others: RefCell<BTreeMap<usize, Poster<News>>>,
        reach: RefCell<BTreeMap<usize, (Instant, Reached)>>,
    },
    Other(WayToFirst),
}

impl Seat {
    /// The first lane's, and the other lanes. `words` are what those say; none where there are no others.
    pub(crate) fn of_first(
        session: &weft_types::Session,
        seed: impl Fn(usize) -> LaneSeed,
    ) -> (Seat, Vec<Lane>, Option<Mailbox<Word>>) {
        let floor = Floor::default();
        let (poster, words) = mailbox(LANE_POSTS_MAX);
        let mut others = BTreeMap::new();
        let lane = |number| {
            let (news_poster, news) = mailbox(LANE_POSTS_MAX);
            others.insert(number, news_poster);
            let LaneSeed { name, volume, slice, map, clock, options } = seed(number);
            let (words, floor, session) = (poster.clone(), floor.clone(), session.clone());
            Lane { number, news, words, floor, name, volume, session, slice, map, clock, options }
        };
        let lanes: Vec<Lane> = (1..session.lanes()).map(lane).collect();
        let post = Post::First { others: RefCell::new(others), reach: RefCell::default() };
        let words = (!lanes.is_empty()).then_some(words);
        (Seat { number: 0, bounds: bounds_of(session, 0, floor), post }, lanes, words)
    }

    /// Whether this lane follows the map, and asks the manager.
    pub(crate) fn is_first(&self) -> bool {
        matches!(self.post, Post::First { .. })
    }

    /// The session has ended, as far as this lane knows.
    pub(crate) fn tell_end(&self, why: Ended) {
        match &self.post {
            Post::First { .. } => self.tell_others(|| News::Ended(why)),
            Post::Other(way) if why == Ended::Detached => drop(way.words.post(Word::Left(self.number))),
            Post::Other(way) => drop(way.words.post(Word::Ended(why))),
        }
    }

    /// The manager has said why.
    pub(crate) fn tell_why(&self, why: &str) {
        self.tell_others(|| News::Why(why.to_owned()));
    }

    /// Tells the other lanes something that may be lost where a mailbox is full: a lane also learns of an end
    /// from the map, from targets, and when nobody can post to it any more.
    fn tell_others(&self, news: impl Fn() -> News) {
        let Post::First { others, .. } = &self.post else { return };
        others.borrow_mut().retain(|_, poster| {
            let _ = poster.post(news());
            !poster.is_gone()
        });
    }
}

/// What a lane takes along from the first one.
pub(crate) struct LaneSeed {
    pub(crate) name: String,
    pub(crate) volume: String,
    pub(crate) slice: Slice,
    pub(crate) map: FabricMap,
    /// When the manager's clock was so many microseconds since 1970-01-01T00:00:00Z.
    pub(crate) clock: (Instant, u64),
    pub(crate) options: AttachOptions,
}

/// Lanes that have not heard of the newest map, and whether somebody goes on telling them.
#[derive(Default)]
pub(crate) struct Behind {
    lanes: RefCell<BTreeSet<usize>>,
    is_retrying: Cell<bool>,
}

impl Session {
    /// Tells the other lanes of the map that is held now.
    pub(crate) fn post_map(&self) {
        if let Post::First { others, .. } = &self.seat.post {
            self.behind.lanes.borrow_mut().extend(others.borrow().keys());
            self.post_to_those_behind();
        }
    }

    fn post_to_those_behind(&self) {
        let Post::First { others, .. } = &self.seat.post else { return };
        if self.behind.lanes.borrow().is_empty() {
            return;
        }
        let (followed, map) = (self.fabric.followed.borrow().clone(), self.fabric.map());
        let mut others = others.borrow_mut();
        others.retain(|_, poster| !poster.is_gone());
        let mut behind = self.behind.lanes.borrow_mut();
        behind.retain(|lane| {
            let news = || News::Map(followed.clone(), Box::new(FabricMap::clone(&map)));
            others.get(lane).is_some_and(|poster| poster.post(news()).is_err())
        });
        if !behind.is_empty() && !self.behind.is_retrying.replace(true) {
            spawn(retry_posting(self.this.clone()));
        }
    }

    /// What the other lanes have said of targets within this time, added to what this one says. A lane that
    /// misses more targets than it hears says something of itself, and not of them.
    pub(crate) fn add_reach_of_others(&self, within: Duration, own: &mut Reached) {
        let Post::First { reach, .. } = &self.seat.post else { return };
        reach.borrow_mut().retain(|_, (at, _)| at.elapsed() < within);
        for (at, said) in reach.borrow().values().filter(|(_, said)| said.silent.len() <= said.heard.len()) {
            let since = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
            for age in &said.silent {
                let ms = age.ms.saturating_add(since);
                own.heard.retain(|heard| heard.target != age.target);
                match own.silent.iter_mut().find(|known| known.target == age.target) {
                    Some(known) => known.ms = known.ms.max(ms),
                    None => own.silent.push(TargetAge { target: age.target, ms }),
                }
            }
        }
    }

    /// The first lane takes a word of another one. Returns whether the manager has to hear of it now.
    fn take_word(&self, word: Word) -> bool {
        let Post::First { others, reach } = &self.seat.post else { return false };
        match word {
            Word::Ended(why) => self.end(why),
            Word::Reach(lane, said) => {
                let silent =
                    |said: &Reached| said.silent.iter().map(|s| s.target).collect::<BTreeSet<TargetId>>();
                let now_silent = silent(&said);
                let before = reach.borrow_mut().insert(lane, (now(), said));
                return !now_silent.is_empty()
                    || before.is_some_and(|(_, before)| !silent(&before).is_empty());
            }
            Word::Left(lane) => {
                others.borrow_mut().remove(&lane);
                reach.borrow_mut().remove(&lane);
            }
        }
        false
    }

    /// Another lane takes news of the first one.
    fn take_news(&self, news: News) {
        match news {
            News::Map(followed, map) => {
                *self.fabric.followed.borrow_mut() = followed;
                self.fabric.adopt(*map);
            }
            News::Ended(why) => self.end(why),
            News::Why(why) => self.hear_why(why),
        }
    }
}

/// The first lane hears what the others say, for as long as its session is there.
pub(crate) async fn hear_words(session: Weak<Session>, mut words: Mailbox<Word>) {
    while let Some(word) = words.next().await {
        let Some(session) = session.upgrade() else { return };
        if session.take_word(word) {
            session.fabric.report_soon();
        }
    }
}

/// A lane hears what the first one says, for as long as it is there.
async fn hear_news(session: Weak<Session>, mut news: Mailbox<News>) {
    while let Some(news) = news.next().await {
        let Some(session) = session.upgrade() else { return };
        session.take_news(news);
    }
    // Nobody keeps the session alive any more, and nobody tells of maps.
    session.upgrade().iter().for_each(|session| session.end(Ended::Over));
}

/// Tells lanes of the newest map whose mailboxes were full, until they have it or are gone.
async fn retry_posting(session: Weak<Session>) {
    let mut pause = POST_RETRY_FIRST;
    loop {
        sleep(pause).await;
        let Some(session) = session.upgrade() else { return };
        session.post_to_those_behind();
        if session.behind.lanes.borrow().is_empty() {
            session.behind.is_retrying.set(false);
            return;
        }
        pause = (pause * 2).min(POST_RETRY_LONGEST);
    }
}

/// A lane passes from one thread to another.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Lane>();
};
