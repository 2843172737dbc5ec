//! Where the data of inodes may be, for who compares that with what groups hold.

use crate::error::MetaError;
use crate::medium::Medium;
use crate::shard::Inner;
use weft_types::InodeNumber;
use weft_wire::files::{Answer, DataBounds};

impl<M: Medium> Inner<M> {
    /// The bounds of each inode that is there, removed ones that wait to be purged too.
    pub(crate) async fn data_of(&self, inodes: &[InodeNumber]) -> Result<Answer, MetaError> {
        let bounds = {
            let tables = self.tables.borrow();
            let of = |inode| tables.inode(inode).map(|found| (found.attributes.layout, found.reserved_end));
            let found = inodes.iter().map(|inode| of(*inode));
            found.map(|found| found.map(|(layout, end)| DataBounds { layout, end })).collect()
        };
        self.prove().await?;
        Ok(Answer::DataOf(bounds))
    }
}
