//! Checks that the data in groups belong to files that exist, and lie where these files may have data.
//!
//! Groups and shards are asked one after the other, while the file system is in use. So what seems wrong
//! may only have changed in between, and is checked again. A later check can tell, because an inode is
//! removed only after its data, and data lie only before an end that was reserved first.

use crate::error::FsError;
use crate::mount::Mount;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weft_client::{ClientError, DataFrom, FileLayout, InodeData};
use weft_layout::address_of;
use weft_rt::sleep;
use weft_types::limits::{CHUNK_BLOCKS, INODES_ASKED_MAX};
use weft_types::{BLOCK_SIZE, GroupId, InodeNumber, with_causes};
use weft_wire::files::{Answer, DataBounds, Operation};

/// How often something is looked at that seems wrong, and the pause before each look but the first one.
const LOOKS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// Findings that are kept with their words.
const FINDINGS_KEPT: usize = 100;

/// How a check of data stands, or how it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataCheck {
    /// Groups that hold data of files.
    pub groups: usize,
    /// Groups that were compared.
    pub compared: usize,
    /// Inodes with data, counted once for each group.
    pub inodes: u64,
    /// What was found.
    pub found: u64,
    /// The first findings.
    pub findings: Vec<DataFinding>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFinding {
    /// Whose data it is about.
    pub inode: InodeNumber,
    /// What is wrong, for people.
    pub text: String,
}

impl Mount {
    /// Compares what all groups hold with what the shards say; tells how far it has come.
    ///
    /// # Errors
    /// If a shard or a group does not answer, or a server is of a release that cannot do it.
    pub async fn check_data(&self, tell: impl Fn(&DataCheck)) -> Result<DataCheck, FsError> {
        let mut check = DataCheck::default();
        let mut compared = BTreeSet::new();
        // Groups that the file system gets meanwhile are compared as well.
        loop {
            let groups = self.files().groups().map_err(|error| failed(&error))?;
            check.groups = groups.len();
            let Some(group) = groups.into_iter().find(|group| !compared.contains(group)) else { break };
            compared.insert(group);
            let mut next = Some(None);
            while let Some(from) = next {
                tell(&check);
                next = self.check_part(group, from, &mut check).await?.map(Some);
            }
            check.compared += 1;
        }
        Ok(check)
    }

    /// Compares a part of what a group holds; says where the next part begins.
    async fn check_part(
        &self,
        group: GroupId,
        from: Option<DataFrom>,
        check: &mut DataCheck,
    ) -> Result<Option<DataFrom>, FsError> {
        let (runs, next) = self.files().data_in(group, from, None).await.map_err(|error| failed(&error))?;
        let mut by_inode: BTreeMap<InodeNumber, Vec<InodeData>> = BTreeMap::new();
        for run in runs {
            by_inode.entry(InodeNumber(run.inode)).or_default().push(run);
        }
        // One that the part ends with may be in the next one as well.
        let again = next.map(|next| InodeNumber(next.inode)).filter(|inode| by_inode.contains_key(inode));
        check.inodes += by_inode.len() as u64 - u64::from(again.is_some());
        let bounds = self.bounds_of(by_inode.keys().copied().collect()).await?;
        for (inode, runs) in by_inode {
            let bounds = bounds.get(&inode).copied().flatten();
            if self.wrong(group, inode, bounds, &runs)?.is_none() {
                continue;
            }
            if let Some(text) = self.is_wrong_still(group, inode).await? {
                check.found += 1;
                if check.findings.len() < FINDINGS_KEPT {
                    check.findings.push(DataFinding { inode, text });
                }
            }
        }
        Ok(next)
    }

    /// What the shards say of inodes.
    async fn bounds_of(
        &self,
        inodes: BTreeSet<InodeNumber>,
    ) -> Result<BTreeMap<InodeNumber, Option<DataBounds>>, FsError> {
        let mut of_shards: BTreeMap<u16, Vec<InodeNumber>> = BTreeMap::new();
        for inode in inodes.into_iter().filter(|inode| inode.shard() < self.shards()) {
            of_shards.entry(inode.shard()).or_default().push(inode);
        }
        let mut bounds = BTreeMap::new();
        for (shard, inodes) in of_shards {
            for some in inodes.chunks(INODES_ASKED_MAX as usize) {
                match self.ask(shard, Operation::DataOf(some.to_vec())).await? {
                    Answer::DataOf(found) if found.len() == some.len() => {
                        bounds.extend(some.iter().copied().zip(found));
                    }
                    _ => return Err(FsError::OtherAnswer { shard }),
                }
            }
        }
        Ok(bounds)
    }

    /// What is wrong with what a group holds of an inode, if it is so every time that one looks.
    async fn is_wrong_still(&self, group: GroupId, inode: InodeNumber) -> Result<Option<String>, FsError> {
        let mut text = None;
        for look in 0..LOOKS {
            if look > 0 {
                sleep(PAUSE).await;
            }
            let before = self.bounds_of(BTreeSet::from([inode])).await?.get(&inode).copied().flatten();
            let (mut runs, mut next) = (Vec::new(), Some(None));
            while let Some(from) = next {
                let listed = self.files().data_in(group, from, Some(inode.0)).await;
                let (some, more) = listed.map_err(|error| failed(&error))?;
                runs.extend(some);
                next = more.map(Some);
            }
            let after = self.bounds_of(BTreeSet::from([inode])).await?.get(&inode).copied().flatten();
            // A file that is cut off and written again and again has other bounds each time.
            text = if before == after { self.wrong(group, inode, after, &runs)? } else { None };
            if text.is_none() {
                break;
            }
        }
        Ok(text)
    }

    /// What is wrong with some of an inode's data in a group.
    fn wrong(
        &self,
        group: GroupId,
        inode: InodeNumber,
        bounds: Option<DataBounds>,
        runs: &[InodeData],
    ) -> Result<Option<String>, FsError> {
        if runs.is_empty() {
            return Ok(None);
        }
        let Some(DataBounds { layout, end }) = bounds else {
            let blocks: u64 = runs.iter().map(|run| u64::from(run.blocks.count)).sum();
            let most = blocks * BLOCK_SIZE as u64;
            return Ok(Some(format!(
                "inode {inode} is not there, and has up to {most} bytes in group {group}"
            )));
        };
        let layout = match FileLayout::decode(&layout) {
            Ok(layout) => layout,
            Err(error) => return Ok(Some(format!("inode {inode}: {}", with_causes(&error)))),
        };
        let file = self.files().file(inode.0, layout).map_err(|error| failed(&error))?;
        for run in runs {
            let belongs =
                self.files().group_of(layout.set, inode.0, run.object).map_err(|error| failed(&error))?;
            if belongs != Some(group) {
                let text = format!("object {} of inode {inode} is in group {group}", run.object);
                return Ok(Some(match belongs {
                    Some(belongs) => format!("{text}, not in {belongs}"),
                    None => format!("{text}, its layout names set {}, which is not there", layout.set),
                }));
            }
            // The last chunk of the run begins with its lowest address.
            let block = (run.blocks.end() - 1) / CHUNK_BLOCKS * CHUNK_BLOCKS;
            let address = address_of(&file.striping(), run.object.into(), block);
            let begins = address.and_then(|at| at.0.checked_mul(BLOCK_SIZE as u64));
            if begins.is_none_or(|begins| begins >= end) {
                let text = format!("inode {inode} has data in object {} of group {group}", run.object);
                return Ok(Some(format!("{text}, and none should lie at or behind byte {end}")));
            }
        }
        Ok(None)
    }
}

fn failed(error: &ClientError) -> FsError {
    FsError::Data { path: "/".into(), error: with_causes(error).into() }
}
