//! Parts of a file, and which drives hold them.

use crate::error::FsError;
use crate::mount::{Mount, data_error};
use weft_client::{ClientError, FileLayout};
use weft_layout::{blocks_below, objects_for};
use weft_types::{Attributes, BLOCK_SIZE, BlockCount, DriveId, GroupId, Lba};

/// What one object holds of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// The number of the object among those of the inode.
    pub object: u32,
    /// The group that it is in; `None` if this client's map does not have the set of groups yet.
    pub group: Option<GroupId>,
    /// Bytes of the file that it stands for, up to the file's size; holes count.
    pub bytes: u64,
    /// The drives that what is written to the group goes to now.
    pub drives: Vec<DriveId>,
}

impl Mount {
    /// The parts of a file up to its size, in the order of objects, `most` at the most. It costs no message.
    /// `path` is what the file is called in errors.
    ///
    /// # Errors
    /// If the layout does not fit the file system, or that is gone.
    pub fn parts_of(
        &self,
        attributes: &Attributes,
        path: &[u8],
        most: usize,
    ) -> Result<Vec<FilePart>, FsError> {
        let of_client = |error: &ClientError| data_error(path, error);
        let layout = FileLayout::decode(&attributes.layout);
        let layout = layout.map_err(|error| of_client(&ClientError::Layout(error)))?;
        let files = self.files();
        let striping = files.striping(layout).map_err(|error| of_client(&error))?;
        let (size, inode) = (attributes.size, attributes.inode.0);
        let end = size.div_ceil(BLOCK_SIZE as u64);
        let mut parts = Vec::new();
        for object in 0..objects_for(&striping, BlockCount(end)) {
            if parts.len() >= most {
                break;
            }
            let blocks = u64::from(blocks_below(&striping, object, Lba(end)));
            // The last block of the file may not be whole.
            let last = end.checked_sub(1).map(|last| blocks_below(&striping, object, Lba(last)));
            let has_last = last.is_some_and(|below| u64::from(below) < blocks);
            let missing = if has_last { end * BLOCK_SIZE as u64 - size } else { 0 };
            let bytes = blocks * BLOCK_SIZE as u64 - missing;
            if bytes == 0 {
                continue;
            }
            let object = object as u32;
            let group = files.group_of(layout.set, inode, object).map_err(|error| of_client(&error))?;
            let drives = group.map(|group| files.drives_of(group)).unwrap_or_default();
            parts.push(FilePart { object, group, bytes, drives });
        }
        Ok(parts)
    }
}
