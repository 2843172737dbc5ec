//! Options of every daemon: what it logs, how, and where to. It holds the arguments only; the program does it.

use crate::size::Size;
use crate::span::Span;
use std::path::PathBuf;

/// How lines of a log are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object on each line
    Json,
}

/// What a daemon logs, how, and where to.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// How the log is written
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "WEFT_LOG_FORMAT",
        default_value = "text",
        hide_env_values = true
    )]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace; or by module, such as info,weft_target=debug
    #[arg(long, value_name = "LEVEL", env = "WEFT_LOG", hide_env_values = true)]
    pub log_level: Option<String>,
    /// From when on a request counts as slow and is logged, such as 200ms
    #[arg(
        long,
        value_name = "SPAN",
        env = "WEFT_SLOW_REQUEST",
        default_value = "1s",
        hide_env_values = true
    )]
    pub slow_request: Span,
    /// The file to log to, with all else that is said on the standard error [default: only there]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// How large the file may become before it is put aside as FILE.1 and begun anew
    #[arg(long, value_name = "SIZE", default_value = "8MiB", requires = "log_file")]
    pub log_file_size: Size,
    /// How many files are kept, the one in use among them; older ones are removed
    #[arg(long, value_name = "N", default_value_t = 4, requires = "log_file",
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub log_files: u16,
}
