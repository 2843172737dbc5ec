//! Requests carried out: each operation of the kernel as calls of the tree.
//!
//! It owns what the kernel leaves to file systems and a tree should not have to know: set-id bits that a
//! write removes, names of exports, and sizes of extended attributes.

use crate::answer::Answer;
use crate::directory::Listing;
use crate::proto::{GetxattrOut, LseekOut, WriteOut};
use crate::request::{FuseOperation, FuseRequest, LookupName, Making, Opening};
use crate::tree::{Errno, Reply, Timeouts, Tree};
use weft_rt::Buf;
use weft_types::limits::XATTR_NAMES_BYTES_MAX;
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{AttributeChanges, Listed, NewInode};

/// The extended attribute of the list by which access is decided.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// `S_ISUID`.
const SET_UID: u16 = 0o4000;
/// `S_ISGID`.
const SET_GID: u16 = 0o2000;
/// `S_IXGRP`.
const GROUP_EXECUTES: u16 = 0o010;

/// The most that one request copies within the mount.
const COPIED_AT_ONCE: u64 = 1 << 30;

/// Carries a request out. `data` is that of a WRITE.
pub(crate) async fn carry_out<T: Tree>(tree: &T, request: FuseRequest, data: Buf) -> Reply<Answer> {
    let (node, owner) = (request.node, (request.uid, request.gid));
    let kept = keeps(tree);
    Ok(match request.operation {
        FuseOperation::Lookup(name) => return look_up(tree, node, name).await,
        FuseOperation::Attributes => Answer::attributes(&tree.attributes(node).await?, kept()),
        FuseOperation::Statx => Answer::statx(&tree.attributes(node).await?, kept()),
        FuseOperation::Change { changes, handle, kills_set_id } => {
            let changes = without_killed(tree, node, changes, kills_set_id).await?;
            Answer::attributes(&tree.change(node, handle, changes).await?, kept())
        }
        FuseOperation::Target => Answer::bytes(tree.target(node).await?),
        FuseOperation::Make { name, making } => {
            let made = tree.make(node, &name, new_inode(making, owner)).await?;
            Answer::entry(&made, kept())
        }
        FuseOperation::Unlink(name) => done(tree.unlink(node, &name).await)?,
        FuseOperation::RemoveDirectory(name) => done(tree.remove_directory(node, &name).await)?,
        FuseOperation::Rename { name, to, new_name, mode } => {
            done(tree.rename((node, &name), (to, &new_name), mode).await)?
        }
        FuseOperation::Link { inode, name } => Answer::entry(&tree.link(inode, node, &name).await?, kept()),
        FuseOperation::Open(opening) => return open(tree, node, opening).await,
        FuseOperation::Create { name, mode, umask, opening } => {
            let created = tree.create(node, &name, new_file((mode, umask), owner), opening.how).await;
            let (made, opened) = created.map_err(|errno| taken(errno, opening))?;
            Answer::created(&made, kept(), opened, opening.how.is_direct)
        }
        FuseOperation::CreateUnnamed { mode, umask, opening } => {
            let new = new_file((mode, umask), owner);
            let (made, opened) = tree.create_unnamed(node, new, opening.how).await?;
            Answer::created(&made, kept(), opened, opening.how.is_direct)
        }
        FuseOperation::SyncAll => done(tree.sync_all().await)?,
        FuseOperation::List { after, length, with_attributes } => {
            let length = length as usize;
            list(tree, Listing { directory: node, after, length, with_attributes }).await?
        }
        FuseOperation::Space => Answer::space(&tree.space().await?),
        FuseOperation::SetXattr { name, value, mode, kills_set_gid } => {
            tree.set_xattr(node, &name, &value, mode).await?;
            // The kernel says so of default lists as well, which are about nobody's access.
            if kills_set_gid && name == ACCESS_LIST {
                remove_bits(tree, node, SET_GID).await?;
            }
            Answer::done()
        }
        FuseOperation::Xattr { name, length } => sized(tree.xattr(node, &name).await?, length)?,
        FuseOperation::XattrNames { length } => sized(joined(tree.xattr_names(node).await?)?, length)?,
        FuseOperation::RemoveXattr(name) => done(tree.remove_xattr(node, &name).await)?,
        // Directories are opened without the tree: a listing says where it goes on.
        FuseOperation::OpenDirectory => Answer::of(&crate::proto::OpenOut::default()),
        FuseOperation::ReleaseDirectory | FuseOperation::Destroy => Answer::done(),
        operation => return carry_out_on_data(tree, node, operation, data).await,
    })
}

/// The same for operations on the data of a file.
async fn carry_out_on_data<T: Tree>(
    tree: &T,
    inode: InodeNumber,
    operation: FuseOperation,
    data: Buf,
) -> Reply<Answer> {
    Ok(match operation {
        FuseOperation::Read { handle, offset, length } => {
            let data = tree.read(inode, handle, offset, length).await?;
            match data.iter().map(|part| part.len()).sum::<usize>() <= length as usize {
                true => Answer::data(data),
                false => return Err(Errno(libc::EIO)),
            }
        }
        FuseOperation::Write { handle, place, kills_set_id, when, .. } => {
            if kills_set_id {
                remove_set_id(tree, inode).await?;
            }
            let size = tree.write(inode, handle, place, data, when).await?;
            Answer::of(&WriteOut { size, padding: 0 })
        }
        FuseOperation::Flush { handle, owner } => done(tree.flush(inode, handle, owner).await)?,
        FuseOperation::Unlock { handle, owner, range } => {
            done(tree.unlock(inode, handle, owner, range).await)?
        }
        FuseOperation::FindLock { handle, lock } => Answer::lock(tree.find_lock(inode, handle, lock).await?),
        FuseOperation::Sync { handle, data_only } => done(tree.sync(inode, handle, data_only).await)?,
        FuseOperation::Release { handle } => {
            tree.release(inode, handle).await;
            Answer::done()
        }
        FuseOperation::Allocate { handle, how, offset, length } => {
            done(tree.allocate(inode, handle, how, offset, length).await)?
        }
        FuseOperation::Seek { handle, offset, what } => {
            Answer::of(&LseekOut { offset: tree.seek(inode, handle, offset, what).await? })
        }
        FuseOperation::Copy { from, to, length } => {
            // The kernel takes 32 bits of it.
            let length = length.min(COPIED_AT_ONCE);
            let size = tree.copy(from, to, length).await?.min(length) as u32;
            Answer::of(&WriteOut { size, padding: 0 })
        }
        operation => unreachable!("{operation:?} is carried out elsewhere, or has no answer"),
    })
}

/// How long the kernel may keep the answer to an operation that begins now: the shorter of what the tree
/// says before the operation and after it.
fn keeps<T: Tree>(tree: &T) -> impl Fn() -> Timeouts + use<'_, T> {
    let before = tree.timeouts();
    move || before.shorter(tree.timeouts())
}

fn done(reply: Reply<()>) -> Reply<Answer> {
    reply.map(|()| Answer::done())
}

async fn look_up<T: Tree>(tree: &T, directory: InodeNumber, name: LookupName) -> Reply<Answer> {
    let kept = keeps(tree);
    let found = match name {
        LookupName::Own => tree.attributes(directory).await?,
        LookupName::Parent => {
            let listed = tree.list(directory, 0, 1).await?;
            tree.attributes(InodeNumber(listed.parent)).await?
        }
        LookupName::Entry(name) => match tree.find(directory, &name).await {
            Err(Errno(libc::ENOENT)) => return Ok(Answer::no_entry(kept())),
            found => found?,
        },
    };
    Ok(Answer::entry(&found, kept()))
}

/// Changes of attributes. Who sets an owner, or a size without `CAP_FSETID`, removes set-id bits.
async fn without_killed<T: Tree>(
    tree: &T,
    inode: InodeNumber,
    mut changes: AttributeChanges,
    kills_set_id: bool,
) -> Reply<AttributeChanges> {
    if kills_set_id {
        let now = tree.attributes(inode).await?;
        let mode = changes.mode.unwrap_or(now.mode);
        if now.kind == FileKind::Regular && mode != without_set_id(mode) {
            changes.mode = Some(without_set_id(mode));
        }
    }
    Ok(changes)
}

async fn remove_set_id<T: Tree>(tree: &T, inode: InodeNumber) -> Reply<()> {
    let mode = tree.permissions(inode).await?;
    if mode != without_set_id(mode) {
        let mode = Some(without_set_id(mode));
        tree.change(inode, None, AttributeChanges { mode, ..AttributeChanges::default() }).await?;
    }
    Ok(())
}

async fn remove_bits<T: Tree>(tree: &T, inode: InodeNumber, bits: u16) -> Reply<()> {
    let mode = tree.attributes(inode).await?.mode;
    if mode & bits != 0 {
        let mode = Some(mode & !bits);
        tree.change(inode, None, AttributeChanges { mode, ..AttributeChanges::default() }).await?;
    }
    Ok(())
}

/// `S_ISGID` without `S_IXGRP` is not about execution (`FUSE_HANDLE_KILLPRIV_V2`).
fn without_set_id(mode: u16) -> u16 {
    match mode & GROUP_EXECUTES {
        0 => mode & !SET_UID,
        _ => mode & !(SET_UID | SET_GID),
    }
}

fn new_inode(making: Making, (uid, gid): (u32, u32)) -> NewInode {
    let Making { kind, mode, umask, device, target } = making;
    NewInode { kind, mode, umask, uid, gid, device, target }
}

fn new_file((mode, umask): (u16, u16), owner: (u32, u32)) -> NewInode {
    let (kind, target) = (FileKind::Regular, Vec::new());
    new_inode(Making { kind, mode, umask, device: 0, target }, owner)
}

/// Why a file was not made. If another file took its name in between and the open is not exclusive,
/// `ESTALE` has the kernel look the name up again: only then does it check the permissions of that file.
fn taken(errno: Errno, opening: Opening) -> Errno {
    match errno {
        Errno(libc::EEXIST) if !opening.is_exclusive => Errno(libc::ESTALE),
        errno => errno,
    }
}

async fn open<T: Tree>(tree: &T, inode: InodeNumber, opening: Opening) -> Reply<Answer> {
    if opening.kills_set_id {
        remove_set_id(tree, inode).await?;
    }
    let opened = tree.open(inode, opening.how).await?;
    Ok(Answer::opened(inode, opened, opening.how.is_direct))
}

async fn list<T: Tree>(tree: &T, listing: Listing) -> Reply<Answer> {
    let kept = keeps(tree);
    let listed: Listed = tree.list(listing.directory, listing.tree_after(), listing.limit()).await?;
    if listed.entries.is_empty() && !listed.is_end {
        // An empty answer would be the directory's end.
        return Err(Errno(libc::EIO));
    }
    Ok(listing.pack(&listed, kept()))
}

/// A value for a caller with room for `length` bytes; its size for one who has asked with 0.
fn sized(value: Vec<u8>, length: u32) -> Reply<Answer> {
    match length {
        0 => Ok(Answer::of(&GetxattrOut { size: value.len() as u32, padding: 0 })),
        length if value.len() > length as usize => Err(Errno(libc::ERANGE)),
        _ => Ok(Answer::bytes(value)),
    }
}

/// Names with a zero behind each.
fn joined(names: Vec<Vec<u8>>) -> Reply<Vec<u8>> {
    let joined: Vec<u8> = names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
    if joined.len() > XATTR_NAMES_BYTES_MAX { Err(Errno(libc::E2BIG)) } else { Ok(joined) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_id_bits_are_removed_where_they_are_about_execution() {
        for (mode, left) in
            [(0o755, 0o755), (0o4755, 0o755), (0o6755, 0o755), (0o2644, 0o2644), (0o7666, 0o3666)]
        {
            assert_eq!(without_set_id(mode), left, "{mode:o}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_out_of_range() {
        assert!(sized(vec![1; 4], 0).is_ok() && sized(vec![1; 4], 4).is_ok());
        assert_eq!(sized(vec![1; 4], 3).unwrap_err(), Errno(libc::ERANGE));
        assert_eq!(joined(vec![b"a".to_vec(), b"bc".to_vec()]).unwrap(), b"a\0bc\0");
        assert_eq!(joined(vec![vec![b'x'; 255]; 300]).unwrap_err(), Errno(libc::E2BIG));
    }
}
