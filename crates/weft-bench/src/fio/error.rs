//! What can go wrong with fio.

use std::io;

/// Why fio has measured nothing.
#[derive(Debug, thiserror::Error)]
pub enum FioError {
    /// There is no such program.
    #[error("fio is not installed where it has to run")]
    Missing(#[source] io::Error),
    /// It was built without the engine for NBD.
    #[error("this fio has no engine for NBD: {words}")]
    NoEngine {
        /// What it said.
        words: String,
    },
    /// The job file is not one that can run.
    #[error("the job file {what}")]
    JobFile {
        /// What is wrong with it.
        what: String,
    },
    /// It ran, and failed.
    #[error("fio failed: {words}")]
    Failed {
        /// How, and what it said.
        words: String,
    },
    /// What it said is no result.
    #[error("what fio said is no JSON of fio 3: {what}")]
    Said {
        /// Why not.
        what: String,
    },
}

impl FioError {
    /// What the user could do.
    pub fn hint(&self) -> &'static str {
        match self {
            FioError::Missing(_) => {
                "install it on every machine that runs clients, such as with `apt install fio`"
            }
            FioError::NoEngine { .. } => {
                "it needs one that was built with libnbd, as Debian's is: `fio --enghelp=nbd` has to know it"
            }
            FioError::JobFile { .. } => {
                "`fio --parse-only FILE` says what fio makes of it; which volume it runs on need not be in it"
            }
            FioError::Failed { .. } => {
                "`weft status` says how the fabric is; a job's size and offset have to fit the volume"
            }
            FioError::Said { .. } => "`fio --version` has to say 3.0 or newer",
        }
    }
}
