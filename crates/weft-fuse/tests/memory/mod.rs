//! A file system in memory, for tests of mounts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weft_fuse::*;
use weft_rt::Buf;
use weft_types::{Attributes, FileKind, FileTime, InodeNumber};
use weft_wire::files::{
    AttributeChanges, FileLock, Listed, ListedEntry, LockOwner, NewInode, RenameMode, SetTime, XattrMode,
};

/// What tests see of the tree from other threads.
#[derive(Default)]
pub struct Probe {
    pub forgotten: AtomicU64,
    pub opened: AtomicU64,
    pub released: AtomicU64,
    pub unaligned_writes: AtomicU64,
    pub largest_write: AtomicU64,
    pub writes_with_size: AtomicU64,
    pub flushed: AtomicU64,
    pub synced: AtomicU64,
}

#[derive(Clone)]
struct Node {
    attributes: Attributes,
    parent: u64,
    data: Vec<u8>,
    entries: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A tree. A file named `hang` never answers reads. Ones named `late` and `late-folder` appear when they
/// are first looked for. Those that end in `.direct` are not cached.
pub struct Memory {
    nodes: RefCell<BTreeMap<u64, Node>>,
    /// By the handles by which they were taken.
    locks: RefCell<Vec<(u64, FileLock)>>,
    probe: Arc<Probe>,
}

fn now() -> FileTime {
    FileTime::from_us(weft_rt::wall_clock_us())
}

fn fail<T>(errno: i32) -> Reply<T> {
    Err(Errno(errno))
}

/// Cookies with many collisions.
fn cookie(name: &[u8]) -> u64 {
    16 + name.iter().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte))) % 2048
}

impl Memory {
    fn give_locks_back(&self, is_meant: impl Fn((u64, &FileLock)) -> bool) {
        self.locks.borrow_mut().retain(|(handle, lock)| !is_meant((*handle, lock)));
    }

    pub fn new(probe: Arc<Probe>) -> Memory {
        let memory = Memory { nodes: RefCell::default(), locks: RefCell::default(), probe };
        let kind = FileKind::Directory;
        let new = NewInode { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
        memory.add(1, new);
        memory
    }

    fn add(&self, parent: u64, new: NewInode) -> Attributes {
        let mut nodes = self.nodes.borrow_mut();
        let inode = nodes.last_key_value().map_or(1, |(last, _)| last + 1);
        let attributes = Attributes {
            inode: InodeNumber(inode),
            kind: new.kind,
            mode: new.mode & !new.umask,
            links: if new.kind == FileKind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            size: new.target.len() as u64,
            device: new.device,
            accessed: now(),
            modified: now(),
            changed: now(),
            born: now(),
            layout: [0; 12],
            revision: 1,
        };
        let (entries, xattrs) = Default::default();
        nodes.insert(inode, Node { attributes, parent, data: new.target, entries, xattrs });
        attributes
    }

    fn with<T>(&self, inode: InodeNumber, f: impl FnOnce(&mut Node) -> Reply<T>) -> Reply<T> {
        let mut nodes = self.nodes.borrow_mut();
        f(nodes.get_mut(&inode.0).ok_or(Errno(libc::ESTALE))?)
    }

    fn named(&self, directory: InodeNumber, name: &[u8]) -> Reply<InodeNumber> {
        self.with(directory, |node| {
            node.entries.get(name).map(|inode| InodeNumber(*inode)).ok_or(Errno(libc::ENOENT))
        })
    }

    fn put(&self, directory: InodeNumber, name: &[u8], inode: InodeNumber) -> Reply<()> {
        self.with(directory, |node| match node.entries.insert(name.to_vec(), inode.0) {
            None => Ok(()),
            Some(old) => {
                node.entries.insert(name.to_vec(), old);
                fail(libc::EEXIST)
            }
        })
    }

    fn remove(&self, directory: InodeNumber, name: &[u8]) -> Reply<()> {
        let inode = self.named(directory, name)?;
        self.with(directory, |node| Ok(node.entries.remove(name)))?;
        self.with(inode, |node| {
            node.attributes.links -= 1;
            Ok(())
        })
    }

    fn opened(&self, inode: InodeNumber, caching: Caching) -> Opened {
        Opened { handle: (inode.0 << 32) + self.probe.opened.fetch_add(1, Ordering::Relaxed), caching }
    }

    fn resize(&self, inode: InodeNumber, size: u64) -> Reply<()> {
        self.with(inode, |node| {
            node.data.resize(size as usize, 0);
            node.attributes.size = size;
            node.attributes.modified = now();
            Ok(())
        })
    }
}

impl Tree for Memory {
    async fn find(&self, directory: InodeNumber, name: &[u8]) -> Reply<Attributes> {
        let late = [(&b"late"[..], FileKind::Regular), (b"late-folder", FileKind::Directory)];
        if let Some((_, kind)) = late.into_iter().find(|(late, _)| *late == name)
            && self.named(directory, name).is_err()
        {
            let new = NewInode { kind, mode: 0o700, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
            self.put(directory, name, self.add(1, new).inode)?;
            return fail(libc::ENOENT);
        }
        self.attributes(self.named(directory, name)?).await
    }

    async fn attributes(&self, inode: InodeNumber) -> Reply<Attributes> {
        self.with(inode, |node| Ok(node.attributes))
    }

    async fn change(
        &self,
        inode: InodeNumber,
        _: Option<u64>,
        changes: AttributeChanges,
    ) -> Reply<Attributes> {
        changes.size.map_or(Ok(()), |size| self.resize(inode, size))?;
        self.with(inode, |node| {
            let a = &mut node.attributes;
            let time = |set| match set {
                SetTime::Now => now(),
                SetTime::At(time) => time,
            };
            a.mode = changes.mode.unwrap_or(a.mode);
            a.uid = changes.uid.unwrap_or(a.uid);
            a.gid = changes.gid.unwrap_or(a.gid);
            a.accessed = changes.accessed.map_or(a.accessed, time);
            a.modified = changes.modified.map_or(a.modified, time);
            a.changed = now();
            Ok(*a)
        })
    }

    async fn target(&self, inode: InodeNumber) -> Reply<Vec<u8>> {
        self.with(inode, |node| Ok(node.data.clone()))
    }

    async fn make(&self, directory: InodeNumber, name: &[u8], new: NewInode) -> Reply<Attributes> {
        let made = self.add(directory.0, new);
        self.put(directory, name, made.inode)?;
        Ok(made)
    }

    async fn create(
        &self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
        _how: HowToOpen,
    ) -> Reply<(Attributes, Opened)> {
        let made = self.make(directory, name, new).await?;
        let caching = if name.ends_with(b".direct") { Caching::Direct } else { Caching::Kept };
        Ok((made, self.opened(made.inode, caching)))
    }

    async fn create_unnamed(
        &self,
        directory: InodeNumber,
        new: NewInode,
        _how: HowToOpen,
    ) -> Reply<(Attributes, Opened)> {
        let made = self.add(directory.0, new);
        self.with(made.inode, |node| {
            node.attributes.links = 0;
            Ok((node.attributes, self.opened(made.inode, Caching::Kept)))
        })
    }

    async fn link(&self, inode: InodeNumber, directory: InodeNumber, name: &[u8]) -> Reply<Attributes> {
        self.put(directory, name, inode)?;
        self.with(inode, |node| {
            node.attributes.links += 1;
            Ok(node.attributes)
        })
    }

    async fn unlink(&self, directory: InodeNumber, name: &[u8]) -> Reply<()> {
        self.remove(directory, name)
    }

    async fn remove_directory(&self, directory: InodeNumber, name: &[u8]) -> Reply<()> {
        let inode = self.named(directory, name)?;
        if self.with(inode, |node| Ok(!node.entries.is_empty()))? {
            return fail(libc::ENOTEMPTY);
        }
        self.remove(directory, name)
    }

    async fn rename(
        &self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Reply<()> {
        let moved = self.named(from.0, from.1)?;
        let there = self.named(to.0, to.1);
        match (mode, there) {
            (RenameMode::Keep, Ok(_)) => return fail(libc::EEXIST),
            (RenameMode::Exchange, there) => {
                let there = there?;
                self.with(from.0, |node| Ok(node.entries.insert(from.1.to_vec(), there.0)))?;
                return self.with(to.0, |node| {
                    node.entries.insert(to.1.to_vec(), moved.0);
                    Ok(())
                });
            }
            (_, Ok(_)) => self.remove(to.0, to.1)?,
            (_, Err(_)) => {}
        }
        self.with(from.0, |node| Ok(node.entries.remove(from.1)))?;
        self.put(to.0, to.1, moved)
    }

    async fn open(&self, inode: InodeNumber, how: HowToOpen) -> Reply<Opened> {
        if how.truncates {
            self.resize(inode, 0)?;
        }
        Ok(self.opened(inode, Caching::Fresh))
    }

    async fn read(&self, inode: InodeNumber, _: u64, offset: u64, length: u32) -> Reply<Vec<Buf>> {
        if self.named(InodeNumber::ROOT, b"hang") == Ok(inode) {
            return pending().await;
        }
        self.with(inode, |node| {
            let start = node.data.len().min(offset as usize);
            let end = node.data.len().min(start + length as usize);
            // In pieces, as data come from several objects.
            Ok(node.data[start..end].chunks(100_000).map(Buf::from).collect())
        })
    }

    async fn write(
        &self,
        inode: InodeNumber,
        _: u64,
        WritePlace { offset, .. }: WritePlace,
        data: Buf,
        when: Durable,
    ) -> Reply<u32> {
        let is_with_size = when == Durable::WithSize;
        self.probe.writes_with_size.fetch_add(u64::from(is_with_size), Ordering::Relaxed);
        let is_aligned = data.len() < 4096 || data.is_aligned();
        self.probe.unaligned_writes.fetch_add(u64::from(!is_aligned), Ordering::Relaxed);
        self.probe.largest_write.fetch_max(data.len() as u64, Ordering::Relaxed);
        self.with(inode, |node| {
            let (start, end) = (offset as usize, offset as usize + data.len());
            node.data.resize(node.data.len().max(end), 0);
            node.data[start..end].copy_from_slice(&data);
            node.attributes.size = node.data.len() as u64;
            node.attributes.modified = now();
            Ok(data.len() as u32)
        })
    }

    async fn flush(&self, _: InodeNumber, _: u64, owner: LockOwner) -> Reply<()> {
        self.probe.flushed.fetch_add(1, Ordering::Relaxed);
        self.give_locks_back(|(_, lock)| lock.owner == owner);
        Ok(())
    }

    async fn lock(&self, inode: InodeNumber, handle: u64, lock: FileLock) -> Reply<()> {
        if self.find_lock(inode, handle, lock).await?.is_some() {
            return fail(libc::EAGAIN);
        }
        self.unlock(inode, handle, lock.owner, (lock.start, lock.last)).await?;
        self.locks.borrow_mut().push((handle, lock));
        Ok(())
    }

    async fn until_unlocked(&self, inode: InodeNumber, handle: u64, lock: FileLock) -> Reply<()> {
        while self.find_lock(inode, handle, lock).await?.is_some() {
            weft_rt::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Whole locks only: tests take no others.
    async fn unlock(&self, inode: InodeNumber, _: u64, owner: LockOwner, range: (u64, u64)) -> Reply<()> {
        let is_in = |lock: &FileLock| range.0 <= lock.start && lock.last <= range.1;
        self.give_locks_back(|(of, lock)| of >> 32 == inode.0 && lock.owner == owner && is_in(lock));
        Ok(())
    }

    async fn find_lock(&self, inode: InodeNumber, _: u64, lock: FileLock) -> Reply<Option<FileLock>> {
        let locks = self.locks.borrow();
        let mut locks = locks.iter().filter(|(handle, _)| handle >> 32 == inode.0).map(|(_, lock)| lock);
        Ok(locks.find(|other| other.owner != lock.owner && other.excludes(&lock)).copied())
    }

    async fn sync(&self, _: InodeNumber, _: u64, _: bool) -> Reply<()> {
        self.probe.synced.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn release(&self, inode: InodeNumber, handle: u64) {
        assert_eq!(handle >> 32, inode.0);
        self.give_locks_back(|(of, _)| of == handle);
        self.probe.released.fetch_add(1, Ordering::Relaxed);
    }

    async fn sync_all(&self) -> Reply<()> {
        Ok(())
    }

    async fn list(&self, directory: InodeNumber, after: u64, limit: u32) -> Reply<Listed> {
        let (parent, names) = self.with(directory, |node| Ok((node.parent, node.entries.clone())))?;
        let mut entries = Vec::new();
        for (name, inode) in names {
            let attributes = self.with(InodeNumber(inode), |node| Ok(node.attributes))?;
            entries.push(ListedEntry { cookie: cookie(&name), name, attributes, lasts: false });
        }
        entries.retain(|entry| entry.cookie > after);
        entries.sort_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
        let mut end = entries.len().min(limit as usize);
        while end > 0 && end < entries.len() && entries[end].cookie == entries[end - 1].cookie {
            end += 1;
        }
        let is_end = end == entries.len();
        entries.truncate(end);
        Ok(Listed { parent, entries, is_end })
    }

    async fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Reply<Vec<u8>> {
        self.with(inode, |node| node.xattrs.get(name).cloned().ok_or(Errno(libc::ENODATA)))
    }

    async fn xattr_names(&self, inode: InodeNumber) -> Reply<Vec<Vec<u8>>> {
        self.with(inode, |node| Ok(node.xattrs.keys().cloned().collect()))
    }

    async fn set_xattr(&self, inode: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Reply<()> {
        self.with(inode, |node| match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => fail(libc::EEXIST),
            (XattrMode::Replace, false) => fail(libc::ENODATA),
            _ => {
                node.xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        })
    }

    async fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Reply<()> {
        self.with(inode, |node| node.xattrs.remove(name).map(drop).ok_or(Errno(libc::ENODATA)))
    }

    async fn space(&self) -> Reply<Space> {
        Ok(Space { blocks: 1000, blocks_free: 700, blocks_available: 600, files: 50, files_free: 40 })
    }

    async fn allocate(
        &self,
        inode: InodeNumber,
        _: u64,
        how: Allocate,
        offset: u64,
        length: u64,
    ) -> Reply<()> {
        let size = self.attributes(inode).await?.size;
        match how {
            Allocate::Extend => self.resize(inode, size.max(offset + length)),
            Allocate::KeepSize => Ok(()),
            Allocate::PunchHole => self.with(inode, |node| {
                let end = node.data.len().min((offset + length) as usize);
                node.data[offset as usize..end].fill(0);
                Ok(())
            }),
            Allocate::ZeroRange | Allocate::ZeroRangeKeepSize => fail(libc::EOPNOTSUPP),
        }
    }

    async fn copy(&self, from: FilePlace, to: FilePlace, length: u64) -> Reply<u64> {
        // In pieces, so that callers have to go on.
        let data = self.read(from.inode, from.handle, from.offset, length.min(100_000) as u32).await?;
        let mut copied = 0;
        for part in data {
            let place = WritePlace { offset: to.offset + copied, is_of_pages: false };
            let written = self.write(to.inode, to.handle, place, part, Durable::Later).await?;
            copied += u64::from(written);
        }
        Ok(copied)
    }

    async fn seek(&self, inode: InodeNumber, _: u64, offset: u64, what: Seek) -> Reply<u64> {
        let size = self.attributes(inode).await?.size;
        match what {
            _ if offset >= size => fail(libc::ENXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn forget(&self, _: InodeNumber, lookups: u64) {
        assert!(lookups > 0);
        self.probe.forgotten.fetch_add(1, Ordering::Relaxed);
    }
}
