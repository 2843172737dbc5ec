//! A job file of fio, made to run on a volume that is served over NBD. Pure.
//!
//! What says where the data is and by which way it is reached is taken out of every section, and stands once, in a
//! section of its own before all others; everything else is left as it is.

use super::FioError;

/// Options that say where the data is and how it is reached.
const REPLACED: [&str; 8] =
    ["ioengine", "uri", "filename", "filename_format", "directory", "nrfiles", "unlink", "create_on_open"];

/// Sections that are no job.
const GLOBAL: &str = "global";

/// A job file, as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFile {
    text: String,
    writes: bool,
}

impl JobFile {
    /// Reads it.
    ///
    /// # Errors
    /// [`FioError::JobFile`] if it has no job, or goes on in other files.
    pub fn parse(text: &str) -> Result<JobFile, FioError> {
        let wrong = |what: String| Err(FioError::JobFile { what });
        let (mut jobs, mut is_in_section, mut writes) = (0, false, false);
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(section) = section(line) {
                is_in_section = true;
                jobs += usize::from(section != GLOBAL);
            } else if line == "include" || line.starts_with("include ") {
                return wrong(format!("includes another one in line {}: put that in its place", number + 1));
            } else if let Some((name, value)) = option(line) {
                if !is_in_section {
                    return wrong(format!("has '{name}' before any section, in line {}", number + 1));
                }
                let is_read = matches!(value.split(':').next(), Some("read" | "randread"));
                writes |= matches!(name, "rw" | "readwrite") && !is_read;
            }
        }
        match jobs {
            0 => wrong("has no job: a section such as [random-reads]".into()),
            _ => Ok(JobFile { text: text.to_owned(), writes }),
        }
    }

    /// Whether some job may write.
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// As it was given.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// As fio is to run it, on what is served there.
    pub(crate) fn on(&self, uri: &str) -> String {
        let mut out = format!("[{GLOBAL}]\nioengine=nbd\nuri={uri}\n");
        for line in self.text.lines() {
            let is_replaced = option(line.trim()).is_some_and(|(name, _)| REPLACED.contains(&name));
            if !is_replaced {
                out.push_str(line);
                out.push('\n');
            }
        }
        out
    }
}

/// The name of the section that a line begins.
fn section(line: &str) -> Option<&str> {
    line.strip_prefix('[')?.split(']').next().map(str::trim)
}

/// An option and its value; the latter is empty where it stands for itself.
fn option(line: &str) -> Option<(&str, &str)> {
    if line.is_empty() || line.starts_with([';', '#', '[']) {
        return None;
    }
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    Some((name.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "; a comment\n[global]\nioengine = libaio\ndirect=1\nfilename=/dev/sdz\n\n[first]\nrw=randread:8\n\
                        bs=4k\n# ioengine=psync\n[second]\nreadwrite=randread\nstonewall\n";

    #[test]
    fn only_where_the_data_is_changes() {
        let file = JobFile::parse(FILE).expect("it has two jobs");
        assert!(!file.writes());
        let expected = "[global]\nioengine=nbd\nuri=nbd+unix:///v?socket=/s\n; a comment\n[global]\ndirect=1\n\n[first]\n\
                        rw=randread:8\nbs=4k\n# ioengine=psync\n[second]\nreadwrite=randread\nstonewall\n";
        assert_eq!(file.on("nbd+unix:///v?socket=/s"), expected);
    }

    #[test]
    fn whatever_is_not_only_read_counts_as_written() {
        let writes = |rw: &str| JobFile::parse(&format!("[job]\n{rw}\n")).expect("a job").writes();
        assert!(!writes("bs=4k") && !writes("rw=read"));
        for rw in ["rw=write", "rw=randrw", "readwrite = randtrim", "rw=trimwrite", "rw=rw", "rw=nonsense"] {
            assert!(writes(rw), "{rw}");
        }
    }

    #[test]
    fn a_file_without_jobs_or_in_parts_is_refused() {
        for (text, word) in [
            ("", "no job"),
            ("[global]\nrw=read\n", "no job"),
            ("[job]\ninclude other.fio\n", "line 2"),
            ("rw=read\n[job]\n", "before any section"),
        ] {
            let error = JobFile::parse(text).expect_err(word).to_string();
            assert!(error.contains(word), "'{word}' is not in '{error}'");
        }
    }
}
