//! Users of files: programs of a machine that shows one file system at several places, by a mount each, while
//! mounts are killed, frozen and cut off.
//!
//! Each user has a folder at a time, does one thing after another there, each through any mount, and knows
//! what it has to find ([`crate::tree`]). When a call on names ends without an answer, nobody knows whether it
//! is still to be carried out: the user takes another folder then. In the end all folders are compared with
//! what may be there.

use crate::Trouble;
use crate::dice::Dice;
use crate::tree::{Contents, Through, Tree};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::fs::{fstatfs, linkat, mkdirat, open, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Names that files have in a folder.
const NAMES: usize = 6;

/// Bytes of a file, at most, and of what is written by one call.
const FILE_BYTES: usize = 40_000;
const WRITE_BYTES: usize = 12_000;

/// How long a user rests between two calls, at most, in microseconds.
const THINKS_US: usize = 30_000;

/// How long it is tried in the end to find what is there.
const FINDS_WITHIN: Duration = Duration::from_secs(120);

/// What `statfs` says of a FUSE file system (fs/fuse in linux/magic.h).
const FUSE_MAGIC: u64 = 0x6573_5546;

/// What users work with.
#[derive(Clone, Debug)]
pub struct UsersWork {
    /// Where each mount shows the file system.
    pub mounts: Vec<PathBuf>,
    /// For each mount, a file whose length says how often it may have died: it grows before that.
    pub deaths: Vec<PathBuf>,
    /// How many users.
    pub users: usize,
    /// What the dice are thrown by.
    pub seed: u64,
    /// A file that is there once the users are to come to their end.
    pub end: PathBuf,
    /// Where it is written how many calls had an answer.
    pub count: PathBuf,
}

/// How a call ended.
enum Ended {
    /// Nothing has happened.
    Refused,
    /// It may have happened, and may yet.
    Unknown(Errno),
    /// Something is wrong.
    Wrong(String),
}

impl From<String> for Ended {
    fn from(what: String) -> Ended {
        Ended::Wrong(what)
    }
}

/// A folder that is not used any more, and what it may hold.
struct Left {
    name: String,
    /// One of these is what there is.
    trees: Vec<Tree>,
    files: BTreeMap<u64, Contents>,
}

struct User<'w> {
    work: &'w UsersWork,
    number: usize,
    dice: Dice,
    folders: u64,
    folder: String,
    tree: Tree,
    files: BTreeMap<u64, Contents>,
    last_file: u64,
    left: Vec<Left>,
    answered: &'w AtomicU64,
    /// What was done last, for whoever looks for an error.
    done: Vec<String>,
}

/// Runs all users until they are to end, and compares what is there then.
///
/// # Errors
/// What is not as it was acknowledged.
pub fn run(work: &UsersWork) -> Result<(), Trouble> {
    let answered = AtomicU64::new(0);
    let run_one = |number: usize| {
        let mut user = User::new(work, number, &answered);
        let ended = user.run();
        ended.unwrap_or_else(|what| {
            let done = user.done[user.done.len().saturating_sub(40)..].join("\n");
            eprintln!("user {number}, folder {}: {what}\nit has done:\n{done}", user.folder);
            // At once: the others would go on until the end, and hide it.
            std::process::exit(1)
        })
    };
    thread::scope(|scope| {
        let users: Vec<_> = (0..work.users).map(|number| scope.spawn(move || run_one(number))).collect();
        users.into_iter().for_each(|user| user.join().expect("a user does not panic"));
    });
    let count = answered.load(Ordering::Relaxed).to_string();
    fs::write(&work.count, count).map_err(|e| Trouble::of(work.count.display(), e))
}

/// What an error says of a call. Those that the model does not expect are wrong.
fn ended(error: Errno) -> Ended {
    match error {
        Errno::NOSPC => Ended::Refused,
        Errno::NOTCONN | Errno::CONNABORTED | Errno::IO | Errno::INTR | Errno::TIMEDOUT | Errno::STALE => {
            Ended::Unknown(error)
        }
        error => Ended::Wrong(format!("{error:?}")),
    }
}

impl<'w> User<'w> {
    fn new(work: &'w UsersWork, number: usize, answered: &'w AtomicU64) -> User<'w> {
        let dice = Dice::new(work.seed.wrapping_add(number as u64 + 1));
        User {
            work,
            number,
            dice,
            folders: 0,
            folder: String::new(),
            tree: Tree::default(),
            files: BTreeMap::new(),
            last_file: 0,
            left: Vec::new(),
            answered,
            done: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        self.begin_folder()?;
        while !self.work.end.exists() {
            thread::sleep(Duration::from_micros(self.dice.below(THINKS_US) as u64));
            self.step()?;
        }
        self.leave(Vec::new());
        for left in std::mem::take(&mut self.left) {
            self.folder.clone_from(&left.name);
            self.look_at(left)?;
        }
        Ok(())
    }

    fn say(&mut self, what: String) {
        self.done.push(what);
        if self.done.len() > 400 {
            self.done.drain(..200);
        }
    }

    fn deaths(&self, mount: usize) -> u64 {
        fs::metadata(&self.work.deaths[mount]).map_or(0, |file| file.len())
    }

    fn any_mount(&mut self) -> Through {
        let mount = self.dice.below(self.work.mounts.len());
        Through { mount, deaths: self.deaths(mount) }
    }

    /// The root of a mount, or a folder in it; nothing where none is mounted.
    fn open_folder(&self, mount: usize, folder: Option<&str>) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(&self.work.mounts[mount], flags, Mode::empty())?;
        if fstatfs(&root)?.f_type as u64 != FUSE_MAGIC {
            return Err(Errno::NOTCONN);
        }
        match folder {
            Some(folder) => openat(&root, folder, flags, Mode::empty()),
            None => Ok(root),
        }
    }

    /// Takes a folder that nobody has had.
    fn begin_folder(&mut self) -> Result<(), String> {
        loop {
            self.folders += 1;
            let (through, folder) = (self.any_mount(), format!("user-{}-{}", self.number, self.folders));
            let made = self
                .open_folder(through.mount, None)
                .and_then(|root| mkdirat(&root, &folder, Mode::from_raw_mode(0o755)));
            match made.map_err(ended) {
                Ok(()) => {
                    self.say(format!("mount {}: mkdir {folder}", through.mount));
                    (self.tree, self.files, self.folder) = (Tree::default(), BTreeMap::new(), folder);
                    return Ok(());
                }
                Err(Ended::Wrong(what)) => return Err(format!("mkdir {folder}: {what}")),
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// The folder is used no more. Beside what is known, what may be there by calls without an answer.
    fn leave(&mut self, may_be: Vec<Tree>) {
        let trees = std::iter::once(std::mem::take(&mut self.tree)).chain(may_be).collect();
        let files = std::mem::take(&mut self.files);
        self.left.push(Left { name: self.folder.clone(), trees, files });
    }

    fn step(&mut self) -> Result<(), String> {
        let (through, name) = (self.any_mount(), format!("f{}", self.dice.below(NAMES)));
        let Ok(folder) = self.open_folder(through.mount, Some(&self.folder)).map_err(ended) else {
            // No mount is there, or not in time: nothing was done.
            return Ok(());
        };
        let (known, other) = (self.tree.names.get(&name).copied(), format!("f{}", self.dice.below(NAMES)));
        let draw = self.dice.below(20);
        let done = match (draw, known) {
            (0..9, None) => self.create(&folder, through, &name),
            (0..6, Some(file)) => self.write(&folder, through, &name, file),
            (6, Some(file)) => self.truncate(&folder, through, &name, file),
            (7..11, Some(file)) => self.read(&folder, through, &name, file),
            (11 | 12, Some(file)) => self.rename(&folder, through, (&name, &other), file),
            (13, Some(file)) => self.link(&folder, through, (&name, &other), file),
            (14, Some(_)) => self.unlink(&folder, through, &name),
            (15 | 16, _) => self.list(&folder, through),
            (_, Some(file)) => self.stat(&folder, &name, file),
            (_, None) => miss(&folder, &name),
        };
        match done {
            Ok(()) => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(Ended::Refused | Ended::Unknown(_)) => Ok(()),
            Err(Ended::Wrong(what)) => Err(format!("{name} through mount {}: {what}", through.mount)),
        }
    }

    /// A call that changes names: what there is if it has happened.
    fn change(&mut self, what: String, after: Tree, called: Result<(), Errno>) -> Result<(), Ended> {
        match called.map_err(ended) {
            Ok(()) => {
                self.say(what);
                self.tree = after;
                Ok(())
            }
            Err(Ended::Unknown(error)) => {
                self.say(format!("{what}: {error:?}; another folder from here on"));
                self.leave(vec![after]);
                self.begin_folder()?;
                Err(Ended::Unknown(error))
            }
            Err(Ended::Wrong(error)) => Err(Ended::Wrong(format!("{what}: {error}"))),
            Err(refused) => Err(refused),
        }
    }

    fn create(&mut self, folder: &OwnedFd, through: Through, name: &str) -> Result<(), Ended> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let opened = openat(folder, name, flags, Mode::from_raw_mode(0o644));
        let mut after = self.tree.clone();
        self.last_file += 1;
        let file = self.last_file;
        after.names.insert(name.to_owned(), file);
        self.files.insert(file, Contents::default());
        let called = opened.as_ref().map(drop).map_err(|error| *error);
        self.change(format!("mount {}: create {name}", through.mount), after, called)?;
        if let Ok(opened) = opened
            && self.dice.below(3) > 0
        {
            self.write_to(&File::from(opened), through, name, file)?;
        }
        Ok(())
    }

    fn open(&self, folder: &OwnedFd, name: &str, flags: OFlags) -> Result<File, Ended> {
        let opened = openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty()).map_err(ended);
        opened.map(File::from).map_err(|error| match error {
            Ended::Wrong(what) => Ended::Wrong(format!("open: {what}")),
            // Nothing has changed by it.
            _ => Ended::Refused,
        })
    }

    fn write(&mut self, folder: &OwnedFd, through: Through, name: &str, file: u64) -> Result<(), Ended> {
        if self.files[&file].through().is_some_and(|before| before != through) {
            // What another mount has changed is settled first.
            self.read(folder, through, name, file)?;
        }
        let opened = self.open(folder, name, OFlags::RDWR)?;
        self.write_to(&opened, through, name, file)
    }

    fn write_to(&mut self, opened: &File, through: Through, name: &str, file: u64) -> Result<(), Ended> {
        let at = self.dice.below(FILE_BYTES - WRITE_BYTES);
        let bytes: Vec<u8> = (0..1 + self.dice.below(WRITE_BYTES)).map(|_| self.dice.roll() as u8).collect();
        let written = opened.write_all_at(&bytes, at as u64);
        self.say(format!(
            "mount {}: write {name} at {at}, {} bytes: {written:?}",
            through.mount,
            bytes.len()
        ));
        self.contents(file).write(at, bytes, through, written.is_ok());
        if self.dice.below(3) == 0 {
            self.sync(opened, through, name, file);
        }
        Ok(())
    }

    fn sync(&mut self, opened: &File, through: Through, name: &str, file: u64) {
        let synced = opened.sync_all();
        self.say(format!("mount {}: fsync {name}: {synced:?}", through.mount));
        match synced {
            Ok(()) => {
                let deaths = self.deaths(through.mount);
                self.contents(file).settle(deaths);
            }
            Err(_) => self.contents(file).loosen(),
        }
    }

    fn truncate(&mut self, folder: &OwnedFd, through: Through, name: &str, file: u64) -> Result<(), Ended> {
        if self.files[&file].through().is_some_and(|before| before != through) {
            self.read(folder, through, name, file)?;
        }
        let (opened, size) = (self.open(folder, name, OFlags::RDWR)?, self.dice.below(FILE_BYTES));
        let cut = opened.set_len(size as u64);
        self.say(format!("mount {}: truncate {name} to {size}: {cut:?}", through.mount));
        self.contents(file).truncate(size, through, cut.is_ok());
        Ok(())
    }

    fn contents(&mut self, file: u64) -> &mut Contents {
        self.files.entry(file).or_default()
    }

    fn read(&mut self, folder: &OwnedFd, through: Through, name: &str, file: u64) -> Result<(), Ended> {
        let opened = self.open(folder, name, OFlags::RDONLY)?;
        let Ok(found) = read_all(&opened) else { return Err(Ended::Refused) };
        self.say(format!("mount {}: read {name}: {} bytes", through.mount, found.len()));
        self.judge(file, &found, through.mount).map_err(Ended::Wrong)
    }

    /// Bytes were shown by a mount.
    fn judge(&mut self, file: u64, found: &[u8], mount: usize) -> Result<(), String> {
        let of = self.files[&file].through().map_or(mount, |through| through.mount);
        let deaths = self.deaths(of);
        self.contents(file).judge(found, mount, deaths)
    }

    fn stat(&self, folder: &OwnedFd, name: &str, file: u64) -> Result<(), Ended> {
        let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        let found = found.map_err(ended).map_err(|error| match error {
            Ended::Wrong(what) => Ended::Wrong(format!("stat: {what}")),
            _ => Ended::Refused,
        })?;
        let links = self.tree.names.values().filter(|other| **other == file).count();
        if found.st_nlink as usize != links {
            return Err(Ended::Wrong(format!("{} links, expected {links}", found.st_nlink)));
        }
        let contents = &self.files[&file];
        let lives = contents.through().is_none_or(|through| through.deaths == self.deaths(through.mount));
        let expected = contents.current().len();
        match lives && contents.is_sure() && found.st_size as usize != expected {
            true => Err(Ended::Wrong(format!("{} bytes by stat, expected {expected}", found.st_size))),
            false => Ok(()),
        }
    }

    fn rename(
        &mut self,
        folder: &OwnedFd,
        through: Through,
        (from, to): (&str, &str),
        file: u64,
    ) -> Result<(), Ended> {
        let mut after = self.tree.clone();
        if self.tree.names.get(to) != Some(&file) {
            after.names.remove(from);
            after.names.insert(to.to_owned(), file);
        }
        let called = renameat(folder, from, folder, to);
        self.change(format!("mount {}: rename {from} to {to}", through.mount), after, called)
    }

    fn link(
        &mut self,
        folder: &OwnedFd,
        through: Through,
        (from, to): (&str, &str),
        file: u64,
    ) -> Result<(), Ended> {
        if self.tree.names.contains_key(to) {
            return Err(Ended::Refused);
        }
        let mut after = self.tree.clone();
        after.names.insert(to.to_owned(), file);
        let called = linkat(folder, from, folder, to, AtFlags::empty());
        self.change(format!("mount {}: link {from} to {to}", through.mount), after, called)
    }

    fn unlink(&mut self, folder: &OwnedFd, through: Through, name: &str) -> Result<(), Ended> {
        let mut after = self.tree.clone();
        after.names.remove(name);
        let called = unlinkat(folder, name, AtFlags::empty());
        self.change(format!("mount {}: unlink {name}", through.mount), after, called)
    }

    fn list(&mut self, folder: &OwnedFd, through: Through) -> Result<(), Ended> {
        let Ok(found) = names_in(folder) else { return Err(Ended::Refused) };
        self.say(format!("mount {}: list", through.mount));
        let expected: BTreeSet<String> = self.tree.names.keys().cloned().collect();
        match found == expected {
            true => Ok(()),
            false => Err(Ended::Wrong(format!("the names are {found:?}, expected {expected:?}"))),
        }
    }

    /// Compares a folder that was left with what may be there.
    fn look_at(&mut self, left: Left) -> Result<(), String> {
        self.files = left.files;
        let found = self.find_all(|user, mount| {
            let folder = user.open_folder(mount, Some(&left.name))?;
            names_in(&folder)
        })?;
        let is_this = |tree: &&Tree| tree.names.keys().cloned().collect::<BTreeSet<_>>() == found;
        let may_be: Vec<Tree> = left.trees.iter().filter(is_this).cloned().collect();
        if may_be.is_empty() {
            return Err(format!("the names are {found:?}, and may be {:?}", left.trees));
        }
        for name in found {
            let bytes = self.find_all(|user, mount| {
                let folder = user.open_folder(mount, Some(&left.name))?;
                let opened = openat(&folder, &name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                read_all(&File::from(opened))
            })?;
            let judge = |tree: &Tree| {
                let mut contents = self.files[&tree.names[&name]].clone();
                let deaths = contents.through().map_or(0, |through| self.deaths(through.mount));
                contents.judge(&bytes, usize::MAX, deaths)
            };
            let judged: Vec<Result<(), String>> = may_be.iter().map(judge).collect();
            if let (false, Some(Err(why))) = (judged.iter().any(Result::is_ok), judged.first()) {
                return Err(format!("{name} in the end: {why}"));
            }
        }
        Ok(())
    }

    /// Finds something through any mount, as long as that takes.
    fn find_all<T>(&mut self, find: impl Fn(&User<'w>, usize) -> Result<T, Errno>) -> Result<T, String> {
        let began = Instant::now();
        loop {
            let mount = self.any_mount().mount;
            match find(self, mount) {
                Ok(found) => return Ok(found),
                Err(error) if began.elapsed() > FINDS_WITHIN => return Err(format!("{error:?} in the end")),
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

/// A name is not there.
fn miss(folder: &OwnedFd, name: &str) -> Result<(), Ended> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Ended::Wrong("it is there, and was removed, or never made".to_owned())),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => match ended(error) {
            Ended::Wrong(what) => Err(Ended::Wrong(format!("stat: {what}"))),
            _ => Err(Ended::Refused),
        },
    }
}

fn names_in(folder: &OwnedFd) -> Result<BTreeSet<String>, Errno> {
    let mut names = BTreeSet::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.insert(name);
        }
    }
    Ok(names)
}

fn read_all(opened: &File) -> Result<Vec<u8>, Errno> {
    let mut found = vec![0; FILE_BYTES + WRITE_BYTES];
    let mut length = 0;
    loop {
        let more = opened.read_at(&mut found[length..], length as u64);
        match more.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))? {
            0 => break,
            more => length += more,
        }
    }
    found.truncate(length);
    Ok(found)
}

/// One more death of a mount may follow.
///
/// # Errors
/// If the file cannot be written.
pub fn note_death(deaths: &Path) -> Result<(), Trouble> {
    let grown = fs::OpenOptions::new().create(true).append(true).open(deaths);
    let grown = grown.and_then(|mut file| std::io::Write::write_all(&mut file, b"."));
    grown.map_err(|e| Trouble::of(deaths.display(), e))
}
