//! `volume-repair`: groups whose last up-to-date copies are gone, and what a person can have done about it.
//!
//! It owns the checks before a loss is accepted: nothing that can still serve is declared destroyed, every volume that
//! is touched was named, and what is left was looked at. It never accepts a loss by itself, and never lets a
//! group go on with less before all copies of it that are left were counted.

use crate::inventory::Counted;
use crate::manager::{Manager, State};
use crate::operate::{Outcome, find_entry, refused};
use crate::trouble::count;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiError, ErrorCode, LossInfo, LostCopy, LostGroup, LostRange, Timestamp};
use weft_layout::{blocks_in, group_of, pieces, ranges_in};
use weft_membership::{AcceptLoss, Change, HeldCopy, Reason, Survivor, apply, best_copy, lost_groups};
use weft_rt::now;
use weft_types::limits::{CHUNK_BLOCKS, LOSS_RANGES_MAX};
use weft_types::{
    BLOCK_SIZE, BlockCount, ChunkIndex, DriveId, DriveState, FabricMap, Group, GroupId, Lba, ObjectId, Owner,
    Role, TargetId, Volume, VolumeState, with_causes,
};
use weft_wire::control::Holding;
use weft_wire::data::CLOCK_STEP_US;

/// What a person has said.
pub(crate) struct Wish {
    pub(crate) names: Vec<String>,
    pub(crate) accept_data_loss: bool,
    pub(crate) destroyed: Vec<String>,
    pub(crate) older: Vec<String>,
    pub(crate) dry_run: bool,
}

/// What drives hold of the lost groups, as far as their targets answer.
type Holdings = BTreeMap<(DriveId, GroupId), Holding>;

impl Manager {
    /// Says what is wrong with volumes, and accepts the loss where that was asked for.
    pub(crate) async fn repair_volumes(self: &Rc<Self>, wish: Wish) -> Outcome {
        let map = self.map();
        let volumes: Vec<&Volume> =
            wish.names.iter().map(|name| find_entry(&map, name)).collect::<Result<_, _>>()?;
        let destroyed = whole_drives(&map, &wish.destroyed)?;
        let older = whole_drives(&map, &wish.older)?;
        if let Some(both) = destroyed.intersection(&older).next() {
            let text = format!("drive {both} cannot be destroyed and wanted at the same time");
            return Err(ApiError::new(ErrorCode::Invalid, text));
        }
        // Without a name: groups that hold nothing of any volume, but may be all that a lost drive is still listed in.
        let asked: BTreeSet<GroupId> = match volumes.is_empty() {
            true => {
                map.groups.keys().copied().filter(|g| !map.volumes.values().any(|v| uses(v, *g))).collect()
            }
            false => volumes.iter().flat_map(|v| v.groups()).copied().collect(),
        };
        let of_names = (&wish.names[..], &asked);
        self.check_are_lost(&map, of_names, &destroyed, &older, wish.accept_data_loss)?;
        let gone: BTreeSet<DriveId> = destroyed.union(&older).copied().collect();
        let lost: Vec<&Group> = lost_groups(&map, &gone).collect();
        check_named(&map, &lost, &volumes)?;
        check_are_members(&lost, &gone)?;
        let check_all = || -> Result<(), ApiError> {
            let state = self.state.borrow();
            let gone = destroyed.iter().map(|drive| state.check_is_gone(*drive, &lost, self.started));
            gone.chain(older.iter().map(|drive| state.check_is_older(*drive, &lost))).collect()
        };
        check_all()?;
        let counted = self.inventories(lost.iter().map(|g| g.id).collect()).await;
        let unchanged = self.map().version == map.version;
        if !unchanged {
            let text = "the fabric has changed while its drives were looked at";
            return Err(ApiError::new(ErrorCode::Unavailable, text).with_hint("ask again"));
        }
        // Again, and from here on to the commit nothing happens beside: while the others were looked at, a target may
        // have come back with the very drive, serve it and have acknowledged writes, all without a new map.
        self.check_are_lost(&map, of_names, &destroyed, &older, wish.accept_data_loss)?;
        check_all()?;
        let holdings = holdings_of(&counted);
        let survivors = self.survivors(&map, &lost, &destroyed, &older, &counted, &holdings)?;
        let change = AcceptLoss { destroyed: destroyed.clone(), older: older.clone(), survivors };
        let (next, reason) =
            apply(&map, &Change::AcceptLoss(change.clone())).map_err(|r| refused(&map, r))?;
        let Reason::LossAccepted { ended, .. } = reason else { unreachable!("its reason has this name") };
        let groups: Vec<LostGroup> =
            lost.iter().map(|g| self.describe_loss(&map, &next, g, &destroyed, &holdings)).collect();
        let mut touched: Vec<&Volume> = map.volumes.values().collect();
        touched.retain(|v| lost.iter().any(|g| uses(v, g.id)));
        let (file_systems, touched) = names_of(&touched);
        let info = LossInfo {
            volumes: touched,
            file_systems,
            destroyed: destroyed.iter().copied().collect(),
            older: older.iter().copied().collect(),
            lost_bytes_max: groups.iter().map(|g| g.bytes).sum(),
            groups,
            ended_sessions: ended,
            dry_run: wish.dry_run,
        };
        if !wish.dry_run {
            self.carry_out(&Change::AcceptLoss(change), false)?;
            self.welcome_older(&older);
            // Durable as well: a manager that dies now must not refuse what a person has accepted.
            if let Err(error) = self.keep_commits(Duration::ZERO).await {
                tracing::warn!(error = with_causes(&error), "what was accepted was not kept yet");
            }
            tracing::warn!(?info, "a loss of data was accepted");
        }
        Ok(ApiAnswer::Loss(Box::new(info)))
    }

    /// Refuses unless some of the groups are lost for good once these drives are, and none only for the moment.
    fn check_are_lost(
        &self,
        map: &FabricMap,
        (names, groups): (&[String], &BTreeSet<GroupId>),
        destroyed: &BTreeSet<DriveId>,
        older: &BTreeSet<DriveId>,
        accept: bool,
    ) -> Result<(), ApiError> {
        let state = self.state.borrow();
        let mut absent: BTreeSet<DriveId> = BTreeSet::new();
        let (mut waiting, mut lost) = (0, 0);
        for group in groups.iter().filter_map(|g| map.groups.get(g)).filter(|g| state.good_copies(g) == 0) {
            let is_gone = |d: &DriveId| {
                let declared = map.drives.get(d).is_none_or(|d| d.state == DriveState::Destroyed);
                declared || destroyed.contains(d) || older.contains(d)
            };
            let holders: Vec<DriveId> = group.read_set().filter(|d| !is_gone(d)).collect();
            lost += usize::from(holders.is_empty());
            waiting += usize::from(!holders.is_empty());
            absent.extend(holders);
        }
        if waiting > 0 {
            return Err(state.only_if_gone(names, waiting, &absent, (destroyed, older)));
        }
        if lost == 0 {
            let text =
                "no group that was asked for has lost its last up-to-date copy: there is nothing to accept";
            return Err(ApiError::new(ErrorCode::Refused, text).with_hint(
                "copies that are behind or missing are made again by themselves: see `weft status`",
            ));
        }
        if !accept {
            let text = format!("the last up-to-date copy of {} is lost", count(lost, "group"));
            let hint = "--accept-data-loss --dry-run says what would be lost, and changes nothing";
            return Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint));
        }
        Ok(())
    }

    /// What each group goes on with: the best copy that is left, or a drive that holds nothing of it.
    fn survivors(
        &self,
        map: &FabricMap,
        lost: &[&Group],
        destroyed: &BTreeSet<DriveId>,
        older: &BTreeSet<DriveId>,
        counted: &BTreeMap<TargetId, Result<Counted, String>>,
        holdings: &Holdings,
    ) -> Result<BTreeMap<GroupId, Survivor>, ApiError> {
        let state = self.state.borrow();
        let mut survivors = BTreeMap::new();
        let mut begun: BTreeMap<DriveId, usize> = BTreeMap::new();
        for group in lost {
            let is_declared = |d: DriveId| {
                destroyed.contains(&d) || map.drives.get(&d).is_none_or(|d| d.state == DriveState::Destroyed)
            };
            let left: Vec<DriveId> =
                group.slots.iter().map(|s| s.drive).filter(|d| !is_declared(*d)).collect();
            let absent = left.iter().find(|d| !state.is_served(**d) && !older.contains(d));
            if let Some(absent) = absent {
                let text = format!(
                    "group {} may have a better copy on {}, which does not answer",
                    group.id,
                    describe_drive(map, *absent)
                );
                let hint = format!(
                    "bring it back; if it is gone for good as well, name it too: {}",
                    state.how_to_name(*absent)
                );
                return Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint));
            }
            let unread = left.iter().find(|d| !holdings.contains_key(&(**d, group.id)));
            if let Some(unread) = unread {
                let text = format!(
                    "{} does not say what it holds of group {}",
                    describe_drive(map, *unread),
                    group.id
                );
                return Err(
                    ApiError::new(ErrorCode::Unavailable, text).with_hint("ask again in a few seconds")
                );
            }
            let held = left.iter().filter_map(|d| Some(held_copy(*d, holdings.get(&(*d, group.id))?)));
            let held: Vec<HeldCopy> = held.collect();
            let survivor = match best_copy(&held) {
                Some(drive) => Survivor::Older(drive),
                None => {
                    let free = drives_without(counted, group.id);
                    let fits = |d: &&DriveId| {
                        let listed = map.drives.get(d).filter(|d| d.state == DriveState::Active);
                        listed.is_some_and(|l| l.pool == group.pool) && state.is_served(**d)
                    };
                    // Evenly over the drives that can take it.
                    let drive = free.iter().filter(fits).min_by_key(|d| (begun.get(*d).copied(), **d));
                    let drive = *drive.ok_or_else(|| {
                        let text = format!("no drive in service can begin group {} anew", group.id);
                        ApiError::new(ErrorCode::Refused, text).with_hint("add a drive to the pool first")
                    })?;
                    *begun.entry(drive).or_default() += 1;
                    Survivor::Empty(drive)
                }
            };
            survivors.insert(group.id, survivor);
        }
        Ok(survivors)
    }

    fn describe_loss(
        &self,
        map: &FabricMap,
        next: &FabricMap,
        group: &Group,
        destroyed: &BTreeSet<DriveId>,
        holdings: &Holdings,
    ) -> LostGroup {
        let state = self.state.borrow();
        let survivor = next.groups[&group.id].read_set().next().expect("an accepted loss leaves one");
        let empty = group.slot_of(survivor).is_none();
        let copies = group.slots.iter().map(|slot| {
            let held = holdings.get(&(slot.drive, group.id));
            let clock_ms = |h: &Holding| h.newest.counter().saturating_mul(CLOCK_STEP_US) / 1000;
            LostCopy {
                drive: slot.drive,
                node: node_name(map, slot.drive),
                role: slot.role,
                destroyed: destroyed.contains(&slot.drive),
                present: state.is_served(slot.drive),
                bytes: held.map(|h| h.readable.unwrap_or(h.blocks) * BLOCK_SIZE as u64),
                newest: held.filter(|h| h.chunks > 0).map(|h| Timestamp::from_millis(clock_ms(h))),
            }
        });
        // What a syncing survivor has compared with an up-to-date copy in its stint is up to date.
        let is_syncing = group.slot_of(survivor).is_some_and(|s| s.role == Role::Syncing);
        let good_below =
            holdings.get(&(survivor, group.id)).filter(|_| is_syncing).and_then(|h| h.verified_below);
        let mut lost = LostGroup {
            group: group.id,
            epoch: group.epoch,
            copies: copies.collect(),
            survivor,
            empty,
            ranges: Vec::new(),
            ranges_more: false,
            bytes: 0,
            file_systems: Vec::new(),
        };
        for volume in map.volumes.values().filter(|v| uses(v, group.id)) {
            if volume.is_file_system() {
                lost.file_systems.push(volume.name.clone());
                continue;
            }
            add_ranges(&mut lost, volume, group.id, good_below);
        }
        lost
    }
}

impl Manager {
    /// Takes drives as they are whose loss was accepted: their targets are told to join again.
    fn welcome_older(&self, older: &BTreeSet<DriveId>) {
        let mut state = self.state.borrow_mut();
        state.commits.retain(|drive, _| !older.contains(drive));
        state.commits_kept.1 = true;
    }
}

impl State {
    /// Says that groups wait for drives, and what to say if these and all that were named are gone
    /// for good: the command names every volume that loses data with them, because one that leaves
    /// some out is refused.
    fn only_if_gone(
        &self,
        names: &[String],
        groups: usize,
        absent: &BTreeSet<DriveId>,
        (destroyed, older): (&BTreeSet<DriveId>, &BTreeSet<DriveId>),
    ) -> ApiError {
        let map = &self.map;
        let gone: BTreeSet<DriveId> = absent.union(destroyed).chain(older).copied().collect();
        let lost: Vec<&Group> = lost_groups(map, &gone).collect();
        let mut volumes: Vec<&str> = names.iter().map(String::as_str).collect();
        let others: Vec<&str> = losers(map, &lost).filter(|name| !volumes.contains(name)).collect();
        volumes.extend(&others);
        let held: Vec<String> = absent.iter().map(|d| describe_drive(map, *d)).collect();
        let mut text = format!(
            "the last up-to-date copy of {} is on drives that do not answer: {}",
            count(groups, "group"),
            held.join(", ")
        );
        if !others.is_empty() {
            text.push_str(&format!("; other volumes have data there as well: {}", others.join(", ")));
        }
        let said = destroyed.iter().map(|d| format!("--destroyed {d}"));
        let said = said.chain(older.iter().map(|d| format!("--older {d}")));
        let named: Vec<String> = said.chain(absent.iter().map(|d| self.how_to_name(*d))).collect();
        let volumes: String = volumes.iter().map(|name| format!(" {name}")).collect();
        let hint = format!(
            "bring them back: nothing is lost then. Only if they are gone for good, look at what would be \
             lost: `weft volume repair{volumes} --accept-data-loss --dry-run {}`",
            named.join(" ")
        );
        ApiError::new(ErrorCode::Refused, text).with_hint(hint)
    }

    /// Refuses to take a drive for destroyed that is in service, or could be.
    fn check_is_gone(
        &self,
        drive: DriveId,
        lost: &[&Group],
        started: weft_rt::Instant,
    ) -> Result<(), ApiError> {
        let name = describe_drive(&self.map, drive);
        let target = self.target_of(drive);
        let member = target.and_then(|t| self.members.get(&t));
        let (Some(target), Some(member)) = (target, member) else { return Ok(()) };
        let wait = self.map.durations.lease_wait();
        let is_back = member.suspicion.is_none()
            && member.drives.contains(&drive)
            && !member.failed.contains_key(&drive);
        if is_back {
            let text = format!("{name} is in service: its target is there and has it");
            let hint =
                "it is not destroyed; leave it out of the list, and see `weft status` for what is missing";
            return Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint));
        }
        let due = match (&member.suspicion, member.incarnation) {
            // Its target has stopped to serve it before it said so.
            (None, Some(_)) if member.failed.contains_key(&drive) => return Ok(()),
            (Some(_), _) => Some(member.granted_at.max(started) + wait),
            (None, Some(_)) => Some(member.joined_at + wait),
            (None, None) => None,
        };
        let is_fenced = due.is_some_and(|due| due <= now());
        let later = |why: &str| {
            let text = format!("{name} may still serve: {why}");
            let hint = "ask again in a few seconds: its lease is waited out";
            Err(ApiError::new(ErrorCode::Unavailable, text).with_hint(hint))
        };
        if !is_fenced {
            return later("the lease of its target has not run out for certain");
        }
        // As long as every other member of a write set vouches for it, it needs no lease.
        for group in lost.iter().filter(|g| g.write_set().any(|d| d == drive)) {
            for other in group.write_set().filter(|d| *d != drive && self.target_of(*d) != Some(target)) {
                let peer = self.target_of(other).and_then(|n| self.members.get(&n)).filter(|m| m.is_up());
                if peer.is_some_and(|p| p.promise_due(target, wait).is_none_or(|due| due > now())) {
                    return later("a member that can vouch for it has not promised for long enough not to");
                }
            }
        }
        Ok(())
    }

    /// Whether a drive was refused because it holds less than it should.
    fn is_older(&self, drive: DriveId) -> bool {
        let member = self.target_of(drive).and_then(|t| self.members.get(&t));
        member.is_some_and(|m| m.older.contains(&drive))
    }

    /// The option by which a person gives up what a drive should hold: of one that is there, an older copy of itself,
    /// the data is better than nothing.
    fn how_to_name(&self, drive: DriveId) -> String {
        let option = if self.is_older(drive) { "--older" } else { "--destroyed" };
        format!("{option} {drive}")
    }

    /// Refuses to take a drive for one that holds less than it should, unless it was refused for that.
    fn check_is_older(&self, drive: DriveId, lost: &[&Group]) -> Result<(), ApiError> {
        if self.is_older(drive) {
            let trusts = |g: &&Group| g.write_set().any(|d| d == drive) && !lost.iter().any(|l| l.id == g.id);
            let Some(group) = self.map.groups.values().find(trusts) else { return Ok(()) };
            let text = format!(
                "{} is still being taken out of group {}",
                describe_drive(&self.map, drive),
                group.id
            );
            return Err(ApiError::new(ErrorCode::Unavailable, text).with_hint("ask again in a few seconds"));
        }
        let text = format!("{} was not refused for holding older data", describe_drive(&self.map, drive));
        Err(ApiError::new(ErrorCode::Refused, text).with_hint("see `weft status` for what is wrong with it"))
    }
}

/// Drives by their whole identifiers: what is declared destroyed must not be a slip of the fingers.
fn whole_drives(map: &FabricMap, texts: &[String]) -> Result<BTreeSet<DriveId>, ApiError> {
    let whole = |text: &String| {
        let found = map.drives.keys().find(|d| d.to_string() == text.to_ascii_lowercase());
        found.copied().ok_or_else(|| {
            let text = format!("there is no drive '{}' in the fabric", text.escape_debug());
            let hint = "give the whole identifier of each drive, as `weft drive list --json` shows it";
            ApiError::new(ErrorCode::NotFound, text).with_hint(hint)
        })
    };
    texts.iter().map(whole).collect()
}

/// The volumes that lose something with these groups, by name.
fn losers<'a>(map: &'a FabricMap, lost: &[&Group]) -> impl Iterator<Item = &'a str> {
    let ready = map.volumes.values().filter(|v| v.state == VolumeState::Ready);
    let losers = ready.filter(|v| lost.iter().any(|g| uses(v, g.id)));
    losers.map(|v| v.name.as_str())
}

/// Every volume that loses something must have been named.
fn check_named(map: &FabricMap, lost: &[&Group], named: &[&Volume]) -> Result<(), ApiError> {
    let others: Vec<&str> = losers(map, lost).filter(|name| !named.iter().any(|n| n.name == *name)).collect();
    if others.is_empty() {
        return Ok(());
    }
    let text = format!("other volumes would lose data as well: {}", others.join(", "));
    let hint = "name all volumes whose loss you accept in one command";
    Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint))
}

/// No drive is given up that the groups do not need to have given up.
fn check_are_members(lost: &[&Group], gone: &BTreeSet<DriveId>) -> Result<(), ApiError> {
    let is_member = |d: &&DriveId| lost.iter().any(|g| g.slot_of(**d).is_some());
    match gone.iter().find(|d| !is_member(d)) {
        None => Ok(()),
        Some(drive) => {
            let text = format!("drive {drive} is no member of a group that is lost");
            let hint = "leave it out; `weft drive replace` and `weft drive remove` are for drives that others stand in for";
            Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint))
        }
    }
}

/// Drives that know nothing of a group, as their targets say.
fn drives_without(counted: &BTreeMap<TargetId, Result<Counted, String>>, group: GroupId) -> Vec<DriveId> {
    let drives = counted.values().filter_map(|c| c.as_ref().ok()).flat_map(|c| &c.inventory.drives);
    let without = |d: &&weft_wire::control::DriveInventory| {
        d.failed.is_none() && !d.groups.iter().any(|g| g.group == group)
    };
    drives.filter(without).map(|d| d.id).collect()
}

fn holdings_of(counted: &BTreeMap<TargetId, Result<Counted, String>>) -> Holdings {
    let drives = counted.values().filter_map(|c| c.as_ref().ok()).flat_map(|c| &c.inventory.drives);
    let mut holdings = Holdings::new();
    for drive in drives {
        for held in &drive.groups {
            if let Some(holding) = held.holding {
                holdings.insert((drive.id, held.group), holding);
            }
        }
    }
    holdings
}

/// What a drive holds, for the choice of the best copy. A target of an older release does not say what of
/// it can be read.
fn held_copy(drive: DriveId, held: &Holding) -> HeldCopy {
    let blocks = held.readable.unwrap_or(held.blocks).saturating_add(held.zeroes.unwrap_or(0));
    HeldCopy { drive, blocks, newest: held.newest }
}

/// The names of the file systems among these, and of the volumes.
fn names_of(volumes: &[&Volume]) -> (Vec<String>, Vec<String>) {
    let (file_systems, volumes): (Vec<&Volume>, Vec<&Volume>) =
        volumes.iter().partition(|volume| volume.is_file_system());
    let names = |listed: Vec<&Volume>| listed.into_iter().map(|v| v.name.clone()).collect();
    (names(file_systems), names(volumes))
}

fn uses(volume: &Volume, group: GroupId) -> bool {
    volume.has_group(group)
}

/// Adds the parts of a volume that lie in the group, except what is known to be up to date: the objects below one, and
/// the chunks below one of that.
fn add_ranges(
    lost: &mut LostGroup,
    volume: &Volume,
    group: GroupId,
    good_below: Option<(ObjectId, ChunkIndex)>,
) {
    let is_in = |g: GroupId| g == group;
    // Of the row in which that is so in part, piece by piece. All rows before it are up to date, none behind it is.
    let (parts, rest) = match good_below {
        Some((object, _)) if object > Owner::Volume(volume.id).objects().last => return,
        Some(below) if below.0.owner() == Owner::Volume(volume.id) => parts_of_row(volume, group, below),
        _ => (Vec::new(), Lba(0)),
    };
    let before = Volume { size: BlockCount(rest.0), ..volume.clone() };
    let in_parts: u64 = parts.iter().map(|(_, blocks)| blocks.0).sum();
    let blocks = in_parts + blocks_in(volume, is_in).0 - blocks_in(&before, is_in).0;
    lost.bytes += blocks * BLOCK_SIZE as u64;
    let (runs, more) = ranges_in(volume, rest, is_in, LOSS_RANGES_MAX);
    lost.ranges_more |= more;
    let mut listed = 0;
    for (at, blocks) in parts.into_iter().chain(runs) {
        let (offset_bytes, bytes) = (at.0 * BLOCK_SIZE as u64, blocks.0 * BLOCK_SIZE as u64);
        let last = lost.ranges.last_mut().filter(|r| r.volume == volume.name);
        match last {
            Some(last) if last.offset_bytes + last.bytes == offset_bytes => last.bytes += bytes,
            _ if listed == LOSS_RANGES_MAX => lost.ranges_more = true,
            _ => {
                listed += 1;
                lost.ranges.push(LostRange { volume: volume.name.clone(), offset_bytes, bytes });
            }
        }
    }
}

/// The parts in a group that are not below this object and chunk, of the row that the object is in; in order of address.
/// And where that row ends.
fn parts_of_row(
    volume: &Volume,
    group: GroupId,
    below: (ObjectId, ChunkIndex),
) -> (Vec<(Lba, BlockCount)>, Lba) {
    let (striping, BlockCount(size)) = (&volume.striping, volume.size);
    let width = u64::from(striping.width);
    let row_blocks = width * u64::from(striping.object_blocks);
    let row = below.0.index() / width;
    let begin = row.saturating_mul(row_blocks).min(size);
    let end = begin.saturating_add(row_blocks).min(size);
    let parts = pieces(striping, Lba(begin), end - begin).filter_map(|piece| {
        if group_of(volume, piece.object_index) != Some(group) {
            return None;
        }
        let last_block = piece.range.first + piece.range.count - 1;
        let last = (
            ObjectId::of_volume(volume.id, piece.object_index),
            ChunkIndex((last_block / CHUNK_BLOCKS) as u16),
        );
        (last >= below).then_some((Lba(begin + piece.at), BlockCount(u64::from(piece.range.count))))
    });
    (parts.collect(), Lba(end))
}

fn node_name(map: &FabricMap, drive: DriveId) -> String {
    let node = map.drives.get(&drive).and_then(|d| map.nodes.get(&d.node));
    node.map_or_else(String::new, |n| n.name.clone())
}

/// A drive for people: its name and where it was.
fn describe_drive(map: &FabricMap, id: DriveId) -> String {
    match map.drives.get(&id) {
        Some(drive) => format!("drive {id} ({} on node '{}')", drive.path, node_name(map, id)),
        None => format!("drive {id}"),
    }
}
