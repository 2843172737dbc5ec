//! Logs: what is written, in which form, and where to.
//!
//! Commands say only what went wrong, on the standard error. Daemons say what happens to them, as text for people or as
//! JSON lines for programs, on the standard error or in files of bounded size.

mod file;
mod json;

use file::LogFile;
use json::JsonLines;
use std::io::IsTerminal;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use weft_cli::{CliError, LogArgs, LogFormat, Span};

/// The smallest file that a log may be bounded to: below, a burst of lines would push out what led to it.
const FILE_BYTES_MIN: u64 = 64 << 10;

/// What a daemon is, on each of its JSON lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Daemon<'a> {
    /// What it does: `manager`, `node`, `nbd`.
    pub(crate) kind: &'static str,
    /// The node's name, for one that is a node.
    pub(crate) node: Option<&'a str>,
    /// What is logged where nothing else is said.
    pub(crate) default: LevelFilter,
}

/// For a command: only what its user should know, from a level on. Its environment may ask for more, as it
/// does of daemons.
pub(crate) fn start_for_command(default: LevelFilter) {
    let filter = EnvFilter::builder().with_default_directive(default.into());
    if let Some(threshold) =
        std::env::var("WEFT_SLOW_REQUEST").ok().and_then(|text| text.parse::<Span>().ok())
    {
        weft_rpc::set_slow_request(threshold.0);
    }
    let is_coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter.with_env_var("WEFT_LOG").from_env_lossy())
        .with_writer(std::io::stderr)
        .with_ansi(is_coloured)
        .init();
}

/// For a daemon: what happens to it, with the time. From then on all that the process says is in the log file, if one
/// is named.
///
/// # Errors
/// If the level cannot be understood, or the file not be written.
pub(crate) fn start_for_daemon(daemon: Daemon<'_>, args: &LogArgs) -> Result<(), CliError> {
    let filter = filter(args.log_level.as_deref().unwrap_or(""), daemon.default)?;
    weft_rpc::set_slow_request(args.slow_request.0);
    let (writer, is_file) = match &args.log_file {
        None => (BoxMakeWriter::new(std::io::stderr), false),
        Some(path) => {
            let bytes = args.log_file_size.0;
            if bytes < FILE_BYTES_MIN {
                return Err(CliError::Usage {
                    message: format!("--log-file-size is {bytes} bytes, expected {FILE_BYTES_MIN} at least"),
                    hint: "choose 64KiB or more: `--log-file-size 8MiB`".into(),
                });
            }
            let file =
                LogFile::open(path, bytes, args.log_files).map_err(CliError::file("open the log", path))?;
            file.take_over_stderr().map_err(CliError::file("write to the log", path))?;
            (BoxMakeWriter::new(Arc::new(file)), true)
        }
    };
    let is_coloured = !is_file && std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let start = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(is_coloured);
    match args.log_format {
        LogFormat::Text => start.init(),
        LogFormat::Json => start.event_format(JsonLines::new(daemon)).init(),
    }
    Ok(())
}

fn filter(directives: &str, default: LevelFilter) -> Result<EnvFilter, CliError> {
    EnvFilter::builder().with_default_directive(default.into()).parse(directives).map_err(|error| {
        CliError::Usage {
            message: format!("'{directives}' is no log level: {error}"),
            hint: "expected error, warn, info, debug or trace, or levels by module: info,weft_target=debug"
                .into(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_understood_or_refused_with_a_hint() {
        for good in ["", "debug", "info,weft_target=debug", "weft_client::replicate=trace"] {
            assert!(filter(good, LevelFilter::INFO).is_ok(), "{good}");
        }
        for bad in ["loud=5=6", "weft_target=loud"] {
            let error = filter(bad, LevelFilter::INFO).err().unwrap_or_else(|| panic!("{bad} is taken"));
            assert!(
                error.to_string().contains(bad) && error.hint().contains("expected error, warn"),
                "{error}"
            );
        }
    }
}
