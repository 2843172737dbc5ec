//! A file system that is attached: its names, and the data of its files.
//!
//! It owns how data and names fit together: which objects hold the bytes of an inode, and what a whole file
//! is for who reads or writes it at once. Names are in `namespace.rs`, objects in the client.

use crate::caller::{Caller, Shards, Unanswerable};
use crate::error::FsError;
use crate::namespace::{Namespace, NewFile};
use crate::path::text;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, File, FileLayout, FileSystem};
use weft_rt::sync::join_all;
use weft_rt::{Buf, random_u64};
use weft_types::{Attributes, BLOCK_SIZE, SessionId, with_causes};
use weft_wire::files::{
    Answer, AttributeChanges, FileError, FileRequest, Operation, SetTime, ShardState, UseOfShard,
};

/// Bytes of a file that are read or written by one call, and how many of these are under way.
const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = 8;

impl Shards for FileSystem {
    async fn ask(&self, shard: u16, request: &FileRequest) -> Result<Option<Answer>, Unanswerable> {
        self.ask_shard(shard, request).await.map_err(|error| {
            let why = with_causes(&error).into();
            match error {
                ClientError::Refused { .. } => Unanswerable::Refused(why),
                _ => Unanswerable::Over(why),
            }
        })
    }
}

/// An attached file system. Clones are the same.
#[derive(Clone)]
pub struct Mount {
    files: FileSystem,
    caller: Caller<FileSystem>,
    names: Namespace<FileSystem>,
    /// Names of files that are being written, and nobody else knows.
    unfinished: Rc<RefCell<BTreeSet<Vec<u8>>>>,
}

/// Where the bytes of a file come from.
pub trait Source {
    /// The next `most` bytes; fewer at the end only.
    ///
    /// # Errors
    /// Why there are none, for people.
    fn next(&mut self, most: usize) -> impl Future<Output = Result<Vec<u8>, String>>;
}

impl Mount {
    /// Attaches a file system beside other clients. An operation waits for `patience` for an answer.
    ///
    /// # Errors
    /// If there is no such file system, or no manager answers.
    pub async fn attach(
        fabric: &Fabric,
        name: &str,
        mode: AttachMode,
        patience: Duration,
    ) -> Result<Mount, ClientError> {
        let options = AttachOptions { mode, io_timeout: patience, ..AttachOptions::default() };
        let files = fabric.attach_file_system(name, options).await?;
        let caller = Caller::new(files.clone(), files.session_id(), patience);
        let names = Namespace::new(caller.clone());
        Ok(Mount { files, caller, names, unfinished: Rc::default() })
    }

    /// Its names.
    pub fn names(&self) -> &Namespace<FileSystem> {
        &self.names
    }

    /// Ends the attach, and removes what was not written to its end. What is not answered by then may have
    /// happened.
    pub async fn detach(&self) {
        let unfinished = self.unfinished.take();
        for name in &unfinished {
            // Where no shard answers, the name stays; it says what it is.
            let _ = self.names.remove(name).await;
        }
        self.caller.end("it was detached");
        self.files.detach().await;
    }

    /// Makes a file of all bytes of the source, under a path. If the path is taken, the file that had it
    /// loses it. Until all of the data is durable, the path leads where it led before. `progress` gets the
    /// bytes written.
    ///
    /// What is interrupted leaves a name that begins with `.weft-unfinished-`, until [`Mount::detach`].
    ///
    /// # Errors
    /// If the directory is not there, the path is one, or the data cannot be read or written.
    pub async fn write_file(
        &self,
        path: &[u8],
        new: NewFile,
        source: &mut impl Source,
        progress: impl Fn(u64),
    ) -> Result<Attributes, FsError> {
        let unfinished = unfinished_name(path);
        self.unfinished.borrow_mut().insert(unfinished.clone());
        let made = self.names.create(&unfinished, new).await.map_err(|error| error.about(path))?;
        let written = self.write_whole(&made, path, source, progress).await;
        let finished = match written {
            Ok(size) => self.finish_file(&made, size, (&unfinished, path)).await,
            Err(error) => Err(error),
        };
        if finished.is_ok() {
            self.unfinished.borrow_mut().remove(&unfinished);
        }
        finished
    }

    async fn write_whole(
        &self,
        made: &Attributes,
        path: &[u8],
        source: &mut impl Source,
        progress: impl Fn(u64),
    ) -> Result<u64, FsError> {
        let (file, mut size, mut is_last) = (self.data_of(made, path)?, 0, false);
        loop {
            let mut pieces = Vec::new();
            while !is_last && pieces.len() < PIECES {
                let bytes = source.next(PIECE_BYTES).await;
                let bytes = bytes.map_err(|why| FsError::Data { path: text(path), error: why.into() })?;
                is_last = bytes.len() < PIECE_BYTES;
                let at = size;
                size += bytes.len() as u64;
                pieces.push((at, padded(bytes)));
            }
            // Whoever removes the file finds by this how far it may have been written.
            self.names.ask(path, made.inode, Operation::Reserve(made.inode, size)).await?;
            let written = pieces.into_iter().map(|(at, bytes)| file.write(at, vec![Buf::from(bytes)]));
            for written in join_all(written).await {
                written.map_err(|error| data_error(path, &error))?;
            }
            progress(size);
            if is_last {
                return Ok(size);
            }
        }
    }

    async fn finish_file(
        &self,
        made: &Attributes,
        size: u64,
        (from, to): (&[u8], &[u8]),
    ) -> Result<Attributes, FsError> {
        let changes =
            AttributeChanges { size: Some(size), modified: Some(SetTime::Now), ..Default::default() };
        self.names.change(made.inode, changes, to).await?;
        self.names.rename(from, to).await
    }

    /// Reads a whole file, and gives each part of it to `take`, in order.
    ///
    /// # Errors
    /// If it is none, or cannot be read; if it was changed or removed meanwhile ([`FsError::Changed`]): then
    /// what was given is not of one moment.
    pub async fn read_file(
        &self,
        path: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<Attributes, FsError> {
        let found = self.names.find(path, true).await?;
        match found.kind {
            weft_types::FileKind::Regular => {}
            weft_types::FileKind::Directory => return Err(refused(path, FileError::IsDirectory)),
            _ => return Err(refused(path, FileError::Invalid)),
        }
        let file = self.data_of(&found, path)?;
        let mut at = 0;
        while at < found.size {
            let end = found.size.min(at + (PIECE_BYTES * PIECES) as u64);
            let starts = (at..end).step_by(PIECE_BYTES);
            let reads = starts.map(|start| file.read(start, (PIECE_BYTES as u64).min(end - start)));
            for bufs in join_all(reads).await {
                for buf in bufs.map_err(|error| data_error(path, &error))? {
                    take(&buf).map_err(|why| FsError::Data { path: text(path), error: why.into() })?;
                }
            }
            at = end;
        }
        match self.names.attributes_of(found.inode, path).await {
            Ok(now) if now.links > 0 && (now.size, now.modified) == (found.size, found.modified) => Ok(found),
            Ok(_) => Err(FsError::Changed { path: text(path) }),
            Err(error) if error.refusal() == Some(FileError::Stale) => {
                Err(FsError::Changed { path: text(path) })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether its directories lie in several shards.
    pub(crate) fn is_spread(&self) -> bool {
        self.files.is_spread()
    }

    /// How many shards its metadata have.
    pub fn shards(&self) -> u16 {
        self.files.shards()
    }

    /// Who uses a shard.
    ///
    /// # Errors
    /// If the shard does not answer, or its server is of a release that cannot do it.
    pub async fn use_of_shard(&self, shard: u16) -> Result<UseOfShard, FsError> {
        match self.caller.call(shard, Operation::Use).await? {
            Answer::Use(used) => Ok(used),
            _ => Err(FsError::OtherAnswer { shard }),
        }
    }

    /// What a shard is made of, and what it has done.
    ///
    /// # Errors
    /// As [`Mount::use_of_shard`].
    pub async fn state_of_shard(&self, shard: u16) -> Result<ShardState, FsError> {
        match self.caller.call(shard, Operation::State).await? {
            Answer::State(state) => Ok(state),
            _ => Err(FsError::OtherAnswer { shard }),
        }
    }

    /// The session of this attach.
    pub fn session_id(&self) -> SessionId {
        self.files.session_id()
    }

    /// Where the data of files are.
    pub(crate) fn files(&self) -> &FileSystem {
        &self.files
    }

    /// Asks a shard.
    pub(crate) async fn ask(&self, shard: u16, operation: Operation) -> Result<Answer, FsError> {
        self.caller.call(shard, operation).await
    }

    /// What it may do.
    pub fn mode(&self) -> AttachMode {
        self.files.mode()
    }

    /// The data of an inode.
    pub(crate) fn data_of(&self, attributes: &Attributes, path: &[u8]) -> Result<File, FsError> {
        let layout = FileLayout::decode(&attributes.layout);
        let layout =
            layout.map_err(|error| FsError::Data { path: text(path), error: with_causes(&error).into() })?;
        self.files.file(attributes.inode.0, layout).map_err(|error| data_error(path, &error))
    }
}

/// Bytes that end with a whole block: what is behind the end of a file reads as zeroes.
fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(BLOCK_SIZE), 0);
    bytes
}

/// A name for a file that is not complete, in the directory of its path.
fn unfinished_name(path: &[u8]) -> Vec<u8> {
    let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let mut name = path[..at].to_vec();
    name.extend_from_slice(format!(".weft-unfinished-{:016x}", random_u64()).as_bytes());
    name
}

fn refused(path: &[u8], error: FileError) -> FsError {
    FsError::Refused { path: text(path), error }
}

pub(crate) fn data_error(path: &[u8], error: &ClientError) -> FsError {
    FsError::Data { path: text(path), error: with_causes(error).into() }
}
