//! Folders for a measurement's own files.

use crate::BenchError;
use std::path::{Path, PathBuf};

/// A temporary folder, removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A new one below another folder.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn create(parent: &Path) -> Result<Folder, BenchError> {
        let path =
            parent.join(format!("weft-bench-{}-{:08x}", std::process::id(), weft_rt::random_u64() as u32));
        std::fs::create_dir(&path).map_err(|source| BenchError::File {
            action: "create",
            path: path.clone(),
            source,
        })?;
        Ok(Folder(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the folder stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_gone_once_nobody_needs_it() {
        weft_rt::block_on(async {
            let folder = Folder::create(&std::env::temp_dir()).expect("there is room");
            let path = folder.path().to_owned();
            std::fs::write(path.join("file"), "x").expect("it is there");
            drop(folder);
            assert!(!path.exists());
            assert!(Folder::create(&path).is_err());
        })
        .expect("the executor starts");
    }
}
