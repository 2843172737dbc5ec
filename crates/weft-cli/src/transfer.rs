//! `weft volume import` and `export`: whole volumes to and from files, several MiB in flight.

use crate::connection::{Connection, client_name};
use crate::error::CliError;
use crate::helper::Helper;
use crate::interrupt::unless_interrupted;
use crate::locate::FabricPlace;
use crate::output::Output;
use crate::progress::Bytes;
use crate::size::Size;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest, FailureDomain};
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, Volume};
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, JoinHandle, now, spawn};
use weft_types::BLOCK_SIZE;

/// Bytes of one request: the largest that travels as one message to each replica.
const PIECE: usize = 1 << 20;

/// Requests in flight: enough to keep several drives and the network busy, 16 MiB of memory.
const DEPTH: usize = 16;

/// Zeroes that are gathered before they are discarded at once; one record per object and request.
const ZEROES_MAX: u64 = 1 << 30;

static ZERO_BLOCK: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// Arguments of `weft volume import`.
#[derive(Clone, Debug, clap::Args)]
pub struct VolumeImportArgs {
    /// The volume's name
    pub name: String,
    /// The file or block device to read, or - for the standard input
    pub file: PathBuf,
    /// Create the volume first, as large as the file, with two copies
    #[arg(long)]
    pub create: bool,
    /// Overwrite a volume that holds data
    #[arg(long, conflicts_with = "create")]
    pub force: bool,
    /// Go through all checks, say what would be lost, and change nothing
    #[arg(long, conflicts_with = "create")]
    pub dry_run: bool,
    /// With --create: its size, such as 100GiB, if it shall be larger than the file or the file is -
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, requires = "create")]
    pub size: Option<Size>,
}

/// Arguments of `weft volume export`.
#[derive(Clone, Debug, clap::Args)]
pub struct VolumeExportArgs {
    /// The volume's name
    pub name: String,
    /// The file to write, or - for the standard output
    pub file: PathBuf,
    /// Leave holes in the file where the volume holds zeroes
    #[arg(long)]
    pub sparse: bool,
    /// Overwrite a file that exists, or write to a block device
    #[arg(long)]
    pub force: bool,
}

/// What was copied, for programs.
#[derive(Serialize)]
struct Copied<'a> {
    volume: &'a str,
    file: &'a Path,
    bytes: u64,
    zero_bytes: u64,
    elapsed_ms: u64,
}

/// What would be copied, for programs.
#[derive(Serialize)]
struct WouldImport<'a> {
    volume: &'a str,
    file: &'a Path,
    /// None where only the end tells, as for the standard input.
    bytes: Option<u64>,
    /// Whether the volume holds data, all of which would be gone; none: not every drive says so.
    overwrites: Option<bool>,
    dry_run: bool,
}

impl WouldImport<'_> {
    fn describe(&self) -> String {
        let length = self.bytes.map_or_else(String::new, |bytes| format!(" ({})", Size(bytes)));
        let lost = match self.overwrites {
            Some(false) => "it holds nothing",
            Some(true) => "all that it holds would be gone",
            None => "not every drive says whether it holds data, which would be gone",
        };
        format!("{}{length} would be imported into volume {}: {lost}\n", self.file.display(), self.volume)
    }
}

pub(crate) async fn import(
    place: &FabricPlace,
    args: &VolumeImportArgs,
    output: Output,
) -> Result<(), CliError> {
    let (source, length) = open_source(&args.file)?;
    if args.create {
        create(place, args, length).await?;
    }
    let volume = attach(place, &args.name, AttachMode::Exclusive).await?;
    let mut fits = check_fits(&volume, args, length);
    if fits.is_ok() && !args.create && !args.force {
        // Attached exclusively, nobody can write to it meanwhile.
        fits = check_is_empty(place, &args.name).await;
    }
    if args.dry_run {
        let holds = match fits {
            Ok(()) => holds_data(place, &args.name).await,
            Err(error) => Err(error),
        };
        volume.detach().await;
        let would = WouldImport {
            volume: &args.name,
            file: &args.file,
            bytes: length,
            overwrites: holds?,
            dry_run: true,
        };
        return output.show(&would, |w, _| w.describe());
    }
    let began = now();
    let import = Import {
        volume: volume.clone(),
        is_new: args.create,
        permits: Semaphore::new(DEPTH as u64),
        failure: Rc::default(),
    };
    let mut progress = Progress::default();
    let done = match fits {
        Ok(()) => {
            let bar = Bytes::new("importing", length);
            unless_interrupted(import.run(source, args, &bar, &mut progress)).await
        }
        Err(error) => Some(Err(error)),
    };
    volume.detach().await;
    let state =
        format!("{} were imported; volume {} holds a part of the file", Size(progress.bytes), args.name);
    match done {
        Some(Ok(())) => {
            let elapsed_ms = began.elapsed().as_millis() as u64;
            let Progress { bytes, zero_bytes } = progress;
            let copied = Copied { volume: &args.name, file: &args.file, bytes, zero_bytes, elapsed_ms };
            output.show(&copied, |c, _| describe("imported", c))
        }
        Some(Err(error)) if progress.bytes == 0 => Err(error),
        Some(Err(error)) => {
            Err(CliError::Failed { message: format!("{}; {state}", error.chain()), hint: error.hint() })
        }
        None => Err(CliError::Interrupted { message: format!("interrupted; {state}") }),
    }
}

fn open_source(path: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), CliError> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin()), None));
    }
    let mut file = File::open(path).map_err(CliError::file("open", path))?;
    let kind = file.metadata().map_err(CliError::file("read", path))?;
    if kind.is_dir() {
        return Err(CliError::file("read", path)(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    if kind.is_file() && kind.len() == 0 {
        return Err(nothing_to_import(path));
    }
    // A pipe or terminal has no length; a block device tells its own only by its end.
    let length = file.seek(SeekFrom::End(0)).and_then(|n| file.rewind().map(|()| n)).ok();
    Ok((Box::new(file), length))
}

async fn create(place: &FabricPlace, args: &VolumeImportArgs, length: Option<u64>) -> Result<(), CliError> {
    if let (Some(size), Some(length)) = (args.size, length)
        && length > size.0
    {
        return Err(CliError::Usage {
            message: format!(
                "{} has {length} bytes, which a volume of {size} cannot hold",
                args.file.display()
            ),
            hint: "leave --size out to make the volume as large as the file; nothing was made".into(),
        });
    }
    let size = match (args.size, length) {
        (Some(size), _) => size.0,
        (None, Some(length)) => length.max(1).next_multiple_of(BLOCK_SIZE as u64),
        (None, None) => {
            return Err(CliError::Usage {
                message: "the length of the standard input is not known before its end".into(),
                hint: "say how large the volume shall be with --size".into(),
            });
        }
    };
    let connection = Connection::open(place).await?;
    let request = ApiRequest::VolumeCreate {
        name: args.name.clone(),
        size_bytes: size,
        protection: weft_types::Protection::mirror(2),
        pool: None,
        stripe_unit_bytes: None,
        width: None,
        failure_domain: FailureDomain::Node,
        thin: false,
        dry_run: false,
    };
    connection.ask(&request).await.map(|_| ())
}

/// Attaches a volume of the fabric.
pub(crate) async fn attach(place: &FabricPlace, name: &str, mode: AttachMode) -> Result<Volume, CliError> {
    // Asked first, because its error says where the fabric was looked for and what to do.
    Connection::open(place).await?;
    let fabric = Fabric::connect(&place.managers()?, &client_name()).await?;
    Ok(fabric.attach(name, AttachOptions { mode, ..AttachOptions::default() }).await?)
}

/// What was to be imported holds nothing. Rather than what was meant, that is what a program before the pipe
/// leaves that has failed, and all that the volume holds would be gone.
fn nothing_to_import(file: &Path) -> CliError {
    let file = if file == Path::new("-") { Path::new("the standard input") } else { file };
    CliError::Refused {
        message: format!("{} is empty; nothing was changed", file.display()),
        hint:
            "look whether the program that should have made it has failed; to empty a volume, delete it and \
               create it again"
                .into(),
    }
}

/// Whether a volume holds data, as far as its drives say.
async fn holds_data(place: &FabricPlace, name: &str) -> Result<Option<bool>, CliError> {
    let connection = Connection::open(place).await?;
    let answer = connection.ask(&ApiRequest::VolumeHoldsData { name: name.to_owned() }).await?;
    let ApiAnswer::HoldsData { holds } = answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    Ok(holds)
}

/// Refuses to overwrite data. A volume of which that is not known is taken for one that holds some.
async fn check_is_empty(place: &FabricPlace, name: &str) -> Result<(), CliError> {
    let message = match holds_data(place, name).await? {
        Some(false) => return Ok(()),
        Some(true) => format!("volume {name} holds data, all of which would be gone; nothing was changed"),
        None => format!("not every drive says whether volume {name} holds data; nothing was changed"),
    };
    Err(CliError::Refused {
        message,
        hint: "pass --force to overwrite it, or import into a new volume with --create".into(),
    })
}

fn check_fits(volume: &Volume, args: &VolumeImportArgs, length: Option<u64>) -> Result<(), CliError> {
    match length {
        Some(length) if length > volume.size_bytes() => Err(CliError::Failed {
            message: format!(
                "{} has {length} bytes, volume {} only {}; nothing was imported",
                args.file.display(),
                args.name,
                volume.size_bytes()
            ),
            hint: format!(
                "grow it with `weft volume resize {} --size {}`",
                args.name,
                length.next_multiple_of(BLOCK_SIZE as u64)
            ),
        }),
        _ => Ok(()),
    }
}

/// How far a copy has come.
#[derive(Default)]
struct Progress {
    bytes: u64,
    zero_bytes: u64,
}

/// An import in progress.
struct Import {
    volume: Volume,
    /// The volume was made for this, so it reads as zeroes where nothing was written.
    is_new: bool,
    permits: Semaphore,
    /// The first error of a write in flight.
    failure: Rc<RefCell<Option<ClientError>>>,
}

impl Import {
    /// Copies until the end of the source, then makes the rest of the volume read as zeroes.
    async fn run(
        &self,
        source: Box<dyn Read + Send>,
        args: &VolumeImportArgs,
        bar: &Bytes,
        progress: &mut Progress,
    ) -> Result<(), CliError> {
        let source = Helper::new(source);
        let mut zeroes = 0..0;
        loop {
            let piece = source.run(read_piece).await.map_err(CliError::file("read", &args.file))?;
            let (at, length) = (progress.bytes, piece.len() as u64);
            if piece.is_empty() && at == 0 && !self.is_new {
                return Err(nothing_to_import(&args.file));
            }
            if piece.is_empty() {
                break;
            }
            if at + length > self.volume.size_bytes() {
                return Err(CliError::Failed {
                    message: format!("the input is longer than volume {}", args.name),
                    hint: "grow the volume with `weft volume resize`, then import again".into(),
                });
            }
            for (run, is_zero) in runs(&piece) {
                let (from, to) = (at + run.start as u64, at + run.end as u64);
                if is_zero && from == zeroes.end && to - zeroes.start <= ZEROES_MAX {
                    zeroes.end = to;
                    continue;
                }
                self.discard(std::mem::replace(&mut zeroes, to..to)).await?;
                if is_zero {
                    zeroes = from..to;
                } else {
                    self.write(from, padded(&piece[run])).await?;
                }
            }
            progress.zero_bytes += runs(&piece).filter(|r| r.1).map(|r| r.0.len() as u64).sum::<u64>();
            progress.bytes += length;
            bar.add(length);
        }
        let end = progress.bytes.next_multiple_of(BLOCK_SIZE as u64);
        self.discard(zeroes).await?;
        self.discard(end..self.volume.size_bytes()).await?;
        // With all permits back, nothing is in flight.
        let _all = self.permits.acquire(DEPTH as u64).await;
        self.check()
    }

    fn check(&self) -> Result<(), CliError> {
        self.failure.borrow_mut().take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Starts to write a piece as soon as there is room among those in flight.
    async fn write(&self, at: u64, data: Buf) -> Result<(), CliError> {
        let permit = self.permits.acquire(1).await;
        self.check()?;
        let (volume, failure) = (self.volume.clone(), self.failure.clone());
        spawn(async move {
            if let Err(error) = volume.write(at, vec![data]).await {
                failure.borrow_mut().get_or_insert(error);
            }
            drop(permit);
        });
        Ok(())
    }

    /// Makes a range read as zeroes.
    async fn discard(&self, range: std::ops::Range<u64>) -> Result<(), CliError> {
        if self.is_new {
            return Ok(());
        }
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(ZEROES_MAX).next_multiple_of(BLOCK_SIZE as u64);
            self.volume.write_zeroes(at, length).await?;
            at += length;
        }
        Ok(())
    }
}

/// The next piece of a source: full, except the last; empty at the end.
fn read_piece(source: &mut Box<dyn Read + Send>) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(PIECE);
    source.as_mut().take(PIECE as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// The data with zeroes up to whole blocks.
fn padded(data: &[u8]) -> Buf {
    let mut whole = weft_rt::BufMut::zeroed(data.len().next_multiple_of(BLOCK_SIZE));
    whole[..data.len()].copy_from_slice(data);
    whole.freeze()
}

/// The runs of blocks that are all zero, and of those that are not, in order.
fn runs(bytes: &[u8]) -> impl Iterator<Item = (std::ops::Range<usize>, bool)> + '_ {
    let is_zero = |at: usize| {
        let block = &bytes[at..(at + BLOCK_SIZE).min(bytes.len())];
        *block == ZERO_BLOCK[..block.len()]
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let (start, zero) = (at, is_zero(at));
        while at < bytes.len() && is_zero(at) == zero {
            at += BLOCK_SIZE;
        }
        Some((start..at.min(bytes.len()), zero))
    })
}

pub(crate) async fn export(
    place: &FabricPlace,
    args: &VolumeExportArgs,
    output: Output,
) -> Result<(), CliError> {
    let is_stdout = args.file == Path::new("-");
    if is_stdout && args.sparse {
        return Err(CliError::Usage {
            message: "the standard output cannot have holes".into(),
            hint: "name a file, or leave --sparse out".into(),
        });
    }
    let volume = attach(place, &args.name, AttachMode::ReadOnly).await?;
    let began = now();
    let mut progress = Progress::default();
    let mut is_new = false;
    let done = match Sink::open(args, volume.size_bytes()) {
        Ok(sink) => {
            is_new = sink.is_new;
            let bar = Bytes::new("exporting", Some(volume.size_bytes()));
            unless_interrupted(copy_out(&volume, sink, args, &bar, &mut progress)).await
        }
        Err(error) => Some(Err(error)),
    };
    volume.detach().await;
    if progress.bytes == 0 && is_new && !matches!(done, Some(Ok(()))) {
        // Nobody takes an empty file for an export then.
        fs::remove_file(&args.file).map_err(CliError::file("remove", &args.file))?;
    }
    let state = match is_stdout {
        true => format!("{} were written", Size(progress.bytes)),
        false => format!("{} holds the first {}", args.file.display(), Size(progress.bytes)),
    };
    match done {
        Some(Ok(())) => {
            let elapsed_ms = began.elapsed().as_millis() as u64;
            let Progress { bytes, zero_bytes } = progress;
            let copied = Copied { volume: &args.name, file: &args.file, bytes, zero_bytes, elapsed_ms };
            if is_stdout {
                return Ok(());
            }
            output.show(&copied, |c, _| describe("exported", c))
        }
        Some(Err(error)) if progress.bytes == 0 => Err(error),
        Some(Err(error)) => {
            Err(CliError::Failed { message: format!("{}; {state}", error.chain()), hint: error.hint() })
        }
        None => Err(CliError::Interrupted { message: format!("interrupted; {state}") }),
    }
}

/// Where an export goes.
struct Sink {
    file: Box<dyn SinkFile>,
    is_sparse: bool,
    /// The file was made for this.
    is_new: bool,
}

trait SinkFile: Write + Send {
    /// Leaves a hole.
    fn skip(&mut self, bytes: u64) -> io::Result<()>;
    /// Makes all of it durable where that means something.
    fn finish(&mut self) -> io::Result<()>;
}

impl SinkFile for File {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
        self.seek(SeekFrom::Current(bytes)).map(|_| ())
    }

    fn finish(&mut self) -> io::Result<()> {
        if !self.metadata()?.is_file() {
            return self.flush();
        }
        // A hole at the end is part of the file only once its length says so.
        let end = self.stream_position()?;
        self.set_len(end)?;
        self.sync_all()
    }
}

impl SinkFile for io::Stdout {
    fn skip(&mut self, _: u64) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::NotSeekable))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()
    }
}

impl Sink {
    fn open(args: &VolumeExportArgs, size: u64) -> Result<Sink, CliError> {
        let path = &args.file;
        if path == Path::new("-") {
            return Ok(Sink { file: Box::new(io::stdout()), is_sparse: false, is_new: false });
        }
        let is_file = fs::metadata(path).map(|m| m.is_file());
        if is_file.is_ok() && !args.force {
            return Err(CliError::Refused {
                message: format!("{} exists", path.display()),
                hint: "choose another name, or overwrite it with --force".into(),
            });
        }
        let mut options = File::options();
        options.write(true).create_new(is_file.is_err()).truncate(matches!(is_file, Ok(true)));
        let file = options.open(path).map_err(CliError::file("create", path))?;
        // On a device, what is skipped would keep its old contents.
        let is_sparse = args.sparse && !matches!(is_file, Ok(false));
        if matches!(is_file, Ok(false)) {
            check_device(path, size)?;
        }
        Ok(Sink { file: Box::new(file), is_sparse, is_new: is_file.is_err() })
    }

    fn write(&mut self, pieces: &[(bool, Vec<u8>)]) -> io::Result<()> {
        for (is_zero, bytes) in pieces {
            match self.is_sparse && *is_zero {
                true => self.file.skip(bytes.len() as u64)?,
                false => self.file.write_all(bytes)?,
            }
        }
        Ok(())
    }
}

/// Refuses a block device that is shorter than the volume; a pipe has no length.
fn check_device(path: &Path, size: u64) -> Result<(), CliError> {
    let length = File::open(path).and_then(|mut f| f.seek(SeekFrom::End(0)));
    match length {
        Ok(length) if length > 0 && length < size => Err(CliError::Refused {
            message: format!("{} has {length} bytes, the volume {size}", path.display()),
            hint: "choose a larger device; nothing was written".into(),
        }),
        _ => Ok(()),
    }
}

/// Reads the volume from start to end, ahead of what is written.
async fn copy_out(
    volume: &Volume,
    sink: Sink,
    args: &VolumeExportArgs,
    bar: &Bytes,
    progress: &mut Progress,
) -> Result<(), CliError> {
    let sink = Helper::new(sink);
    let size = volume.size_bytes();
    let mut next = 0;
    let mut ahead: VecDeque<JoinHandle<Result<Vec<Buf>, ClientError>>> = VecDeque::new();
    loop {
        while next < size && ahead.len() < DEPTH {
            let (volume, at, length) = (volume.clone(), next, (size - next).min(PIECE as u64));
            ahead.push_back(spawn(async move { volume.read(at, length).await }));
            next += length;
        }
        let Some(read) = ahead.pop_front() else { break };
        let bufs = read.await.expect("nobody aborts a read")?;
        let pieces: Vec<(bool, Vec<u8>)> = bufs
            .iter()
            .flat_map(|buf| runs(buf).map(|(run, is_zero)| (is_zero, buf[run].to_vec())))
            .collect();
        let length: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        let zeroes: usize = pieces.iter().filter(|(is_zero, _)| *is_zero).map(|(_, b)| b.len()).sum();
        let written = sink.run(move |sink| sink.write(&pieces)).await;
        written.map_err(|e| unwritten(&args.file, e))?;
        progress.bytes += length as u64;
        progress.zero_bytes += zeroes as u64;
        bar.add(length as u64);
    }
    sink.run(|sink| sink.file.finish()).await.map_err(|e| unwritten(&args.file, e))
}

/// What is exported could not be written.
fn unwritten(path: &Path, source: io::Error) -> CliError {
    let path = if path == Path::new("-") { Path::new("the standard output") } else { path };
    CliError::file("write", path)(source)
}

fn describe(what: &str, copied: &Copied<'_>) -> String {
    let rate = copied.bytes * 1000 / copied.elapsed_ms.max(1);
    format!(
        "{what} {} ({} of zeroes) in {:.1} s, {}/s\n",
        Size(copied.bytes),
        Size(copied.zero_bytes),
        copied.elapsed_ms as f64 / 1000.0,
        Size(rate)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zero_blocks_are_told_apart() {
        let mut bytes = vec![0; 5 * BLOCK_SIZE + 100];
        bytes[BLOCK_SIZE] = 1;
        bytes[3 * BLOCK_SIZE - 1] = 1;
        let found: Vec<_> = runs(&bytes).collect();
        let (one, three) = (BLOCK_SIZE, 3 * BLOCK_SIZE);
        assert_eq!(found, [(0..one, true), (one..three, false), (three..bytes.len(), true)]);
        assert_eq!(runs(&[]).count(), 0);
    }

    #[test]
    fn a_short_read_is_not_the_end() {
        struct Trickle(usize);
        impl Read for Trickle {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                let n = self.0.min(buf.len()).min(1000);
                self.0 -= n;
                Ok(n)
            }
        }
        let mut source: Box<dyn Read + Send> = Box::new(Trickle(PIECE + 7));
        assert_eq!(read_piece(&mut source).expect("reads").len(), PIECE);
        assert_eq!(read_piece(&mut source).expect("reads").len(), 7);
        assert_eq!(read_piece(&mut source).expect("reads").len(), 0);
    }
}
