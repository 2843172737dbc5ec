//! A quota over the shards of one file system: users fill, cut off and remove files in directories of all
//! shards, while servers follow one another and what they say to each other is late, lost, or comes twice
//! (F16).
//!
//! What the newest servers count is never more than the limit; or than what was used when the limit came, if
//! that was more. When messages arrive again, one user can have all that the others have left. The limit is
//! that of the user whose files they are, or that of the project which their directories belong to; then what
//! is counted is what lies in them.

use super::spread::{Client, Scene, VOLUMES};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_meta::{Inode, KeyParts};
use weft_rt::{Instant, now, random_below, sleep, spawn, timeout};
use weft_types::{Attributes, BLOCK_SIZE, FileKind, InodeNumber};
use weft_wire::files::{
    Answer, AttributeChanges, FileError, NameIn, NewInode, Operation, QuotaAmount, QuotaKind, QuotaOf,
    RenameMode,
};

/// Whose files they are.
const USER: u32 = 7;
const OF_USER: QuotaOf = QuotaOf { kind: QuotaKind::User, id: USER };

/// The project of their directories.
const PROJECT: u32 = 8;
const OF_PROJECT: QuotaOf = QuotaOf { kind: QuotaKind::Project, id: PROJECT };

/// The limit, in blocks and in inodes.
const BLOCKS: u64 = 60;
const INODES: u64 = 20;

/// The largest file, in blocks.
const FILE_BLOCKS: u64 = 24;

/// Users, each with a directory.
const USERS: u64 = 4;

/// How long the last of them may take to get what the others have left.
const GETS_WITHIN: Duration = Duration::from_secs(20);

/// After this no answer counts any more that was on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// How long a shard may take to remove what has no name.
const PURGE_PATIENCE: Duration = Duration::from_millis(200);

/// What is known of the limit.
struct Limit {
    scene: Rc<Scene>,
    /// Whose it is.
    of: QuotaOf,
    /// Directories of the users, if they belong to a project.
    homes: RefCell<BTreeSet<InodeNumber>>,
    /// What may be used from now on, once the limit is there.
    most: Cell<Option<QuotaAmount>>,
    found: RefCell<Option<String>>,
    /// What was used, each time when that was looked at.
    seen: RefCell<Vec<(Instant, QuotaAmount)>>,
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let scene = Scene::set().await?;
    let of = if random_below(2) == 0 { OF_USER } else { OF_PROJECT };
    let (most, found, homes) = (Cell::new(None), RefCell::default(), RefCell::default());
    let seen = RefCell::default();
    let limit = Rc::new(Limit { scene: scene.clone(), of, homes, most, found, seen });
    let mut admin = Client::new(&scene, USERS + 1);
    let mut users = Vec::new();
    for n in 1..=USERS {
        users.push(User::at_home(&limit, n).await?);
    }
    let is_late = random_below(2) == 0;
    if !is_late {
        limit.set(&mut admin).await?;
    }
    let users: Vec<_> = users.into_iter().map(|user| spawn(user.live())).collect();
    let purges = spawn(purge(scene.clone()));
    if is_late {
        sleep(Duration::from_millis(random_below(100))).await;
        limit.set(&mut admin).await?;
    }
    for _ in 0..2 + random_below(3) {
        sleep(Duration::from_millis(random_below(200))).await;
        scene.trouble_one().await?;
    }
    sleep(Duration::from_millis(random_below(200))).await;
    scene.end();
    let mut ended = Vec::new();
    for user in users {
        ended.push(user.await.map_err(|_| "a user was killed".to_owned())??);
    }
    scene.quiet();
    for user in &mut ended {
        user.remove_all().await?;
    }
    purges.await.map_err(|_| "the purge was killed".to_owned())?;
    limit.check_counters()?;
    ended[random_below(USERS) as usize].take_all().await?;
    limit.check_counters()?;
    limit.found.take().map_or(Ok(()), Err)
}

/// Removes what has no name any more.
async fn purge(scene: Rc<Scene>) {
    let mut rounds = 0;
    // Some more when all users have ended.
    while rounds < 20 {
        purge_once(&scene).await;
        rounds += u32::from(scene.is_quiet());
        sleep(Duration::from_millis(20)).await;
    }
}

async fn purge_once(scene: &Scene) {
    for shard in scene.newest() {
        // One whose server is killed says nothing any more.
        let _ = timeout(PURGE_PATIENCE, async {
            for inode in shard.orphans(8).await.unwrap_or_default() {
                let _ = shard.purge(inode).await;
            }
        })
        .await;
    }
}

impl Limit {
    async fn set(&self, admin: &mut Client) -> Result<(), String> {
        let limit = QuotaAmount { bytes: BLOCKS * BLOCK_SIZE as u64, inodes: INODES };
        for shard in (0..VOLUMES.len() as u16).rev() {
            let whole = InodeNumber::whole_of(shard);
            let set = Operation::SetQuota(whole, self.of, limit, InodeNumber(0));
            match admin.carry_out(set).await? {
                Answer::Done => {}
                other => return Err(format!("a quota is set in shard {shard}: {other:?}")),
            }
        }
        // What was given away before may be on its way.
        sleep(ON_ITS_WAY).await;
        self.most.set(Some(limit.most(self.used())));
        Ok(())
    }

    /// What the newest servers count.
    fn used(&self) -> QuotaAmount {
        let used = |used: QuotaAmount, shard: &weft_meta::Shard<_>| {
            used.plus(shard.with_tables(|tables| tables.charged(self.of)))
        };
        self.scene.newest().iter().fold(QuotaAmount::default(), used)
    }

    fn look(&self) {
        let used = self.used();
        self.seen.borrow_mut().push((now(), used));
        if let Some(most) = self.most.get().filter(|most| !used.fits(*most)) {
            self.found.borrow_mut().get_or_insert(format!("{used:?} are used, {most:?} may be"));
        }
    }

    /// A user was refused more blocks, or an inode, who had asked at this time.
    ///
    /// # Errors
    /// If less than half of the limit was used since then, with that.
    fn is_refused(&self, asked: Instant, blocks: u64) -> Result<(), String> {
        self.look();
        let seen = self.seen.borrow();
        let before = seen.partition_point(|(at, _)| *at < asked).saturating_sub(1);
        let used = seen[before..].iter().fold(QuotaAmount::default(), |most, (_, used)| most.most(*used));
        let wanted = used.plus(QuotaAmount { bytes: blocks * BLOCK_SIZE as u64, inodes: 1 });
        match wanted.fits(QuotaAmount { bytes: BLOCKS * BLOCK_SIZE as u64 / 2, inodes: INODES / 2 }) {
            true => Err(format!("{blocks} blocks are refused, and {used:?} are used")),
            false => Ok(()),
        }
    }

    /// What is counted is there.
    fn check_counters(&self) -> Result<(), String> {
        let mut there = QuotaAmount::default();
        let items = self.scene.items();
        let room = |inode| match items.iter().find(|(key, _)| key.parts() == Some(KeyParts::Room(inode))) {
            Some((_, room)) => u64::from_le_bytes(room[..].try_into().expect("a number")),
            None => 0,
        };
        for (key, value) in &items {
            let Some(KeyParts::Inode(inode)) = key.parts() else { continue };
            let room = room(inode);
            let inode = Inode::decode(value).map_err(|error| error.to_string())?;
            let homes = self.homes.borrow();
            let is_counted = match self.of {
                OF_USER => inode.attributes.uid == USER,
                _ => homes.contains(&inode.attributes.inode) || homes.contains(&inode.parent),
            };
            if is_counted {
                let end = inode.attributes.size.max(room);
                let bytes = end.next_multiple_of(BLOCK_SIZE as u64);
                there = there.plus(QuotaAmount { bytes, inodes: 1 });
            }
        }
        let used = self.used();
        if used == there { Ok(()) } else { Err(format!("{used:?} are counted, {there:?} are there")) }
    }
}

/// A file of a user, in blocks.
#[derive(Clone, Copy)]
struct File {
    inode: InodeNumber,
    size: u64,
    reserved: u64,
}

/// A user, with a directory.
struct User {
    limit: Rc<Limit>,
    client: Client,
    home: InodeNumber,
    files: BTreeMap<u64, File>,
    made: u64,
}

impl User {
    /// A user with a directory, made before there is a limit.
    async fn at_home(limit: &Rc<Limit>, n: u64) -> Result<User, String> {
        let mut client = Client::new(&limit.scene, n);
        let home = client.make_directory(InodeNumber::ROOT, format!("home {n}")).await?;
        if limit.of == OF_PROJECT {
            match client.carry_out(Operation::SetProject(home, PROJECT)).await? {
                Answer::Project(PROJECT) => drop(limit.homes.borrow_mut().insert(home)),
                other => return Err(format!("a directory is given to a project: {other:?}")),
            }
        }
        Ok(User { limit: limit.clone(), client, home, files: BTreeMap::new(), made: 0 })
    }

    /// Works until the end.
    async fn live(mut self) -> Result<User, String> {
        while !self.limit.scene.is_ending() {
            let file = self.files.iter().nth(random_below(self.files.len().max(1) as u64) as usize);
            let file = file.map(|(name, file)| (*name, *file));
            let deeds = if self.limit.of == OF_PROJECT { 9 } else { 8 };
            match (random_below(deeds), file) {
                (0 | 1, _) | (_, None) => drop(self.make(random_below(8)).await?),
                (2..=4, Some((name, File { inode, size, reserved }))) => {
                    let more = (size.max(reserved) + 1 + random_below(8)).min(FILE_BLOCKS);
                    self.reserve(name, inode, more).await?;
                }
                (5, Some((name, file))) => self.cut(name, file.inode, random_below(file.size + 1)).await?,
                (6, Some((name, file))) => self.resize(name, file.inode, random_below(FILE_BLOCKS)).await?,
                (7, Some((name, file))) => self.remove(name, file.inode).await?,
                (_, Some((name, file))) => self.try_to_leave(name, file.inode).await?,
            }
            self.limit.look();
            sleep(Duration::from_micros(random_below(2_000))).await;
        }
        Ok(self)
    }

    fn named(&self, name: u64) -> NameIn {
        NameIn { directory: self.home, name: name.to_string().into_bytes() }
    }

    /// Makes a file with space. Whether it may.
    async fn make(&mut self, blocks: u64) -> Result<bool, String> {
        self.made += 1;
        let asked = now();
        let (name, end) = (self.made, blocks * BLOCK_SIZE as u64);
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            umask: 0,
            uid: USER,
            gid: 0,
            device: 0,
            target: Vec::new(),
        };
        match self.client.carry_out(Operation::CreateOpen(self.named(name), new, end)).await? {
            Answer::Attributes(Attributes { inode, .. }) => {
                self.files.insert(name, File { inode, size: 0, reserved: blocks });
                Ok(true)
            }
            Answer::Failed(FileError::OverQuota) => self.limit.is_refused(asked, blocks).map(|()| false),
            other => Err(format!("a file is made: {other:?}")),
        }
    }

    /// Gets more space for a file. Whether it may.
    async fn reserve(&mut self, name: u64, inode: InodeNumber, blocks: u64) -> Result<bool, String> {
        let (end, asked) = (blocks * BLOCK_SIZE as u64, now());
        match self.client.carry_out(Operation::Reserve(inode, end)).await? {
            Answer::Reserved(_) => {
                let file = self.files.get_mut(&name).expect("it is there");
                file.reserved = file.reserved.max(blocks);
                Ok(true)
            }
            Answer::Failed(FileError::OverQuota) => self.limit.is_refused(asked, blocks).map(|()| false),
            other => Err(format!("space is reserved: {other:?}")),
        }
    }

    /// Gives space of a file back.
    async fn cut(&mut self, name: u64, inode: InodeNumber, blocks: u64) -> Result<(), String> {
        let end = blocks * BLOCK_SIZE as u64;
        let cut = AttributeChanges { size: Some(end), ..AttributeChanges::default() };
        let cut = self.client.carry_out(Operation::Change(inode, cut)).await?;
        let back = self.client.carry_out(Operation::Unreserve(inode, end)).await?;
        match (cut, back) {
            (Answer::Attributes(_), Answer::Reserved(_)) => {
                let file = self.files.get_mut(&name).expect("it is there");
                (file.size, file.reserved) = (blocks, file.reserved.min(blocks));
                Ok(())
            }
            other => Err(format!("a file is cut off: {other:?}")),
        }
    }

    async fn resize(&mut self, name: u64, inode: InodeNumber, blocks: u64) -> Result<(), String> {
        // Part of a block counts as one.
        let size = (blocks * BLOCK_SIZE as u64).saturating_sub(random_below(BLOCK_SIZE as u64));
        let resize = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        match self.client.carry_out(Operation::Change(inode, resize)).await? {
            Answer::Attributes(_) => {
                self.files.get_mut(&name).expect("it is there").size = blocks;
                Ok(())
            }
            Answer::Failed(FileError::OverQuota) => Ok(()),
            other => Err(format!("a file gets another size: {other:?}")),
        }
    }

    /// Has a file be named where nothing counts for its project.
    async fn try_to_leave(&mut self, name: u64, inode: InodeNumber) -> Result<(), String> {
        let outside = format!("outside {} {}", self.client.number(), random_below(1 << 32)).into_bytes();
        let outside = NameIn { directory: InodeNumber::ROOT, name: outside };
        let operation = match random_below(2) {
            0 => Operation::Rename(self.named(name), outside, RenameMode::Replace),
            _ => Operation::Link(inode, outside),
        };
        match self.client.carry_out(operation).await? {
            Answer::Failed(FileError::OtherProject) => Ok(()),
            other => Err(format!("a file leaves its project: {other:?}")),
        }
    }

    async fn remove(&mut self, name: u64, inode: InodeNumber) -> Result<(), String> {
        let gone = self.client.carry_out(Operation::Unlink(self.named(name))).await?;
        let closed = self.client.carry_out(Operation::Release(inode, AttributeChanges::default())).await?;
        match (gone, closed) {
            (Answer::Attributes(_), Answer::Done) => {
                self.files.remove(&name);
                Ok(())
            }
            other => Err(format!("a file is removed: {other:?}")),
        }
    }

    async fn remove_all(&mut self) -> Result<(), String> {
        let files: Vec<_> = self.files.iter().map(|(name, file)| (*name, file.inode)).collect();
        for (name, inode) in files {
            self.remove(name, inode).await?;
        }
        Ok(())
    }

    /// Gets all that the limit allows, and no more.
    async fn take_all(&mut self) -> Result<(), String> {
        let until = now() + GETS_WITHIN;
        loop {
            let is_made = self.make(0).await?;
            let made = self.files.last_key_value().map(|(name, file)| (*name, file.inode));
            if let (true, Some((name, inode))) = (is_made, made)
                && self.reserve(name, inode, BLOCKS).await?
            {
                break;
            }
            self.remove_all().await?;
            purge_once(&self.limit.scene).await;
            if now() >= until {
                return Err(format!("{:?} are used, and the rest is not had", self.limit.used()));
            }
            sleep(Duration::from_millis(100)).await;
        }
        self.limit.look();
        match self.make(1).await? {
            true => Err(format!("space is had beyond the limit: {:?} are used", self.limit.used())),
            false => Ok(()),
        }
    }
}
