//! What one rank does in one phase of IOR: it opens its file, moves its transfers, and closes it.

use super::layout::Layout;
use crate::BenchError;
use crate::suites::content::{Buffer, Content};
use crate::suites::failed;
use crate::suites::message::PhaseReport;
use crate::suites::rank::{Conductor, now_ns, seconds};
use crate::suites::stonewall::Stonewall;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// What a phase is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Files are written.
    Write,
    /// They are read.
    Read,
    /// They are read, and their content is compared with what should be there; this is not measured.
    Check,
    /// They are removed.
    Remove,
}

impl Access {
    /// In a table.
    pub fn word(self) -> &'static str {
        match self {
            Access::Write => "write",
            Access::Read => "read",
            Access::Check => "check",
            Access::Remove => "remove",
        }
    }
}

/// A phase, as one rank carries it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct IorOrder {
    pub(crate) access: Access,
    pub(crate) layout: Layout,
    /// Whose data it moves.
    pub(crate) rank: u32,
    pub(crate) seed: u64,
    /// How many of that rank's transfers it makes: from the first on.
    pub(crate) transfers: u64,
    /// Direct requests, past the pages of the kernel.
    pub(crate) is_direct: bool,
    /// After the last write, and after each.
    pub(crate) fsync: bool,
    pub(crate) fsync_per_write: bool,
    /// Wait for the others after the open and before the close, too.
    pub(crate) waits_between: bool,
    /// Begin no transfer after this many nanoseconds.
    pub(crate) deadline_ns: Option<u64>,
    /// After the deadline, all ranks go on until they have made as many transfers as the fastest of them.
    pub(crate) wears_out: bool,
    /// End a check at the first transfer that is wrong.
    pub(crate) quits: bool,
}

/// Carries out a phase.
///
/// # Errors
/// Those of the operating system, with the file; or if the conductor is gone.
pub(crate) fn carry_out(order: &IorOrder, conductor: &mut Conductor) -> Result<PhaseReport, BenchError> {
    let path = order.layout.path(order.rank);
    if order.access == Access::Remove {
        conductor.barrier(0)?;
        let report = PhaseReport { began_ns: now_ns(), operations: 1, ..PhaseReport::default() };
        fs::remove_file(&path).map_err(failed("remove", &path))?;
        return Ok(report.ended());
    }
    // Made before it is measured.
    let mut mover = Mover::new(order, path)?;
    conductor.barrier(0)?;
    let mut report = PhaseReport { began_ns: now_ns(), ..PhaseReport::default() };
    let file = mover.open()?;
    let opened = now_ns();
    report.open_s = seconds(report.began_ns, opened);
    if order.waits_between {
        conductor.barrier(0)?;
    }
    let moved_from = now_ns();
    mover.move_all(&file, conductor, &mut report)?;
    let moved = now_ns();
    report.access_s = seconds(moved_from, moved);
    if order.waits_between {
        conductor.barrier(0)?;
    }
    let closing = now_ns();
    mover.close(file)?;
    report.close_s = seconds(closing, now_ns());
    Ok(report.ended())
}

/// What moves the transfers of one rank.
struct Mover<'a> {
    order: &'a IorOrder,
    path: PathBuf,
    content: Content,
    buffer: Buffer,
}

impl Mover<'_> {
    fn new(order: &IorOrder, path: PathBuf) -> Result<Mover<'_>, BenchError> {
        let transfer = usize::try_from(order.layout.transfer_bytes);
        let transfer = transfer.map_err(|error| BenchError::Invalid { what: error.to_string() })?;
        let content = Content::new(order.seed, order.layout.file_number(order.rank), transfer);
        let buffer = Buffer::new(if order.access == Access::Write { 0 } else { transfer });
        Ok(Mover { order, path, content, buffer })
    }

    fn open(&self) -> Result<File, BenchError> {
        let mut options = OpenOptions::new();
        match self.order.access {
            Access::Write => options.write(true).create(true),
            _ => options.read(true),
        };
        if self.order.is_direct {
            options.custom_flags(libc::O_DIRECT);
        }
        options.open(&self.path).map_err(failed("open", &self.path))
    }

    /// Moves transfers until there are no more, or there is no more time.
    fn move_all(
        &mut self,
        file: &File,
        conductor: &mut Conductor,
        report: &mut PhaseReport,
    ) -> Result<(), BenchError> {
        let order = self.order;
        let offsets = order.layout.offsets(order.rank, order.seed);
        let mut stonewall = Stonewall::new(order.deadline_ns, order.wears_out, order.transfers);
        let mut done = 0;
        while stonewall.goes_on(done, conductor)? {
            self.transfer(file, offsets.at(done), report)?;
            done += 1;
            stonewall.progress(done, conductor)?;
            if order.quits && report.wrong > 0 {
                break;
            }
        }
        report.operations = done;
        report.bytes = done * order.layout.transfer_bytes;
        if order.access == Access::Write && order.fsync {
            file.sync_all().map_err(failed("sync", &self.path))?;
        }
        Ok(())
    }

    fn transfer(&mut self, file: &File, offset: u64, report: &mut PhaseReport) -> Result<(), BenchError> {
        let length = self.order.layout.transfer_bytes as usize;
        if self.order.access == Access::Write {
            let bytes = self.content.at(offset, length);
            let began = now_ns();
            file.write_all_at(bytes, offset).map_err(failed("write to", &self.path))?;
            if self.order.fsync_per_write {
                file.sync_all().map_err(failed("sync", &self.path))?;
            }
            report.latencies_s += seconds(began, now_ns());
            return Ok(());
        }
        let bytes = &mut self.buffer.all()[..length];
        let began = now_ns();
        file.read_exact_at(bytes, offset).map_err(|error| self.short(file, offset, error))?;
        report.latencies_s += seconds(began, now_ns());
        if self.order.access == Access::Check
            && let Some(wrong) = self.content.wrong(offset, self.buffer.all())
        {
            report.wrong += 1;
            report.first_wrong.get_or_insert_with(|| {
                let path = self.path.display();
                let (at, expected, found) = (wrong.offset, wrong.expected, wrong.found);
                format!("byte {at} of {path}: expected 0x{expected:02x}, found 0x{found:02x}")
            });
        }
        Ok(())
    }

    /// Why a read has failed: mostly because the file is shorter than it should be.
    fn short(&self, file: &File, offset: u64, error: io::Error) -> BenchError {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return failed("read", &self.path)(error);
        }
        let expected = offset + self.order.layout.transfer_bytes;
        let found = file.metadata().map_or(0, |metadata| metadata.len());
        let what = format!(
            "{} ends at byte {found}, expected {expected} or more: it has to be read with the sizes (-b, -s) \
             and the number of processes with which it was written",
            self.path.display()
        );
        BenchError::Invalid { what }
    }

    fn close(&self, file: File) -> Result<(), BenchError> {
        use std::os::fd::IntoRawFd;
        // SAFETY: the descriptor is this file's, which is forgotten; that the close failed is an error of
        // the test.
        match unsafe { libc::close(file.into_raw_fd()) } {
            0 => Ok(()),
            _ => Err(failed("close", &self.path)(io::Error::last_os_error())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::layout;
    use super::*;
    use crate::suites::content::seed_of;
    use crate::suites::rank::tests::alone;

    fn order(access: Access, name: &str) -> IorOrder {
        let file = std::env::temp_dir().join(format!("weft-bench-{name}-{}", std::process::id()));
        let layout = Layout { file, ranks: 1, ..layout() };
        IorOrder {
            access,
            transfers: layout.transfers(),
            layout,
            rank: 0,
            seed: 11,
            is_direct: false,
            fsync: true,
            fsync_per_write: false,
            waits_between: false,
            deadline_ns: None,
            wears_out: false,
            quits: false,
        }
    }

    fn done(order: &IorOrder, barriers: &[u64]) -> PhaseReport {
        carry_out(order, &mut alone(barriers)).unwrap_or_else(|error| panic!("{error:?}"))
    }

    #[test]
    fn what_was_written_is_read_checked_and_removed() {
        let write = order(Access::Write, "access");
        let report = done(&write, &[0]);
        assert_eq!((report.operations, report.bytes), (4, 16_384));
        assert!(report.ended_ns > report.began_ns);
        let path = write.layout.path(0);
        let file = File::options().read(true).write(true).open(&path).expect("it is there");
        assert_eq!(seed_of(&file).expect("read"), Some(11));
        assert_eq!(done(&order(Access::Read, "access"), &[0]).bytes, 16_384);

        let check = order(Access::Check, "access");
        assert_eq!(done(&check, &[0]).wrong, 0);
        let mut byte = [0];
        file.read_exact_at(&mut byte, 9000).expect("read");
        file.write_all_at(&[byte[0] ^ 4], 9000).expect("written");
        let found = done(&check, &[0]);
        let first = found.first_wrong.expect("it is noticed");
        assert!(found.wrong == 1 && first.contains("byte 9000 of"), "{first}");

        file.set_len(10_000).expect("shorter");
        let short = carry_out(&check, &mut alone(&[0])).expect_err("it is too short");
        assert!(short.to_string().contains("ends at byte 10000, expected 12288"), "{short}");
        done(&order(Access::Remove, "access"), &[0]);
        assert!(!path.exists());
    }

    #[test]
    fn a_rank_that_is_late_goes_on_as_far_as_the_fastest() {
        let deadline =
            |wears_out| IorOrder { deadline_ns: Some(0), wears_out, ..order(Access::Write, "late") };
        assert_eq!(done(&deadline(false), &[0]).operations, 0);
        let report = done(&deadline(true), &[0, 3]);
        assert_eq!((report.operations, report.bytes), (3, 12_288), "another rank has made 3");
        fs::remove_file(deadline(true).layout.path(0)).expect("it is there");
    }
}
