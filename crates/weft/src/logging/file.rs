//! A log in files of bounded size: `FILE` is written, `FILE.1` is the one before, and so on.
//!
//! It owns their number and their size, so that a log never fills a disk. The process's standard error leads to the file
//! in use, so that what a panic says is in the log as well.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The file in use, and how many are kept beside it.
pub(super) struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    /// With the one in use.
    files_max: u16,
    state: Mutex<State>,
}

struct State {
    file: File,
    leads_stderr: bool,
}

impl LogFile {
    /// Opens the file, behind what it holds.
    pub(super) fn open(path: &Path, bytes_max: u64, files_max: u16) -> io::Result<LogFile> {
        let state = Mutex::new(State { file: append(path)?, leads_stderr: false });
        Ok(LogFile { path: path.to_owned(), bytes_max, files_max, state })
    }

    /// Leads the standard error of this process to the file in use, from now on.
    pub(super) fn take_over_stderr(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.leads_stderr = true;
        lead_stderr(&state.file)
    }

    /// Writes what belongs together; into a new file if it would pass the bound. A line longer than the bound is
    /// written all the same.
    fn write_line(&self, line: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked anew each time, because a panic's words take another way into the file; lines are rare.
        let length = state.file.metadata()?.len();
        if length > 0 && length + line.len() as u64 > self.bytes_max {
            self.begin_anew(&mut state)?;
        }
        state.file.write_all(line)
    }

    /// Puts the file aside. If that fails the old one goes on: a log that grows is better than none.
    fn begin_anew(&self, state: &mut State) -> io::Result<()> {
        if self.files_max == 1 {
            return state.file.set_len(0);
        }
        for age in (1..self.files_max).rev() {
            let from = if age == 1 { self.path.clone() } else { self.aged(age - 1) };
            match fs::rename(&from, self.aged(age)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Ok(()),
                _ => {}
            }
        }
        if let Ok(file) = append(&self.path) {
            state.file = file;
            if state.leads_stderr {
                lead_stderr(&state.file)?;
            }
        }
        Ok(())
    }

    /// The name of a file that was put aside so many files ago.
    fn aged(&self, age: u16) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{age}"));
        name.into()
    }
}

impl Write for &LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_line(line).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

fn lead_stderr(file: &File) -> io::Result<()> {
    // SAFETY: dup2(2) takes two numbers and touches no memory of ours; the file is open for the whole call, and nothing
    // in this process owns the number of the standard error.
    match unsafe { libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_go_and_the_newest_stay() {
        let dir = std::env::temp_dir().join(format!("weft-log-file-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("made");
        let path = dir.join("a.log");
        fs::write(&path, "before\n").expect("written");
        let log = LogFile::open(&path, 100, 3).expect("opened");
        for i in 0..100 {
            (&log).write_all(format!("line {i:04}\n").as_bytes()).expect("written");
        }
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        // Ten bytes a line: nine lines fit behind what was there, then ten into each file.
        let lines = |of: std::ops::Range<u32>| of.map(|i| format!("line {i:04}\n")).collect::<String>();
        assert_eq!(read("a.log"), lines(99..100));
        assert_eq!(read("a.log.1"), lines(89..99));
        assert_eq!(read("a.log.2"), lines(79..89));
        let names = fs::read_dir(&dir).expect("read").count();
        assert_eq!(names, 3, "no more than three files");
        let total: usize = ["a.log", "a.log.1", "a.log.2"].iter().map(|name| read(name).len()).sum();
        assert!(total <= 300, "{total} bytes");
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn one_file_alone_is_cut() {
        let dir = std::env::temp_dir().join(format!("weft-log-one-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("made");
        let log = LogFile::open(&dir.join("a.log"), 100, 1).expect("opened");
        for i in 0..25 {
            (&log).write_all(format!("line {i:04}\n").as_bytes()).expect("written");
        }
        let left = fs::read_to_string(dir.join("a.log")).expect("read");
        assert_eq!(left, (20..25).map(|i| format!("line {i:04}\n")).collect::<String>());
        assert_eq!(fs::read_dir(&dir).expect("read").count(), 1);
        fs::remove_dir_all(&dir).expect("removed");
    }
}
