//! Lists of groups that volumes share.
//!
//! A pool has thousands of groups, and a volume lists hundreds of them. Many volumes of one pool list the
//! same ones in the same order, or a part of them. Such a list is a piece of the map of its own, a group
//! table, and a volume names a window of it.

use super::{Drive, ObjectSpan, Volume};
use crate::{DeviceId, GroupId, GroupTableId, Table};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;

/// A list of groups that volumes name windows of. It never changes: one that is to be different is another
/// one.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupTable {
    /// Its number.
    pub id: GroupTableId,
    /// The groups twice, one list behind the other, so that each window is a slice.
    ring: Vec<GroupId>,
}

impl GroupTable {
    /// A table of at most [`SPAN_GROUPS_MAX`](crate::limits::SPAN_GROUPS_MAX) groups of one pool with one
    /// protection, each once. Neighbours are on different drives as far as possible; the last one and the
    /// first one are neighbours.
    pub fn new(id: GroupTableId, groups: &[GroupId]) -> GroupTable {
        GroupTable { id, ring: [groups, groups].concat() }
    }

    /// The groups in their order.
    pub fn groups(&self) -> &[GroupId] {
        &self.ring[..self.ring.len() / 2]
    }

    /// The groups of a window, if it is one of this table.
    fn window(&self, window: TableWindow) -> Option<&[GroupId]> {
        let (first, count) = (window.first as usize, window.count as usize);
        let is_one = window.table == self.id && first < self.groups().len();
        let is_one = is_one && (1..=self.groups().len()).contains(&count);
        is_one.then(|| &self.ring[first..first + count])
    }
}

impl fmt::Debug for GroupTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.id)?;
        f.debug_list().entries(self.groups()).finish()
    }
}

/// The tables of a map.
pub type GroupTables = Table<GroupTableId, Arc<GroupTable>>;

/// Neighbouring groups in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct TableWindow {
    /// The table.
    pub table: GroupTableId,
    /// The place of the first one, from 0.
    pub first: u32,
    /// How many, from 1 to as many as the table has. After the last one of the table comes its first.
    pub count: u32,
}

/// The groups of a span, as a slice: a window of a table, or a list of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct SpanGroups(Held);

#[derive(Clone, PartialEq, Eq)]
enum Held {
    Own(Arc<[GroupId]>),
    /// The window is one of the table.
    Shared(Arc<GroupTable>, TableWindow),
}

impl SpanGroups {
    /// A window of a table; nothing if the table has no such window.
    pub fn of_table(table: &Arc<GroupTable>, window: TableWindow) -> Option<SpanGroups> {
        table.window(window)?;
        Some(SpanGroups(Held::Shared(table.clone(), window)))
    }

    /// The window of a table that it is, with the table; nothing for a list of its own.
    pub fn window(&self) -> Option<(&Arc<GroupTable>, TableWindow)> {
        match &self.0 {
            Held::Own(_) => None,
            Held::Shared(table, window) => Some((table, *window)),
        }
    }

    /// As a piece has it.
    pub(super) fn named(&self) -> NamedGroups {
        match &self.0 {
            Held::Own(groups) => NamedGroups::Own(groups.clone()),
            Held::Shared(_, window) => NamedGroups::Window(*window),
        }
    }
}

impl Deref for SpanGroups {
    type Target = [GroupId];

    fn deref(&self) -> &[GroupId] {
        match &self.0 {
            Held::Own(groups) => groups,
            Held::Shared(table, window) => table.window(*window).unwrap_or_default(),
        }
    }
}

impl fmt::Debug for SpanGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Held::Shared(_, window) = &self.0 {
            write!(f, "{} from {}: ", window.table, window.first)?;
        }
        f.debug_list().entries(self.iter()).finish()
    }
}

impl From<Vec<GroupId>> for SpanGroups {
    fn from(groups: Vec<GroupId>) -> Self {
        SpanGroups(Held::Own(groups.into()))
    }
}

impl FromIterator<GroupId> for SpanGroups {
    fn from_iter<I: IntoIterator<Item = GroupId>>(groups: I) -> Self {
        SpanGroups(Held::Own(groups.into_iter().collect()))
    }
}

impl<'a> IntoIterator for &'a SpanGroups {
    type Item = &'a GroupId;
    type IntoIter = slice::Iter<'a, GroupId>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The groups of a span, as a piece has them: what a window lists is known only beside its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedGroups {
    /// A list of its own.
    Own(Arc<[GroupId]>),
    /// A window of a table.
    Window(TableWindow),
}

impl NamedGroups {
    /// The groups, by these tables; the window itself where there is no such table, or it has no such window.
    pub(super) fn found_in(self, tables: &GroupTables) -> Result<SpanGroups, TableWindow> {
        match self {
            NamedGroups::Own(groups) => Ok(SpanGroups(Held::Own(groups))),
            NamedGroups::Window(window) => {
                let table = tables.get(&window.table).ok_or(window)?;
                SpanGroups::of_table(table, window).ok_or(window)
            }
        }
    }
}

impl<G> Volume<G> {
    /// The volume with other groups in its lists, each made of what is there.
    pub(super) fn with_groups<H, E>(self, groups: impl Fn(G) -> Result<H, E>) -> Result<Volume<H>, E> {
        let span = |span: ObjectSpan<G>| {
            Ok(ObjectSpan { first: span.first, count: span.count, groups: groups(span.groups)? })
        };
        Ok(Volume {
            spans: self.spans.into_iter().map(span).collect::<Result<_, _>>()?,
            kind: self.kind.with_groups(&groups)?,
            id: self.id,
            name: self.name,
            pool: self.pool,
            size: self.size,
            protection: self.protection,
            striping: self.striping,
            generation: self.generation,
            state: self.state,
            thin: self.thin,
            created_ms: self.created_ms,
        })
    }

    /// The lists of groups that hold its objects: those of its spans, or the sets of a file system.
    pub fn lists(&self) -> impl Iterator<Item = &G> {
        self.spans.iter().map(|span| &span.groups).chain(self.kind.sets())
    }

    fn lists_mut(&mut self) -> impl Iterator<Item = &mut G> {
        self.spans.iter_mut().map(|span| &mut span.groups).chain(self.kind.sets_mut())
    }
}

impl Volume {
    /// The volume as a piece has it.
    pub fn named(&self) -> Volume<NamedGroups> {
        let named: Result<_, std::convert::Infallible> =
            self.clone().with_groups(|groups| Ok(groups.named()));
        match named {
            Ok(volume) => volume,
        }
    }

    /// The tables that its lists are windows of.
    pub fn group_tables(&self) -> impl Iterator<Item = &Arc<GroupTable>> {
        self.lists().filter_map(SpanGroups::window).map(|(table, _)| table)
    }

    /// The groups that hold its objects, in the order of its lists; some of them more than once.
    pub fn groups(&self) -> impl Iterator<Item = &GroupId> {
        self.lists().flat_map(|groups| groups.iter())
    }

    /// Whether a group holds objects of it.
    pub fn has_group(&self, group: GroupId) -> bool {
        self.lists().any(|groups| groups.contains(&group))
    }
}

/// A list of groups, and the volumes with a span or a set that is it.
#[derive(Clone, Debug)]
pub struct GroupList<'a> {
    /// The groups. A set of a file system may name one several times.
    pub groups: &'a [GroupId],
    /// The volumes, each once for every such span or set.
    pub volumes: Vec<&'a Volume>,
}

impl super::FabricMap {
    /// The lists of groups that spans and sets have, each with its volumes: a list that volumes share is
    /// there once. So what is asked of groups costs what differs, and not what each volume lists.
    pub fn group_lists(&self) -> Vec<GroupList<'_>> {
        let mut lists: Vec<GroupList<'_>> = Vec::new();
        let mut places: HashMap<TableWindow, usize> = HashMap::new();
        for volume in self.volumes.values() {
            for groups in volume.lists() {
                let place = match groups.window() {
                    Some((_, window)) => *places.entry(window).or_insert(lists.len()),
                    None => lists.len(),
                };
                if place == lists.len() {
                    lists.push(GroupList { groups, volumes: Vec::new() });
                }
                lists[place].volumes.push(volume);
            }
        }
        lists
    }

    /// The map as a reader of an earlier release can have it: each span has a list of its own, attaches have
    /// no numbers, and drives no devices. File systems are left out with their system volumes and sessions:
    /// such a reader attaches none, and serves none.
    #[must_use]
    pub fn for_earlier_release(mut self) -> Self {
        self.leave_out_file_systems();
        self.sessions.update_where(|session| session.number != 0, |session| session.number = 0);
        let is_a_part = |drive: &Drive| drive.device != DeviceId::of_drive(drive.id);
        self.drives.update_where(is_a_part, |drive| drive.device = DeviceId::of_drive(drive.id));
        if !self.group_tables.is_empty() {
            self.group_tables.clear();
            self.volumes.update_where(
                |volume| volume.group_tables().next().is_some(),
                |volume| volume.lists_mut().for_each(|groups| *groups = groups.iter().copied().collect()),
            );
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(groups: u64) -> Arc<GroupTable> {
        let groups: Vec<GroupId> = (1..=groups).map(GroupId).collect();
        Arc::new(GroupTable::new(GroupTableId(9), &groups))
    }

    fn window(first: u32, count: u32) -> TableWindow {
        TableWindow { table: GroupTableId(9), first, count }
    }

    #[test]
    fn a_window_goes_on_at_the_tables_beginning() {
        let listed = |first, count| SpanGroups::of_table(&table(4), window(first, count)).map(|g| g.to_vec());
        assert_eq!(listed(1, 3), Some([2, 3, 4].map(GroupId).to_vec()));
        assert_eq!(listed(3, 4), Some([4, 1, 2, 3].map(GroupId).to_vec()));
        for (first, count) in [(0, 0), (0, 5), (4, 1), (u32::MAX, 1), (1, u32::MAX)] {
            assert_eq!(listed(first, count), None, "{count} from {first}");
        }
        let of_another = TableWindow { table: GroupTableId(8), ..window(0, 1) };
        assert!(SpanGroups::of_table(&table(4), of_another).is_none());
    }

    #[test]
    fn a_window_of_a_table_that_is_missing_or_shorter_is_no_list() {
        let named = NamedGroups::Window(window(2, 2));
        let mut tables = GroupTables::new();
        assert_eq!(named.clone().found_in(&tables), Err(window(2, 2)));
        tables.insert(GroupTableId(9), table(4));
        assert_eq!(named.clone().found_in(&tables).expect("it is there").to_vec(), [3, 4].map(GroupId));
        tables.insert(GroupTableId(9), table(1));
        assert_eq!(named.found_in(&tables), Err(window(2, 2)));
    }
}
