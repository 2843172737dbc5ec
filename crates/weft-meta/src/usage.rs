//! What users, groups and projects use of a shard: counted as its inodes change (F16).

use crate::record::Inode;
use std::collections::BTreeMap;
use weft_types::{Attributes, BLOCK_SIZE, FileKind};
use weft_wire::files::{QuotaAmount, QuotaKind, QuotaOf};

/// What the inodes of one user, group or project use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    inodes: u64,
    /// Bytes of data up to the ends of files, in whole blocks. Sparse files may add up to more than 64 bits.
    used: u128,
    /// Bytes of data in whole blocks, up to where writers may write.
    charged: u128,
}

impl Counted {
    /// What the inode alone uses, whose writers may write up to `room`.
    fn one(inode: &Inode, room: u64) -> Counted {
        let whole = |bytes: u64| u128::from(bytes).next_multiple_of(BLOCK_SIZE as u128);
        let size = inode.attributes.size;
        match inode.attributes.kind {
            FileKind::Regular => Counted { inodes: 1, used: whole(size), charged: whole(size.max(room)) },
            _ => Counted { inodes: 1, used: 0, charged: 0 },
        }
    }

    /// Inodes, and bytes up to the ends of files.
    pub(crate) fn used(&self) -> QuotaAmount {
        QuotaAmount { bytes: self.used.try_into().unwrap_or(u64::MAX), inodes: self.inodes }
    }

    /// Inodes, and bytes that count against a limit.
    pub(crate) fn charged(&self) -> QuotaAmount {
        QuotaAmount { bytes: self.charged.try_into().unwrap_or(u64::MAX), inodes: self.inodes }
    }
}

/// Whose inode it is.
pub(crate) fn owners(inode: &Inode) -> impl Iterator<Item = QuotaOf> + use<> {
    let of = |kind, id| QuotaOf { kind, id };
    let Attributes { uid, gid, .. } = inode.attributes;
    let project = Some(inode.project).filter(|project| *project != 0);
    let project = project.map(|project| of(QuotaKind::Project, project));
    [of(QuotaKind::User, uid), of(QuotaKind::Group, gid)].into_iter().chain(project)
}

/// What an inode counts against a limit, whose writers may write up to `room`.
pub(crate) fn charge(inode: &Inode, room: u64) -> QuotaAmount {
    Counted::one(inode, room).charged()
}

/// What all inodes use.
#[derive(Default)]
pub(crate) struct Usage(BTreeMap<QuotaOf, Counted>);

impl Usage {
    /// An inode is there from now on, whose writers may write up to `room`.
    pub(crate) fn add(&mut self, inode: &Inode, room: u64) {
        let one = Counted::one(inode, room);
        for of in owners(inode) {
            let counted = self.0.entry(of).or_default();
            counted.inodes += one.inodes;
            counted.used += one.used;
            counted.charged += one.charged;
        }
    }

    /// An inode that was added as it is here is there no more.
    pub(crate) fn remove(&mut self, inode: &Inode, room: u64) {
        let one = Counted::one(inode, room);
        for of in owners(inode) {
            let Some(counted) = self.0.get_mut(&of) else { continue };
            counted.inodes -= one.inodes;
            counted.used -= one.used;
            counted.charged -= one.charged;
            if counted.inodes == 0 {
                self.0.remove(&of);
            }
        }
    }

    /// What is used of a quota.
    pub(crate) fn of(&self, of: QuotaOf) -> Counted {
        self.0.get(&of).copied().unwrap_or_default()
    }

    /// The first quota that another count has otherwise.
    pub(crate) fn differs(&self, other: &Usage) -> Option<QuotaOf> {
        let all = self.0.keys().chain(other.0.keys());
        all.copied().find(|of| self.of(*of) != other.of(*of))
    }

    /// Those of which something is used, from one on, in their order.
    pub(crate) fn from(&self, from: QuotaOf) -> impl Iterator<Item = QuotaOf> {
        self.0.range(from..).map(|(of, _)| *of)
    }
}
