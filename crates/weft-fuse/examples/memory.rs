//! A file system in memory as a mount: what the kernel and this crate cost by themselves, as a limit for
//! benchmarks.
//!
//! ```text
//! cargo run --release -p weft-fuse --example memory -- /mnt/memory
//! ```

#[path = "../tests/memory/mod.rs"]
mod memory;

use memory::{Memory, Probe};
use std::error::Error;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use weft_fuse::{MountOptions, Session};

fn main() -> Result<(), Box<dyn Error>> {
    let at = std::env::args_os().nth(1).map(PathBuf::from);
    let at = at.ok_or("usage: memory FOLDER: an empty folder to mount at; umount ends it")?;
    weft_rt::block_on(async move {
        let tree = Rc::new(Memory::new(Arc::new(Probe::default())));
        let session = Session::mount(&at, &MountOptions::new("memory"), tree).await?;
        session.run().await.map_err(Box::from)
    })?
}
