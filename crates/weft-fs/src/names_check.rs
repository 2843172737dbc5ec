//! Checks what is in the tables of all shards: each shard compares its own, and what they say of each other
//! is compared here (F3).
//!
//! Shards are read one after the other, while the file system is in use. So a name that moves may be read
//! twice or not at all. Each change of a name raises the revision of its inode, and before another shard
//! makes its part of the change the inode is locked. So an inode whose names seem wrong is asked what it
//! says, all shards are read again, and the inode is asked again. What seems wrong then is wrong if both
//! answers are the same and no transaction has it locked.

use crate::error::FsError;
use crate::mount::Mount;
use std::collections::BTreeMap;
use std::time::Duration;
use weft_rt::{random_u64, sleep};
use weft_types::InodeNumber;
use weft_types::limits::INODES_ASKED_MAX;
use weft_wire::files::{Answer, CheckFinding, FileError, InodeNames, NameAcross, Operation, TableCheck};

/// How often all shards are read at most.
const READ_AT_MOST: u32 = 4;

/// The largest number of inodes that are asked what they say of their names.
const ASKED_AT_MOST: usize = 8 * INODES_ASKED_MAX as usize;

/// Findings that are kept with their words.
const FINDINGS_KEPT: usize = 100;

/// The pauses before a shard is asked again how its check stands: the first one and the longest.
const LOOKS_FIRST: Duration = Duration::from_millis(2);
const LOOKS_LONGEST: Duration = Duration::from_millis(200);

/// What a check of tables has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesCheck {
    /// What each shard says of its own tables.
    pub shards: Vec<(u16, TableCheck)>,
    /// What the shards say of each other that is wrong.
    pub found: u64,
    /// The first of these findings.
    pub findings: Vec<CheckFinding>,
    /// Inodes with names in several shards that were changed all the time, so that nothing can be said of
    /// these names.
    pub unsettled: u64,
}

/// What all shards say of an inode with a name in another shard than its own.
#[derive(Clone, Copy, Default)]
struct Across {
    /// Names that its own shard does not have.
    lacks: u32,
    /// What its shard says of it, if it lacks names there.
    own: Option<NameAcross>,
    /// Names in other shards.
    names: u32,
    /// One of the shards that have such names, and what it says.
    other: Option<NameAcross>,
}

impl Across {
    /// Whether the shards contradict each other, as far as can be seen from what they said.
    fn seems_wrong(&self) -> bool {
        let (Some(own), Some(other)) = (self.own, self.other) else { return true };
        let says_directory = own.directory != InodeNumber(0) && self.names == 1;
        self.lacks != self.names
            || own.kind != other.kind
            || (says_directory && own.directory != other.directory)
    }

    /// What is wrong, if an inode has said this all the time.
    fn wrong(&self, inode: InodeNumber, says: Option<&InodeNames>) -> Option<String> {
        let other = self.other.map(|other| format!("directory {}", other.directory));
        let place = other.unwrap_or_else(|| "other shards".into());
        let Some(says) = says else {
            return (self.names > 0)
                .then(|| format!("a name in {place} is of inode {inode}, which is not there"));
        };
        if self.lacks != self.names {
            let found = says.names.saturating_sub(self.lacks) + self.names;
            return Some(format!(
                "inode {inode} says that it has {} names, {found} are there: {} of them in other shards",
                says.names, self.names
            ));
        }
        let other = self.other?;
        if other.kind != says.kind {
            return Some(format!(
                "a name in {place} says that inode {inode} is {:?}, it is {:?}",
                other.kind, says.kind
            ));
        }
        let has_other =
            says.directory != InodeNumber(0) && says.names == 1 && says.directory != other.directory;
        has_other.then(|| {
            format!("inode {inode} says that its only name is in {}, it is in {place}", says.directory)
        })
    }
}

impl Mount {
    /// Has these shards check what is in their tables. If these are all shards, what they say of each other
    /// is compared as well. `tell` hears how the check of a shard stands, and whether it is this one: a shard
    /// may have another one to carry out first.
    ///
    /// # Errors
    /// If a shard does not answer, or its server is of a release that cannot do it.
    pub async fn check_names(
        &self,
        shards: &[u16],
        tell: impl Fn(u16, &TableCheck, bool),
    ) -> Result<NamesCheck, FsError> {
        let mut check = NamesCheck::default();
        let is_across = self.is_spread() && shards.len() == usize::from(self.shards());
        let mut said: BTreeMap<InodeNumber, Option<InodeNames>> = BTreeMap::new();
        for read in 1..=READ_AT_MOST {
            let mut numbers = Vec::new();
            check.shards.clear();
            for shard in shards {
                let number = random_u64();
                check.shards.push((*shard, self.check_one(*shard, number, &tell).await?));
                numbers.push((*shard, number));
            }
            if !is_across {
                return Ok(check);
            }
            let Some(mut suspects) = self.across(&numbers).await? else {
                if read == READ_AT_MOST {
                    return Err(FsError::CheckForgotten { times: read });
                }
                said.clear();
                continue;
            };
            suspects.retain(|_, across| across.seems_wrong());
            let asked: Vec<InodeNumber> = suspects.keys().copied().take(ASKED_AT_MOST).collect();
            let says = self.names_of(&asked).await?;
            for (inode, across) in &suspects {
                let (Some(before), Some(now)) = (said.get(inode), says.get(inode)) else { continue };
                let is_settled = before == now && !now.is_some_and(|now| now.is_locked);
                if let Some(text) = across.wrong(*inode, now.as_ref()).filter(|_| is_settled) {
                    check.found += 1;
                    if check.findings.len() < FINDINGS_KEPT {
                        check.findings.push(CheckFinding { inode: *inode, text });
                    }
                }
            }
            check.unsettled = suspects.len() as u64;
            if suspects.is_empty() || check.found > 0 || read == READ_AT_MOST {
                break;
            }
            said = says;
        }
        check.unsettled -= check.found;
        Ok(check)
    }

    /// Has one shard check itself, and waits until that is over.
    async fn check_one(
        &self,
        shard: u16,
        number: u64,
        tell: &impl Fn(u16, &TableCheck, bool),
    ) -> Result<TableCheck, FsError> {
        let mut pause = LOOKS_FIRST;
        loop {
            let check = match self.ask(shard, Operation::Check(number)).await? {
                Answer::Check(check) => check,
                _ => return Err(FsError::OtherAnswer { shard }),
            };
            if check.number == number && check.is_over {
                return Ok(check);
            }
            tell(shard, &check, check.number == number);
            sleep(pause).await;
            pause = (2 * pause).min(LOOKS_LONGEST);
        }
    }

    /// What the checks of these numbers have seen of inodes with names in other shards than their own. `None`
    /// if a shard's server knows nothing of its check: another server has taken over, or another check has
    /// ended since.
    async fn across(&self, checks: &[(u16, u64)]) -> Result<Option<BTreeMap<InodeNumber, Across>>, FsError> {
        let mut all: BTreeMap<InodeNumber, Across> = BTreeMap::new();
        for (shard, number) in checks {
            let mut after = InodeNumber(0);
            loop {
                let found = match self.ask(*shard, Operation::Across(*number, after)).await? {
                    Answer::Across(found) => found,
                    Answer::Failed(FileError::NotFound) => return Ok(None),
                    _ => return Err(FsError::OtherAnswer { shard: *shard }),
                };
                for name in &found.names {
                    let of_inode = all.entry(name.inode).or_default();
                    match name.inode.shard() == *shard {
                        true => (of_inode.lacks, of_inode.own) = (name.names, Some(*name)),
                        false => {
                            of_inode.names += name.names;
                            of_inode.other = Some(*name);
                        }
                    }
                }
                match found.names.last() {
                    Some(last) if !found.is_end => after = last.inode,
                    _ => break,
                }
            }
        }
        Ok(Some(all))
    }

    /// What inodes say of their names; nothing of those that are not there.
    async fn names_of(
        &self,
        inodes: &[InodeNumber],
    ) -> Result<BTreeMap<InodeNumber, Option<InodeNames>>, FsError> {
        let mut names = BTreeMap::new();
        for of_shard in inodes.chunk_by(|a, b| a.shard() == b.shard()) {
            let shard = of_shard[0].shard();
            if shard >= self.shards() {
                names.extend(of_shard.iter().map(|inode| (*inode, None)));
                continue;
            }
            for some in of_shard.chunks(INODES_ASKED_MAX as usize) {
                match self.ask(shard, Operation::NamesOf(some.to_vec())).await? {
                    Answer::NamesOf(found) if found.len() == some.len() => {
                        names.extend(some.iter().copied().zip(found));
                    }
                    _ => return Err(FsError::OtherAnswer { shard }),
                }
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::FileKind;

    const INODE: InodeNumber = InodeNumber::new(1, 5);
    const HOME: InodeNumber = InodeNumber::new(2, 7);

    fn name(names: u32, directory: InodeNumber, kind: FileKind) -> NameAcross {
        NameAcross { inode: INODE, names, directory, kind }
    }

    fn says(names: u32, directory: InodeNumber) -> InodeNames {
        InodeNames { names, directory, kind: FileKind::Directory, revision: 3, is_locked: false }
    }

    /// A directory whose name is in another shard.
    fn moved() -> Across {
        let own = Some(name(1, HOME, FileKind::Directory));
        Across { lacks: 1, own, names: 1, other: own }
    }

    #[test]
    fn shards_that_agree_are_not_wrong() {
        assert!(!moved().seems_wrong());
        assert_eq!(moved().wrong(INODE, Some(&says(1, HOME))), None);
        let file = Some(name(2, InodeNumber(0), FileKind::Regular));
        assert!(!Across { lacks: 2, own: file, names: 2, other: file }.seems_wrong());
    }

    #[test]
    fn each_contradiction_is_said() {
        let finding = |across: Across, says: Option<InodeNames>| {
            assert!(across.seems_wrong());
            across.wrong(INODE, says.as_ref()).expect("it is wrong")
        };
        let lost = Across { names: 0, other: None, ..moved() };
        assert!(finding(lost, Some(says(1, HOME))).contains("has 1 names, 0 are there"));
        let twice = Across { names: 2, ..moved() };
        assert!(finding(twice, Some(says(1, HOME))).contains("has 1 names, 2 are there: 2 of them in other"));
        let unknown = Across { lacks: 0, own: None, ..moved() };
        assert!(finding(unknown, None).ends_with("which is not there"));
        assert!(finding(unknown, Some(says(0, HOME))).contains("has 0 names, 1 are there"));
        let file = Across { other: Some(name(1, HOME, FileKind::Regular)), ..moved() };
        assert!(finding(file, Some(says(1, HOME))).contains("is Regular, it is Directory"));
        let root = InodeNumber::ROOT;
        let astray = Across { other: Some(name(1, root, FileKind::Directory)), ..moved() };
        assert!(finding(astray, Some(says(1, HOME))).contains("it is in directory 1"));
    }
}
