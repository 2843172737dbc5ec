//! A check of a shard's tables beside what the shard serves.
//!
//! Tables are read again from their beginning if the names of inodes seem wrong that were changed meanwhile.

use crate::check::{Pass, names_of};
use crate::error::MetaError;
use crate::medium::Medium;
use crate::record::Inode;
use crate::shard::Inner;
use std::cell::RefCell;
use std::rc::Rc;
use weft_rt::{breathe, spawn};
use weft_types::InodeNumber;
use weft_types::limits::{CHECK_FINDING_BYTES_MAX, CHECK_FINDINGS_MAX, NAMES_ACROSS_MAX};
use weft_wire::files::{Answer, CheckFinding, FileError, InodeNames, NameAcross, NamesAcross, TableCheck};

/// Items that are read in a row while other work waits: some tens of microseconds.
const ITEMS_PER_BREATH: usize = 128;

/// How often the tables are read at most.
const PASSES_MAX: u32 = 4;

/// Checks whose outcome is kept, the newest ones: who has asked for one asks again to hear of it.
const KEPT_CHECKS: usize = 16;

/// The check that is under way, or was last, and those before it.
#[derive(Default)]
pub(crate) struct RunningCheck {
    checks: RefCell<Vec<TableCheck>>,
    /// What the last one that has ended has seen of names that lead from one shard to another, by inode, and
    /// that check's number.
    across: RefCell<(u64, Vec<NameAcross>)>,
}

impl RunningCheck {
    /// How the check of this number stands, or what is done before it; and whether it begins now.
    fn begin(&self, number: u64) -> (TableCheck, bool) {
        let mut checks = self.checks.borrow_mut();
        if let Some(known) = checks.iter().find(|check| check.number == number) {
            return (known.clone(), false);
        }
        if let Some(other) = checks.last().filter(|check| !check.is_over) {
            return (other.clone(), false);
        }
        let new = TableCheck { number, ..TableCheck::default() };
        checks.push(new.clone());
        let surplus = checks.len().saturating_sub(KEPT_CHECKS);
        checks.drain(..surplus);
        (new, true)
    }

    fn note(&self, change: impl FnOnce(&mut TableCheck)) {
        if let Some(check) = self.checks.borrow_mut().last_mut() {
            change(check);
        }
    }

    /// Names that lead from one shard to another, of inodes behind one.
    fn across(&self, number: u64, after: InodeNumber) -> Option<NamesAcross> {
        let across = self.across.borrow();
        let (of, names) = &*across;
        if *of != number {
            return None;
        }
        let rest = &names[names.partition_point(|name| name.inode <= after)..];
        let some = &rest[..rest.len().min(NAMES_ACROSS_MAX as usize)];
        Some(NamesAcross { names: some.to_vec(), is_end: some.len() == rest.len() })
    }
}

impl<M: Medium> Inner<M> {
    /// How the check of this number stands. It begins if there was none yet, and nobody else's is under way.
    pub(crate) async fn check_of(self: &Rc<Self>, number: u64) -> Result<Answer, MetaError> {
        let (check, begins) = self.table_check.begin(number);
        if begins {
            spawn(read_until_settled(self.clone()));
        }
        self.prove().await?;
        Ok(Answer::Check(check))
    }

    /// Names that lead from one shard to another, as a check has seen them.
    pub(crate) async fn across(&self, number: u64, after: InodeNumber) -> Result<Answer, MetaError> {
        self.prove().await?;
        let found = self.table_check.across(number, after);
        Ok(found.map_or(Answer::Failed(FileError::NotFound), Answer::Across))
    }

    /// What inodes say of their names.
    pub(crate) async fn names_of(&self, inodes: &[InodeNumber]) -> Result<Answer, MetaError> {
        let found = {
            let (tables, locked) = (self.tables.borrow(), self.locks.all());
            let of = |inode: InodeNumber| {
                let Inode { attributes, parent, .. } = tables.inode(inode)?;
                Some(InodeNames {
                    names: names_of(&attributes),
                    directory: parent,
                    kind: attributes.kind,
                    revision: attributes.revision,
                    is_locked: locked.contains(&inode) || self.transactions.has_changed(inode),
                })
            };
            inodes.iter().map(|inode| of(*inode)).collect()
        };
        self.prove().await?;
        Ok(Answer::NamesOf(found))
    }
}

/// Reads the tables until nothing is unsettled.
async fn read_until_settled<M: Medium>(inner: Rc<Inner<M>>) {
    let mut last = Pass::default();
    for passes in 1..=PASSES_MAX {
        inner.table_check.note(|check| check.passes = passes);
        match read(&inner).await {
            Some(pass) => last = pass,
            // Nobody hears of a shard that has ended.
            None => return,
        }
        if last.unsettled.is_empty() || !last.findings.is_empty() {
            break;
        }
    }
    let mut across = std::mem::take(&mut last.across);
    across.sort_by_key(|name| name.inode);
    inner.table_check.note(|check| {
        inner.table_check.across.replace((check.number, across));
        note(check, &last);
        check.is_over = true;
        check.unsettled = last.unsettled.len() as u64;
        check.found = last.findings.len() as u64;
        let findings = last.findings.iter().take(CHECK_FINDINGS_MAX as usize).map(|finding| {
            let mut text = finding.to_string();
            text.truncate(CHECK_FINDING_BYTES_MAX);
            CheckFinding { inode: finding.inode().unwrap_or(InodeNumber(0)), text }
        });
        check.findings = findings.collect();
    });
}

fn note(check: &mut TableCheck, pass: &Pass) {
    (check.read, check.inodes, check.names, check.orphans) =
        (pass.read, pass.inodes, pass.names, pass.orphans);
}

/// Reads all tables once. `None` if the shard has ended.
async fn read<M: Medium>(inner: &Rc<Inner<M>>) -> Option<Pass> {
    let mut pass = Pass::new(inner.transactions.is_spread());
    inner.tables.borrow_mut().watch(true);
    loop {
        let is_over = pass.step(&inner.tables.borrow(), ITEMS_PER_BREATH);
        let items = inner.tables.borrow().len() as u64;
        inner.table_check.note(|check| {
            check.items = items;
            note(check, &pass);
        });
        if is_over {
            inner.tables.borrow_mut().watch(false);
            return Some(pass);
        }
        breathe().await;
        inner.check().ok()?;
    }
}
