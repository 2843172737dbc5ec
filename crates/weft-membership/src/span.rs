//! The groups of a new span of a volume.
//!
//! It owns how volumes share lists of groups: a span is a window of a group table, and a table is made where
//! no table has such a window, or where there are groups that no table lists. So a pool has about as many
//! tables as its groups fill, however many volumes it has.

use crate::Refusal;
use crate::change::take_id;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use weft_layout::{GroupLoad, span_groups};
use weft_types::limits::SPAN_GROUPS_MAX;
use weft_types::{
    FabricMap, GroupId, GroupTable, GroupTableId, PoolId, Protection, SpanGroups, TableWindow, Volume,
};

/// The groups of a new span.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SpanPlan {
    /// A window of a table that exists.
    Window(TableWindow),
    /// A table that is made, with the next free number behind those of the groups that are made. The span has
    /// the table's first groups.
    NewTable {
        /// The groups of the table.
        groups: Vec<GroupId>,
        /// How many of them the span has.
        count: u32,
    },
}

impl SpanPlan {
    /// The span for a number of objects. `offered` are the groups of the pool that can be used, in the order
    /// of their numbers. The span has one group for each object, as far as there are groups, and the least
    /// loaded ones.
    pub(crate) fn choose(map: &FabricMap, offered: &[GroupId], objects: u64) -> SpanPlan {
        let board = Board::of(map, offered);
        let most = offered.len().min(SPAN_GROUPS_MAX);
        let wanted = usize::try_from(objects).unwrap_or(usize::MAX).clamp(1, most.max(1));
        let unlisted = board.unlisted();
        let least = unlisted.iter().map(|id| board.load(*id)).min();
        // Groups that no table lists are used where they are less loaded than what the window has on average.
        let is_better = |load: u128| least.is_none_or(|least| load <= u128::from(least) * wanted as u128);
        match board.best_window(map, wanted) {
            Some((window, load)) if is_better(load) => SpanPlan::Window(window),
            _ => {
                let groups = table_groups(map, &board, offered, unlisted, most);
                SpanPlan::NewTable { groups, count: wanted as u32 }
            }
        }
    }

    /// Puts the table into the map, if one is to be made, and gives the groups of the span.
    pub(crate) fn carry_out(
        &self,
        map: &mut FabricMap,
        pool: PoolId,
        protection: Protection,
    ) -> Result<SpanGroups, Refusal> {
        let elsewhere = |found: String| Err(Refusal::PlannedElsewhere { found });
        let (table, window) = match self {
            SpanPlan::Window(window) => match map.group_tables.get(&window.table) {
                Some(table) => (table.clone(), *window),
                None => return elsewhere(format!("there is no table {}", window.table)),
            },
            SpanPlan::NewTable { groups, count } => {
                check_groups(map, pool, protection, groups)?;
                let id = GroupTableId(take_id(map));
                let table = Arc::new(GroupTable::new(id, groups));
                map.group_tables.insert(id, table.clone());
                (table, TableWindow { table: id, first: 0, count: *count })
            }
        };
        let Some(groups) = SpanGroups::of_table(&table, window) else {
            let (first, count) = (window.first, window.count);
            let has = table.groups().len();
            return elsewhere(format!("{count} groups from {first} of {}, which has {has}", window.table));
        };
        check_groups(map, pool, protection, &groups)?;
        Ok(groups)
    }
}

/// Checks the groups of a table or a span: some, not too many, each once, of the pool and with the copies.
fn check_groups(
    map: &FabricMap,
    pool: PoolId,
    protection: Protection,
    groups: &[GroupId],
) -> Result<(), Refusal> {
    let elsewhere = |found: String| Err(Refusal::PlannedElsewhere { found });
    if groups.is_empty() || groups.len() > SPAN_GROUPS_MAX {
        return elsewhere(format!("a span of {} groups, expected 1 to {SPAN_GROUPS_MAX}", groups.len()));
    }
    if groups.iter().collect::<BTreeSet<_>>().len() != groups.len() {
        return elsewhere("a span that lists a group twice".to_owned());
    }
    for id in groups {
        match map.groups.get(id) {
            Some(g) if g.pool == pool && map.copies_of(g) == protection.members() => {}
            _ => return elsewhere(format!("{id} is no group of pool {pool} with {protection}")),
        }
    }
    Ok(())
}

/// The groups of a new table: first those that no table lists, then the least loaded of the others.
fn table_groups(
    map: &FabricMap,
    board: &Board<'_>,
    offered: &[GroupId],
    mut unlisted: Vec<GroupId>,
    most: usize,
) -> Vec<GroupId> {
    if unlisted.len() < most {
        let new: HashSet<GroupId> = unlisted.iter().copied().collect();
        let mut others: Vec<GroupId> = offered.iter().copied().filter(|id| !new.contains(id)).collect();
        others.sort_by_key(|id| (board.load(*id), *id));
        unlisted.extend(others.into_iter().take(most - new.len()));
    }
    let load = |id: GroupId| GroupLoad {
        id,
        drives: map.groups.get(&id).map_or_else(Vec::new, |group| map.staying(group).collect()),
        load: board.load(id),
    };
    let groups: Vec<GroupLoad> = unlisted.into_iter().map(load).collect();
    span_groups(&groups, most)
}

/// What placement knows of each group that is offered.
struct Board<'a> {
    /// The groups, by number.
    ids: &'a [GroupId],
    /// As many.
    places: Vec<Place>,
}

#[derive(Clone, Copy, Default)]
struct Place {
    /// The blocks of objects that volumes have been promised in it.
    load: u64,
    /// Whether a table lists it.
    is_listed: bool,
}

impl Board<'_> {
    /// Costs what volumes and tables there are, and the groups of spans with lists of their own.
    fn of<'a>(map: &FabricMap, offered: &'a [GroupId]) -> Board<'a> {
        debug_assert!(offered.is_sorted());
        let mut board = Board { ids: offered, places: vec![Place::default(); offered.len()] };
        let mut tables: HashMap<GroupTableId, TableLoad> = HashMap::new();
        for volume in map.volumes.values() {
            let object_blocks = promised_of_object(volume);
            for span in &volume.spans {
                let groups = (span.groups.len() as u64).max(1);
                // Each has as many objects, and the first of them one more.
                let (each, further) = (span.count / groups, (span.count % groups) as usize);
                if let Some((table, window)) = span.groups.window() {
                    let (first, count) = (window.first as usize, window.count as usize);
                    let load = tables.entry(table.id).or_insert_with(|| TableLoad::empty(table));
                    load.add(first, count, each.saturating_mul(object_blocks));
                    load.add(first, further, object_blocks);
                    continue;
                }
                for (i, group) in span.groups.iter().enumerate() {
                    let objects = each + u64::from(i < further);
                    board.note(*group, |place| place.add(objects.saturating_mul(object_blocks)));
                }
            }
        }
        for table in map.group_tables.values() {
            let blocks = tables.get(&table.id).map(TableLoad::blocks).unwrap_or_default();
            for (at, group) in table.groups().iter().enumerate() {
                board.note(*group, |place| {
                    place.is_listed = true;
                    place.add(blocks.get(at).copied().unwrap_or(0));
                });
            }
        }
        board
    }

    /// Where the group is among those that are offered. Most of a pool's groups were made together, so their
    /// numbers follow each other.
    fn at(&self, group: GroupId) -> Option<usize> {
        let guess = group.0.checked_sub(self.ids.first()?.0).and_then(|at| usize::try_from(at).ok())?;
        match self.ids.get(guess) == Some(&group) {
            true => Some(guess),
            false => self.ids.binary_search(&group).ok(),
        }
    }

    fn note(&mut self, group: GroupId, note: impl FnOnce(&mut Place)) {
        if let Some(at) = self.at(group) {
            note(&mut self.places[at]);
        }
    }

    fn load(&self, group: GroupId) -> u64 {
        self.at(group).map_or(0, |at| self.places[at].load)
    }

    /// The groups that no table lists.
    fn unlisted(&self) -> Vec<GroupId> {
        let places = self.ids.iter().zip(&self.places);
        places.filter(|(_, place)| !place.is_listed).map(|(id, _)| *id).collect()
    }

    /// Of the windows with `count` groups, all of them offered, the one with the least load in sum; and that
    /// sum.
    fn best_window(&self, map: &FabricMap, count: usize) -> Option<(TableWindow, u128)> {
        let mut best: Option<(TableWindow, u128)> = None;
        for table in map.group_tables.values().filter(|table| table.groups().len() >= count) {
            let load = |id: &GroupId| self.at(*id).map(|at| self.places[at].load);
            let loads: Vec<Option<u64>> = table.groups().iter().map(load).collect();
            let load = |at: usize| u128::from(loads[at % loads.len()].unwrap_or(0));
            let is_out = |at: usize| usize::from(loads[at % loads.len()].is_none());
            let mut sum: u128 = (0..count).map(load).sum();
            let mut out: usize = (0..count).map(is_out).sum();
            for first in 0..loads.len() {
                if out == 0 && best.is_none_or(|(_, least)| sum < least) {
                    let window = TableWindow { table: table.id, first: first as u32, count: count as u32 };
                    best = Some((window, sum));
                }
                sum = sum - load(first) + load(first + count);
                out = out - is_out(first) + is_out(first + count);
            }
        }
        best
    }
}

/// The blocks that each object of a volume counts with. System volumes take little of their size, so of a
/// terabyte a gigabyte counts: enough for shards to go to different groups.
fn promised_of_object(volume: &Volume) -> u64 {
    const SYSTEM_SHARE: u64 = 1024;
    let blocks = u64::from(volume.striping.object_blocks);
    if volume.system_of().is_some() { blocks / SYSTEM_SHARE } else { blocks }
}

impl Place {
    fn add(&mut self, blocks: u64) {
        self.load = self.load.saturating_add(blocks);
    }
}

/// The blocks that windows of one table were promised, as differences from one group to the next.
struct TableLoad {
    /// Of the groups twice, one list behind the other, as windows go.
    steps: Vec<i128>,
}

impl TableLoad {
    fn empty(table: &GroupTable) -> TableLoad {
        TableLoad { steps: vec![0; 2 * table.groups().len() + 1] }
    }

    /// Adds `blocks` to each of the `count` groups of a window.
    fn add(&mut self, first: usize, count: usize, blocks: u64) {
        self.steps[first] += i128::from(blocks);
        self.steps[first + count] -= i128::from(blocks);
    }

    /// The blocks of each group, in the table's order.
    fn blocks(&self) -> Vec<u64> {
        let mut sum = 0;
        let all: Vec<i128> = self
            .steps
            .iter()
            .map(|step| {
                sum += step;
                sum
            })
            .collect();
        let groups = self.steps.len() / 2;
        (0..groups).map(|i| u64::try_from(all[i] + all[groups + i]).unwrap_or(u64::MAX)).collect()
    }
}

/// Removes the tables of a volume that is gone, as far as no other one names them.
pub(crate) fn drop_tables(map: &mut FabricMap, named: impl IntoIterator<Item = GroupTableId>) {
    for id in named.into_iter().collect::<BTreeSet<_>>() {
        if !is_used(map, id) {
            map.group_tables.remove(&id);
        }
    }
}

/// Whether a volume names a window of the table.
pub(crate) fn is_used(map: &FabricMap, table: GroupTableId) -> bool {
    map.volumes.values().flat_map(|volume| volume.group_tables()).any(|used| used.id == table)
}
