//! Projects: directories with all that is in them, which are counted and limited together (F16).

use crate::error::FsError;
use crate::mount::Mount;
use std::cell::Cell;
use weft_rt::sync::join_all;
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{Answer, FileError, Operation, QuotaAmount, QuotaKind, QuotaOf};

/// Inodes that are given to a project at a time.
const AT_ONCE: usize = 64;

/// Numbers that are given to directories begin here: people give smaller ones.
const OF_DIRECTORIES: u32 = 1 << 31;

/// A directory that is given to a project with all that is in it.
struct Tree<'m> {
    mount: &'m Mount,
    /// What it belonged to before.
    old: u32,
    project: u32,
    done: Cell<u64>,
}

impl Mount {
    /// Has an inode belong to a project from now on (0: none), and what is made in it if it is a directory.
    /// What is in it already stays as it is. Durable once this has returned.
    ///
    /// # Errors
    /// If the project has no room for the inode, the inode is gone, or its shard does not answer.
    pub async fn set_project(&self, inode: InodeNumber, project: u32) -> Result<(), FsError> {
        self.ask_project(Operation::SetProject(inode, project)).await.map(drop)
    }

    /// The project of an inode; 0 if it has none.
    ///
    /// # Errors
    /// If it is gone, or its shard does not answer.
    pub async fn project(&self, inode: InodeNumber) -> Result<u32, FsError> {
        self.ask_project(Operation::Project(inode)).await
    }

    /// As [`Mount::set_project`], with all that is in it. Directories in it that belong to another project
    /// than it does stay with that, with all that is in them. Each directory is given before it is listed:
    /// what is made meanwhile belongs to the project. If it fails, a part has been given, and it can be done
    /// again. `progress` is called with the number of inodes so far. Returns their number.
    ///
    /// # Errors
    /// As [`Mount::set_project`].
    pub async fn set_project_of_tree(
        &self,
        top: &Attributes,
        project: u32,
        progress: impl Fn(u64),
    ) -> Result<u64, FsError> {
        let old = self.project(top.inode).await?;
        let tree = Tree { mount: self, old, project, done: Cell::new(0) };
        tree.give(top.inode, false).await?;
        let mut left = Vec::from_iter((top.kind == FileKind::Directory).then_some(top.inode));
        while let Some(directory) = left.pop() {
            left.extend(tree.give_entries(directory).await?);
            progress(tree.done.get());
        }
        Ok(tree.done.get())
    }

    /// A number for a project that begins with a directory: one of which nothing is used or limited.
    ///
    /// # Errors
    /// If a shard does not answer.
    pub async fn free_project(&self, directory: InodeNumber) -> Result<u32, FsError> {
        // So two directories that get one at the same time seldom get the same.
        let mut wish = (directory.0 ^ directory.0 >> 32) as u32;
        loop {
            let id = OF_DIRECTORIES | wish;
            let found = self.quota(QuotaOf { kind: QuotaKind::Project, id }).await?;
            if found.used == QuotaAmount::default() && found.limit == QuotaAmount::UNLIMITED {
                return Ok(id);
            }
            wish = wish.wrapping_add(1);
        }
    }

    /// A path of a directory; `None` if it is gone. Directories above it may get other names meanwhile.
    ///
    /// # Errors
    /// If a shard does not answer.
    pub async fn path_of(&self, directory: InodeNumber) -> Result<Option<Vec<u8>>, FsError> {
        let (mut at, mut path) = (directory, Vec::new());
        while at != InodeNumber::ROOT {
            let Some(above) = self.directory_above(at).await? else { return Ok(None) };
            let entries = match self.names().list(above, b"").await {
                Err(error) if error.refusal() == Some(FileError::Stale) => return Ok(None),
                listed => listed?,
            };
            let Some(entry) = entries.into_iter().find(|entry| entry.attributes.inode == at) else {
                return Ok(None);
            };
            path = [b"/", &entry.name[..], &path].concat();
            at = above;
        }
        Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
    }

    async fn directory_above(&self, directory: InodeNumber) -> Result<Option<InodeNumber>, FsError> {
        let shard = directory.shard();
        match self.ask(shard, Operation::NamesOf(vec![directory])).await? {
            Answer::NamesOf(found) => {
                let found = found.into_iter().next().flatten();
                Ok(found.filter(|found| found.names > 0).map(|found| found.directory))
            }
            _ => Err(FsError::OtherAnswer { shard }),
        }
    }

    async fn ask_project(&self, operation: Operation) -> Result<u32, FsError> {
        let shard = operation.inode().shard();
        match self.ask(shard, operation).await? {
            Answer::Project(project) => Ok(project),
            Answer::Failed(error) => Err(FsError::Refused { path: String::new(), error }),
            _ => Err(FsError::OtherAnswer { shard }),
        }
    }
}

impl Tree<'_> {
    /// Gives an inode to the project. Returns whether it was given: not a directory of another project, and
    /// not what is gone.
    async fn give(&self, inode: InodeNumber, may_be_of_others: bool) -> Result<bool, FsError> {
        let given = async {
            if may_be_of_others {
                let found = self.mount.project(inode).await?;
                if ![0, self.old, self.project].contains(&found) {
                    return Ok(false);
                }
            }
            self.mount.set_project(inode, self.project).await.map(|()| true)
        };
        match given.await {
            Err(error) if error.refusal() == Some(FileError::Stale) => Ok(false),
            Ok(true) => {
                self.done.set(self.done.get() + 1);
                Ok(true)
            }
            other => other,
        }
    }

    /// Gives what has a name in a directory to the project. Returns the directories among it.
    async fn give_entries(&self, directory: InodeNumber) -> Result<Vec<InodeNumber>, FsError> {
        let entries = match self.mount.names().list(directory, b"").await {
            Err(error) if matches!(error.refusal(), Some(FileError::Stale | FileError::NotFound)) => {
                Vec::new()
            }
            listed => listed?,
        };
        let mut directories = Vec::new();
        for some in entries.chunks(AT_ONCE) {
            let given = some.iter().map(async |entry| {
                let Attributes { inode, kind, .. } = entry.attributes;
                let is_directory = kind == FileKind::Directory;
                let is_given = self.give(inode, is_directory).await?;
                Ok::<_, FsError>((is_given && is_directory).then_some(inode))
            });
            for given in join_all(given).await {
                directories.extend(given?);
            }
        }
        Ok(directories)
    }
}
