//! The tree of a test of mdtest, and which of its folders each item is in: names, without any I/O.
//!
//! A tree has a depth and a branching factor: each folder above the lowest level has this many folders in it.
//! Items of a rank are spread evenly over all folders, or over those of the lowest level.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The shape of trees, and what is in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Levels below the root.
    pub depth: u32,
    /// Folders in each folder above the lowest level.
    pub branch: u32,
    /// Only folders of the lowest level have items.
    pub is_leaf_only: bool,
    /// Each rank has a tree of its own; otherwise all have one.
    pub is_unique: bool,
    /// Files of each rank, and as many folders.
    pub items: u64,
    /// Ranks.
    pub ranks: u32,
}

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Item {
    /// A folder.
    Directory,
    /// A file.
    File,
}

/// The number of folders of a tree, up to and with a level; none if that is more than can be counted.
pub(crate) fn folders_to(depth: u32, branch: u32) -> Option<u64> {
    let level = |n: u32| u64::from(branch).checked_pow(n);
    (0..=depth).try_fold(0_u64, |sum, n| sum.checked_add(level(n)?))
}

impl Tree {
    /// Folders of one tree, its root among them.
    ///
    /// # Panics
    /// If there are more than 2^64: a test looks at its trees before it makes any.
    pub fn folders(&self) -> u64 {
        folders_to(self.depth, self.branch).expect("the tree was checked")
    }

    /// Folders of one tree that items are in: the last ones by number.
    pub fn folders_with_items(&self) -> u64 {
        let above = match self.depth {
            0 => 0,
            depth => folders_to(depth - 1, self.branch).expect("the tree was checked"),
        };
        if self.is_leaf_only { self.folders() - above } else { self.folders() }
    }

    /// Trees of all ranks.
    pub fn trees(&self) -> u64 {
        if self.is_unique { self.ranks.into() } else { 1 }
    }

    /// The folder whose number is the one above a folder; none above the root.
    fn parent(&self, folder: u64) -> Option<u64> {
        (folder > 0).then(|| (folder - 1) / u64::from(self.branch))
    }

    /// Where the tree of a rank begins, below the folder of a repetition.
    pub(crate) fn root(&self, top: &Path, rank: u32) -> PathBuf {
        top.join(format!("tree.{}", if self.is_unique { rank } else { 0 }))
    }

    /// All folders of a rank's tree, each after its parent.
    pub(crate) fn paths(&self, top: &Path, rank: u32) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = vec![self.root(top, rank)];
        for folder in 1..self.folders() {
            let above = self.parent(folder).expect("it is not the root");
            paths.push(paths[above as usize].join(format!("tree.{folder}")));
        }
        paths
    }

    /// The number of the folder that an item is in.
    pub(crate) fn folder_of(&self, item: u64) -> u64 {
        let with_items = self.folders_with_items();
        let first = self.folders() - with_items;
        first + (u128::from(item) * u128::from(with_items) / u128::from(self.items)) as u64
    }
}

impl Item {
    /// The name of an item of a rank.
    pub(crate) fn name(self, rank: u32, item: u64) -> String {
        match self {
            Item::Directory => format!("dir.{rank}.{item}"),
            Item::File => format!("file.{rank}.{item}"),
        }
    }
}

/// Whether a test gives names of this form.
pub(crate) fn is_given(name: &str) -> bool {
    let mut words = name.split('.');
    let is_kind = words.next().is_some_and(|word| matches!(word, "tree" | "dir" | "file"));
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let numbers: Vec<&str> = words.collect();
    let is_moved = numbers.last() == Some(&"moved");
    let numbers = &numbers[..numbers.len() - usize::from(is_moved)];
    is_kind && !numbers.is_empty() && numbers.iter().all(|word| is_number(word))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    pub(crate) fn tree() -> Tree {
        Tree { depth: 2, branch: 3, is_leaf_only: false, is_unique: false, items: 26, ranks: 2 }
    }

    #[test]
    fn a_tree_has_all_its_folders_each_below_another() {
        let tree = tree();
        assert_eq!((tree.folders(), tree.folders_with_items(), tree.trees()), (13, 13, 1));
        let paths = tree.paths(Path::new("/top"), 1);
        assert_eq!(paths.len(), 13);
        assert_eq!(paths[0], Path::new("/top/tree.0"));
        assert_eq!(paths[12], Path::new("/top/tree.0/tree.3/tree.12"));
        let known: BTreeSet<&Path> = paths.iter().map(PathBuf::as_path).collect();
        assert!(
            known.len() == 13 && paths[1..].iter().all(|path| known.contains(path.parent().expect("one")))
        );
        assert_eq!(folders_to(5, 5), Some(3906));
        assert_eq!(folders_to(3, 1), Some(4), "a chain");
        assert_eq!(folders_to(200, 5), None);
    }

    #[test]
    fn items_are_spread_evenly() {
        let count = |tree: &Tree| {
            let mut by_folder: BTreeMap<u64, u64> = BTreeMap::new();
            (0..tree.items).for_each(|item| *by_folder.entry(tree.folder_of(item)).or_default() += 1);
            by_folder
        };
        let all = count(&tree());
        assert!(all.len() == 13 && all.values().all(|items| *items == 2), "{all:?}");
        let leaves = count(&Tree { is_leaf_only: true, items: 20, ..tree() });
        assert_eq!(leaves.keys().copied().collect::<Vec<_>>(), (4..13).collect::<Vec<_>>());
        assert!(leaves.values().all(|items| (2..=3).contains(items)), "{leaves:?}");
    }

    #[test]
    fn names_that_a_test_gives_are_known() {
        for name in ["tree.0", "dir.3.17", "file.0.1", "dir.3.17.moved"] {
            assert!(is_given(name), "{name}");
        }
        for name in ["tree", "dir.", "file.txt", "dir.1.x", "notes", "file.1.moved.moved", "tree..1"] {
            assert!(!is_given(name), "{name}");
        }
        assert!(is_given(&Item::File.name(2, 3)) && is_given(&Item::Directory.name(2, 3)));
    }
}
